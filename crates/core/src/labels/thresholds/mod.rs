//! Which of its samples a client keeps, by their scores (eq. 5). The paper's rule is a fixed number; it names
//! adaptive rules as future work: all cosines rise during training, until a fixed 0.6 no longer excludes
//! anything. A rule of this crate is a type and its entry in `rules.rs`; a rule from elsewhere is one call of
//! [`register`]. Every rule needs one scoring pass and no state from round to round.

mod rules;

use super::anchors::Score;
use crate::config::{read, within};
use crate::error::{Error, Result};
use fedanchor_engine::registry::Registry;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::Debug;
use toml::{Table, Value};

/// A rule that selects samples.
pub trait ThresholdRule: Debug + Send + Sync {
    /// Selects among one client's samples.
    fn select(&self, samples: &Scored) -> Selection;

    /// The server's part: one threshold per class, which is broadcast. `own_scores` computes how well the anchors
    /// of each class score among themselves, from a number of weakly augmented views.
    fn class_thresholds(&self, _own_scores: &OwnScores) -> Result<Option<Vec<f64>>> {
        Ok(None)
    }

    /// Whether it gives the samples weights.
    fn weighs(&self) -> bool {
        false
    }

    /// Whether it depends on the number of rounds of the run.
    fn depends_on_rounds(&self) -> bool {
        false
    }
}

/// Computes the anchors' scores among themselves.
pub type OwnScores<'a> = dyn Fn(u32) -> Result<Vec<f64>> + 'a;

/// The samples of one client.
#[derive(Debug, Clone, Copy)]
pub struct Scored<'a> {
    /// The score of every sample.
    pub scores: &'a [f32],
    /// Its label.
    pub labels: &'a [u16],
    /// One threshold per class, where the server computes them.
    pub class_thresholds: &'a [f64],
    /// 0 in the first round, 1 in the last.
    pub progress: f64,
}

impl Scored<'_> {
    /// Keeps the samples that score above `threshold`.
    fn above(&self, threshold: f64) -> Selection {
        let kept = self.scores.iter().map(|&score| f64::from(score) > threshold).collect();
        Selection { kept, weight: Vec::new(), thresholds: vec![threshold] }
    }

    fn mean(&self) -> f64 {
        let sum: f64 = self.scores.iter().map(|&score| f64::from(score)).sum();
        sum / self.scores.len().max(1) as f64
    }
}

/// The kept samples and their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Whether a sample is kept.
    pub kept: Vec<bool>,
    /// Its weight; empty where all count alike.
    pub weight: Vec<f32>,
    /// The thresholds of the scores: one for all, or one per class; empty if there is none.
    pub thresholds: Vec<f64>,
}

/// A rule by name.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// The name as written in a config.
    pub name: &'static str,
    /// Defaults of its keys, as TOML; those of this crate's rules are in the preset, under `[thresholds]`.
    pub defaults: &'static str,
    /// Describes its keys, for the reference of the config keys.
    pub settings: fn(&mut SchemaGenerator) -> Schema,
    /// Makes the rule from its keys, for scores from this number to 1.
    pub build: fn(&Table, f64) -> Result<Box<dyn ThresholdRule>>,
}

impl Registration {
    /// A rule with these defaults, made by this function from the keys that `T` describes.
    pub const fn new<T: JsonSchema>(
        name: &'static str,
        defaults: &'static str,
        build: fn(&Table, f64) -> Result<Box<dyn ThresholdRule>>,
    ) -> Self {
        Self { name, defaults, settings: |generator| T::json_schema(generator), build }
    }
}

static RULES: Registry<Registration> =
    Registry::new("rule", "method.threshold", &rules::BUILT_IN, |rule| rule.name);

/// Registers a rule for the whole process: from now on, `method.threshold` may name it.
pub fn register(rule: Registration) -> Result<()> {
    Ok(RULES.add(rule)?)
}

/// Reads the keys of a rule.
pub fn read_keys<T: DeserializeOwned + JsonSchema>(keys: &Table) -> Result<T> {
    read("method.threshold", keys.clone())
}

/// Which samples are kept: t of eq. 5 as a number, or a rule with its keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Threshold {
    /// The same number for all.
    Fixed(f64),
    /// `rule` and its keys.
    Rule(Table),
}

impl Threshold {
    /// Makes the rule for scores of this kind.
    pub(crate) fn build(&self, score: Score) -> Result<Box<dyn ThresholdRule>> {
        match self {
            Self::Fixed(threshold) => {
                within("method.threshold", *threshold, score.lowest(), 1.0)?;
                Ok(Box::new(Fixed(*threshold)))
            }
            Self::Rule(keys) => {
                let (name, keys) = split(keys.clone())?;
                (RULES.find(&name)?.build)(&keys, score.lowest())
            }
        }
    }
}

#[derive(Debug)]
struct Fixed(f64);

impl ThresholdRule for Fixed {
    fn select(&self, samples: &Scored) -> Selection {
        samples.above(self.0)
    }
}

fn split(mut keys: Table) -> Result<(String, Table)> {
    match keys.remove("rule") {
        Some(Value::String(name)) => Ok((name, keys)),
        other => {
            let found = other.map_or("none".to_owned(), |value| value.to_string());
            let problem = format!("expected the name of a rule, got {found}");
            Err(Error::config("method.threshold.rule", problem))
        }
    }
}

