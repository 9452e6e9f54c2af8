//! A share of the anchors' own scores (AdaMatch's idea).

use super::{OwnScores, Registration, Scored, Selection, ThresholdRule, read_keys};
use crate::config::{at_least_one, at_most, within};
use crate::error::Result;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) const REGISTRATION: Registration =
    Registration::new::<AnchorRelative>("anchor-relative", "", |keys, least_score| {
        let rule: AnchorRelative = read_keys(keys)?;
        within("method.threshold.share", rule.share, 0.0, 1.0)?;
        within("method.threshold.least", rule.least, least_score, 1.0)?;
        within("method.threshold.most", rule.most, rule.least, 1.0)?;
        at_least_one("method.threshold.views", rule.views as usize)?;
        at_most("method.threshold.views", rule.views as usize, 100)?;
        Ok(Box::new(rule))
    });

/// A sample is kept if its score is above a share of the score that the anchors of that class have among
/// themselves, which the server computes (AdaMatch's idea).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AnchorRelative {
    /// That share of the anchors' own score.
    share: f64,
    /// The lowest threshold.
    least: f64,
    /// The highest threshold.
    most: f64,
    /// Weakly augmented views of every anchor that are scored.
    views: u32,
}

impl ThresholdRule for AnchorRelative {
    fn select(&self, samples: &Scored) -> Selection {
        let thresholds = samples.class_thresholds;
        let t = |label: u16| thresholds.get(usize::from(label)).copied().unwrap_or(f64::MAX);
        let pairs = samples.scores.iter().zip(samples.labels);
        let kept = pairs.map(|(&score, &label)| f64::from(score) > t(label)).collect();
        Selection { kept, weight: Vec::new(), thresholds: thresholds.to_vec() }
    }

    fn class_thresholds(&self, own_scores: &OwnScores) -> Result<Option<Vec<f64>>> {
        let own = own_scores(self.views)?.into_iter();
        Ok(Some(own.map(|score| (self.share * score).clamp(self.least, self.most)).collect()))
    }
}
