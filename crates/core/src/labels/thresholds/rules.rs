//! The rules of this crate.

use super::{OwnScores, Registration, Scored, Selection, ThresholdRule, read_keys};
use crate::config::{positive, within};
use crate::error::Result;
use schemars::JsonSchema;
use serde::Deserialize;

pub(super) const BUILT_IN: [Registration; 5] = [
    Registration::new::<AnchorRelative>("anchor-relative", "", |keys, lowest| {
        let rule: AnchorRelative = read_keys(keys)?;
        within("method.threshold.share", rule.share, 0.0, 1.0)?;
        within("method.threshold.least", rule.least, lowest, 1.0)?;
        within("method.threshold.most", rule.most, rule.least, 1.0)?;
        within("method.threshold.views", rule.views.into(), 1.0, 100.0)?;
        Ok(Box::new(rule))
    }),
    Registration::new::<ClientMean>("client-mean", "", |keys, lowest| {
        let rule: ClientMean = read_keys(keys)?;
        within("method.threshold.most", rule.most, lowest, 1.0)?;
        Ok(Box::new(rule))
    }),
    Registration::new::<Softmatch>("softmatch", "", |keys, _| {
        let rule: Softmatch = read_keys(keys)?;
        positive("method.threshold.width", rule.width)?;
        Ok(Box::new(rule))
    }),
    Registration::new::<Rising>("rising", "", |keys, lowest| {
        let rule: Rising = read_keys(keys)?;
        within("method.threshold.from", rule.from, lowest, 1.0)?;
        within("method.threshold.to", rule.to, rule.from, 1.0)?;
        Ok(Box::new(rule))
    }),
    Registration::new::<Quantile>("quantile", "", |keys, _| {
        let rule: Quantile = read_keys(keys)?;
        within("method.threshold.from", rule.from, 0.0, 1.0)?;
        within("method.threshold.to", rule.to, 0.0, 1.0)?;
        Ok(Box::new(rule))
    }),
];

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
