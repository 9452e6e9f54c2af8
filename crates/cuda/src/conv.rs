//! The grouped convolution.

use crate::checks::{Argument, Expected, GRID, number, on_one_gpu};
use crate::shim::*;
use std::ptr::null_mut;
use tch::{Kind, Tensor};

/// Pixels of a batch: kernels count them, rounded up to a block of at most 256, in 32 bits.
const PIXELS: i64 = i32::MAX as i64 - 256;
/// Channels of all groups: nine taps of them are counted in 32 bits.
const CHANNELS: i64 = 1 << 26;

/// Sums of a convolution's result and of its squares, which the norm that follows then need not compute.
#[derive(Debug)]
pub struct Sums(pub(crate) Tensor);

/// The convolution of a cohort in bfloat16: `x` `[batch, K * inputs, H, W]` and `w`
/// `[K, outputs, inputs, k, k]`, where k is 1 or 3, the stride 1 or 2 and the padding below k; fastest
/// where `x` is channels last and the inputs of `w` are last in memory. A group has 8, 16, 32 and so on
/// channels; if `x` has more of them than `w`, the rest is padding. `add`, of the size and kind of the result, is added
/// to it. With `views`, the sums for that number of equal parts of the batch are returned as well, if a kernel computes
/// them on the way.
pub fn conv_before_norm(
    x: &Tensor,
    w: &Tensor,
    stride: i64,
    padding: i64,
    add: Option<&Tensor>,
    views: Option<i64>,
) -> Result<(Tensor, Option<Sums>)> {
    check_conv(x, w, stride, padding, add, views.unwrap_or(1))?;
    let (mut out, mut sums) = (null_mut(), null_mut());
    // SAFETY: all tensors are alive and were checked; we own the results, of which the second may be null.
    unsafe {
        check(fa_conv(
            raw(x),
            raw(w),
            stride,
            padding,
            raw_option(add),
            views.unwrap_or(0),
            &mut out,
            &mut sums,
        ))?;
        let sums = (!sums.is_null()).then(|| Sums(Tensor::from_ptr(sums)));
        Ok((Tensor::from_ptr(out), sums))
    }
}

fn check_conv(
    x: &Tensor,
    w: &Tensor,
    stride: i64,
    padding: i64,
    add: Option<&Tensor>,
    views: i64,
) -> Result<()> {
    let x = Argument::new("x", x)?.with_kind(&[Kind::BFloat16])?;
    let w = Argument::new("w", w)?.with_kind(&[Kind::BFloat16])?;
    let [batch, channels, height, width] = x.dimensions("dimensions of x")?;
    let [groups, outputs, given, kernel, _] = w.dimensions("dimensions of w")?;
    number("kernel of w", Expected::OneOf(&[1, 3]), kernel)?;
    w.with_size(&[groups, outputs, given, kernel, kernel])?;
    number("stride", Expected::OneOf(&[1, 2]), stride)?;
    number("padding", Expected::Between(0, kernel - 1), padding)?;
    number("groups of w", Expected::Between(1, GRID), groups)?;
    number("channels of x", Expected::Between(1, CHANNELS), channels)?;
    number("channels of x", Expected::MultipleOf(groups), channels)?;
    let inputs = channels / groups;
    number("channels of a group of x", Expected::EightDoubled, inputs)?;
    number("inputs of w", Expected::Between(1, inputs), given)?;
    number("outputs of w", Expected::EightDoubled, outputs)?;
    let produced = groups.saturating_mul(outputs);
    number("channels of the result", Expected::Between(1, CHANNELS), produced)?;
    // At least one place for the kernel, or there is no result.
    let least = kernel - 2 * padding;
    number("height of x", Expected::Between(least, PIXELS), height)?;
    number("width of x", Expected::Between(least, PIXELS), width)?;
    // The gradient of the input counts the pixels of `x`, everything else those of the result.
    let result = |side: i64| (side + 2 * padding - kernel) / stride + 1;
    let pixels = |height: i64, width: i64| batch.saturating_mul(height.saturating_mul(width));
    number("pixels of x", Expected::Between(1, PIXELS), pixels(height, width))?;
    let of_result = pixels(result(height), result(width));
    number("pixels of the result", Expected::Between(1, PIXELS), of_result)?;
    number("views", Expected::Between(1, GRID), views)?;
    number("batch of x", Expected::MultipleOf(views), batch)?;
    let mut others = vec![w];
    if let Some(add) = add {
        let add = Argument::new("add", add)?.with_kind(&[Kind::BFloat16])?;
        others.push(add.with_size(&[batch, produced, result(height), result(width)])?);
    }
    on_one_gpu(x, &others)
}
