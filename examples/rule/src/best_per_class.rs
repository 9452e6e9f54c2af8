//! Keeps the best-scored share of every pseudo-class, so that easy classes do not crowd out the others.

use fedanchor::config::within;
use fedanchor::labels::thresholds::{Registration, Scored, Selection, ThresholdRule, read_keys};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

pub const REGISTRATION: Registration =
    Registration::new::<BestPerClass>("best-per-class", "share = 0.5", |keys, _least_score| {
        let rule: BestPerClass = read_keys(keys)?;
        within("method.threshold.share", rule.share, 0.0, 1.0)?;
        Ok(Box::new(rule))
    });

/// A sample is kept if it is in the best-scored share of the samples with its label.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BestPerClass {
    /// That share.
    share: f64,
}

impl ThresholdRule for BestPerClass {
    fn select(&self, samples: &Scored) -> Selection {
        let mut classes: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, &label) in samples.labels.iter().enumerate() {
            classes.entry(label).or_default().push(index);
        }
        let mut kept = vec![false; samples.scores.len()];
        for mut order in classes.into_values() {
            order.sort_by(|&a, &b| samples.scores[b].total_cmp(&samples.scores[a]));
            let count = (self.share * order.len() as f64).ceil() as usize;
            order[..count].iter().for_each(|&index| kept[index] = true);
        }
        Selection { kept, weight: Vec::new(), thresholds: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_keeps_its_share() {
        let (scores, labels) = (&[0.9, 0.8, 0.7, 0.2, 0.1], &[0, 0, 0, 1, 1]);
        let samples = Scored { scores, labels, class_thresholds: &[], progress: 0.0 };
        let kept = BestPerClass { share: 0.5 }.select(&samples).kept;
        assert_eq!(kept, [true, true, false, true, false]);
    }
}
