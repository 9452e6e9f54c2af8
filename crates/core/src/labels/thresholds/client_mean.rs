//! The mean score of the client's samples ((FL)^2's CAT, on cosines).

use super::{Registration, Scored, Selection, ThresholdRule, read_keys};
use crate::config::within;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) const REGISTRATION: Registration =
    Registration::new::<ClientMean>("client-mean", "", |keys, least_score| {
        let rule: ClientMean = read_keys(keys)?;
        within("method.threshold.most", rule.most, least_score, 1.0)?;
        Ok(Box::new(rule))
    });

/// A sample is kept if its score is not below the mean score of the client's samples ((FL)^2's CAT, on cosines).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClientMean {
    /// The highest threshold.
    most: f64,
}

impl ThresholdRule for ClientMean {
    fn select(&self, samples: &Scored) -> Selection {
        let t = samples.mean().min(self.most);
        let kept = samples.scores.iter().map(|&score| f64::from(score) >= t).collect();
        Selection { kept, weight: Vec::new(), thresholds: vec![t] }
    }
}
