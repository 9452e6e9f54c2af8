//! The models of this crate. Residual networks: ResNet-18 (He et al., 2016) with the CIFAR stem, a 3x3 convolution instead of 7x7 and pooling, or
//! with the original one; Wide ResNet-28-2 (Zagoruyko and Komodakis, 2016); and `small`, for work on a CPU.
//! Post-activation is the paper's "most standard version"; pre-activation (He et al., 2016b) is what SemiFL's code uses.
//! And a plain CNN.

use super::description::{Builder, IMAGES, Padding, Value};
use crate::config::Stem;

/// ResNet-18: four stages of two blocks, 64, 128, 256 and 512 channels.
pub(super) fn resnet18(net: &mut Builder) -> Value {
    let photographs = net.config.stem == Stem::Imagenet;
    let (kernel, stride) = if photographs { (7, 2) } else { (3, 1) };
    let mut x = net.conv("conv1", IMAGES, 64, kernel, stride);
    let block = if net.config.preactivation { pre } else { post };
    if !net.config.preactivation {
        x = net.norm_relu("bn1", x);
    }
    if photographs {
        x = net.max_pool(x, 3, 2, 1);
    }
    x = stages(net, x, &[64, 128, 256, 512], 2, block);
    if net.config.preactivation {
        x = net.norm_relu("bn", x);
    }
    net.pool(x)
}

/// WRN-28-2: three stages of four pre-activation blocks, 32, 64 and 128 channels.
pub(super) fn wrn28x2(net: &mut Builder) -> Value {
    preactivation(net, 1, &[32, 64, 128], 4)
}

/// Three stages of one block, 16, 32 and 64 channels, after a stem of stride 2: a thirtieth of WRN-28-2's arithmetic,
/// and enough to tell the embedded sample's classes apart.
pub(super) fn small(net: &mut Builder) -> Value {
    preactivation(net, 2, &[16, 32, 64], 1)
}

/// Two 3x3 convolutions of 32 and 64 channels without padding, a 2x2 maximum, a hidden layer of 128: the network of
/// pfl-research's public CIFAR-10 benchmark, without its dropout. It has no normalisation and one stage.
pub(super) fn cnn(net: &mut Builder) -> Value {
    let x = net.valid_conv("conv1", IMAGES, 32, 3);
    let x = net.relu(x);
    let x = net.valid_conv("conv2", x, 64, 3);
    let x = net.relu(x);
    let x = net.max_pool(x, 2, 2, 0);
    let x = net.flatten(x);
    let x = net.linear("hidden", x, 128);
    net.relu(x)
}

/// A hidden layer of 64 on the features of a trunk.
pub(super) fn adapter(net: &mut Builder) -> Value {
    let x = net.flatten(IMAGES);
    let x = net.linear("hidden", x, 64);
    net.relu(x)
}

fn preactivation(net: &mut Builder, stride: i64, widths: &[i64], blocks: usize) -> Value {
    let x = net.conv("conv1", IMAGES, 16, 3, stride);
    let x = stages(net, x, widths, blocks, pre);
    let x = net.norm_relu("bn", x);
    net.pool(x)
}

/// A residual block of two 3x3 convolutions from a value, with the width and stride of its result.
type Block = fn(&mut Builder, &str, Value, i64, i64) -> Value;

/// Stages of these widths; all but the first begin with stride 2.
fn stages(net: &mut Builder, mut x: Value, widths: &[i64], blocks: usize, block: Block) -> Value {
    for (stage, &width) in widths.iter().enumerate() {
        if stage > 0 {
            net.end_stage(x);
        }
        for index in 0..blocks {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            x = block(net, &format!("layer{}.{index}", stage + 1), x, width, stride);
        }
    }
    x
}

/// conv - norm - ReLU - conv - norm, plus the shortcut, then ReLU.
fn post(net: &mut Builder, name: &str, x: Value, to: i64, stride: i64) -> Value {
    let branch = net.conv(&format!("{name}.conv1"), x, to, 3, stride);
    let branch = net.norm_relu(&format!("{name}.bn1"), branch);
    let branch = net.conv(&format!("{name}.conv2"), branch, to, 3, 1);
    let branch = net.norm(&format!("{name}.bn2"), branch);
    let mut shortcut = x;
    if stride != 1 || net.channels(x) != to {
        shortcut = net.conv(&format!("{name}.downsample.0"), x, to, 1, stride);
        shortcut = net.norm(&format!("{name}.downsample.1"), shortcut);
    }
    let sum = net.add(branch, shortcut);
    net.relu(sum)
}

/// norm - ReLU - conv - norm - ReLU - conv, plus the shortcut.
fn pre(net: &mut Builder, name: &str, x: Value, to: i64, stride: i64) -> Value {
    let active = net.norm_relu(&format!("{name}.bn1"), x);
    let branch = net.conv(&format!("{name}.conv1"), active, to, 3, stride);
    let branch = net.norm_relu(&format!("{name}.bn2"), branch);
    // Its weight comes before the shortcut's in the layout, and its layer after the shortcut's.
    let conv2 = net.conv_weight(&format!("{name}.conv2"), to, to, 3);
    // A shortcut that changes shape starts from the activated input, an identity from the raw one.
    let shortcut = match stride != 1 || net.channels(x) != to {
        true => net.conv(&format!("{name}.shortcut"), active, to, 1, stride),
        false => x,
    };
    let branch = net.conv_by(conv2, None, branch, 1, Padding::all(1));
    net.add(branch, shortcut)
}
