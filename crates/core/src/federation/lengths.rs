//! How far updates move, and how far is usual: what a hostile client can do is bounded by what the others do.

use crate::error::Result;
use fedanchor_engine::tensors::{Params, norm};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use tch::TchError;

/// Rounds whose updates say what is usual. A round may draw a hostile majority although hostile clients are a
/// minority of the fleet; ten rounds together hardly do.
const ROUNDS: usize = 10;

/// Times the usual length above which an update is far outside. The longest of 4,470 honest ones, of clients with few
/// classes and of any size, was 7.6 times as long as usual.
const FAR: f64 = 10.0;

/// Updates of one client that are far outside, after which it is named.
const OFTEN: u32 = 5;

/// How far an update moves the weights, and how far the statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// Of the change of the weights.
    pub weights: f64,
    /// Of the change of the statistics.
    pub statistics: f64,
}

impl Lengths {
    /// Those of an update of `sent`.
    pub fn of(params: &Params, sent: &Params) -> Result<Self> {
        let length = |statistic: bool| {
            let entries = sent.layout.iter().zip(params.tensors.iter().zip(&sent.tensors));
            let entries = entries.filter(|(entry, _)| entry.statistic == statistic);
            let change = entries.map(|(_, (to, from))| to.f_sub(from));
            Ok::<_, crate::Error>(norm(change.collect::<Result<Vec<_>, _>>()?.iter())?)
        };
        Ok(Self { weights: length(false)?, statistics: length(true)? })
    }

    /// The lower median of each.
    pub fn median(all: &[Self]) -> Option<Self> {
        let median = |length: fn(&Self) -> f64| {
            let mut sorted: Vec<f64> = all.iter().map(length).collect();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len().saturating_sub(1) / 2).copied()
        };
        Some(Self { weights: median(|l| l.weights)?, statistics: median(|l| l.statistics)? })
    }

    /// The smaller of each.
    pub fn at_most(self, most: Self) -> Self {
        let weights = self.weights.min(most.weights);
        Self { weights, statistics: self.statistics.min(most.statistics) }
    }

    /// Both multiplied by `factor`.
    pub fn times(self, factor: f64) -> Self {
        Self { weights: factor * self.weights, statistics: factor * self.statistics }
    }

    /// Whether an update of these lengths is far outside of what is usual.
    pub fn is_far_outside(self, usual: Self) -> bool {
        let most = usual.times(FAR);
        self.weights > most.weights || self.statistics > most.statistics
    }

    /// The shares of the way that an update of these lengths may go, where it may move no further than `most`.
    fn shares(self, most: Self) -> Self {
        let share = |length: f64, most: f64| if length > most { most / length } else { 1.0 };
        let weights = share(self.weights, most.weights);
        Self { weights, statistics: share(self.statistics, most.statistics) }
    }

    /// An update of these lengths that moves no further than `most`; `None` if it does not anyway.
    pub fn shorten(
        self,
        params: &Params,
        sent: &Params,
        most: Self,
    ) -> Result<Option<Params>, TchError> {
        let shares = self.shares(most);
        if shares.weights >= 1.0 && shares.statistics >= 1.0 {
            return Ok(None);
        }
        let entries = sent.layout.iter().zip(sent.tensors.iter().zip(&params.tensors));
        let tensors = entries.map(|(entry, (from, to))| {
            from.f_lerp(to, if entry.statistic { shares.statistics } else { shares.weights })
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        Ok(Some(Params { layout: params.layout.clone(), tensors }))
    }
}

/// The lengths of the last rounds' updates; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UsualLengths {
    /// Those of the weights are divided by the round's learning rate, which they follow.
    rounds: VecDeque<Vec<Lengths>>,
    /// How many updates of each client were far outside.
    #[serde(default)]
    far_outside: BTreeMap<u32, u32>,
}

impl UsualLengths {
    /// Adds those of a round.
    pub(crate) fn push(&mut self, lengths: &[Lengths], lr: f64) {
        if lengths.is_empty() || lr <= 0.0 {
            return;
        }
        let per_lr = |l: &Lengths| Lengths { weights: l.weights / lr, ..*l };
        self.rounds.push_back(lengths.iter().map(per_lr).collect());
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
    }

