//! Aggregation of the updates of a round (Algorithm 1, line 10). A rule of this crate is one file and one entry in
//! `BUILT_IN`; a rule from elsewhere is one call of [`register`].

mod fltrust;
mod mean;
mod multi_krum;
mod norms;
mod of_all;
mod row;

pub use fltrust::FlTrust;
pub use mean::WeightedMean;
pub use multi_krum::multi_krum;
pub use norms::Norms;
pub use of_all::{clipped_mean, median, trimmed_mean};
pub use row::Row;

pub(crate) use norms::FAR;
pub(crate) use row::in_a_row;

use crate::error::Result;
use fedanchor_engine::registry::Registry;
use fedanchor_engine::tensors::Params;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// An aggregation rule: takes updates in, in canonical order, and gives one model out.
pub trait Rule {
    /// Adds a model with its weight n_m. `sent` is the broadcast model, without the entries that clients do not send.
    fn add(&mut self, params: &Params, weight: f64, sent: &Params) -> Result<()>;

    /// The aggregate; `None` if the model is to stay as it is.
    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>>;
}

/// Further inputs of a rule.
#[derive(Debug, Default)]
pub struct RuleInputs {
    /// Share of the updates that may be hostile (`aggregation.hostile`).
    pub hostile: f64,
    /// The server's own update on the anchors, for a rule with [`Registration::needs_root`].
    pub root: Option<Params>,
    /// The norms of the last rounds' updates.
    pub norms: Vec<Norms>,
}

/// A rule by name.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// The name as written in a config.
    pub name: &'static str,
    /// One sentence for the reference of the config keys.
    pub summary: &'static str,
    /// Whether the server trains on the anchors as a client would, to compare updates with its own.
    pub needs_root: bool,
    /// Makes the rule for one round.
    pub build: fn(RuleInputs) -> Box<dyn Rule>,
}

impl Registration {
    /// A rule that needs no update of the server's own.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        build: fn(RuleInputs) -> Box<dyn Rule>,
    ) -> Self {
        Self { name, summary, needs_root: false, build }
    }
}

const BUILT_IN: [Registration; 6] = [
    Registration::new("mean", "The weighted mean.", |_| Box::new(WeightedMean::default())),
    Registration::new(
        "clipped-mean",
        "The weighted mean of updates clipped to the median norm of this and the last rounds.",
        |inputs| clipped_mean(inputs.norms),
    ),
    Registration::new(
        "trimmed-mean",
        "The mean of every parameter without its lowest and highest values.",
        |inputs| trimmed_mean(inputs.hostile),
    ),
    Registration::new("median", "The median of every parameter.", |_| median()),
    Registration::new("multi-krum", "The mean of the updates nearest to one another.", |inputs| {
        multi_krum(inputs.hostile)
    }),
    Registration {
        needs_root: true,
        ..Registration::new(
            "fltrust",
            "The mean weighted by agreement with the server's own update on the anchors (FLTrust).",
            |inputs| Box::new(FlTrust::new(inputs.root)),
        )
    },
];

static RULES: Registry<Registration> =
    Registry::new("rule", "aggregation.rule", &BUILT_IN, |rule| rule.name);

/// Registers a rule for the whole process: from now on, `aggregation.rule` may name it.
pub fn register(rule: Registration) -> Result<()> {
    Ok(RULES.add(rule)?)
}

/// The name of a rule, as written in a config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleName(String);

impl RuleName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The rule of this name.
    pub fn find(&self) -> Result<Registration> {
        Ok(RULES.find(&self.0)?)
    }
}

impl From<&str> for RuleName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl JsonSchema for RuleName {
    fn schema_name() -> Cow<'static, str> {
        "AggregationRule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let rules = RULES.all().into_iter().map(
            |rule| json_schema!({ "type": "string", "const": rule.name, "description": rule.summary }),
        );
        json_schema!({ "oneOf": rules.collect::<Vec<_>>() })
    }
}

/// How many of `count` updates may be hostile: this share of them, and always less than half.
fn hostile_count(share: f64, count: usize) -> usize {
    ((share * count as f64 + 1e-9).floor() as usize).min(count.saturating_sub(1) / 2)
}

/// Models for tests.
#[cfg(test)]
pub(crate) mod fixtures {
    use fedanchor_engine::tensors::{Entry, Params, Part};
    use std::sync::Arc;
    use tch::Tensor;

