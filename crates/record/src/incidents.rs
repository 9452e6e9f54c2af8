//! Incidents in the rounds of a run.

use crate::{Outcome, RoundRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts over all rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Incidents {
    /// Updates that were rejected.
    pub rejected: usize,
    /// Clients that could not train.
    pub failed: usize,
    /// Clients that did not answer.
    #[serde(default)]
    pub absent: usize,
    /// Rounds skipped because too few answers were valid.
    pub skipped: usize,
    /// Rounds rolled back.
    pub rolled_back: usize,
}

impl Incidents {
    /// Adds those of a round.
    pub fn add(&mut self, record: &RoundRecord) {
        self.rejected += record.rejected.len();
        self.failed += record.failed.len();
        self.absent += record.absent.len();
        match record.outcome {
            Outcome::Applied => {}
            Outcome::NoQuorum => self.skipped += 1,
            Outcome::RolledBack => self.rolled_back += 1,
        }
    }

    /// Whether nothing went wrong.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Rounds that did not change the model.
    pub fn without_effect(&self) -> usize {
        self.skipped + self.rolled_back
    }
}

/// For example `updates rejected: 3, rounds rolled back: 1`.
impl fmt::Display for Incidents {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let counts = [
            (self.rejected, "updates rejected"),
            (self.failed, "client failures"),
            (self.absent, "clients absent"),
            (self.skipped, "rounds skipped"),
            (self.rolled_back, "rounds rolled back"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, what)| format!("{what}: {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}
