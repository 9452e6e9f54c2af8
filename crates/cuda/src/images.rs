//! From 8-bit images to the network's input.

use crate::checks::{Argument, Expected, number, on_one_gpu};
use crate::shim::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use tch::{Kind, Tensor};

/// Channels of an image.
const CHANNELS: i64 = 4;
/// What the kernel counts in 32 bits.
const COUNT: i64 = i32::MAX as i64;

/// The second view of a batch of images: `lambda * first + (1 - lambda) * second`, with images like
/// those of the first view and `lambda` of `[K, batch]`, all contiguous.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Mixture<'a> {
    pub first: &'a Tensor,
    pub second: &'a Tensor,
    pub lambda: &'a Tensor,
}

/// Converts contiguous 8-bit images `[batch, K, H, W, C]` with up to 4 channels to network input
/// `[views * batch, K * C, H, W]`, channels last: x * scale - shift by channel, with the mixture, if
/// given, as the second view. In half precision C is padded to eight, as [`conv_before_norm`](crate::conv_before_norm()) requires.
pub fn images(
    fix: &Tensor,
    mixture: Option<&Mixture>,
    scale: &[f32],
    shift: &[f32],
    half: bool,
) -> Result<Tensor> {
    check_images(fix, mixture, [scale.len(), shift.len()])?;
    let mut out = null_mut();
    // SAFETY: all tensors are alive and were checked, and there is one number per channel; we own the
    // result.
    unsafe {
        check(fa_images(
            raw(fix),
            raw_option(mixture.map(|m| m.first)),
            raw_option(mixture.map(|m| m.second)),
            raw_option(mixture.map(|m| m.lambda)),
            scale.as_ptr(),
            shift.as_ptr(),
            c_int::from(half),
            &mut out,
        ))?;
        Ok(Tensor::from_ptr(out))
    }
}

/// Checks the images and the numbers of scales and shifts.
fn check_images(fix: &Tensor, mixture: Option<&Mixture>, numbers: [usize; 2]) -> Result<()> {
    let fix = Argument::new("fix", fix)?.with_kind(&[Kind::Uint8])?;
    let size: [i64; 5] = fix.dimensions("dimensions of fix")?;
    let [batch, clients, height, width, channels] = size;
    number("channels of fix", Expected::Between(1, CHANNELS), channels)?;
    for (what, found) in ["scales", "shifts"].into_iter().zip(numbers) {
        number(what, Expected::Between(channels, channels), found as i64)?;
    }
    number("pixels of an image", Expected::Between(1, COUNT), height.saturating_mul(width))?;
    number("images of fix", Expected::Between(1, COUNT), batch.saturating_mul(clients))?;
    let fix = fix.contiguous()?;
    let mut others = Vec::new();
    if let Some(Mixture { first, second, lambda }) = mixture {
        for (name, images) in [("first", first), ("second", second)] {
            others.push(Argument::dense(name, images, Kind::Uint8, &size)?);
        }
        others.push(Argument::dense("lambda", lambda, Kind::Float, &[clients, batch])?);
    }
    on_one_gpu(fix, &others)
}
