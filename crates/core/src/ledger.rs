//! What the server remembers from round to round to judge its clients by: how many samples each has, who
//! has sent bad updates, and how well the aggregated models did on the anchors.

use crate::config::ChecksConfig;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rounds that may be rolled back in a row.
const ROLLBACKS: u32 = 3;
/// Rounds whose median is what is usual.
const MEDIAN_OF: usize = 10;

/// The server's memory of its clients; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Samples each client gave at first contact.
    pub sizes: BTreeMap<u32, usize>,
    /// Bad updates of each client.
    pub offences: BTreeMap<u32, u32>,
    /// How well the aggregated models of the last rounds did on the anchors.
    pub anchor_scores: Vec<f64>,
    /// Rounds rolled back in a row.
    pub rollbacks: u32,
}

impl Ledger {
    /// Notes how many samples a client has, at its first contact.
    pub fn meet(&mut self, client: u32, samples: usize) {
        self.sizes.entry(client).or_insert(samples);
    }

    /// Whether a client has offended too often to be asked again.
    pub fn is_set_aside(&self, client: u32, checks: &ChecksConfig) -> bool {
        checks.offences > 0 && self.offences.get(&client).is_some_and(|n| *n >= checks.offences)
    }

    /// Whether an aggregated model has lost so much on the anchors that its round must be rolled back; an
    /// error if that was so too often in a row. The server owns labels: what no look at updates can see
    /// shows there.
    pub fn must_roll_back(
        &mut self,
        round: u32,
        accuracy: f64,
        checks: &ChecksConfig,
    ) -> Result<bool> {
        let mut sorted = self.anchor_scores.clone();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted.get(sorted.len() / 2).copied(); // nothing is before the first round
        if let Some(usual) = usual.filter(|usual| accuracy < usual - checks.anchor_margin) {
            self.rollbacks += 1;
            if self.rollbacks > ROLLBACKS {
                return Err(Error::Collapsed { round, accuracy, usual });
            }
            return Ok(true);
        }
        self.rollbacks = 0;
        self.anchor_scores.push(accuracy);
        if self.anchor_scores.len() > MEDIAN_OF {
            self.anchor_scores.remove(0);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;

    fn checks(setting: &str) -> ChecksConfig {
        resolve("", &[setting.to_owned()]).unwrap().checks
    }

    #[test]
    fn who_offends_too_often_is_set_aside() {
        let checks = checks("checks.offences=2");
        let mut ledger = Ledger::default();
        ledger.offences.insert(5, 1);
        assert!(!ledger.is_set_aside(5, &checks));
        ledger.offences.insert(5, 2);
        assert!(ledger.is_set_aside(5, &checks) && !ledger.is_set_aside(6, &checks));
    }

    #[test]
    fn a_round_is_judged_by_the_median_of_the_last_ten() {
        let checks = checks("checks.anchor_margin=10");
        let mut ledger = Ledger::default();
        let mut judge = |round, accuracy| ledger.must_roll_back(round, accuracy, &checks);
        // Nothing is usual at first.
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
        // A good one in between begins the count anew.
        let mut ledger = Ledger { anchor_scores: vec![90.0; 3], ..Ledger::default() };
        for round in 0..20 {
            let accuracy = if round % 4 == 3 { 90.0 } else { 0.0 };
            let rolled_back = ledger.must_roll_back(round, accuracy, &checks).unwrap();
            assert_eq!(rolled_back, round % 4 != 3);
        }
    }
}
