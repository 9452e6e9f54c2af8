//! The best-scored share of a client's samples, growing over the rounds.

use super::{Registration, Scored, Selection, ThresholdRule, read_keys};
use crate::config::within;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) const REGISTRATION: Registration =
    Registration::new::<Quantile>("quantile", "", |keys, _| {
        let rule: Quantile = read_keys(keys)?;
        within("method.threshold.from", rule.from, 0.0, 1.0)?;
        within("method.threshold.to", rule.to, 0.0, 1.0)?;
        Ok(Box::new(rule))
    });

/// A sample is kept if it is in the best-scored share of the client's samples, which grows over the rounds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Quantile {
    /// That share in the first round.
    from: f64,
    /// That share in the last round.
    to: f64,
}

impl ThresholdRule for Quantile {
    fn select(&self, samples: &Scored) -> Selection {
        let scores = samples.scores;
        let share = self.from + (self.to - self.from) * samples.progress;
        let count = (share * scores.len() as f64).ceil() as usize;
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])); // stable: the first of equals
        order.truncate(count);
        let mut kept = vec![false; scores.len()];
        order.iter().for_each(|&index| kept[index] = true);
        let lowest = order.last().map(|&index| f64::from(scores[index]));
        Selection { kept, weight: Vec::new(), thresholds: lowest.into_iter().collect() }
    }

    fn depends_on_rounds(&self) -> bool {
        true
    }
}
