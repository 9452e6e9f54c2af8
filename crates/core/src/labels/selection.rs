//! Which of its samples a client keeps, by their scores (eq. 5). The paper's rule is a fixed number; it
//! names adaptive rules as future work: all cosines rise during training, until a fixed 0.6 no longer
//! excludes anything. Every rule needs one scoring pass and no state from round to round.

use crate::config::{at_least_one, at_most, positive, within};
use crate::error::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which samples are kept: t of eq. 5 as a number, or a rule that finds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Threshold {
    /// The same number for all.
    Fixed(f64),
    /// By a rule.
    Rule(ThresholdRule),
}

/// Rules that adapt the threshold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ThresholdRule {
    /// A sample is kept if its score is above a share of the score that the anchors of that class have among
    /// themselves, which the server computes (AdaMatch's idea).
    AnchorRelative {
        /// That share of the anchors' own score.
        share: f64,
        /// The lowest threshold.
        least: f64,
        /// The highest threshold.
        most: f64,
        /// Weakly augmented views of every anchor that are scored.
        views: u32,
    },
    /// A sample is kept if its score is not below the mean score of the client's samples ((FL)^2's CAT, on
    /// cosines).
    ClientMean {
        /// The highest threshold.
        most: f64,
    },
    /// Every sample is kept, with a weight that falls below the mean score of the client's samples (SoftMatch).
    Softmatch {
        /// Standard deviations over which the weight falls.
        width: f64,
    },
    /// A sample is kept if its score is above a number that rises over the rounds, as the scores do.
    Rising {
        /// That number in the first round.
        from: f64,
        /// That number in the last round.
        to: f64,
    },
    /// A sample is kept if it is in the best-scored share of the client's samples, which grows over the rounds.
    Quantile {
        /// That share in the first round.
        from: f64,
        /// That share in the last round.
        to: f64,
    },
}

impl Threshold {
    /// Checks the keys of `method.threshold` for scores from `least_score` to 1.
    pub(crate) fn check(&self, least_score: f64) -> Result<()> {
        match self {
            Self::Fixed(threshold) => within("method.threshold", *threshold, least_score, 1.0),
            Self::Rule(rule) => rule.check(least_score),
        }
    }
}

impl ThresholdRule {
    fn check(&self, least_score: f64) -> Result<()> {
        match *self {
            Self::AnchorRelative { share, least, most, views } => {
                within("method.threshold.share", share, 0.0, 1.0)?;
                within("method.threshold.least", least, least_score, 1.0)?;
                within("method.threshold.most", most, least, 1.0)?;
                at_least_one("method.threshold.views", views as usize)?;
                at_most("method.threshold.views", views as usize, 100)
            }
            Self::ClientMean { most } => within("method.threshold.most", most, least_score, 1.0),
            Self::Softmatch { width } => positive("method.threshold.width", width),
            Self::Rising { from, to } => {
                within("method.threshold.from", from, least_score, 1.0)?;
                within("method.threshold.to", to, from, 1.0)
            }
            Self::Quantile { from, to } => {
                within("method.threshold.from", from, 0.0, 1.0)?;
                within("method.threshold.to", to, 0.0, 1.0)
            }
        }
    }
}

/// What is kept and how much it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Whether a sample is kept.
    pub kept: Vec<bool>,
    /// Its weight; empty where all count alike.
    pub weight: Vec<f32>,
    /// What scores were compared with: one number for all, or one per class; empty if there is none.
    pub thresholds: Vec<f64>,
}

/// Selects among one client's samples. `thresholds` holds one number per class where the server
/// finds them; `progress` goes from 0 in the first round to 1 in the last.
pub fn select(
    threshold: &Threshold,
    thresholds: &[f64],
    scores: &[f32],
    labels: &[u16],
    progress: f64,
) -> Selection {
    let above = |kept, thresholds| Selection { kept, weight: Vec::new(), thresholds };
    let all_above =
        |t: f64| above(scores.iter().map(|&score| f64::from(score) > t).collect(), vec![t]);
    let rule = match threshold {
        Threshold::Fixed(t) => return all_above(*t),
        Threshold::Rule(rule) => rule,
    };
    match *rule {
        ThresholdRule::AnchorRelative { .. } => {
            let t = |label: u16| thresholds.get(usize::from(label)).copied().unwrap_or(f64::MAX);
            let pairs = scores.iter().zip(labels);
            let kept = pairs.map(|(&score, &label)| f64::from(score) > t(label)).collect();
            above(kept, thresholds.to_vec())
        }
        ThresholdRule::Rising { from, to } => all_above(from + (to - from) * progress),
        ThresholdRule::ClientMean { most } => {
            let t = mean(scores).min(most);
            above(scores.iter().map(|&score| f64::from(score) >= t).collect(), vec![t])
        }
        ThresholdRule::Softmatch { width } => {
            let mean = mean(scores);
            let squares = scores.iter().map(|&score| (f64::from(score) - mean).powi(2));
            let variance = (squares.sum::<f64>() / scores.len().max(1) as f64).max(1e-12);
            let weight = |score: f64| match score {
                score if score >= mean => 1.0,
                score => (-(score - mean).powi(2) / (2.0 * width * width * variance)).exp(),
            };
            let weight = scores.iter().map(|&score| weight(f64::from(score)) as f32).collect();
            Selection { kept: vec![true; scores.len()], weight, thresholds: Vec::new() }
        }
        ThresholdRule::Quantile { from, to } => {
            let share = from + (to - from) * progress;
            let count = (share * scores.len() as f64).ceil() as usize;
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])); // stable: the first of equals
            let mut kept = vec![false; scores.len()];
            order.truncate(count);
            order.iter().for_each(|&index| kept[index] = true);
            above(kept, order.last().map(|&index| f64::from(scores[index])).into_iter().collect())
        }
    }
}