/// Fills in the keys of a threshold that is not a number, from the preset's `[thresholds]` or the rule's own
/// defaults: it may be the rule's name, or a table with some of its keys.
pub(crate) fn expand(settings: &mut Table, preset: &Table) -> Result<()> {
    let (name, given) = match settings.get("threshold") {
        Some(Value::String(name)) => (name.clone(), Table::new()),
        Some(Value::Table(keys)) => split(keys.clone())?,
        _ => return Ok(()),
    };
    let rule = RULES.find(&name)?;
    let of_preset = preset.get("thresholds").and_then(|rules| rules.get(&name)?.as_table());
    let mut keys = match of_preset {
        Some(keys) => keys.clone(),
        None => rule.defaults.parse::<Table>().map_err(|error| {
            Error::config("method.threshold", format!("the defaults of `{name}`: {error}"))
        })?,
    };
    for (key, value) in given {
        match (keys.get_mut(&key), value) {
            (Some(Value::Float(known)), Value::Integer(given)) => *known = given as f64,
            (_, value) => drop(keys.insert(key, value)),
        }
    }
    keys.insert("rule".to_owned(), Value::String(name));
    settings.insert("threshold".to_owned(), Value::Table(keys));
    Ok(())
}

impl JsonSchema for Threshold {
    fn schema_name() -> Cow<'static, str> {
        "Threshold".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let rules = RULES.all().into_iter().map(|rule| {
            let mut keys = (rule.settings)(generator);
            let name = json_schema!({ "type": "string", "const": rule.name });
            if let Some(properties) = keys.get_mut("properties").and_then(|p| p.as_object_mut()) {
                properties.insert("rule".to_owned(), name.to_value());
            }
            keys
        });
        let rules: Vec<Schema> = rules.collect();
        let number = json_schema!({ "type": "number", "description": "The same number for all." });
        let rule = json_schema!({ "description": "By a rule.", "oneOf": rules });
        json_schema!({ "anyOf": [number, rule] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 5] = [0.5, 0.9, 0.7, 0.1, 0.8]; // mean 0.6

    fn rule(keys: &str, progress: f64) -> Selection {
        let rule = Threshold::Rule(keys.parse().unwrap()).build(Score::Cosine).unwrap();
        let (labels, class_thresholds) = (&[0, 1, 1, 0, 0], &[0.6, 0.75]);
        rule.select(&Scored { scores: &SCORES, labels, class_thresholds, progress })
    }

    #[test]
    fn a_fixed_threshold_must_be_passed() {
        let fixed = Threshold::Fixed(0.5).build(Score::Softmax).unwrap();
        let samples =
            Scored { scores: &SCORES, labels: &[0; 5], class_thresholds: &[], progress: 0.0 };
        let found = fixed.select(&samples);
        assert_eq!(found.kept, [false, true, true, false, true]);
        assert_eq!(found.thresholds, [0.5]);
    }

    #[test]
    fn anchor_relative_has_one_threshold_per_class() {
        let keys = "rule = 'anchor-relative'\nshare = 0.9\nleast = 0.3\nmost = 0.85\nviews = 1";
        let relative = Threshold::Rule(keys.parse().unwrap()).build(Score::Cosine).unwrap();
        let found = relative.class_thresholds(&|_| Ok(vec![0.8, 1.0, 0.2])).unwrap().unwrap();
        assert_eq!(found, [0.8 * 0.9, 0.85, 0.3]);
        // Class 0 wants more than 0.6, class 1 more than 0.75.
        let found = rule(keys, 0.0);
        assert_eq!(found.kept, [false, true, false, false, true]);
        assert_eq!(found.thresholds, [0.6, 0.75]);
    }

    #[test]
    fn client_mean_keeps_what_is_not_below_the_mean() {
        assert_eq!(
            rule("rule = 'client-mean'\nmost = 1.0", 0.0).kept,
            [false, true, true, false, true]
        );
        let found = rule("rule = 'client-mean'\nmost = 0.5", 0.0);
        assert_eq!(found.kept, [true, true, true, false, true]);
        assert_eq!(found.thresholds, [0.5]);
    }

    #[test]
    fn softmatch_keeps_all_and_weighs_those_below_the_mean() {
        let found = rule("rule = 'softmatch'\nwidth = 0.5", 0.0);
        assert_eq!((found.kept, found.thresholds), (vec![true; 5], vec![]));
        // Variance: (.01 + .09 + .01 + .25 + .04) / 5 = .08; 2 / 4 of it is .04.
        let expected = [(-0.01f64 / 0.04).exp(), 1.0, 1.0, (-0.25f64 / 0.04).exp(), 1.0];
        let close = |(a, b): (&f32, f64)| (f64::from(*a) - b).abs() < 1e-6;
        assert!(found.weight.iter().zip(expected).all(close), "{:?}", found.weight);
    }

    #[test]
    fn a_rising_threshold_ends_at_its_last_value() {
        let rising = |progress| rule("rule = 'rising'\nfrom = 0.5\nto = 0.75", progress);
        assert_eq!(rising(0.0).kept, [false, true, true, false, true]);
        assert_eq!(rising(0.5).thresholds, [0.625]);
        assert_eq!(rising(1.0).kept, [false, true, false, false, true]);
    }

    #[test]
    fn quantile_keeps_a_growing_share() {
        let keys = "rule = 'quantile'\nfrom = 0.2\nto = 0.8";
        assert_eq!(rule(keys, 0.0).kept, [false, true, false, false, false]);
        assert_eq!(rule(keys, 0.5).kept, [false, true, true, false, true]); // 2.5 of 5: 3
        assert_eq!(rule(keys, 0.5).thresholds, [f64::from(0.7f32)]);
        assert_eq!(rule(keys, 1.0).kept, [true, true, true, false, true]);
        let none = Scored { scores: &[], labels: &[], class_thresholds: &[], progress: 0.5 };
        let none =
            Threshold::Rule(keys.parse().unwrap()).build(Score::Cosine).unwrap().select(&none);
        assert!(none.kept.is_empty() && none.thresholds.is_empty());
    }
}
