//! What the records of a run amount to so far.

use crate::simulation::Picked;
use fedanchor_record::{Manifest, RoundRecord, Summary};

#[derive(Debug, Default)]
pub(super) struct Progress {
    /// What the records say; the rest is left out.
    pub(super) summary: Summary,
    /// The round whose checkpoint is the best: by validation accuracy where there is any.
    pub(super) chosen_round: u32,
    chosen: f64,
    /// Of the last round in which clients labelled.
    pub(super) picked: Option<Picked>,
    /// Checksums of the further files of the rounds.
    pub(super) files: Manifest,
}

impl Progress {
    pub(super) fn add(&mut self, record: &RoundRecord) {
        let (accuracy, summary) = (record.test_accuracy, &mut self.summary);
        if record.round == 0 {
            summary.pretrained_accuracy = accuracy;
        }
        if record.round == 0 || accuracy > summary.best_accuracy {
            (summary.best_accuracy, summary.best_round) = (accuracy, record.round);
        }
        let judged_by = record.validation_accuracy.unwrap_or(accuracy);
        if record.round == 0 || judged_by > self.chosen {
            (self.chosen, self.chosen_round) = (judged_by, record.round);
        }
        summary.rounds = record.round;
        summary.final_accuracy = accuracy;
        summary.final_validation_accuracy = record.validation_accuracy;
        summary.bytes_down += record.bytes_down;
        summary.bytes_up += record.bytes_up;
        summary.incidents.add(record);
    }
}
