//! How the updates of a round become one model (Algorithm 1, line 10). One rule, one file. A new rule
//! implements [`Rule`], gets a word in `config::AggregationRule` and a line in [`Aggregation::new`].

mod clipped_mean;
mod fltrust;
mod mean;
mod multi_krum;
mod trimmed_mean;

pub use clipped_mean::ClippedMean;
pub use fltrust::FlTrust;
pub use mean::WeightedMean;
pub use multi_krum::MultiKrum;
pub use trimmed_mean::{Median, TrimmedMean};

use super::admission::AdmittedUpdate;
use super::lengths::Lengths;
use crate::config::{AggregationConfig, AggregationRule, Weights};
use crate::error::Result;
use fedanchor_engine::tensors::Params;

/// An aggregation rule: takes updates in, in canonical order, and gives one model out.
pub trait Rule: std::fmt::Debug {
    /// Adds a model with its weight n_m. `sent` is what the clients started from.
    fn add(&mut self, params: &Params, weight: f64, sent: &Params) -> Result<()>;

    /// The aggregate; `None` if the model is to stay as it is.
    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>>;
}

/// The rule of an experiment at work. It takes admitted updates only.
#[derive(Debug)]
pub struct Aggregation {
    rule: Box<dyn Rule>,
    weights: Weights,
}

/// What a rule may need to know beside the updates.
#[derive(Debug, Default)]
pub struct Known {
    /// The server's own update, where the rule needs it.
    pub root: Option<Params>,
    /// The lengths of the last rounds' updates.
    pub lengths: Vec<Lengths>,
}

impl Aggregation {
    /// By the rule of the experiment.
    pub fn new(config: &AggregationConfig, known: Known) -> Self {
        let Known { root, lengths } = known;
        let hostile = config.hostile;
        let rule: Box<dyn Rule> = match config.rule {
            AggregationRule::Mean => Box::new(WeightedMean::default()),
            AggregationRule::ClippedMean => Box::new(ClippedMean::new(lengths)),
            AggregationRule::TrimmedMean => Box::new(TrimmedMean::new(hostile)),
            AggregationRule::Median => Box::new(Median::default()),
            AggregationRule::MultiKrum => Box::new(MultiKrum::new(hostile)),
            AggregationRule::Fltrust => Box::new(FlTrust::new(root)),
        };
        Self { rule, weights: config.weights }
    }

    /// Adds an update. `sent` is what the clients started from.
    pub fn add(&mut self, update: &AdmittedUpdate, sent: &Params) -> Result<()> {
        let update = update.update();
        // n_m of Algorithm 1, line 10.
        let weight = match self.weights {
            Weights::Samples => update.samples as f64,
            // A client that counts as unchanged although it kept nothing still needs a weight.
            Weights::Kept => update.kept.max(1) as f64,
            Weights::Uniform => 1.0,
        };
        self.rule.add(&update.params, weight, sent)
    }

    /// The aggregate; `None` if there was no update or the model is to stay as it is.
    pub fn finish(self, sent: &Params) -> Result<Option<Params>> {
        self.rule.finish(sent)
    }
}

