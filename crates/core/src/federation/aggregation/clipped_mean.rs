//! The weighted mean of updates shortened to the usual length.

use super::{Rule, WeightedMean};
use crate::error::Result;
use crate::federation::lengths::Lengths;
use fedanchor_engine::tensors::Params;

/// No update moves further than the median of this round's and the last rounds' updates, so that a hostile one
/// weighs no more than an honest one, whatever it was multiplied by. Keeps all updates until the end.
#[derive(Debug, Default)]
pub struct ClippedMean {
    earlier: Vec<Lengths>,
    all: Vec<(Params, f64)>,
}

impl ClippedMean {
    /// With the lengths of the last rounds' updates.
    pub fn new(earlier: Vec<Lengths>) -> Self {
        Self { earlier, all: Vec::new() }
    }
}

impl Rule for ClippedMean {
    fn add(&mut self, params: &Params, weight: f64, _: &Params) -> Result<()> {
        self.all.push((params.copy()?, weight));
        Ok(())
    }

    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let lengths = self.all.iter().map(|(params, _)| Lengths::of(params, sent));
        let lengths = lengths.collect::<Result<Vec<_>>>()?;
        // A client that kept nothing counts as unchanged: that it did not move says nothing of how far others do.
        let moved = lengths.iter().copied().filter(|length| *length != Lengths::default());
        let known: Vec<Lengths> = self.earlier.into_iter().chain(moved).collect();
        let most = Lengths::median(&known).unwrap_or_default();
        let mut mean = WeightedMean::default();
        for ((params, weight), lengths) in self.all.iter().zip(lengths) {
            let short = lengths.shorten(params, sent, most)?;
            mean.add(short.as_ref().unwrap_or(params), *weight)?;
        }
        Ok(mean.finish())
    }
}
