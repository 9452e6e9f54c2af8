//! What the runs of an experiment reached, and what they cost.

use crate::history::History;
use crate::table::Average;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// An experiment in a comparison, with numbers over its runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// The folder as it was given.
    pub folder: PathBuf,
    /// Name of the method.
    pub method: String,
    /// Its runs, by seed.
    pub runs: Vec<Outcome>,
    /// Mean test accuracy of the last ten rounds, in percent.
    pub last_ten: Average,
    /// Test accuracy after the last round, in percent.
    pub final_accuracy: Average,
    /// How many of its runs reached the accuracy. The next three are over these.
    pub runs_with_accuracy: usize,
    /// The first round with the accuracy; `None` if no run reached it.
    pub rounds_to_accuracy: Option<Average>,
    /// Bytes up to the end of that round.
    pub bytes_to_accuracy: Option<Average>,
    /// Seconds up to the end of that round.
    pub seconds_to_accuracy: Option<Average>,
    /// Bytes between server and clients, in both directions.
    pub bytes: Average,
    /// Seconds per round, without pre-training; `None` if a run has no timings.
    pub seconds_per_round: Option<Average>,
    /// Seconds for pre-training and all rounds.
    pub seconds: Option<Average>,
}

/// One run of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Its folder.
    pub path: PathBuf,
    /// Its seed.
    pub seed: u64,
    /// The last round that is compared.
    pub rounds: u32,
    /// Whether it completed all its rounds.
    pub finished: bool,
    /// Mean test accuracy of the last ten rounds, in percent.
    pub last_ten: f64,
    /// Test accuracy after the last round, in percent.
    pub final_accuracy: f64,
    /// The first round with the accuracy; `None` if it was not reached.
    pub reached: Option<Reached>,
    /// Bytes between server and clients, in both directions.
    pub bytes: u64,
    /// Seconds per round, without pre-training.
    pub seconds_per_round: Option<f64>,
    /// Seconds for pre-training and all rounds.
    pub seconds: Option<f64>,
}

/// What a run took to reach an accuracy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reached {
    /// The first round with at least this accuracy.
    pub round: u32,
    /// Bytes up to the end of that round.
    pub bytes: u64,
    /// Seconds up to the end of that round.
    pub seconds: Option<f64>,
}

impl Side {
    /// Of an experiment's runs, at least one, up to a round or all of them.
    pub(super) fn of(
        folder: &Path,
        runs: &[History],
        up_to_round: Option<u32>,
        accuracy: f64,
    ) -> Self {
        let method = runs[0].setup.heading.method.clone();
        let runs: Vec<Outcome> =
            runs.iter().map(|run| Outcome::of(run, up_to_round, accuracy)).collect();
        let each = |value: fn(&Outcome) -> f64| Average::of(runs.iter().map(value));
        // A mean over some of the runs would be taken for one over all.
        let every = |value: fn(&Outcome) -> Option<f64>| {
            let values: Option<Vec<f64>> = runs.iter().map(value).collect();
            values.map(|values| Average::of(values.into_iter()))
        };
        let reached: Vec<Reached> = runs.iter().filter_map(|run| run.reached).collect();
        let to_accuracy = |value: fn(&Reached) -> Option<f64>| {
            let values: Vec<f64> = reached.iter().map(value).collect::<Option<_>>()?;
            (!values.is_empty()).then(|| Average::of(values.into_iter()))
        };
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
    fn of(run: &History, up_to_round: Option<u32>, accuracy: f64) -> Self {
        let shown = cut(run, up_to_round);
        let last = shown.last().round;
        let bytes_up_to = |last: u32| -> u64 {
            let rounds = shown.rounds.iter().filter(|round| round.round <= last);
            rounds.map(|round| round.bytes_down + round.bytes_up).sum()
        };
        let timings = timings(&shown);
        let seconds_up_to = |last: u32| {
            let timings = timings.as_ref()?.iter().filter(|(round, _)| *round <= last);
            Some(timings.map(|(_, seconds)| seconds).sum::<f64>())
        };
        let finished = run.is_finished();
        let summary = run.summary.as_ref().filter(|_| finished && last == run.last().round);
        let reached = shown.rounds.iter().find(|round| round.test_accuracy >= accuracy);
        let rounds = timings.as_ref().map(|timings| {
            timings.iter().filter(|(round, _)| *round > 0).map(|(_, seconds)| *seconds)
        });
        Self {
            path: run.setup.path.clone(),
            seed: run.seed(),
            rounds: last,
            finished,
            last_ten: shown.last_ten(),
            final_accuracy: shown.last().test_accuracy,
            reached: reached.map(|round| Reached {
                round: round.round,
                bytes: bytes_up_to(round.round),
                seconds: seconds_up_to(round.round),
            }),
            bytes: bytes_up_to(last),
            seconds_per_round: rounds.filter(|_| last > 0).map(|rounds| Average::of(rounds).mean),
            seconds: seconds_up_to(last).or_else(|| summary.map(|summary| summary.seconds)),
        }
    }
}

/// A run up to and including a round.
pub(super) fn cut(run: &History, last: Option<u32>) -> History {
    let mut run = run.clone();
    if let Some(last) = last {
        run.rounds.retain(|round| round.round <= last);
    }
    run
}

/// The seconds of every round, if there are timings of all.
fn timings(run: &History) -> Option<Vec<(u32, f64)>> {
    let mut lines = run.timings.iter();
    let seconds =
        |round: u32| lines.find(|line| line.round == round).map(|line| (round, line.total));
    run.rounds.iter().map(|record| record.round).map(seconds).collect()
}