/// How many of `count` updates may be hostile: this share of them, and always less than half.
fn hostile_count(share: f64, count: usize) -> usize {
    ((share * count as f64 + 1e-9).floor() as usize).min(count.saturating_sub(1) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_engine::tensors::{Entry, Part};
    use std::sync::Arc;
    use tch::{Kind, Tensor};

    fn params(values: &[f32]) -> Params {
        let entry = |name: &str, statistic| {
            let shape = vec![values.len() as i64];
            Entry { name: name.to_owned(), shape, part: Part::Backbone, statistic }
        };
        let tensor = || Tensor::from_slice(values).unsqueeze(0);
        Params {
            layout: Arc::new(vec![entry("a", false), entry("mean", true)]),
            tensors: vec![tensor(), tensor() * 10.0],
        }
    }

    /// The weights of the aggregate, and its statistics over 10: for most rules the same.
    fn aggregate(rule: impl Rule + 'static, updates: &[(&[f32], f64)]) -> (Vec<f64>, Vec<f64>) {
        let (mut rule, sent): (Box<dyn Rule>, _) = (Box::new(rule), params(&[0.0, 0.0]));
        for (values, weight) in updates {
            rule.add(&params(values), *weight, &sent).unwrap();
        }
        let found = rule.finish(&sent).unwrap().unwrap_or(sent);
        let values = |at: usize| {
            Vec::<f64>::try_from(found.tensors[at].to_kind(Kind::Double).flatten(0, -1)).unwrap()
        };
        (values(0), values(1).iter().map(|value| value / 10.0).collect())
    }

    #[track_caller]
    fn close(found: &[f64], expected: [f64; 2]) {
        let same = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(same, "{found:?} {expected:?}");
    }

    const UPDATES: [(&[f32], f64); 5] = [
        (&[1.0, 0.0], 1.0),
        (&[2.0, 1.0], 1.0),
        (&[3.0, 2.0], 1.0),
        (&[2.0, 0.0], 1.0),
        (&[-100.0, 100.0], 1.0),
    ];

    #[test]
    fn rules_by_hand() {
        let both = |(weights, statistics): (Vec<f64>, Vec<f64>), expected| {
            close(&weights, expected);
            close(&statistics, expected);
        };
        both(aggregate(WeightedMean::default(), &UPDATES), [-92.0 / 5.0, 103.0 / 5.0]);
        // One cut at either end: 1, 2, 2 and 0, 1, 2.
        both(aggregate(TrimmedMean::new(0.2), &UPDATES), [5.0 / 3.0, 1.0]);
        both(aggregate(Median::default(), &UPDATES), [2.0, 1.0]);
        // The last is furthest from all others: the mean of the four.
        both(aggregate(MultiKrum::new(0.2), &UPDATES), [2.0, 0.75]);
        // Norms 1, 2.236, 3.606, 2 and 141.4: the median is 2.236.
        let (short, long) = (5f64.sqrt() / 13f64.sqrt(), 5f64.sqrt() / 20000f64.sqrt());
        let x = (1.0 + 2.0 + 3.0 * short + 2.0 - 100.0 * long) / 5.0;
        let y = (0.0 + 1.0 + 2.0 * short + 0.0 + 100.0 * long) / 5.0;
        both(aggregate(ClippedMean::default(), &UPDATES), [x, y]);
    }

    /// A round may draw more hostile clients than honest ones; the rounds before say what is usual.
    #[test]
    fn lengths_of_earlier_rounds_bound_a_hostile_majority() {
        let hostile: [(&[f32], f64); 3] =
            [(&[0.0, 1.0], 1.0), (&[0.0, -800.0], 1.0), (&[0.0, -900.0], 1.0)];
        let earlier = vec![Lengths { weights: 1.0, statistics: 10.0 }; 5];
        let found = aggregate(ClippedMean::new(earlier), &hostile);
        close(&found.0, [0.0, -1.0 / 3.0]);
        close(&found.1, [0.0, -1.0 / 3.0]);
        close(&aggregate(ClippedMean::default(), &hostile).0, [0.0, (1.0 - 800.0 - 800.0) / 3.0]);
    }

    /// Clients that kept nothing do not move; that says nothing of how far the others may.
    #[test]
    fn clients_that_do_not_move_are_not_the_usual_length() {
        let still: (&[f32], f64) = (&[0.0, 0.0], 1.0);
        let updates = [still, still, still, (&[0.0, 3.0], 1.0)];
        close(&aggregate(ClippedMean::default(), &updates).0, [0.0, 0.75]);
        assert_eq!(aggregate(ClippedMean::default(), &[still, still]).0, [0.0, 0.0]);
    }

    #[test]
    fn fltrust_by_hand() {
        // The root is (0, 2). Cosines with it: 0, 1/sqrt 5, 2/sqrt 13, 0, 1/sqrt 2; a hostile one has none.
        let root = Some(params(&[0.0, 2.0]));
        let mut updates = UPDATES.to_vec();
        updates.push((&[0.0, -50.0], 1000.0));
        let (weights, statistics) = aggregate(FlTrust::new(root), &updates);
        let trust = [1.0 / 5f64.sqrt(), 2.0 / 13f64.sqrt(), 0.5f64.sqrt()];
        let total: f64 = trust.iter().sum();
        // Each scaled to length 2, then the mean by trust; weights n_m have no part in it.
        let unit = [
            [2.0 / 5f64.sqrt(), 1.0 / 5f64.sqrt()],
            [3.0 / 13f64.sqrt(), 2.0 / 13f64.sqrt()],
            [-(0.5f64.sqrt()), 0.5f64.sqrt()],
        ];
        let mean = |axis: usize| -> f64 {
            trust.iter().zip(unit).map(|(trust, unit)| trust * 2.0 * unit[axis]).sum::<f64>()
                / total
        };
        close(&weights, [mean(0), mean(1)]);
        // Statistics are averaged by trust as they are, and have no part in the cosine.
        let plain = [[2.0, 1.0], [3.0, 2.0], [-100.0, 100.0]];
        let mean = |axis: usize| -> f64 {
            trust.iter().zip(plain).map(|(trust, value)| trust * value[axis]).sum::<f64>() / total
        };
        close(&statistics, [mean(0), mean(1)]);
    }

    #[test]
    fn fltrust_keeps_the_model_if_it_trusts_no_one() {
        let against: [(&[f32], f64); 2] = [(&[0.0, -1.0], 1.0), (&[5.0, 0.0], 1.0)];
        for root in [Some(params(&[0.0, 2.0])), Some(params(&[0.0, 0.0])), None] {
            let mut rule: Box<dyn Rule> = Box::new(FlTrust::new(root));
            let sent = params(&[0.0, 0.0]);
            for (values, weight) in against {
                rule.add(&params(values), weight, &sent).unwrap();
            }
            assert!(rule.finish(&sent).unwrap().is_none());
        }
        // A client that did not move has no direction to be trusted for.
        let mut rule: Box<dyn Rule> = Box::new(FlTrust::new(Some(params(&[0.0, 2.0]))));
        rule.add(&params(&[0.0, 0.0]), 1.0, &params(&[0.0, 0.0])).unwrap();
        assert!(rule.finish(&params(&[0.0, 0.0])).unwrap().is_none());
    }

    /// That is what `checks.length` does to an update: with this rule it changes nothing.
    #[test]
    fn it_is_the_same_to_a_clipped_mean_whether_an_update_was_shortened_before() {
        let earlier = vec![Lengths { weights: 1.0, statistics: 10.0 }; 10];
        let [long, short] = [&[0.0, 50.0][..], &[0.0, 5.0]].map(|hostile| {
            let updates = [(&[1.0, 0.0][..], 1.0), (&[0.5, 0.5], 1.0), (hostile, 1.0)];
            aggregate(ClippedMean::new(earlier.clone()), &updates)
        });
        close(&long.0, [0.5, 0.5]);
        assert_eq!(long, short);
    }

    #[test]
    fn few_updates_and_none() {
        let two: [(&[f32], f64); 2] = [(&[1.0, 5.0], 1.0), (&[3.0, 1.0], 9.0)];
        assert_eq!(aggregate(Median::default(), &two).0, [2.0, 3.0]);
        close(&aggregate(WeightedMean::default(), &two).0, [2.8, 1.4]);
        let rules: [fn() -> Box<dyn Rule>; 5] = [
            || Box::new(WeightedMean::default()),
            || Box::new(ClippedMean::default()),
            || Box::new(TrimmedMean::new(0.3)),
            || Box::new(Median::default()),
            || Box::new(MultiKrum::new(0.3)),
        ];
        let sent = params(&[0.0, 0.0]);
        for rule in rules {
            assert!(rule().finish(&sent).unwrap().is_none());
            let mut one = rule();
            one.add(&params(&[1.0, 5.0]), 3.0, &sent).unwrap();
            let found = one.finish(&sent).unwrap().unwrap();
            assert_eq!(found.tensors[0], params(&[1.0, 5.0]).tensors[0]);
        }
    }

    #[test]
    fn the_hostile_are_always_the_minority() {
        assert_eq!([0, 1, 3, 10, 11].map(|count| hostile_count(0.5, count)), [0, 0, 1, 4, 5]);
        assert_eq!([0, 1, 3, 10, 11].map(|count| hostile_count(0.3, count)), [0, 0, 0, 3, 3]);
    }
}
