//! The weighted mean: the paper's rule.

use super::{Row, Rule};
use crate::error::Result;
use fedanchor_engine::Error as EngineError;
use fedanchor_engine::tensors::Params;

/// The weighted mean of Algorithm 1, line 10, as a fold: one update at a time, so memory does not grow
/// with the number of clients.
#[derive(Debug, Default)]
pub struct WeightedMean {
    mean: RowMean,
    /// A model of the mean's layout.
    like: Option<Params>,
}

impl WeightedMean {
    /// Adds one model with its weight n_m.
    pub fn add(&mut self, params: &Params, weight: f64) -> Result<()> {
        let like = self.like.get_or_insert_with(|| params.shallow_copy());
        if like.layout != params.layout {
            let problem = "an update has other tensors than the one before it";
            return Err(EngineError::tensors(problem).into());
        }
        self.mean.add(&Row::of(params)?, weight)
    }

    /// The mean, or `None` if nothing was added.
    pub fn finish(self) -> Result<Option<Params>> {
        let mean = self.mean.finish().zip(self.like);
        mean.map(|(mean, like)| mean.params(&like)).transpose()
    }
}

impl Rule for WeightedMean {
    fn add(&mut self, params: &Params, weight: f64, _: &Params) -> Result<()> {
        WeightedMean::add(self, params, weight)
    }

    fn finish(self: Box<Self>, _: &Params) -> Result<Option<Params>> {
        WeightedMean::finish(*self)
    }
}

/// The same of rows.
#[derive(Debug, Default)]
pub(super) struct RowMean {
    mean: Option<Row>,
    total: f64,
}

impl RowMean {
    pub(super) fn add(&mut self, row: &Row, weight: f64) -> Result<()> {
        self.total += weight;
        match &self.mean {
            None => self.mean = Some(row.with(row.numbers().f_detach_copy()?)),
            // mean += (x - mean) * w / total: exact where all clients agree.
            Some(mean) => {
                let mut mean = mean.numbers().shallow_clone();
                let _ = mean.f_lerp_(row.numbers(), weight / self.total)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Option<Row> {
        self.mean
    }
}
