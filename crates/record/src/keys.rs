//! Which keys of a config distinguish experiments, and the current names of keys of earlier versions. Resuming, sweeps and
//! tables all use these lists.

use toml::{Table, Value};

/// The role of a config key in an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRole {
    /// Has no effect on training: may change when a run is resumed.
    Neutral,
    /// The device and number format: the same experiment, with other rounding. A
    /// run must be resumed with the same, but a sweep does not repeat it and a table does not split it.
    Machine,
    /// Distinguishes the runs of one experiment.
    Seed,
    /// Distinguishes experiments.
    Experiment,
}

impl KeyRole {
    /// The role of a dotted key, for example `data.path`.
    pub fn of(key: &str) -> Self {
        match key {
            "compare" | "checkpoint" | "record" | "data.path" | "client.loss.file"
            | "fleet.keys" => Self::Neutral,
            "device" | "precision" => Self::Machine,
            "seed" => Self::Seed,
            _ if key.starts_with("checkpoint.") || key.starts_with("record.") => Self::Neutral,
            _ => Self::Experiment,
        }
    }
}

/// Keys that were removed, with the value that had no effect, as TOML.
const REMOVED: [(&str, &str, &str); 6] = [
    ("aggregation", "weight_limit", "0.0"),
    ("server", "average", "0.0"),
    ("method", "agreement", "false"),
    ("method", "alignment", "0.0"),
    ("method", "confidence", "0.0"),
    ("method", "labelled_by", "\"global\""),
];

/// A recorded config with the keys of today. Removed keys that had an effect stay.
pub fn with_current_keys(mut config: Table) -> Table {
    if let Some(Value::Table(checks)) = config.get_mut("checks")
        && let Some(value) = checks.remove("length")
    {
        checks.insert("clip".to_owned(), value);
    }
    for (name, key, without_effect) in REMOVED {
        if let Some(Value::Table(section)) = config.get_mut(name)
            && section.get(key).is_some_and(|value| value.to_string() == without_effect)
        {
            section.remove(key);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_earlier_versions_become_those_of_today() {
        let old: Table =
            "rounds = 1\n[checks]\nlength = 5.0\n[method]\nalignment = 1.0\nagreement = false"
                .parse()
                .unwrap();
        let new: Table =
            "rounds = 1\n[checks]\nclip = 5.0\n[method]\nalignment = 1.0".parse().unwrap();
        assert_eq!(with_current_keys(old), new);
        assert_eq!(with_current_keys(new.clone()), new);
    }

    #[test]
    fn sections_and_their_keys_have_one_role() {
        assert_eq!(KeyRole::of("checkpoint"), KeyRole::of("checkpoint.every"));
        assert_eq!(KeyRole::of("checkpoints"), KeyRole::Experiment);
        assert_eq!(KeyRole::of("record.latents"), KeyRole::Neutral);
        assert_eq!(KeyRole::of("record"), KeyRole::of("record.samples"));
        assert_eq!(KeyRole::of("data.path"), KeyRole::Neutral);
        assert_eq!(KeyRole::of("data"), KeyRole::Experiment);
        assert_eq!(KeyRole::of("precision"), KeyRole::Machine);
    }
}
