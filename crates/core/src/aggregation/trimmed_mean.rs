//! Number by number: the mean without the extremes, and the median. Both weigh all clients alike.

use super::{Rule, hostile_count};
use crate::error::Result;
use fedanchor_engine::tensors::Params;
use tch::{Kind, Tensor};

/// The mean without the lowest and highest values. Keeps all updates until the end.
#[derive(Debug)]
pub struct TrimmedMean {
    hostile: f64,
    all: Vec<Params>,
}

impl TrimmedMean {
    /// Cuts off this share at either end.
    pub fn new(hostile: f64) -> Self {
        Self { hostile, all: Vec::new() }
    }
}

impl Rule for TrimmedMean {
    fn add(&mut self, params: &Params, _: f64, _: &Params) -> Result<()> {
        self.all.push(params.copy()?);
        Ok(())
    }

    fn finish(self: Box<Self>, _: &Params) -> Result<Option<Params>> {
        trimmed(&self.all, hostile_count(self.hostile, self.all.len()))
    }
}

/// The median; of an even number of values the mean of the two in the middle.
#[derive(Debug, Default)]
pub struct Median {
    all: Vec<Params>,
}

impl Rule for Median {
    fn add(&mut self, params: &Params, _: f64, _: &Params) -> Result<()> {
        self.all.push(params.copy()?);
        Ok(())
    }

    fn finish(self: Box<Self>, _: &Params) -> Result<Option<Params>> {
        trimmed(&self.all, self.all.len().saturating_sub(1) / 2)
    }
}

/// The mean of what is left without the `cut` lowest and highest values.
fn trimmed(all: &[Params], cut: usize) -> Result<Option<Params>> {
    let Some(first) = all.first() else { return Ok(None) };
    let layout = first.layout.clone();
    let tensors = (0..layout.len()).map(|index| {
        let stacked: Vec<&Tensor> = all.iter().map(|params| &params.tensors[index]).collect();
        let (sorted, _) = Tensor::f_stack(&stacked, 0)?.f_sort(0, false)?;
        let left = sorted.f_narrow(0, cut as i64, (all.len() - 2 * cut) as i64)?;
        Ok(left.f_mean_dim(&[0i64][..], false, Kind::Float)?)
    });
    Ok(Some(Params { tensors: tensors.collect::<Result<_>>()?, layout }))
}
