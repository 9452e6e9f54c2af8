//! The weighted mean of updates clipped to the usual norm.

use super::{Norms, Rule, WeightedMean};
use crate::error::Result;

use fedanchor_engine::tensors::Params;

/// No update moves further than the median of this round's and the last rounds' updates, so that a hostile one
/// weighs no more than an honest one, whatever it was multiplied by. Keeps all updates until the end.
#[derive(Debug, Default)]
pub struct ClippedMean {
    earlier: Vec<Norms>,
    all: Vec<(Params, f64)>,
}

impl ClippedMean {
    /// With the norms of the last rounds' updates.
    pub fn new(earlier: Vec<Norms>) -> Self {
        Self { earlier, all: Vec::new() }
    }
}

impl Rule for ClippedMean {
    fn add(&mut self, params: &Params, weight: f64, _: &Params) -> Result<()> {
        self.all.push((params.copy()?, weight));
        Ok(())
    }

    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let norms = self.all.iter().map(|(params, _)| Norms::of(params, sent));
        let norms = norms.collect::<Result<Vec<_>>>()?;
        // A client that kept nothing counts as unchanged: that it did not move says nothing of how far others do.
        let moved = norms.iter().copied().filter(|length| *length != Norms::default());
        let known: Vec<Norms> = self.earlier.into_iter().chain(moved).collect();
        let most = Norms::median(&known).unwrap_or_default();
        let mut mean = WeightedMean::default();
        for ((params, weight), norms) in self.all.iter().zip(norms) {
            let short = norms.clip(params, sent, most)?;
            mean.add(short.as_ref().unwrap_or(params), *weight)?;
        }
        Ok(mean.finish())
    }
}
