//! ResNet-18 with the CIFAR stem (He et al., 2016): a 3x3 convolution instead of 7x7 and pooling,
//! then four stages of two basic blocks. Post-activation is the paper's "most standard version";
//! pre-activation (He et al., 2016b) is what SemiFL's code uses.

use super::layers::{Builder, Conv, Flow, NormLayer, Pass};
use crate::error::Result;

/// The body of a network: its input convolution, its stages, and what follows the last one.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) stem: Conv,
    /// Post-activation networks normalise the stem, pre-activation ones the end.
    pub(super) stem_norm: Option<NormLayer>,
    pub(super) stages: Vec<Vec<Block>>,
    pub(super) end_norm: Option<NormLayer>,
    /// Channels after each stage.
    pub(super) widths: Vec<i64>,
}

/// A residual block of two 3x3 convolutions.
#[derive(Debug)]
pub(super) enum Block {
    /// conv - norm - ReLU - conv - norm, plus the shortcut, then ReLU.
    Post {
        conv1: Conv,
        norm1: NormLayer,
        conv2: Conv,
        norm2: NormLayer,
        shortcut: Option<(Conv, NormLayer)>,
    },
    /// norm - ReLU - conv - norm - ReLU - conv, plus the shortcut.
    Pre { norm1: NormLayer, conv1: Conv, norm2: NormLayer, conv2: Conv, shortcut: Option<Conv> },
}

/// ResNet-18: stages of 64, 128, 256, 512 channels.
pub(super) fn resnet18(builder: &mut Builder, channels: i64, preactivation: bool) -> Body {
    let widths = [64, 128, 256, 512];
    let stem = builder.conv("conv1", channels, 64, 3, 1);
    let stem_norm = (!preactivation).then(|| builder.norm("bn1", 64));
    let mut from = 64;
    let mut stages = Vec::new();
    for (stage, to) in widths.into_iter().enumerate() {
        let blocks = (0..2).map(|index| {
            let name = format!("layer{}.{index}", stage + 1);
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let block = if preactivation {
                Block::pre(builder, &name, from, to, stride)
            } else {
                Block::post(builder, &name, from, to, stride)
            };
            from = to;
            block
        });
        stages.push(blocks.collect());
    }
    let end_norm = preactivation.then(|| builder.norm("bn", 512));
    Body { stem, stem_norm, stages, end_norm, widths: widths.to_vec() }
}

impl Block {
    pub(super) fn post(builder: &mut Builder, name: &str, from: i64, to: i64, stride: i64) -> Self {
        let conv1 = builder.conv(&format!("{name}.conv1"), from, to, 3, stride);
        let norm1 = builder.norm(&format!("{name}.bn1"), to);
        let conv2 = builder.conv(&format!("{name}.conv2"), to, to, 3, 1);
        let norm2 = builder.norm(&format!("{name}.bn2"), to);
        let shortcut = (stride != 1 || from != to).then(|| {
            let conv = builder.conv(&format!("{name}.downsample.0"), from, to, 1, stride);
            (conv, builder.norm(&format!("{name}.downsample.1"), to))
        });
        Self::Post { conv1, norm1, conv2, norm2, shortcut }
    }

    pub(super) fn pre(builder: &mut Builder, name: &str, from: i64, to: i64, stride: i64) -> Self {
        let norm1 = builder.norm(&format!("{name}.bn1"), from);
        let conv1 = builder.conv(&format!("{name}.conv1"), from, to, 3, stride);
        let norm2 = builder.norm(&format!("{name}.bn2"), to);
        let conv2 = builder.conv(&format!("{name}.conv2"), to, to, 3, 1);
        let shortcut = (stride != 1 || from != to)
            .then(|| builder.conv(&format!("{name}.shortcut"), from, to, 1, stride));
        Self::Pre { norm1, conv1, norm2, conv2, shortcut }
    }

    pub(super) fn forward(&self, flow: Flow, pass: &Pass) -> Result<Flow> {
        match self {
            Self::Post { conv1, norm1, conv2, norm2, shortcut } => {
                let again = flow.other.as_ref().unwrap_or(&flow.x);
                let skip = match shortcut {
                    Some((conv, norm)) => norm.plain(&conv.forward(again, pass)?, pass)?,
                    None => again.shallow_clone(),
                };
                let branch = norm1.relu(&conv1.forward(&flow.x, pass)?, pass)?;
                norm2.residual_relu(&conv2.forward(&branch, pass)?, &skip, pass)
            }
            Self::Pre { norm1, conv1, norm2, conv2, shortcut } => {
                let (active, sum) = norm1.relu_sum(flow, pass)?;
                let branch = norm2.relu(&conv1.forward(&active, pass)?, pass)?;
                let branch = conv2.forward(&branch, pass)?;
                // A shortcut that changes shape starts from the activated input, an identity from the raw one.
                let skip = match shortcut {
                    Some(conv) => conv.forward(&active, pass)?,
                    None => sum,
                };
                Ok(Flow { x: branch, other: Some(skip) })
            }
        }
    }
}
