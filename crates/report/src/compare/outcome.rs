//! What the runs of an experiment reached, and what they cost.

use crate::history::History;
use crate::table::Average;
use fedanchor_record::Timing;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// An experiment in a comparison, with averages over its runs. Accuracies are in percent, times in seconds; traffic is in
/// both directions; time per round is without pre-training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub folder: PathBuf,
    pub method: String,
    pub runs: Vec<Outcome>,
    pub last_ten: Average,
    pub final_accuracy: Average,
    /// How many of its runs reached the accuracy. The next three are over these.
    pub runs_with_accuracy: usize,
    pub rounds_to_accuracy: Option<Average>,
    pub bytes_to_accuracy: Option<Average>,
    pub seconds_to_accuracy: Option<Average>,
    pub bytes: Average,
    pub seconds_per_round: Option<Average>,
    pub seconds: Option<Average>,
}

/// One run of an experiment, up to the last round that is compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub path: PathBuf,
    pub seed: u64,
    pub rounds: u32,
    pub finished: bool,
    pub last_ten: f64,
    pub final_accuracy: f64,
    pub reached: Option<Reached>,
    pub bytes: u64,
    pub seconds_per_round: Option<f64>,
    pub seconds: Option<f64>,
}

/// The first round with the accuracy, and what the run took up to its end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reached {
    /// The round.
    pub round: u32,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Seconds, where they are known.
    pub seconds: Option<f64>,
}

impl Side {
    /// Of an experiment's runs, at least one.
    pub(super) fn of(folder: &Path, runs: &[History], accuracy: f64) -> Self {
        let method = runs[0].setup.heading.method.clone();
        let runs: Vec<Outcome> = runs.iter().map(|run| Outcome::of(run, accuracy)).collect();
        let each = |value: fn(&Outcome) -> f64| Average::of(runs.iter().map(value));
        let every = |value: fn(&Outcome) -> Option<f64>| Average::of_all(runs.iter().map(value));
        let reached: Vec<Reached> = runs.iter().filter_map(|run| run.reached).collect();
        let to_accuracy =
            |value: fn(&Reached) -> Option<f64>| Average::of_all(reached.iter().map(value));
        Self {
            folder: folder.to_owned(),
            method,
            last_ten: each(|run| run.last_ten),
            final_accuracy: each(|run| run.final_accuracy),
            runs_with_accuracy: reached.len(),
            rounds_to_accuracy: to_accuracy(|reached| Some(reached.round.into())),
            bytes_to_accuracy: to_accuracy(|reached| Some(reached.bytes as f64)),
            seconds_to_accuracy: to_accuracy(|reached| reached.seconds),
            bytes: each(|run| run.bytes as f64),
            seconds_per_round: every(|run| run.seconds_per_round),
            seconds: every(|run| run.seconds),
            runs,
        }
    }
}

impl Outcome {
    fn of(run: &History, accuracy: f64) -> Self {
        let (rounds, last) = (&run.rounds, run.last().round);
        let timings = timings(run);
        // Both up to and including a round.
        let bytes = |last: u32| -> u64 {
            let rounds = rounds.iter().filter(|record| record.round <= last);
            rounds.map(|record| record.bytes_down + record.bytes_up).sum()
        };
        let seconds = |last: u32| -> Option<f64> {
            let timings = timings.as_ref()?.iter().filter(|timing| timing.round <= last);
            Some(timings.map(|timing| timing.total).sum())
        };
        let per_round = || -> Option<f64> {
            let without_pretraining = seconds(last)? - seconds(0)?;
            (last > 0).then(|| without_pretraining / f64::from(last))
        };
        // Records without timings have a total in the summary.
        let summary = run.summary.as_ref().filter(|_| run.is_finished);
        let reached = rounds.iter().find(|record| record.test_accuracy >= accuracy);
        Self {
            path: run.setup.path.clone(),
            seed: run.seed(),
            rounds: last,
            finished: run.is_finished,
            last_ten: run.last_ten(),
            final_accuracy: run.last().test_accuracy,
            reached: reached.map(|record| Reached {
                round: record.round,
                bytes: bytes(record.round),
                seconds: seconds(record.round),
            }),
            bytes: bytes(last),
            seconds_per_round: per_round(),
            seconds: seconds(last).or_else(|| summary.map(|summary| summary.seconds)),
        }
    }
}

/// The timings of the rounds, if there are timings of all.
fn timings(run: &History) -> Option<&[Timing]> {
    let timings = run.timings.get(..run.rounds.len())?;
    let same = timings.iter().zip(&run.rounds).all(|(timing, record)| timing.round == record.round);
    same.then_some(timings)
}