fn mean(scores: &[f32]) -> f64 {
    scores.iter().map(|&score| f64::from(score)).sum::<f64>() / scores.len().max(1) as f64
}

/// The server's part of `anchor-relative`: a share of every class's own score, within bounds.
pub fn relative_thresholds(own: &[f64], share: f64, least: f64, most: f64) -> Vec<f64> {
    own.iter().map(|score| (share * score).clamp(least, most)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 5] = [0.5, 0.9, 0.7, 0.1, 0.8]; // mean 0.6

    fn rule(rule: ThresholdRule, progress: f64) -> Selection {
        select(&Threshold::Rule(rule), &[0.6, 0.75], &SCORES, &[0, 1, 1, 0, 0], progress)
    }

    #[test]
    fn a_fixed_threshold_must_be_passed() {
        let found = select(&Threshold::Fixed(0.5), &[], &SCORES, &[0; 5], 0.0);
        assert_eq!(found.kept, [false, true, true, false, true]);
        assert_eq!(found.thresholds, [0.5]);
    }

    #[test]
    fn anchor_relative_has_one_threshold_per_class() {
        let found = relative_thresholds(&[0.8, 1.0, 0.2], 0.9, 0.3, 0.85);
        assert_eq!(found, [0.8 * 0.9, 0.85, 0.3]);
        let any = ThresholdRule::AnchorRelative { share: 0.9, least: 0.3, most: 0.85, views: 1 };
        // Class 0 wants more than 0.6, class 1 more than 0.75.
        let found = rule(any, 0.0);
        assert_eq!(found.kept, [false, true, false, false, true]);
        assert_eq!(found.thresholds, [0.6, 0.75]);
    }

    #[test]
    fn client_mean_keeps_what_is_not_below_the_mean() {
        let mean = ThresholdRule::ClientMean { most: 1.0 };
        assert_eq!(rule(mean, 0.0).kept, [false, true, true, false, true]);
        let capped = ThresholdRule::ClientMean { most: 0.5 };
        let found = rule(capped, 0.0);
        assert_eq!(found.kept, [true, true, true, false, true]);
        assert_eq!(found.thresholds, [0.5]);
    }

    #[test]
    fn softmatch_keeps_all_and_weighs_those_below_the_mean() {
        let found = rule(ThresholdRule::Softmatch { width: 0.5 }, 0.0);
        assert_eq!((found.kept, found.thresholds), (vec![true; 5], vec![]));
        // Variance: (.01 + .09 + .01 + .25 + .04) / 5 = .08; 2 / 4 of it is .04.
        let expected = [(-0.01f64 / 0.04).exp(), 1.0, 1.0, (-0.25f64 / 0.04).exp(), 1.0];
        let close = |(a, b): (&f32, f64)| (f64::from(*a) - b).abs() < 1e-6;
        assert!(found.weight.iter().zip(expected).all(close), "{:?}", found.weight);
    }

    #[test]
    fn a_rising_threshold_ends_at_its_last_value() {
        let rising = |progress| rule(ThresholdRule::Rising { from: 0.5, to: 0.75 }, progress);
        assert_eq!(rising(0.0).kept, [false, true, true, false, true]);
        assert_eq!(rising(0.5).thresholds, [0.625]);
        assert_eq!(rising(1.0).kept, [false, true, false, false, true]);
    }

    #[test]
    fn quantile_keeps_a_growing_share() {
        let quantile = |progress| rule(ThresholdRule::Quantile { from: 0.2, to: 0.8 }, progress);
        assert_eq!(quantile(0.0).kept, [false, true, false, false, false]);
        assert_eq!(quantile(0.5).kept, [false, true, true, false, true]); // 2.5 of 5: 3
        assert_eq!(quantile(0.5).thresholds, [f64::from(0.7f32)]);
        assert_eq!(quantile(1.0).kept, [true, true, true, false, true]);
        let none = select(
            &Threshold::Rule(ThresholdRule::Quantile { from: 0.2, to: 0.8 }),
            &[],
            &[],
            &[],
            0.5,
        );
        assert!(none.kept.is_empty() && none.thresholds.is_empty());
    }
}
