//! A run folder as far as it was written: every round, and the files that figures are drawn from.
//!
//! A table averages finished runs only. A figure can show a run that is still going on or was stopped,
//! and one whose last line was being written when it was killed: what is missing or cannot be read is named
//! and skipped.

use crate::error::{ReportError, Result};
use crate::matrix::Matrix;
use crate::records::{Records, read_rounds, read_timings};
use crate::run_files::RunFiles;
use crate::runs::{Damaged, Folders, find_folders, read_summary};
use crate::setup::{Complete, Setup};
use fedanchor_record::{
    BuildRounds, Latents, RoundRecord, Samples, Summary, Timing, files, missing_timings,
    rounds_with_latents,
};
use std::path::{Path, PathBuf};

/// What is wrong with a run that ended before its first round.
const NO_ROUND: &str = "no round was recorded";

/// A run and its records.
#[derive(Debug, Clone)]
pub struct History {
    /// Its settings.
    pub setup: Setup,
    /// Its `summary.json`, written when it ends.
    pub summary: Option<Summary>,
    /// Its rounds, from round 0; at least one.
    pub rounds: Vec<RoundRecord>,
    /// Seconds by phase, from round 0.
    pub timings: Vec<Timing>,
    /// Samples by client (rows) and class (columns).
    pub partition: Option<Matrix>,
    /// Test images by true (rows) and predicted class (columns), final model.
    pub confusion: Option<Matrix>,
    /// Cosine between the classes' mean anchor latents, final model.
    pub similarity: Option<Matrix>,
    /// Latents of test images by round, where the run saved them.
    pub latents: Vec<(u32, Latents)>,
    /// Single images and their pseudo-labels, where the run saved them.
    pub samples: Option<Samples>,
    /// What is missing or cannot be read, and was skipped.
    pub problems: Vec<String>,
}

/// The runs in some folders, and those that cannot be shown at all.
#[derive(Debug, Default)]
pub struct Histories {
    /// Runs with at least one round, sorted by path.
    pub runs: Vec<History>,
    /// Runs without one, and why.
    pub damaged: Vec<Damaged>,
}

/// Reads all runs in these folders, each a run folder or one that contains run folders.
pub fn read_histories(dirs: &[PathBuf], complete: Complete) -> Result<Histories> {
    let Folders { folders, damaged } = find_folders(dirs)?;
    let mut all = Histories { damaged, ..Histories::default() };
    for path in folders {
        match History::read(&path) {
            Ok(mut history) => {
                history.setup = history.setup.completed(complete);
                all.runs.push(history);
            }
            Err(error) => all.damaged.push(Damaged { path, problem: error.in_run_folder() }),
        }
    }
    Ok(all)
}

impl History {
    /// Reads the run in a folder. It is an error if its config or its first round cannot be read.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut problems = Vec::new();
        let run = RunFiles::open(folder).unwrap_or_else(|error| {
            problems.push(error.in_run_folder());
            RunFiles::unchecked(folder)
        });
        let setup = Setup::read(&run)?;
        let rounds = rounds(&run, &mut problems)?;
        let summary = match run.exists(files::SUMMARY) {
            true => read_summary(&run).map_err(|error| problems.push(error.in_run_folder())).ok(),
            false => None,
        };
        let timings = timings(&run, rounds.len(), &mut problems);
        if run.exists(files::ASSIGNMENT) {
            // No figure shows it, but a run that was changed is not the run that was recorded.
            problems.extend(run.bytes(files::ASSIGNMENT).err().map(|error| error.in_run_folder()));
        }
        Ok(Self::with_files(&run, setup, Records { summary, rounds, timings, problems }))
    }

    /// The history of a run whose records are known: only the other files are read. It is an error if its config
    /// cannot be read or if it has no round.
    pub(crate) fn of(folder: &Path, records: Records) -> Result<Self> {
        // Its checksums are written when it ends.
        let run = RunFiles::unchecked(folder);
        let setup = Setup::read(&run)?;
        if records.rounds.is_empty() {
            let problem = records.problems.first().map_or(NO_ROUND, String::as_str);
            return Err(ReportError::malformed(run.path(files::ROUNDS), problem));
        }
        Ok(Self::with_files(&run, setup, records))
    }

    /// Reads the files beside the records.
    fn with_files(run: &RunFiles, setup: Setup, records: Records) -> Self {
        let Records { summary, rounds, timings, mut problems } = records;
        let setup = match &summary {
            Some(summary) => setup.with_fingerprint(&summary.data_fingerprint),
            None => setup,
        };
        let mut matrix = |name: &str| {
            if !run.exists(name) {
                return None;
            }
            Matrix::read(run, name).map_err(|error| problems.push(error.in_run_folder())).ok()
        };
        let partition = matrix(files::PARTITION);
        let confusion = matrix(files::CONFUSION);
        let similarity = matrix(files::SIMILARITY);
        let latents = latents(run, &mut problems);
        let samples = samples(run, &mut problems);
        Self {
            setup,
            summary,
            rounds,
            timings,
            partition,
            confusion,
            similarity,
            latents,
            samples,
            problems,
        }
    }

    /// Names of the classes, as far as the folder tells them.
    pub fn classes(&self) -> Vec<String> {
        if let Some(summary) = &self.summary {
            return summary.classes.clone();
        }
        if let Some(partition) = &self.partition {
            let classes = partition.columns.iter().filter(|name| *name != "size").cloned();
            return classes.collect();
        }
        let labels = self.latents.iter().flat_map(|(_, latents)| &latents.labels);
        let count = labels.max().map_or(0, |&most| usize::from(most) + 1);
        (0..count).map(|class| class.to_string()).collect()
    }

    /// Which build computed which rounds, as far as the folder tells.
    pub fn builds(&self) -> Vec<BuildRounds> {
        let last = self.last().round;
        match &self.summary {
            Some(summary) if !summary.builds.is_empty() => summary.builds.clone(),
            // An earlier version wrote no more than its number.
            Some(summary) => {
                vec![BuildRounds { build: summary.build.clone(), from_round: 0, to_round: last }]
            }
            None => BuildRounds::of(&self.timings, last),
        }
    }

    /// The seed; 0 if the config has none.
    pub fn seed(&self) -> u64 {
        self.setup.number("seed").unwrap_or(0)
    }

    /// Rounds planned.
    pub fn planned(&self) -> u32 {
        let planned = self.setup.number("rounds").and_then(|rounds| rounds.try_into().ok());
        planned.unwrap_or_else(|| self.last().round)
    }

    /// Whether all planned rounds are there.
    pub fn is_finished(&self) -> bool {
        self.summary.is_some() && self.last().round >= self.planned()
    }

    /// The last round.
    pub fn last(&self) -> &RoundRecord {
        &self.rounds[self.rounds.len() - 1]
    }

    /// Mean test accuracy of the last ten rounds, or of as many as there are after pre-training.
    pub fn last_ten(&self) -> f64 {
        last_ten(&self.rounds)
    }
}

