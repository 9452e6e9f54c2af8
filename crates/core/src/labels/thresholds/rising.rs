//! A number that rises over the rounds.

use super::{Registration, Scored, Selection, ThresholdRule, read_keys};
use crate::config::within;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) const REGISTRATION: Registration =
    Registration::new::<Rising>("rising", "", |keys, least_score| {
        let rule: Rising = read_keys(keys)?;
        within("method.threshold.from", rule.from, least_score, 1.0)?;
        within("method.threshold.to", rule.to, rule.from, 1.0)?;
        Ok(Box::new(rule))
    });

/// A sample is kept if its score is above a number that rises over the rounds, as the scores do.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rising {
    /// That number in the first round.
    from: f64,
    /// That number in the last round.
    to: f64,
}

impl ThresholdRule for Rising {
    fn select(&self, samples: &Scored) -> Selection {
        samples.above(self.from + (self.to - self.from) * samples.progress)
    }

    fn depends_on_rounds(&self) -> bool {
        true
    }
}
