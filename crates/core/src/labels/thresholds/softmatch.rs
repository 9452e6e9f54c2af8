//! Every sample, weighted by its score (SoftMatch).

use super::{Registration, Scored, Selection, ThresholdRule, read_keys};
use crate::config::positive;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) const REGISTRATION: Registration =
    Registration::new::<Softmatch>("softmatch", "", |keys, _| {
        let rule: Softmatch = read_keys(keys)?;
        positive("method.threshold.width", rule.width)?;
        Ok(Box::new(rule))
    });

/// Every sample is kept, with a weight that falls below the mean score of the client's samples (SoftMatch).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Softmatch {
    /// Standard deviations over which the weight falls.
    width: f64,
}

impl ThresholdRule for Softmatch {
    fn select(&self, samples: &Scored) -> Selection {
        let (scores, mean, width) = (samples.scores, samples.mean(), self.width);
        let squares = scores.iter().map(|&score| (f64::from(score) - mean).powi(2));
        let variance = (squares.sum::<f64>() / scores.len().max(1) as f64).max(1e-12);
        let weight = |score: f64| match score {
            score if score >= mean => 1.0,
            score => (-(score - mean).powi(2) / (2.0 * width * width * variance)).exp(),
        };
        let weight = scores.iter().map(|&score| weight(f64::from(score)) as f32).collect();
        Selection { kept: vec![true; scores.len()], weight, thresholds: Vec::new() }
    }

    fn weighs(&self) -> bool {
        true
    }
}
