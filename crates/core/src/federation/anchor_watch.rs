//! The server owns labels: what no check of a single update can see shows in the aggregated model's
//! accuracy on the anchors.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Rounds that may be rolled back in a row.
const ROLLBACKS: u32 = 3;
/// Rounds whose median is the usual accuracy.
const MEDIAN_OF: usize = 10;
/// Rounds over which a decline is averaged, and the mean decline that is reported. On the embedded sample
/// clean rounds cost at most 3 points in the mean of five, and 7 hostile clients of 10 cost 14 to 20.
const DECLINE_OVER: usize = 5;
const DECLINE: f64 = 10.0;

/// The accuracies of the last rounds' aggregated models on the anchors; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AnchorWatch {
    /// Accuracy of the pre-trained model, which no client has touched; nothing after a warm-up.
    #[serde(default)]
    start: Option<f64>,
    accuracies: Vec<f64>,
    rollbacks: u32,
    /// Points that the clients' updates cost in the last rounds.
    declines: Vec<f64>,
}

impl AnchorWatch {
    /// Compares the first round with the accuracy of the pre-trained model.
    pub(crate) fn start_at(&mut self, accuracy: f64) {
        if self.accuracies.is_empty() {
            self.start.get_or_insert(accuracy);
        }
    }

    /// Whether an aggregated model has lost so much on the anchors that its round must be rolled back; an error if that
    /// happens too often in a row. It is compared with the median of the last rounds' aggregated models, the first one
    /// with the start.
    pub(crate) fn must_roll_back(
        &mut self,
        round: u32,
        accuracy: f64,
        margin: f64,
    ) -> Result<bool> {
        let mut sorted = self.accuracies.clone();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted.get(sorted.len() / 2).copied().or(self.start);
        if let Some(usual) = usual.filter(|usual| accuracy < usual - margin) {
            self.rollbacks += 1;
            if self.rollbacks > ROLLBACKS {
                return Err(Error::Collapsed { round, accuracy, usual });
            }
            return Ok(true);
        }
        self.rollbacks = 0;
        self.accuracies.push(accuracy);
        if self.accuracies.len() > MEDIAN_OF {
            self.accuracies.remove(0);
        }
        Ok(false)
    }

    /// The mean number of points that updates cost in the last rounds, once it is worth reporting.
    pub(crate) fn decline(&mut self, before: f64, after: f64) -> Option<f64> {
        self.declines.push(before - after);
        if self.declines.len() < DECLINE_OVER {
            return None;
        }
        let mean = self.declines.iter().sum::<f64>() / DECLINE_OVER as f64;
        if mean > DECLINE {
            self.declines.clear();
            return Some(mean);
        }
        self.declines.remove(0);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_judged_by_the_median_of_the_last_ten() {
        let mut watch = AnchorWatch::default();
        watch.start_at(30.0);
        let mut judge = |round, accuracy| watch.must_roll_back(round, accuracy, 10.0);
        // The first is compared with the start, and so is the next if that was rolled back.
        assert!(judge(1, 19.9).unwrap());
        assert!(judge(1, 19.9).unwrap());
        assert!(!judge(1, 20.0).unwrap());
        assert!(judge(2, 9.9).unwrap());
        for (round, accuracy) in [(2, 50.0), (3, 60.0)] {
            assert!(!judge(round, accuracy).unwrap());
        }
        // The median is 50; what is rolled back does not change it.
        assert!(judge(4, 39.9).unwrap());
        assert!(!judge(5, 40.0).unwrap());
        for round in 6..16 {
            assert!(!judge(round, 90.0).unwrap()); // ten of them: the old ones are forgotten
        }
        for round in 16..19 {
            assert!(judge(round, 79.9).unwrap());
        }
        let Err(Error::Collapsed { round: 19, usual, .. }) = judge(19, 79.9) else { panic!() };
        assert_eq!(usual, 90.0);
        // Without a start, nothing is usual in the first round.
        let mut watch = AnchorWatch::default();
        assert!(!watch.must_roll_back(1, 0.0, 10.0).unwrap());
        // A good one in between restarts the count.
        let mut watch = AnchorWatch { accuracies: vec![90.0; 3], ..AnchorWatch::default() };
        for round in 0..20 {
            let accuracy = if round % 4 == 3 { 90.0 } else { 0.0 };
            let rolled_back = watch.must_roll_back(round, accuracy, 10.0).unwrap();
            assert_eq!(rolled_back, round % 4 != 3);
        }
    }

    #[test]
    fn a_lasting_decline_is_reported_and_a_single_one_is_not() {
        let mut watch = AnchorWatch::default();
        let said: Vec<Option<f64>> = [0.0, 40.0, 0.0, -5.0, 0.0, 0.0, 20.0, 20.0, 20.0, 20.0]
            .into_iter()
            .map(|points| watch.decline(80.0, 80.0 - points))
            .collect();
        // The mean passes 10 once the last five hold three declines of 20.
        assert_eq!(said[..8], [None; 8]);
        assert_eq!(said[8], Some(12.0));
        assert_eq!(said[9], None, "the count starts again");
    }
}
