//! What the records of a run amount to so far.

use crate::simulation::Picked;
use fedanchor_record::{Incidents, Manifest, RoundRecord};

#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) rounds: u32,
    pub(super) pretrained: f64,
    pub(super) last: f64,
    pub(super) last_validation: Option<f64>,
    pub(super) best: f64,
    pub(super) best_round: u32,
    /// The round whose checkpoint is the best: by validation accuracy where there is any.
    pub(super) chosen_round: u32,
    chosen: f64,
    pub(super) bytes_down: u64,
    pub(super) bytes_up: u64,
    /// Of the last round in which clients labelled.
    pub(super) picked: Option<Picked>,
    /// Checksums of the further files of the rounds.
    pub(super) files: Manifest,
    pub(super) incidents: Incidents,
}

impl Progress {
    pub(super) fn add(&mut self, record: &RoundRecord) {
        let accuracy = record.test_accuracy;
        if record.round == 0 {
            self.pretrained = accuracy;
        }
        if record.round == 0 || accuracy > self.best {
            (self.best, self.best_round) = (accuracy, record.round);
        }
        let judged_by = record.validation_accuracy.unwrap_or(accuracy);
        if record.round == 0 || judged_by > self.chosen {
            (self.chosen, self.chosen_round) = (judged_by, record.round);
        }
        self.rounds = record.round;
        self.last = accuracy;
        self.last_validation = record.validation_accuracy;
        self.bytes_down += record.bytes_down;
        self.bytes_up += record.bytes_up;
        self.incidents.add(record);
    }
}
