//! Which of its samples a client keeps, by their scores (eq. 5). The paper's rule is a fixed number
//! and names adaptive ones as future work: as training goes on all cosines rise, and a fixed 0.6 comes
//! to select nothing. Every rule needs one scoring pass and no state from round to round.

use crate::config::{Threshold, ThresholdRule};

/// What is kept and how much it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Whether a sample is kept.
    pub kept: Vec<bool>,
    /// Its weight; none where all count alike.
    pub weight: Vec<f32>,
}

/// Selects among one client's samples. `thresholds` holds one number a class where the server found
/// them; `progress` goes from 0 in the first round to 1 in the last.
pub fn select(
    threshold: &Threshold,
    thresholds: &[f64],
    scores: &[f32],
    labels: &[u16],
    progress: f64,
) -> Selection {
    let above = |kept: Vec<bool>| Selection { kept, weight: Vec::new() };
    let rule = match threshold {
        Threshold::Fixed(t) => {
            return above(scores.iter().map(|&score| f64::from(score) > *t).collect());
        }
        Threshold::Rule(rule) => rule,
    };
    match *rule {
        ThresholdRule::AnchorRelative { .. } => {
            let t = |label: u16| thresholds.get(usize::from(label)).copied().unwrap_or(f64::MAX);
            let pairs = scores.iter().zip(labels);
            above(pairs.map(|(&score, &label)| f64::from(score) > t(label)).collect())
        }
        ThresholdRule::ClientMean { most } => {
            let t = mean(scores).min(most);
            above(scores.iter().map(|&score| f64::from(score) >= t).collect())
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
            Selection { kept: vec![true; scores.len()], weight }
        }
        ThresholdRule::Quantile { from, to } => {
            let share = from + (to - from) * progress;
            let count = (share * scores.len() as f64).ceil() as usize;
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])); // stable: the first of equals
            let mut kept = vec![false; scores.len()];
            order.iter().take(count).for_each(|&index| kept[index] = true);
            above(kept)
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
        let kept = select(&Threshold::Fixed(0.5), &[], &SCORES, &[0; 5], 0.0).kept;
        assert_eq!(kept, [false, true, true, false, true]);
    }

    #[test]
    fn anchor_relative_has_a_threshold_a_class() {
        let found = relative_thresholds(&[0.8, 1.0, 0.2], 0.9, 0.3, 0.85);
        assert_eq!(found, [0.8 * 0.9, 0.85, 0.3]);
        let any = ThresholdRule::AnchorRelative { share: 0.9, least: 0.3, most: 0.85, views: 1 };
        // Class 0 wants more than 0.6, class 1 more than 0.75.
        assert_eq!(rule(any, 0.0).kept, [false, true, false, false, true]);
    }

    #[test]
    fn client_mean_keeps_what_is_not_below_the_mean() {
        let mean = ThresholdRule::ClientMean { most: 1.0 };
        assert_eq!(rule(mean, 0.0).kept, [false, true, true, false, true]);
        let capped = ThresholdRule::ClientMean { most: 0.5 };
        assert_eq!(rule(capped, 0.0).kept, [true, true, true, false, true]);
    }

    #[test]
    fn softmatch_keeps_all_and_weighs_those_below_the_mean() {
        let found = rule(ThresholdRule::Softmatch { width: 0.5 }, 0.0);
        assert_eq!(found.kept, [true; 5]);
        // Variance: (.01 + .09 + .01 + .25 + .04) / 5 = .08; 2 / 4 of it is .04.
        let expected = [(-0.01f64 / 0.04).exp(), 1.0, 1.0, (-0.25f64 / 0.04).exp(), 1.0];
        let close = |(a, b): (&f32, f64)| (f64::from(*a) - b).abs() < 1e-6;
        assert!(found.weight.iter().zip(expected).all(close), "{:?}", found.weight);
    }

    #[test]
    fn quantile_keeps_a_growing_share() {
        let quantile =
            |progress| rule(ThresholdRule::Quantile { from: 0.2, to: 0.8 }, progress).kept;
        assert_eq!(quantile(0.0), [false, true, false, false, false]);
        assert_eq!(quantile(0.5), [false, true, true, false, true]); // 2.5 of 5: 3
        assert_eq!(quantile(1.0), [true, true, true, false, true]);
        let none = select(
            &Threshold::Rule(ThresholdRule::Quantile { from: 0.2, to: 0.8 }),
            &[],
            &[],
            &[],
            0.5,
        );
        assert!(none.kept.is_empty());
    }
}
