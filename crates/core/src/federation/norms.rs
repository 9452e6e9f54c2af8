//! The usual norms of updates, to which those of hostile clients are limited.

use crate::aggregation::{FAR, Norms};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Rounds whose updates define the usual norms. A round may draw a hostile majority although hostile clients are a
/// minority of the fleet; ten rounds together hardly do.
const ROUNDS: usize = 10;

/// Updates of one client that are far outside, after which it is named.
const OFTEN: u32 = 5;

/// The norms of the last rounds' updates; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UsualNorms {
    /// Those of the weights are divided by the round's learning rate, which they follow.
    rounds: VecDeque<Vec<Norms>>,
    #[serde(default)]
    far_outside: BTreeMap<u32, u32>,
}

impl UsualNorms {
    pub(crate) fn push(&mut self, norms: &[Norms], lr: f64) {
        if norms.is_empty() || lr <= 0.0 {
            return;
        }
        let per_lr = |l: &Norms| Norms { weights: l.weights / lr, ..*l };
        self.rounds.push_back(norms.iter().map(per_lr).collect());
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
    }

    /// Counts updates that are far outside; names the clients for which it is the fifth time. Clients whose updates
    /// are clipped now and then are not named: honest ones differ, in their images and in the number of them.
    pub(crate) fn count_far_outside(&mut self, clients: &[u32]) -> Option<String> {
        let mut often = Vec::new();
        for client in clients {
            let times = self.far_outside.entry(*client).or_default();
            *times += 1;
            if *times == OFTEN {
                often.push(client.to_string());
            }
        }
        let (last, others) = often.split_last()?;
        let (who, whom) = match others {
            [] => (format!("client {last} has"), "it"),
            others => (format!("clients {} and {last} have each", others.join(", ")), "them"),
        };
        Some(format!(
            "{who} sent {OFTEN} updates more than {FAR} times the usual norm, which were clipped: check {whom}"
        ))
    }

    /// The norms at this learning rate; empty before the first round.
    pub(crate) fn at(&self, lr: f64) -> Vec<Norms> {
        let scaled = |l: &Norms| Norms { weights: l.weights * lr, ..*l };
        self.rounds.iter().flatten().map(scaled).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norms(weights: f64, statistics: f64) -> Norms {
        Norms { weights, statistics }
    }

    #[test]
    fn the_usual_length_follows_the_learning_rate_and_the_last_ten_rounds() {
        let mut usual = UsualNorms::default();
        assert_eq!(Norms::median(&usual.at(0.1)), None);
        usual.push(&[norms(1.0, 3.0), norms(2.0, 4.0), norms(800.0, 900.0)], 0.1);
        usual.push(&[], 0.1);
        usual.push(&[norms(1.0, 1.0)], 0.0);
        assert_eq!(Norms::median(&usual.at(0.05)), Some(norms(1.0, 4.0)));
        for _ in 0..ROUNDS {
            usual.push(&[norms(7.0, 7.0); 3], 0.1);
        }
        assert_eq!(usual.at(0.1), [norms(7.0, 7.0); 3 * ROUNDS]);
        // A client is named the fifth time, once.
        let said: Vec<bool> = (0..7).map(|_| usual.count_far_outside(&[3]).is_some()).collect();
        assert_eq!(said, [false, false, false, false, true, false, false]);
        let together = (0..5).filter_map(|_| usual.count_far_outside(&[4, 5, 6])).next().unwrap();
        let words = "clients 4, 5 and 6 have each sent 5 updates more than 10 times the usual norm";
        assert!(together.starts_with(words), "{together}");
        let text = serde_json::to_string(&usual).unwrap();
        assert_eq!(serde_json::from_str::<UsualNorms>(&text).unwrap(), usual);
    }

    /// The updates of a recorded run, round by round with its learning rate.
    fn recorded(run: &str) -> Vec<(f64, Vec<Norms>)> {
        let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/shortening");
        let text = std::fs::read_to_string(format!("{results}/{run}/lengths.csv")).unwrap();
        let mut rounds = BTreeMap::<u32, (f64, Vec<Norms>)>::new();
        for line in text.lines().skip(1) {
            let values: Vec<f64> = line.split(',').map(|value| value.parse().unwrap()).collect();
            let [round, _, _, lr, weights, statistics] = values[..] else { panic!("{line}") };
            let (_, round) = rounds.entry(round as u32).or_insert((lr, Vec::new()));
            round.push(norms(weights, statistics));
        }
        rounds.into_values().collect()
    }

    /// Honest clients that hold few of the classes, of equal size and of 10 to 1,624 images.
    #[test]
    fn honest_updates_are_hardly_clipped_and_no_honest_client_is_named() {
        let factor = crate::resolve("", &[]).unwrap().checks.clip;
        let is_longer = |found: Norms, most: Norms| found.at_most(most) != found;
        for run in ["equal-0/seed5", "equal-0/seed6", "unequal-0/seed5"] {
            let (mut usual, mut all, mut clipped) = (UsualNorms::default(), 0, 0);
            for (lr, mut round) in recorded(run) {
                if let Some(median) = Norms::median(&usual.at(lr)) {
                    let most = median.times(factor);
                    all += round.len();
                    clipped += round.iter().filter(|found| is_longer(**found, most)).count();
                    assert!(!round.iter().any(|found| found.is_far_outside(median)), "{run}");
                    assert!(is_longer(median.times(10.0), most));
                    round.iter_mut().for_each(|found| *found = found.at_most(most));
                }
                usual.push(&round, lr);
            }
            assert!(all == 1490 && 100 * clipped < all, "{run}: {clipped} of {all}");
        }
    }
}
