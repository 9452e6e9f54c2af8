//! What follows the last convolution: the average over the pixels, and heads with few outputs.

use crate::checks::{Argument, Expected, GRID, number, on_one_gpu};
use crate::shim::*;
use std::ptr::null_mut;
use tch::{Kind, Tensor};

/// What the kernels count in 32 bits, in steps of up to 128.
const COUNT: i64 = i32::MAX as i64 - 128;
/// Pixels that [`pool`] averages: a thread adds up all of a channel.
pub const POOL_PIXELS: i64 = 4096;
/// Outputs of a head: with more of them, a product by tiles is faster.
const OUTPUTS: i64 = 64;
/// Numbers of a client's output: its gradient lies in shared memory.
const NUMBERS: i64 = 8192;

/// The average over the pixels of `x` `[batch, K * channels, H, W]`, in single precision: `[K, batch, channels]`. A client
/// has a multiple of eight channels and an image at most [`POOL_PIXELS`]; fastest where `x` is channels last.
pub fn pool(x: &Tensor, clients: i64) -> Result<Tensor> {
    let argument = Argument::new("x", x)?.with_kind(&[Kind::Float, Kind::BFloat16])?;
    let [batch, columns, height, width] = argument.dimensions("dimensions of x")?;
    number("clients", Expected::Between(1, COUNT), clients)?;
    number("columns of x", Expected::MultipleOf(8 * clients), columns)?;
    number("columns of x", Expected::Between(8, COUNT), columns)?;
    number("batch of x", Expected::Between(1, COUNT), batch)?;
    let pixels = height.saturating_mul(width);
    number("pixels of an image", Expected::Between(1, POOL_PIXELS), pixels)?;
    on_one_gpu(argument, &[])?;
    let mut out = null_mut();
    // SAFETY: the tensor is alive and was checked; we own the result.
    unsafe {
        check(fa_pool(raw(x), clients, &mut out))?;
        Ok(Tensor::from_ptr(out))
    }
}

/// Whether [`head`] computes a head of this size for a batch of this size. Larger ones are products that fill a GPU,
/// which libtorch may compute in TF32.
pub fn is_small_head(batch: i64, outputs: i64) -> bool {
    outputs <= OUTPUTS && batch.saturating_mul(outputs) <= NUMBERS
}

/// A fully connected layer per client: `x` `[K, batch, inputs]`, `weight` `[K, outputs, inputs]` and `bias` `[K, outputs]` in
/// single precision, to `[K, batch, outputs]`. Only where [`is_small_head`].
pub fn head(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let input = Argument::new("x", x)?.with_kind(&[Kind::Float])?;
    let [clients, batch, inputs] = input.dimensions("dimensions of x")?;
    let weights = Argument::new("weight", weight)?.with_kind(&[Kind::Float])?;
    let [_, outputs, _] = weights.dimensions("dimensions of weight")?;
    number("clients of x", Expected::Between(1, GRID), clients)?;
    number("inputs of x", Expected::Between(1, COUNT), inputs)?;
    number("outputs of weight", Expected::Between(1, OUTPUTS), outputs)?;
    number("batch of x", Expected::Between(1, NUMBERS / outputs), batch)?;
    let weights = weights.with_size(&[clients, outputs, inputs])?.contiguous()?;
    let biases = Argument::dense("bias", bias, Kind::Float, &[clients, outputs])?;
    on_one_gpu(input, &[weights, biases])?;
    let mut out = null_mut();
    // SAFETY: all tensors are alive and were checked; we own the result.
    unsafe {
        check(fa_head(raw(x), raw(weight), raw(bias), &mut out))?;
        Ok(Tensor::from_ptr(out))
    }
}
