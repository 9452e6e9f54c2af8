//! Which keys of a config distinguish experiments. Resuming, sweeps and tables all use this list.

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
            "compare" | "checkpoint" | "record" | "data.path" => Self::Neutral,
            "device" | "precision" => Self::Machine,
            "seed" => Self::Seed,
            _ if key.starts_with("checkpoint.") || key.starts_with("record.") => Self::Neutral,
            _ => Self::Experiment,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
