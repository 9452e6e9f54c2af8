//! Batch norm with what follows it.

use crate::checks::{Argument, Expected, GRID, number, on_one_gpu};
use crate::conv::Sums;
use crate::shim::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use tch::{Kind, Tensor};

/// Columns of a norm: more than any network has, and few enough to count what belongs to them in 32 bits.
const COLUMNS: i64 = 4096 * 64;
/// Parts of a sum that are counted in 32 bits.
const PARTS: i64 = i32::MAX as i64;

/// How a norm uses its statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistics {
    /// Normalise by the batch and update the running statistics with this momentum.
    Update(f64),
    /// Normalise by the batch.
    Batch,
    /// Normalise by the running statistics and leave them as they are.
    Running,
}

/// One batch norm of a cohort over `views` equal parts of the batch, each with separate statistics:
/// `x` is `[views * batch, columns, H, W]`, in single precision or bfloat16, with columns in eights;
/// the parameters are `[columns]`, contiguous, in single precision.
#[derive(Debug)]
#[allow(missing_docs)] // of what the name says
pub struct Norm<'a> {
    pub weight: &'a Tensor,
    pub bias: &'a Tensor,
    /// The running mean.
    pub mean: &'a Tensor,
    /// The running variance.
    pub variance: &'a Tensor,
    pub statistics: Statistics,
    pub views: i64,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Sums of `x` and of its squares from the convolution that made it; computed here if left out. Running
    /// statistics need none.
    pub sums: Option<&'a Sums>,
}

impl Norm<'_> {
    fn check(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<()> {
        let x = Argument::new("x", x)?.with_kind(&[Kind::Float, Kind::BFloat16])?;
        let size: [i64; 4] = x.dimensions("dimensions of x")?;
        let [batch, columns, ..] = size;
        number("views", Expected::Between(1, GRID), self.views)?;
        number("batch of x", Expected::MultipleOf(self.views), batch)?;
        number("columns of x", Expected::MultipleOf(8), columns)?;
        number("columns of x", Expected::Between(8, COLUMNS), columns)?;
        let parameter = |name, tensor| Argument::dense(name, tensor, Kind::Float, &[columns]);
        let mut sums = None;
        if let Some(Sums(found)) = self.sums {
            let found = Argument::new("sums", found)?.with_kind(&[Kind::Float])?;
            let [_, parts, ..]: [i64; 4] = found.dimensions("dimensions of sums")?;
            number("parts of sums", Expected::Between(1, PARTS), parts)?;
            sums = Some(found.with_size(&[self.views, parts, 2, columns])?.contiguous()?);
        }
        let mut others = vec![
            parameter("weight", self.weight)?,
            parameter("bias", self.bias)?,
            parameter("mean", self.mean)?,
            parameter("variance", self.variance)?,
        ];
        if let Some(residual) = residual {
            let residual = Argument::new("residual", residual)?.with_kind(&[x.kind()?])?;
            others.push(residual.with_size(&size)?);
        }
        others.extend(sums);
        on_one_gpu(x, &others)
    }

    /// act(norm(x)), or act(norm(x) + residual) with a `residual` of the size and kind of `x`; and the same values once more
    /// with a separate gradient, so that two consumers need no addition of gradients, or `x` if it `passes`.
    pub fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        passes: bool,
    ) -> Result<(Tensor, Tensor)> {
        self.check(x, residual)?;
        let (mode, momentum) = match self.statistics {
            Statistics::Update(share) => (0, share),
            Statistics::Batch => (1, 0.0),
            Statistics::Running => (2, 0.0),
        };
        let (mut first, mut second) = (null_mut(), null_mut());
        // SAFETY: all tensors are alive and were checked; on success both results are new tensors that
        // we own.
        unsafe {
            check(fa_norm(
                raw(x),
                raw_option(residual),
                raw_option(self.sums.map(|Sums(sums)| sums)),
                c_int::from(passes),
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
}
