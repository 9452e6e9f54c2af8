//! EfficientNet-Lite (Tan and Le, 2019, without squeeze-and-excitation, with ReLU6): networks for small devices whose
//! ImageNet weights serve as trunks.

use super::description::{Builder, IMAGES, Value};

/// Of batch norm, as the published weights were trained with.
const EPSILON: f64 = 1e-3;

/// Inverted residual blocks: kernel, stride of the first block, and the channels inside a block as a multiple of those
/// that enter it. The networks differ in the channels and the number of blocks of each stage.
const STAGES: [(i64, i64, i64); 7] =
    [(3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6)];

/// For images of 224 pixels.
pub(super) fn lite0(net: &mut Builder) -> Value {
    lite(net, [16, 24, 40, 80, 112, 192, 320], [1, 2, 2, 3, 3, 4, 1])
}

/// For images of 240 pixels: 1.1 times as deep.
pub(super) fn lite1(net: &mut Builder) -> Value {
    lite(net, [16, 24, 40, 80, 112, 192, 320], [1, 3, 3, 4, 4, 5, 1])
}

/// For images of 260 pixels: 1.2 times as deep and 1.1 times as wide.
pub(super) fn lite2(net: &mut Builder) -> Value {
    lite(net, [16, 24, 48, 88, 120, 208, 352], [1, 3, 3, 4, 4, 5, 1])
}

fn lite(net: &mut Builder, widths: [i64; 7], blocks: [usize; 7]) -> Value {
    let x = net.same_conv("conv1", IMAGES, 32, (3, 2, 1));
    let mut x = norm_relu6(net, "bn1", x);
    for (stage, (kernel, first, expansion)) in STAGES.into_iter().enumerate() {
        if stage > 0 {
            net.end_stage(x);
        }
        for index in 0..blocks[stage] {
            let stride = if index == 0 { first } else { 1 };
            let name = format!("layer{}.{index}", stage + 1);
            x = block(net, &name, x, widths[stage], (kernel, stride, expansion));
        }
    }
    let x = net.same_conv("conv2", x, 1280, (1, 1, 1));
    let x = norm_relu6(net, "bn2", x);
    net.pool(x)
}

/// 1x1 convolution to more channels, convolution of each channel, 1x1 convolution to fewer, plus the input.
fn block(
    net: &mut Builder,
    name: &str,
    x: Value,
    to: i64,
    (kernel, stride, expansion): (i64, i64, i64),
) -> Value {
    let from = net.channels(x);
    let inside = from * expansion;
    let mut branch = x;
    if expansion > 1 {
        branch = net.same_conv(&format!("{name}.expand"), x, inside, (1, 1, 1));
        branch = norm_relu6(net, &format!("{name}.bn1"), branch);
    }
    let each = (kernel, stride, inside);
    branch = net.same_conv(&format!("{name}.depthwise"), branch, inside, each);
    branch = norm_relu6(net, &format!("{name}.bn2"), branch);
    branch = net.same_conv(&format!("{name}.project"), branch, to, (1, 1, 1));
    branch = net.norm_with(&format!("{name}.bn3"), branch, EPSILON);
    match stride == 1 && from == to {
        true => net.add(branch, x),
        false => branch,
    }
}

fn norm_relu6(net: &mut Builder, name: &str, x: Value) -> Value {
    let x = net.norm_with(name, x, EPSILON);
    net.relu6(x)
}
