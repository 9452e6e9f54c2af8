//! The fused operations.

use crate::GraphError;
use crate::shim::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use tch::Tensor;
use torch_sys::C_tensor;

/// How a norm uses its statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistics {
    /// Normalise by the batch and update the running statistics with this momentum.
    Update(f64),
    /// Normalise by the batch.
    Batch,
    /// Normalise by the running statistics; no gradient.
    Running,
}

/// One batch norm of a cohort over `views` equal parts of the batch, each with separate statistics:
/// `x` is `[views * batch, columns, H, W]`, channels last; the parameters are `[columns]`.
#[derive(Debug)]
pub struct Norm<'a> {
    /// Weight.
    pub weight: &'a Tensor,
    /// Bias.
    pub bias: &'a Tensor,
    /// Running mean.
    pub mean: &'a Tensor,
    /// Running variance.
    pub variance: &'a Tensor,
    /// How the statistics are used.
    pub statistics: Statistics,
    /// Equal parts of the batch.
    pub views: i64,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether ReLU follows.
    pub relu: bool,
}

impl Norm<'_> {
    fn call(
        &self,
        x: &Tensor,
        add: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (mode, momentum) = match self.statistics {
            Statistics::Update(share) => (0, share),
            Statistics::Batch => (1, 0.0),
            Statistics::Running => (2, 0.0),
        };
        let (mut first, mut second) = (null_mut(), null_mut());
        // SAFETY: all tensors are alive; on success both results are new tensors that we own.
        unsafe {
            check(fa_norm(
                raw(x),
                raw_option(add),
                raw_option(residual),
                raw(self.weight),
                raw(self.bias),
                raw(self.mean),
                raw(self.variance),
                c_int::from(self.relu),
                self.views,
                mode,
                momentum,
                self.epsilon,
                &mut first,
                &mut second,
            ))?;
            Ok((Tensor::from_ptr(first), Tensor::from_ptr(second)))
        }
    }

    /// act(norm(x)), twice: the same values with separate gradients, so that two consumers need no
    /// addition of gradients.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        self.call(x, None, None)
    }

    /// act(norm(x) + residual), twice as in [`Self::forward`].
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        self.call(x, None, Some(residual))
    }

    /// act(norm(x + add)), and x + add.
    pub fn forward_sum(&self, x: &Tensor, add: &Tensor) -> Result<(Tensor, Tensor)> {
        if self.statistics == Statistics::Running {
            let sum = x.f_add(add).map_err(|error| GraphError(error.to_string()))?;
            return Ok((self.call(&sum, None, None)?.0, sum));
        }
        self.call(x, Some(add), None)
    }
}

/// The convolution of a cohort in bfloat16: `x` `[batch, K * inputs, H, W]`, channels last; `w`
/// `[K, outputs, inputs, k, k]` with the inputs last in memory, where k is 1 or 3. A group has 8,
/// 16, 32 and so on channels; if `x` has more of them than `w`, the rest is padding.
pub fn conv(x: &Tensor, w: &Tensor, stride: i64, padding: i64) -> Result<Tensor> {
    let mut out = null_mut();
    // SAFETY: both tensors are alive; we own the result.
    unsafe {
        check(fa_conv(raw(x), raw(w), stride, padding, &mut out))?;
        Ok(Tensor::from_ptr(out))
    }
}

/// The second view of a batch of images: `lambda * first + (1 - lambda) * second`, with `lambda` of
/// `[K, batch]`.
#[derive(Debug)]
pub struct Mixture<'a> {
    /// 8-bit images.
    pub first: &'a Tensor,
    /// 8-bit images.
    pub second: &'a Tensor,
    /// The weight of the first.
    pub lambda: &'a Tensor,
}

/// Converts 8-bit images `[batch, K, H, W, C]` to network input `[views * batch, K * C, H, W]`,
/// channels last: x * scale - shift by channel, with the mixture, if given, as the second view. In
/// half precision C is padded to eight, as [`conv`] requires.
pub fn images(
    fix: &Tensor,
    mixture: Option<&Mixture>,
    scale: &[f32],
    shift: &[f32],
    half: bool,
) -> Result<Tensor> {
    let channels = fix.size().last().copied().unwrap_or_default() as usize;
    if scale.len() != channels || shift.len() != channels {
        let (scales, shifts) = (scale.len(), shift.len());
        return Err(GraphError(format!(
            "expected a scale and a shift for each of {channels} channels, found {scales} scales \
             and {shifts} shifts"
        )));
    }
    let mut out = null_mut();
    // SAFETY: all tensors are alive and there is one number per channel; we own the result.
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

/// One parameter of an SGD step; all tensors are `[K, ...]`.
#[derive(Debug)]
pub struct SgdEntry<'a> {
    /// The value to update.
    pub value: &'a Tensor,
    /// Its momentum.
    pub momentum: Option<&'a Tensor>,
    /// Its gradient, in single precision or bfloat16.
    pub gradient: &'a Tensor,
    /// A bfloat16 copy of the value, updated with it.
    pub shadow: Option<&'a Tensor>,
}

/// The settings of an SGD step.
#[derive(Debug, Clone, Copy)]
pub struct Sgd {
    /// Momentum.
    pub momentum: f64,
    /// Weight decay.
    pub decay: f64,
    /// The largest norm of a client's gradient; 0 for no limit.
    pub clip: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
}

/// One step in place, with the learning rate in a one-element tensor on the GPU.
pub fn sgd(config: Sgd, lr: &Tensor, entries: &[SgdEntry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let column =
        |of: &dyn Fn(&SgdEntry) -> *mut C_tensor| entries.iter().map(of).collect::<Vec<_>>();
    let values = column(&|entry| raw(entry.value));
    let momenta = column(&|entry| raw_option(entry.momentum));
    let gradients = column(&|entry| raw(entry.gradient));
    let shadows = column(&|entry| raw_option(entry.shadow));
    // SAFETY: four lists of the same length, of live tensors or null where the shim allows it.
    check(unsafe {
        fa_sgd(
            entries.len(),
            values.as_ptr(),
            momenta.as_ptr(),
            gradients.as_ptr(),
            shadows.as_ptr(),
            raw(lr),
            config.momentum,
            config.decay,
            config.clip,
            c_int::from(config.nesterov),
        )
    })
}
