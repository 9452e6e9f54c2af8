//! EfficientNet-Lite (Tan and Le, 2019, without squeeze-and-excitation, with ReLU6): networks for small devices whose
//! ImageNet weights serve as trunks.

use super::description::{Builder, IMAGES, Value};

/// Of batch norm, as the published weights were trained with.
const EPSILON: f64 = 1e-3;

/// A stage of inverted residual blocks; the stride is that of the first block.
struct Stage {
    kernel: i64,
    stride: i64,
    /// Channels inside a block, as a multiple of those that enter it.
    expansion: i64,
    to: i64,
    blocks: usize,
}

const fn stage(kernel: i64, stride: i64, expansion: i64, to: i64, blocks: usize) -> Stage {
    Stage { kernel, stride, expansion, to, blocks }
}

/// For images of 224 pixels.
const LITE0: [Stage; 7] = [
    stage(3, 1, 1, 16, 1),
    stage(3, 2, 6, 24, 2),
    stage(5, 2, 6, 40, 2),
    stage(3, 2, 6, 80, 3),
    stage(5, 1, 6, 112, 3),
    stage(5, 2, 6, 192, 4),
    stage(3, 1, 6, 320, 1),
];

/// For images of 240 pixels: 1.1 times as deep.
const LITE1: [Stage; 7] = [
    stage(3, 1, 1, 16, 1),
    stage(3, 2, 6, 24, 3),
    stage(5, 2, 6, 40, 3),
    stage(3, 2, 6, 80, 4),
    stage(5, 1, 6, 112, 4),
    stage(5, 2, 6, 192, 5),
    stage(3, 1, 6, 320, 1),
];

/// For images of 260 pixels: 1.2 times as deep and 1.1 times as wide.
const LITE2: [Stage; 7] = [
    stage(3, 1, 1, 16, 1),
    stage(3, 2, 6, 24, 3),
    stage(5, 2, 6, 48, 3),
    stage(3, 2, 6, 88, 4),
    stage(5, 1, 6, 120, 4),
    stage(5, 2, 6, 208, 5),
    stage(3, 1, 6, 352, 1),
];

pub(super) fn lite0(net: &mut Builder) -> Value {
    lite(net, &LITE0)
}

pub(super) fn lite1(net: &mut Builder) -> Value {
    lite(net, &LITE1)
}

pub(super) fn lite2(net: &mut Builder) -> Value {
    lite(net, &LITE2)
}

fn lite(net: &mut Builder, stages: &[Stage]) -> Value {
    let x = net.same_conv("conv1", IMAGES, 32, (3, 2, 1));
    let mut x = norm_relu6(net, "bn1", x);
    for (number, stage) in stages.iter().enumerate() {
        if number > 0 {
            net.end_stage(x);
        }
        for index in 0..stage.blocks {
            let stride = if index == 0 { stage.stride } else { 1 };
            x = block(net, &format!("layer{}.{index}", number + 1), x, stage, stride);
        }
    }
    let x = net.same_conv("conv2", x, 1280, (1, 1, 1));
    let x = norm_relu6(net, "bn2", x);
    net.pool(x)
}

/// 1x1 convolution to more channels, convolution of each channel, 1x1 convolution to fewer, plus the input.
fn block(net: &mut Builder, name: &str, x: Value, stage: &Stage, stride: i64) -> Value {
    let from = net.channels(x);
    let inside = from * stage.expansion;
    let mut branch = x;
    if stage.expansion > 1 {
        branch = net.same_conv(&format!("{name}.expand"), x, inside, (1, 1, 1));
        branch = norm_relu6(net, &format!("{name}.bn1"), branch);
    }
    let each = (stage.kernel, stride, inside);
    branch = net.same_conv(&format!("{name}.depthwise"), branch, inside, each);
    branch = norm_relu6(net, &format!("{name}.bn2"), branch);
    branch = net.same_conv(&format!("{name}.project"), branch, stage.to, (1, 1, 1));
    branch = net.norm_with(&format!("{name}.bn3"), branch, EPSILON);
    match stride == 1 && from == stage.to {
        true => net.add(branch, x),
        false => branch,
    }
}

fn norm_relu6(net: &mut Builder, name: &str, x: Value) -> Value {
    let x = net.norm_with(name, x, EPSILON);
    net.relu6(x)
}
