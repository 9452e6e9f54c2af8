//! ResNet-18 (He et al., 2016) with the CIFAR stem, a 3x3 convolution instead of 7x7 and pooling,
//! or with the original one; then four stages of two basic blocks. Post-activation is the paper's
//! "most standard version"; pre-activation (He et al., 2016b) is what SemiFL's code uses.

use super::layers::{Builder, Conv, Flow, NormLayer, Pass};
use super::operations::{Operation, Operations, Value};
use crate::config::Stem;
use crate::error::Result;
use tch::Tensor;

/// The body of a network: its input convolution, its stages, and what follows the last one.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) stem: Conv,
    /// Post-activation networks normalise the stem, pre-activation ones the end.
    pub(super) stem_norm: Option<NormLayer>,
    /// Whether a 3x3 maximum of stride 2 follows the stem.
    pub(super) stem_pool: bool,
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
pub(super) fn resnet18(
    builder: &mut Builder,
    channels: i64,
    preactivation: bool,
    stem: Stem,
) -> Body {
    let widths = [64, 128, 256, 512];
    let stem_pool = stem == Stem::Imagenet;
    let (kernel, stride) = if stem_pool { (7, 2) } else { (3, 1) };
    let stem = builder.conv("conv1", channels, 64, kernel, stride);
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
    Body { stem, stem_norm, stem_pool, stages, end_norm, widths: widths.to_vec() }
}

impl Body {
    /// The input convolution and what follows it before the first stage.
    pub(super) fn begin(&self, x: &Tensor, pass: &Pass) -> Result<Flow> {
        let stem = self.stem.before_norm(x, None, pass)?;
        Ok(match &self.stem_norm {
            Some(norm) if self.stem_pool => {
                let active = norm.relu(&stem, pass)?;
                Flow::of(active.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?)
            }
            Some(norm) => norm.relu_twice(&stem, pass)?,
            None => stem,
        })
    }

    /// The operations of the stages; returns the pooled output of the last one and of `stage`.
    pub(super) fn describe(&self, to: &mut Operations, stage: usize) -> (Value, Value) {
        let mut x = self.stem.describe(to, Operations::INPUT);
        if let Some(norm) = &self.stem_norm {
            x = norm.describe_relu(to, x);
        }
        if self.stem_pool {
            x = to.push(Operation::MaxPool { input: x, kernel: 3, stride: 2, padding: 1 });
        }
        let mut early = None;
        for (index, blocks) in self.stages.iter().enumerate() {
            x = blocks.iter().fold(x, |x, block| block.describe(to, x));
            if index + 1 == stage && stage < self.stages.len() {
                early = Some(to.push(Operation::GlobalAveragePool { input: x }));
            }
        }
        if let Some(norm) = &self.end_norm {
            x = norm.describe_relu(to, x);
        }
        let pooled = to.push(Operation::GlobalAveragePool { input: x });
        (pooled, early.unwrap_or(pooled))
    }
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
                let again = flow.again.as_ref().unwrap_or(&flow.x);
                let skip = match shortcut {
                    Some((conv, norm)) => {
                        norm.plain(&conv.before_norm(again, None, pass)?, pass)?
                    }
                    None => again.shallow_clone(),
                };
                let branch = norm1.relu(&conv1.before_norm(&flow.x, None, pass)?, pass)?;
                norm2.residual_relu(&conv2.before_norm(&branch, None, pass)?, &skip, pass)
            }
            Self::Pre { norm1, conv1, norm2, conv2, shortcut } => {
                // A shortcut that changes shape starts from the activated input, an identity from the raw one.
                let (active, skip) = match shortcut {
                    Some(conv) => {
                        let Flow { x, again, .. } = norm1.relu_twice(&flow, pass)?;
                        let skip = conv.forward(again.as_ref().unwrap_or(&x), pass)?;
                        (x, skip)
                    }
                    None => norm1.relu_passing(flow, pass)?,
                };
                let branch = norm2.relu(&conv1.before_norm(&active, None, pass)?, pass)?;
                conv2.before_norm(&branch, Some(&skip), pass)
            }
        }
    }

    fn describe(&self, to: &mut Operations, x: Value) -> Value {
        let (branch, skip) = match self {
            Self::Post { conv1, norm1, conv2, norm2, shortcut } => {
                let branch = conv1.describe(to, x);
                let branch = norm1.describe_relu(to, branch);
                let branch = conv2.describe(to, branch);
                let branch = norm2.describe(to, branch);
                let skip = match shortcut {
                    Some((conv, norm)) => {
                        let skip = conv.describe(to, x);
                        norm.describe(to, skip)
                    }
                    None => x,
                };
                let input = to.push(Operation::Add { left: branch, right: skip });
                return to.push(Operation::Relu { input });
            }
            Self::Pre { norm1, conv1, norm2, conv2, shortcut } => {
                let active = norm1.describe_relu(to, x);
                let branch = conv1.describe(to, active);
                let branch = norm2.describe_relu(to, branch);
                let skip = shortcut.as_ref().map_or(x, |conv| conv.describe(to, active));
                (conv2.describe(to, branch), skip)
            }
        };
        to.push(Operation::Add { left: branch, right: skip })
    }
}