    /// Counts updates that are far outside; names the clients for which it is the fifth time. Clients whose updates
    /// are shortened now and then are not named: honest ones differ, in their images and in the number of them.
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
            "{who} sent {OFTEN} updates more than {FAR} times as long as usual, which were shortened: check {whom}"
        ))
    }

    /// What they would be at this learning rate. Nothing before the first round.
    pub(crate) fn at(&self, lr: f64) -> Vec<Lengths> {
        let scaled = |l: &Lengths| Lengths { weights: l.weights * lr, ..*l };
        self.rounds.iter().flatten().map(scaled).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_engine::tensors::{Entry, Part};
    use std::sync::Arc;
    use tch::Tensor;

    fn params(weights: &[f32], mean: &[f32]) -> Params {
        let entry = |name: &str, values: &[f32], statistic| {
            let shape = vec![values.len() as i64];
            Entry { name: name.to_owned(), shape, part: Part::Backbone, statistic }
        };
        let layout = vec![entry("a", weights, false), entry("mean", mean, true)];
        let tensors = [weights, mean].map(|values| Tensor::from_slice(values).unsqueeze(0));
        Params { layout: Arc::new(layout), tensors: tensors.into() }
    }

    fn lengths(weights: f64, statistics: f64) -> Lengths {
        Lengths { weights, statistics }
    }

    #[test]
    fn weights_and_statistics_are_shortened_each_to_its_own_limit() {
        let (sent, update) = (params(&[1.0, 1.0], &[0.0]), params(&[4.0, 5.0], &[10.0]));
        let found = Lengths::of(&update, &sent).unwrap();
        assert_eq!(found, lengths(5.0, 10.0));
        assert!(found.shorten(&update, &sent, lengths(5.0, 10.0)).unwrap().is_none());
        let short = found.shorten(&update, &sent, lengths(2.5, 20.0)).unwrap().unwrap();
        assert_eq!(short.tensors, params(&[2.5, 3.0], &[10.0]).tensors);
        let short = found.shorten(&update, &sent, lengths(9.0, 1.0)).unwrap().unwrap();
        assert_eq!(short.tensors, params(&[4.0, 5.0], &[1.0]).tensors);
        // One that stands still has no direction, and is not too long for anything.
        assert!(lengths(0.0, 0.0).shorten(&sent, &sent, lengths(0.0, 0.0)).unwrap().is_none());
    }

    #[test]
    fn the_usual_length_follows_the_learning_rate_and_the_last_ten_rounds() {
        let mut usual = UsualLengths::default();
        assert_eq!(Lengths::median(&usual.at(0.1)), None);
        usual.push(&[lengths(1.0, 3.0), lengths(2.0, 4.0), lengths(800.0, 900.0)], 0.1);
        usual.push(&[], 0.1);
        usual.push(&[lengths(1.0, 1.0)], 0.0);
        assert_eq!(Lengths::median(&usual.at(0.05)), Some(lengths(1.0, 4.0)));
        for _ in 0..ROUNDS {
            usual.push(&[lengths(7.0, 7.0); 3], 0.1);
        }
        assert_eq!(usual.at(0.1), [lengths(7.0, 7.0); 3 * ROUNDS]);
        // A client is named the fifth time, once.
        let said: Vec<bool> = (0..7).map(|_| usual.count_far_outside(&[3]).is_some()).collect();
        assert_eq!(said, [false, false, false, false, true, false, false]);
        let together = (0..5).filter_map(|_| usual.count_far_outside(&[4, 5, 6])).next().unwrap();
        let words =
            "clients 4, 5 and 6 have each sent 5 updates more than 10 times as long as usual";
        assert!(together.starts_with(words), "{together}");
        let text = serde_json::to_string(&usual).unwrap();
        assert_eq!(serde_json::from_str::<UsualLengths>(&text).unwrap(), usual);
    }

    /// The updates of a recorded run, round by round with its learning rate.
    fn recorded(run: &str) -> Vec<(f64, Vec<Lengths>)> {
        let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/shortening");
        let text = std::fs::read_to_string(format!("{results}/{run}/lengths.csv")).unwrap();
        let mut rounds = BTreeMap::<u32, (f64, Vec<Lengths>)>::new();
        for line in text.lines().skip(1) {
            let values: Vec<f64> = line.split(',').map(|value| value.parse().unwrap()).collect();
            let [round, _, _, lr, weights, statistics] = values[..] else { panic!("{line}") };
            let (_, round) = rounds.entry(round as u32).or_insert((lr, Vec::new()));
            round.push(lengths(weights, statistics));
        }
        rounds.into_values().collect()
    }

    /// Honest clients that hold few of the classes, of equal size and of 10 to 1,624 images.
    #[test]
    fn honest_updates_are_hardly_shortened_and_no_honest_client_is_named() {
        let factor = crate::resolve("", &[]).unwrap().checks.length;
        let is_longer = |found: Lengths, most: Lengths| found.at_most(most) != found;
        for run in ["equal-0/seed5", "equal-0/seed6", "unequal-0/seed5"] {
            let (mut usual, mut all, mut shortened) = (UsualLengths::default(), 0, 0);
            for (lr, mut round) in recorded(run) {
                if let Some(median) = Lengths::median(&usual.at(lr)) {
                    let most = median.times(factor);
                    all += round.len();
                    shortened += round.iter().filter(|found| is_longer(**found, most)).count();
                    assert!(!round.iter().any(|found| found.is_far_outside(median)), "{run}");
                    assert!(is_longer(median.times(10.0), most));
                    round.iter_mut().for_each(|found| *found = found.at_most(most));
                }
                usual.push(&round, lr);
            }
            assert!(all == 1490 && 100 * shortened < all, "{run}: {shortened} of {all}");
        }
    }
}
