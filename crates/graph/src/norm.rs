//! Batch norm with what follows it.

use crate::checks::{Argument, GRID, number, on_one_gpu};
use crate::error::{Expected, GraphError};
use crate::shim::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use tch::{Kind, Tensor};

/// Columns of a norm: more than any network has, and few enough to count what belongs to them in 32 bits.
const COLUMNS: i64 = 4096 * 64;

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
/// `x` is `[views * batch, columns, H, W]`, in single precision or bfloat16, with columns in eights;
/// the parameters are `[columns]`, contiguous, in single precision.
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

/// What is added to a norm: to its input or to its output.
#[derive(Clone, Copy)]
enum Addend<'a> {
    None,
    ToInput(&'a Tensor),
    ToOutput(&'a Tensor),
}

impl Norm<'_> {
    fn check(&self, x: &Tensor, addend: Addend) -> Result<()> {
        let x = Argument::new("x", x)?.with_kind(&[Kind::Float, Kind::BFloat16])?;
        let size: [i64; 4] = x.dimensions("dimensions of x")?;
        let [batch, columns, ..] = size;
        number("views", Expected::Between(1, GRID), self.views)?;
        number("batch of x", Expected::MultipleOf(self.views), batch)?;
        number("columns of x", Expected::MultipleOf(8), columns)?;
        number("columns of x", Expected::Between(8, COLUMNS), columns)?;
        let parameter = |name, tensor| {
            Argument::new(name, tensor)?
                .with_kind(&[Kind::Float])?
                .with_size(&[columns])?
                .contiguous()
        };
        let mut others = vec![
            parameter("weight", self.weight)?,
            parameter("bias", self.bias)?,
            parameter("mean", self.mean)?,
            parameter("variance", self.variance)?,
        ];
        let addend = match addend {
            Addend::None => None,
            Addend::ToInput(add) => Some(Argument::new("add", add)?),
            Addend::ToOutput(residual) => Some(Argument::new("residual", residual)?),
        };
        if let Some(addend) = addend {
            others.push(addend.with_kind(&[x.kind()?])?.with_size(&size)?);
        }
        on_one_gpu(x, &others)
    }

    fn call(&self, x: &Tensor, addend: Addend) -> Result<(Tensor, Tensor)> {
        let (mode, momentum) = match self.statistics {
            Statistics::Update(share) => (0, share),
            Statistics::Batch => (1, 0.0),
            Statistics::Running => (2, 0.0),
        };
        let (add, residual) = match addend {
            Addend::None => (None, None),
            Addend::ToInput(add) => (Some(add), None),
            Addend::ToOutput(residual) => (None, Some(residual)),
        };
        let (mut first, mut second) = (null_mut(), null_mut());
        // SAFETY: all tensors are alive and were checked; on success both results are new tensors that
        // we own.
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
        self.check(x, Addend::None)?;
        self.call(x, Addend::None)
    }

    /// act(norm(x) + residual), twice as in [`Self::forward`]; `residual` is of the size and kind of `x`.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        self.check(x, Addend::ToOutput(residual))?;
        self.call(x, Addend::ToOutput(residual))
    }

    /// act(norm(x + add)), and x + add; `add` is of the size and kind of `x`.
    pub fn forward_sum(&self, x: &Tensor, add: &Tensor) -> Result<(Tensor, Tensor)> {
        self.check(x, Addend::ToInput(add))?;
        if self.statistics == Statistics::Running {
            let sum = x.f_add(add).map_err(|error| GraphError::Failed(error.to_string()))?;
            return Ok((self.call(&sum, Addend::None)?.0, sum));
        }
        self.call(x, Addend::ToInput(add))
    }
}