/// [`History::last_ten`] of the first rounds of a run, at least one.
pub(crate) fn last_ten(rounds: &[RoundRecord]) -> f64 {
    let trained = &rounds[rounds.len().min(2) - 1..];
    let last = &trained[trained.len().saturating_sub(10)..];
    last.iter().map(|round| round.test_accuracy).sum::<f64>() / last.len() as f64
}

/// Reads the rounds up to the first line that is damaged. It is an error if that is the first of all.
fn rounds(run: &RunFiles, problems: &mut Vec<String>) -> Result<Vec<RoundRecord>> {
    // Every line has a checksum of its own: one that is damaged is named, and those before it are shown.
    let bytes = RunFiles::unchecked(&run.folder).bytes(files::ROUNDS)?;
    let (rounds, problem) = read_rounds(&String::from_utf8_lossy(&bytes));
    let Some(last) = rounds.last() else {
        let problem = problem.as_deref().unwrap_or(NO_ROUND);
        return Err(ReportError::malformed(run.path(files::ROUNDS), problem));
    };
    match problem {
        Some(problem) => {
            let last = last.round;
            problems.push(format!("{}: {problem}: shown up to round {last}", files::ROUNDS));
        }
        None => problems.extend(run.bytes(files::ROUNDS).err().map(|error| error.in_run_folder())),
    }
    Ok(rounds)
}

/// Reads the timings up to the first line that is damaged, for so many rounds; a run without the file has none.
fn timings(run: &RunFiles, rounds: usize, problems: &mut Vec<String>) -> Vec<Timing> {
    let name = files::TIMINGS;
    if !run.exists(name) {
        return Vec::new();
    }
    let text = match run.bytes(name) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            problems.push(error.in_run_folder());
            return Vec::new();
        }
    };
    let (read, problem) = read_timings(&text);
    if let Some(problem) = problem {
        problems.push(format!("{name}: {problem}"));
        return read;
    }
    if !run.lists(name) {
        let problem = missing_timings(read.len(), rounds);
        problems.extend(problem.map(|problem| format!("{name}: {problem}")));
    }
    read
}

/// Reads all latents that a run saved.
fn latents(run: &RunFiles, problems: &mut Vec<String>) -> Vec<(u32, Latents)> {
    let rounds = match rounds_with_latents(&run.folder) {
        Ok(rounds) => rounds,
        Err(error) => {
            problems.push(format!("{}: {error}", files::LATENTS));
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for round in rounds {
        let name = files::latents(round);
        let read = run.bytes(&name).map_err(|error| error.in_run_folder());
        let read = read.and_then(|bytes| {
            Latents::decode(&bytes).map_err(|problem| format!("{name}: {problem}"))
        });
        match read {
            Ok(latents) => all.push((round, latents)),
            Err(problem) => problems.push(problem),
        }
    }
    all
}

/// Reads the images that a run saved.
fn samples(run: &RunFiles, problems: &mut Vec<String>) -> Option<Samples> {
    if !run.exists(files::SAMPLES) {
        return None;
    }
    let read = run.bytes(files::SAMPLES).map_err(|error| error.in_run_folder());
    let read = read.and_then(|bytes| {
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", files::SAMPLES))
    });
    read.map_err(|problem| problems.push(problem)).ok()
}
