//! The weighted mean of updates shortened to the median length.

use super::{Rule, WeightedMean};
use crate::error::Result;
use fedanchor_engine::tensors::{Params, norm};

/// No update moves further than the median of them. Keeps all updates until the end.
#[derive(Debug, Default)]
pub struct ClippedMean {
    all: Vec<(Params, f64)>,
}

impl Rule for ClippedMean {
    fn add(&mut self, params: &Params, weight: f64, _: &Params) -> Result<()> {
        self.all.push((params.copy()?, weight));
        Ok(())
    }

    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let mut lengths = Vec::new();
        for (params, _) in &self.all {
            let change = params.tensors.iter().zip(&sent.tensors);
            let change = change.map(|(a, b)| a.f_sub(b)).collect::<Result<Vec<_>, _>>()?;
            let weights = params.layout.iter().zip(&change).filter(|(entry, _)| !entry.statistic);
            lengths.push(norm(weights.map(|(_, tensor)| tensor))?);
        }
        let mut sorted = lengths.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(&limit) = sorted.get(sorted.len().saturating_sub(1) / 2) else { return Ok(None) };
        let mut mean = WeightedMean::default();
        for ((params, weight), length) in self.all.iter().zip(lengths) {
            let share = if length > limit { limit / length } else { 1.0 };
            let tensors = sent.tensors.iter().zip(&params.tensors);
            let tensors = tensors.map(|(from, to)| from.f_lerp(to, share));
            let tensors = tensors.collect::<Result<_, _>>()?;
            mean.add(&Params { layout: params.layout.clone(), tensors }, *weight)?;
        }
        Ok(mean.finish())
    }
}
