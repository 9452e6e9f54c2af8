//! How the updates of a round become one model (Algorithm 1, line 10). The paper's weighted mean is a
//! fold and keeps one model, however many clients there are; the robust rules compare updates with one
//! another and keep them all until the round is over.

use crate::config::{AggregationConfig, AggregationRule};
use crate::door::length;
use crate::error::Result;
use crate::params::{Params, WeightedMean};
use tch::{Kind, Tensor};

/// Takes updates in and gives the aggregate out.
#[derive(Debug)]
pub struct Aggregator {
    rule: AggregationRule,
    share: f64,
    mean: WeightedMean,
    all: Vec<(Params, f64)>,
    count: usize,
}

impl Aggregator {
    /// By the rule of the experiment.
    pub fn new(config: &AggregationConfig) -> Self {
        let (rule, share) = (config.rule, config.hostile);
        Self { rule, share, mean: WeightedMean::default(), all: Vec::new(), count: 0 }
    }

    /// Adds an update with its weight.
    pub fn add(&mut self, params: &Params, weight: f64) -> Result<()> {
        self.count += 1;
        if self.rule == AggregationRule::Mean {
            return self.mean.add(params, weight);
        }
        self.all.push((params.copy()?, weight));
        Ok(())
    }

    /// Updates taken in.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The aggregate; `None` if there was no update. `sent` is what the clients started from.
    pub fn finish(self, sent: &Params) -> Result<Option<Params>> {
        let Self { rule, share, mean, all, count } = self;
        if count == 0 {
            return Ok(None);
        }
        // As many as may be hostile, and always less than half.
        let hostile = ((share * count as f64 + 1e-9).floor() as usize).min((count - 1) / 2);
        Ok(match rule {
            AggregationRule::Mean => mean.finish(),
            AggregationRule::ClippedMean => Some(clipped_mean(&all, sent)?),
            AggregationRule::TrimmedMean => Some(trimmed(&all, hostile)?),
            AggregationRule::Median => Some(trimmed(&all, (count - 1) / 2)?),
            AggregationRule::MultiKrum => {
                let chosen = krum(&all, hostile)?;
                let mut mean = WeightedMean::default();
                for &index in &chosen {
                    mean.add(&all[index].0, all[index].1)?;
                }
                mean.finish()
            }
        })
    }
}

/// The weighted mean of updates that go no further than the median of them does.
fn clipped_mean(all: &[(Params, f64)], sent: &Params) -> Result<Params> {
    let mut lengths = Vec::new();
    for (params, _) in all {
        let away = params.tensors.iter().zip(&sent.tensors);
        let away = away.map(|(a, b)| a.f_sub(b)).collect::<Result<Vec<_>, _>>()?;
        let weights = params.layout.iter().zip(&away).filter(|(entry, _)| !entry.statistic);
        lengths.push(length(weights.map(|(_, tensor)| tensor))?);
    }
    let mut sorted = lengths.clone();
    sorted.sort_by(f64::total_cmp);
    let limit = sorted[(sorted.len() - 1) / 2];
    let mut mean = WeightedMean::default();
    for ((params, weight), length) in all.iter().zip(lengths) {
        let share = if length > limit { limit / length } else { 1.0 };
        let tensors = sent.tensors.iter().zip(&params.tensors);
        let tensors = tensors.map(|(from, to)| from.f_lerp(to, share));
        let tensors = tensors.collect::<Result<_, _>>()?;
        mean.add(&Params { layout: params.layout.clone(), tensors }, *weight)?;
    }
    Ok(mean.finish().unwrap_or(sent.copy()?))
}

/// Number by number, the mean of what is left without the `cut` lowest and highest. With as many cut
/// as can be, the median.
fn trimmed(all: &[(Params, f64)], cut: usize) -> Result<Params> {
    let layout = all[0].0.layout.clone();
    let tensors = (0..layout.len()).map(|index| {
        let stacked: Vec<&Tensor> = all.iter().map(|(params, _)| &params.tensors[index]).collect();
        let (sorted, _) = Tensor::f_stack(&stacked, 0)?.f_sort(0, false)?;
        let left = sorted.f_narrow(0, cut as i64, (all.len() - 2 * cut) as i64)?;
        Ok(left.f_mean_dim(&[0i64][..], false, Kind::Float)?)
    });
    Ok(Params { tensors: tensors.collect::<Result<_>>()?, layout })
}