    /// A model of one tensor of weights and one statistic.
    pub(crate) fn model(weight: &[f32], statistic: f32) -> Params {
        let entry = |name: &str, size: usize, statistic| Entry {
            name: name.to_owned(),
            shape: vec![size as i64],
            part: Part::Backbone,
            statistic,
        };
        let layout = vec![entry("weight", weight.len(), false), entry("running_var", 1, true)];
        let tensor = |values: &[f32]| Tensor::from_slice(values).unsqueeze(0);
        Params { layout: Arc::new(layout), tensors: vec![tensor(weight), tensor(&[statistic])] }
    }
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
    fn aggregate(mut rule: Box<dyn Rule>, updates: &[(&[f32], f64)]) -> (Vec<f64>, Vec<f64>) {
        let sent = params(&[0.0, 0.0]);
        for (values, weight) in updates {
            rule.add(&params(values), *weight, &sent).unwrap();
        }
        let found = rule.finish(&sent).unwrap().unwrap_or(sent);
        let values = |at: usize| {
            Vec::<f64>::try_from(found.tensors[at].to_kind(Kind::Double).flatten(0, -1)).unwrap()
        };
        (values(0), values(1).iter().map(|value| value / 10.0).collect())
    }

    fn mean() -> Box<dyn Rule> {
        Box::new(WeightedMean::default())
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
        both(aggregate(mean(), &UPDATES), [-92.0 / 5.0, 103.0 / 5.0]);
        // One cut at either end: 1, 2, 2 and 0, 1, 2.
        both(aggregate(trimmed_mean(0.2), &UPDATES), [5.0 / 3.0, 1.0]);
        both(aggregate(median(), &UPDATES), [2.0, 1.0]);
        // The last is furthest from all others: the mean of the four.
        both(aggregate(multi_krum(0.2), &UPDATES), [2.0, 0.75]);
        // Norms 1, 2.236, 3.606, 2 and 141.4: the median is 2.236.
        let (short, long) = (5f64.sqrt() / 13f64.sqrt(), 5f64.sqrt() / 20000f64.sqrt());
        let x = (1.0 + 2.0 + 3.0 * short + 2.0 - 100.0 * long) / 5.0;
        let y = (0.0 + 1.0 + 2.0 * short + 0.0 + 100.0 * long) / 5.0;
        both(aggregate(clipped_mean(Vec::new()), &UPDATES), [x, y]);
    }

    /// A round may draw more hostile clients than honest ones; the rounds before say what is usual.
    #[test]
    fn norms_of_earlier_rounds_bound_a_hostile_majority() {
        let hostile: [(&[f32], f64); 3] =
            [(&[0.0, 1.0], 1.0), (&[0.0, -800.0], 1.0), (&[0.0, -900.0], 1.0)];
        let earlier = vec![Norms { weights: 1.0, statistics: 10.0 }; 5];
        let found = aggregate(clipped_mean(earlier), &hostile);
        close(&found.0, [0.0, -1.0 / 3.0]);
        close(&found.1, [0.0, -1.0 / 3.0]);
        close(&aggregate(clipped_mean(Vec::new()), &hostile).0, [0.0, (1.0 - 800.0 - 800.0) / 3.0]);
    }

    /// Clients that kept nothing do not move; that says nothing of how far the others may.
    #[test]
    fn clients_that_do_not_move_are_not_the_usual_length() {
        let still: (&[f32], f64) = (&[0.0, 0.0], 1.0);
        let updates = [still, still, still, (&[0.0, 3.0], 1.0)];
        close(&aggregate(clipped_mean(Vec::new()), &updates).0, [0.0, 0.75]);
        assert_eq!(aggregate(clipped_mean(Vec::new()), &[still, still]).0, [0.0, 0.0]);
    }

    #[test]
    fn fltrust_by_hand() {
        // The root is (0, 2). Cosines with it: 0, 1/sqrt 5, 2/sqrt 13, 0, 1/sqrt 2; a hostile one has none.
        let root = Some(params(&[0.0, 2.0]));
        let mut updates = UPDATES.to_vec();
        updates.push((&[0.0, -50.0], 1000.0));
        let (weights, statistics) = aggregate(Box::new(FlTrust::new(root)), &updates);
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

    /// That is what `checks.clip` does to an update: with this rule it changes nothing.
    #[test]
    fn it_is_the_same_to_a_clipped_mean_whether_an_update_was_clipped_before() {
        let earlier = vec![Norms { weights: 1.0, statistics: 10.0 }; 10];
        let [long, short] = [&[0.0, 50.0][..], &[0.0, 5.0]].map(|hostile| {
            let updates = [(&[1.0, 0.0][..], 1.0), (&[0.5, 0.5], 1.0), (hostile, 1.0)];
            aggregate(clipped_mean(earlier.clone()), &updates)
        });
        close(&long.0, [0.5, 0.5]);
        assert_eq!(long, short);
    }

    #[test]
    fn few_updates_and_none() {
        let two: [(&[f32], f64); 2] = [(&[1.0, 5.0], 1.0), (&[3.0, 1.0], 9.0)];
        assert_eq!(aggregate(median(), &two).0, [2.0, 3.0]);
        close(&aggregate(mean(), &two).0, [2.8, 1.4]);
        let rules: [fn() -> Box<dyn Rule>; 5] =
            [mean, || clipped_mean(Vec::new()), || trimmed_mean(0.3), median, || multi_krum(0.3)];
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
