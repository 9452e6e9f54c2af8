//! A plain CNN: two 3x3 convolutions of 32 and 64 channels without padding, a 2x2 maximum, a hidden
//! layer of 128. The network of pfl-research's public CIFAR-10 benchmark, without its dropout; it has no
//! normalisation and one stage.

use super::layers::{Builder, Conv, Linear, Pass};
use super::operations::{Operation, Operations, Value};
use crate::error::Result;
use crate::tensors::Part;
use tch::Tensor;

/// Width of the hidden layer.
pub(super) const HIDDEN: i64 = 128;

#[derive(Debug)]
pub(super) struct Cnn {
    conv1: Conv,
    bias1: usize,
    conv2: Conv,
    bias2: usize,
    hidden: Linear,
}

impl Cnn {
    pub(super) fn new(builder: &mut Builder, channels: i64, side: i64) -> Self {
        let pooled = (side - 4) / 2;
        let (conv1, bias1) = builder.valid_conv("conv1", channels, 32, 3);
        let (conv2, bias2) = builder.valid_conv("conv2", 32, 64, 3);
        let hidden = builder.linear("hidden", 64 * pooled * pooled, HIDDEN, Part::Backbone);
        Self { conv1, bias1, conv2, bias2, hidden }
    }

    /// `[batch, K*C, H, W]` to `[K, batch, HIDDEN]`.
    pub(super) fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let biased = |x: &Tensor, bias: usize| -> Result<Tensor> {
            let bias = pass.tensors[bias].f_view([1, -1, 1, 1])?.f_to_kind(pass.kind)?;
            Ok(x.f_add(&bias)?.f_relu_()?)
        };
        let x = biased(&self.conv1.forward(x, pass)?, self.bias1)?;
        let x = biased(&self.conv2.forward(&x, pass)?, self.bias2)?;
        let x = x.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?;
        let (batch, clients) = (x.size()[0], pass.tensors[0].size()[0]);
        let flat = x.f_contiguous()?.f_view([batch, clients, -1])?.f_transpose(0, 1)?;
        Ok(self.hidden.forward(&flat.f_to_kind(tch::Kind::Float)?, pass)?.f_relu_()?)
    }

    /// The operations up to the hidden layer.
    pub(super) fn describe(&self, to: &mut Operations) -> Value {
        let input = self.conv1.describe_biased(to, Operations::INPUT, self.bias1);
        let input = to.push(Operation::Relu { input });
        let input = self.conv2.describe_biased(to, input, self.bias2);
        let input = to.push(Operation::Relu { input });
        let input = to.push(Operation::MaxPool { input, kernel: 2, stride: 2, padding: 0 });
        let input = to.push(Operation::Flatten { input });
        let input = self.hidden.describe(to, input);
        to.push(Operation::Relu { input })
    }
}
