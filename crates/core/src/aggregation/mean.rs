//! The weighted mean: the paper's rule.

use super::Rule;
use crate::error::Result;
use fedanchor_engine::Error as EngineError;
use fedanchor_engine::tensors::Params;

/// The weighted mean of Algorithm 1, line 10, as a fold: one update at a time, so memory does not grow
/// with the number of clients.
#[derive(Debug, Default)]
pub struct WeightedMean {
    mean: Option<Params>,
    total: f64,
}

impl WeightedMean {
    /// Adds one model with its weight n_m.
    pub fn add(&mut self, params: &Params, weight: f64) -> Result<()> {
        self.total += weight;
        if let Some(mean) = &self.mean
            && mean.layout != params.layout
        {
            let problem = "an update has other tensors than the one before it";
            return Err(EngineError::tensors(problem).into());
        }
        match &mut self.mean {
            None => self.mean = Some(params.copy()?),
            // mean += (x - mean) * w / total: exact where all clients agree.
            Some(mean) => {
                for (mean, x) in mean.tensors.iter_mut().zip(&params.tensors) {
                    let _ = mean.f_lerp_(x, weight / self.total)?;
                }
            }
        }
        Ok(())
    }

    /// The mean, or `None` if nothing was added.
    pub fn finish(self) -> Option<Params> {
        self.mean
    }
}

impl Rule for WeightedMean {
    fn add(&mut self, params: &Params, weight: f64, _: &Params) -> Result<()> {
        WeightedMean::add(self, params, weight)
    }

    fn finish(self: Box<Self>, _: &Params) -> Result<Option<Params>> {
        Ok(WeightedMean::finish(*self))
    }
}
