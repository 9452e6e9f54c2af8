//! A network as a list of plain operations, for whoever writes it in another form. The list is of one
//! network as it is used, not of a cohort in training: batch norm takes its running statistics.

use crate::tensors::Entry;

/// The number of a value: 0 is the batch of images `[batch, C, H, W]`, and n is what operation n - 1 of
/// the list computes.
pub type Value = usize;

/// One operation. `weight`, `bias`, `mean` and `variance` are positions in the network's layout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    /// A square convolution.
    Conv {
        /// What it reads.
        input: Value,
        /// Its weight, `[to, from, kernel, kernel]`.
        weight: usize,
        /// Its bias, `[to]`.
        bias: Option<usize>,
        /// Step between two outputs, along either axis.
        stride: i64,
        /// Zeros around the image, on every side.
        padding: i64,
    },
    /// Batch norm with running statistics.
    BatchNorm {
        /// What it reads.
        input: Value,
        /// Its weight, one per channel.
        weight: usize,
        /// Its bias.
        bias: usize,
        /// The running mean.
        mean: usize,
        /// The running variance.
        variance: usize,
        /// Added to the variance.
        epsilon: f64,
    },
    /// Group norm.
    GroupNorm {
        /// What it reads.
        input: Value,
        /// Its weight, one per channel.
        weight: usize,
        /// Its bias.
        bias: usize,
        /// Groups of channels.
        groups: i64,
        /// Added to the variance.
        epsilon: f64,
    },
    /// max(x, 0).
    Relu {
        /// What it reads.
        input: Value,
    },
    /// The sum of two values of the same shape.
    Add {
        /// One of them.
        left: Value,
        /// The other.
        right: Value,
    },
    /// The maximum over square windows.
    MaxPool {
        /// What it reads.
        input: Value,
        /// Side of a window.
        kernel: i64,
        /// Step between two windows.
        stride: i64,
        /// Width of the border that never is the maximum.
        padding: i64,
    },
    /// The mean over all pixels: `[batch, C, H, W]` to `[batch, C]`.
    GlobalAveragePool {
        /// What it reads.
        input: Value,
    },
    /// `[batch, C, H, W]` to `[batch, C * H * W]`.
    Flatten {
        /// What it reads.
        input: Value,
    },
    /// A linear layer: `x W^T + b`.
    Linear {
        /// What it reads, `[batch, from]`.
        input: Value,
        /// Its weight, `[to, from]`.
        weight: usize,
        /// Its bias, `[to]`.
        bias: usize,
    },
}

/// The operations of a network, in the order of their computation, and which values are its results.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Operations {
    /// The operations; the first computes value 1.
    pub list: Vec<Operation>,
    /// Pooled features, `[batch, F]`.
    pub pooled: Value,
    /// The classification head's output, `[batch, classes]`.
    pub logits: Value,
    /// The anchor head's output before it is scaled to length 1, `[batch, latent_dim]`.
    pub latents: Option<Value>,
}

impl Operations {
    /// The batch of images.
    pub const INPUT: Value = 0;

    /// Numbers that all convolutions compute for one image of this side: training keeps at least these until the
    /// gradients have been computed.
    pub fn convolved(&self, layout: &[Entry], side: usize) -> u64 {
        let (mut sides, mut numbers) = (vec![side as i64], 0);
        for operation in &self.list {
            let after = |input: Value, kernel: i64, stride: i64, padding: i64| {
                ((sides[input] + 2 * padding - kernel) / stride + 1).max(0)
            };
            sides.push(match *operation {
                Operation::Conv { input, weight, stride, padding, .. } => {
                    let side = after(input, layout[weight].shape[2], stride, padding);
                    numbers += (layout[weight].shape[0] * side * side) as u64;
                    side
                }
                Operation::MaxPool { input, kernel, stride, padding } => {
                    after(input, kernel, stride, padding)
                }
                Operation::BatchNorm { input, .. }
                | Operation::GroupNorm { input, .. }
                | Operation::Relu { input }
                | Operation::Add { left: input, .. } => sides[input],
                Operation::GlobalAveragePool { .. }
                | Operation::Flatten { .. }
                | Operation::Linear { .. } => 1,
            });
        }
        numbers
    }

    /// Adds an operation and returns the value that it computes.
    pub(super) fn push(&mut self, operation: Operation) -> Value {
        self.list.push(operation);
        self.list.len()
    }
}
