//! Rules that need all updates at once.

use super::mean::RowMean;
use super::{Norms, Row, Rule, hostile_count};
use crate::error::Result;
use fedanchor_engine::tensors::Params;
use tch::{Kind, Tensor};

/// Models with their weights.
pub(super) type Weighted = [(Row, f64)];

/// A rule that keeps all updates until the end and aggregates them with this function.
pub(super) fn of_all(
    aggregate: impl Fn(&Weighted, &Row) -> Result<Option<Row>> + 'static,
) -> Box<dyn Rule> {
    Box::new(OfAll { all: Vec::new(), aggregate })
}

struct OfAll<F> {
    all: Vec<(Row, f64)>,
    aggregate: F,
}

impl<F: Fn(&Weighted, &Row) -> Result<Option<Row>>> Rule for OfAll<F> {
    fn add(&mut self, params: &Params, weight: f64, _: &Params) -> Result<()> {
        self.all.push((Row::of(params)?, weight));
        Ok(())
    }

    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let aggregate = (self.aggregate)(&self.all, &Row::of(sent)?)?;
        aggregate.map(|row| row.params(sent)).transpose()
    }
}

/// The weighted mean of updates clipped to the median norm of this round's and earlier updates, so that a hostile one
/// weighs no more than an honest one, whatever it was multiplied by.
pub fn clipped_mean(earlier: Vec<Norms>) -> Box<dyn Rule> {
    of_all(move |all, sent| {
        let norms = all.iter().map(|(row, _)| Norms::of_change(&row.change(sent)?));
        let norms = norms.collect::<Result<Vec<_>>>()?;
        // A client that kept nothing counts as unchanged: its norm of 0 says nothing about the others.
        let moved = norms.iter().copied().filter(|norms| *norms != Norms::default());
        let known: Vec<Norms> = earlier.iter().copied().chain(moved).collect();
        let most = Norms::median(&known).unwrap_or_default();
        let mut mean = RowMean::default();
        for ((row, weight), norms) in all.iter().zip(norms) {
            let clipped = norms.clip(row, sent, most)?;
            mean.add(clipped.as_ref().unwrap_or(row), *weight)?;
        }
        Ok(mean.finish())
    })
}

/// The unweighted mean of every parameter without this share of its lowest and of its highest values.
pub fn trimmed_mean(share: f64) -> Box<dyn Rule> {
    of_all(move |all, _| trimmed(all, hostile_count(share, all.len())))
}

/// The unweighted median of every parameter; of an even number of values the mean of the two in the middle.
pub fn median() -> Box<dyn Rule> {
    of_all(|all, _| trimmed(all, all.len().saturating_sub(1) / 2))
}

/// Numbers per update that are sorted at once.
const SORTED: usize = 1 << 18;

/// The mean without the `cut` lowest and highest values.
fn trimmed(all: &Weighted, cut: usize) -> Result<Option<Row>> {
    let Some((first, _)) = all.first() else { return Ok(None) };
    let count = first.numbers().numel();
    let parts = (0..count).step_by(SORTED).map(|start| {
        let length = SORTED.min(count - start) as i64;
        let part = |(row, _): &(Row, f64)| row.numbers().f_narrow(0, start as i64, length);
        let stacked = all.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let (sorted, _) = Tensor::f_stack(&stacked, 0)?.f_sort(0, false)?;
        let left = sorted.f_narrow(0, cut as i64, (all.len() - 2 * cut) as i64)?;
        Ok(left.f_mean_dim(&[0i64][..], false, Kind::Float)?)
    });
    Ok(Some(first.with(Tensor::f_cat(&parts.collect::<Result<Vec<_>>>()?, 0)?)))
}