/// Multi-Krum (Blanchard et al., 2017): the updates that lie nearest to their neighbours, all but the
/// hostile ones.
fn krum(all: &[(Params, f64)], hostile: usize) -> Result<Vec<usize>> {
    let mut flat = Vec::new();
    for (params, _) in all {
        let weights: Vec<Tensor> =
            params.weights().map(|t| t.f_flatten(0, -1)).collect::<Result<_, _>>()?;
        flat.push(Tensor::f_cat(&weights, 0)?);
    }
    let count = all.len();
    let mut distance = vec![vec![0.0; count]; count];
    for a in 0..count {
        for b in 0..a {
            let square = flat[a].f_sub(&flat[b])?.f_norm()?.f_double_value(&[])?.powi(2);
            (distance[a][b], distance[b][a]) = (square, square);
        }
    }
    let neighbours = count.saturating_sub(hostile + 2).max(1);
    let mut scores: Vec<(f64, usize)> = (0..count)
        .map(|index| {
            let mut others: Vec<f64> =
                (0..count).filter(|&other| other != index).map(|o| distance[index][o]).collect();
            others.sort_by(f64::total_cmp);
            (others.iter().take(neighbours).sum(), index)
        })
        .collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut chosen: Vec<usize> =
        scores.into_iter().take(count - hostile).map(|(_, index)| index).collect();
    chosen.sort_unstable();
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;
    use crate::params::{Entry, Part};
    use std::sync::Arc;

    fn params(values: &[f32]) -> Params {
        let name = "a".to_owned();
        let shape = vec![values.len() as i64];
        let entry = Entry { name, shape, part: Part::Backbone, statistic: false };
        Params {
            layout: Arc::new(vec![entry]),
            tensors: vec![Tensor::from_slice(values).unsqueeze(0)],
        }
    }

    fn aggregate(rule: &str, hostile: f64, updates: &[(&[f32], f64)]) -> Vec<f64> {
        let keys = [format!("aggregation.rule={rule}"), format!("aggregation.hostile={hostile}")];
        let mut aggregator = Aggregator::new(&resolve("", &keys).unwrap().aggregation);
        for (values, weight) in updates {
            aggregator.add(&params(values), *weight).unwrap();
        }
        assert_eq!(aggregator.count(), updates.len());
        let found = aggregator.finish(&params(&[0.0, 0.0])).unwrap().unwrap();
        Vec::<f64>::try_from(found.tensors[0].to_kind(Kind::Double).flatten(0, -1)).unwrap()
    }

    #[test]
    fn rules_by_hand() {
        let updates: [(&[f32], f64); 5] = [
            (&[1.0, 0.0], 1.0),
            (&[2.0, 1.0], 1.0),
            (&[3.0, 2.0], 1.0),
            (&[2.0, 0.0], 1.0),
            (&[-100.0, 100.0], 1.0),
        ];
        let close = |found: Vec<f64>, expected: [f64; 2]| {
            let same = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(same, "{found:?} {expected:?}");
        };
        close(aggregate("mean", 0.2, &updates), [-92.0 / 5.0, 103.0 / 5.0]);
        // One cut at either end: 1, 2, 2 and 0, 1, 2.
        close(aggregate("trimmed-mean", 0.2, &updates), [5.0 / 3.0, 1.0]);
        close(aggregate("median", 0.2, &updates), [2.0, 1.0]);
        // The last is furthest from all others: the mean of the four.
        close(aggregate("multi-krum", 0.2, &updates), [2.0, 0.75]);
        // Lengths 1, 2.236, 3.606, 2 and 141.4: the median is 2.236.
        let (short, long) = (5f64.sqrt() / 13f64.sqrt(), 5f64.sqrt() / 20000f64.sqrt());
        let x = (1.0 + 2.0 + 3.0 * short + 2.0 - 100.0 * long) / 5.0;
        let y = (0.0 + 1.0 + 2.0 * short + 0.0 + 100.0 * long) / 5.0;
        close(aggregate("clipped-mean", 0.2, &updates), [x, y]);
    }

    #[test]
    fn the_median_of_an_even_number_and_of_one() {
        let of = |rule, updates: &[(&[f32], f64)]| aggregate(rule, 0.3, updates);
        assert_eq!(of("median", &[(&[1.0, 5.0], 1.0), (&[3.0, 1.0], 9.0)]), [2.0, 3.0]);
        for rule in ["mean", "clipped-mean", "trimmed-mean", "median", "multi-krum"] {
            assert_eq!(of(rule, &[(&[1.0, 5.0], 3.0)]), [1.0, 5.0], "{rule}");
        }
        let weighted = of("mean", &[(&[1.0, 5.0], 1.0), (&[3.0, 1.0], 3.0)]);
        assert_eq!(weighted, [2.5, 2.0]);
    }
}
