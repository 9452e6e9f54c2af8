//! A run folder as far as it was written: every round, and the files that figures are drawn from.
//!
//! A table averages finished runs only. A figure can also show a run that is in progress or was stopped, or was killed
//! while it wrote a line: files and lines that are missing or damaged are named and skipped.

use crate::error::{ReportError, Result};
use crate::run_files::{Matrix, RunFiles, complete_lines, read_rounds, read_timings};
use crate::runs::{Folders, LeftOut, find_folders};
use crate::setup::{Complete, Setup};
use crate::table::Average;
use fedanchor_record::{
    BuildRounds, Latents, RoundRecord, Samples, Summary, Timing, files, missing_timings,
    rounds_with_latents,
};
use std::path::{Path, PathBuf};

/// The problem of a run that ended before its first round.
const NO_ROUND: &str = "no round was recorded";

/// A run and its records.
#[derive(Debug, Clone)]
pub struct History {
    pub setup: Setup,
    /// Its `summary.json`, written when it ends.
    pub summary: Option<Summary>,
    pub rounds: Vec<RoundRecord>,
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
    /// Files and lines that are missing or damaged, and were skipped.
    pub problems: Vec<String>,
    /// Whether all planned rounds are there.
    pub is_finished: bool,
}

/// The runs in some folders, and those that cannot be shown at all.
#[derive(Debug, Default)]
pub struct Histories {
    /// Runs that can be shown.
    pub runs: Vec<History>,
    /// Runs that cannot.
    pub damaged: Vec<LeftOut>,
}

/// Reads all runs in these folders, each a run folder or one that contains run folders.
pub fn read_histories(dirs: &[PathBuf], complete: Complete) -> Result<Histories> {
    let Folders { folders, damaged } = find_folders(dirs)?;
    let mut all = Histories { damaged, ..Histories::default() };
    for path in folders {
        all.add(path, false, complete);
    }
    Ok(all)
}

impl Histories {
    /// Reads the run in a folder, whose config is completed.
    pub(crate) fn add(&mut self, path: PathBuf, in_progress: bool, complete: Complete) {
        match History::read(&path, in_progress, complete) {
            Ok(history) => self.runs.push(history),
            Err(error) => self.damaged.push(LeftOut { path, problem: error.in_run_folder() }),
        }
    }
}

impl History {
    /// Reads the run in a folder. It is an error if its config or its first round cannot be read. Of a run in progress,
    /// a line without its end is on its way.
    pub(crate) fn read(folder: &Path, in_progress: bool, complete: Complete) -> Result<Self> {
        let mut problems = Vec::new();
        let run = RunFiles::open(folder).unwrap_or_else(|error| {
            problems.push(error.in_run_folder());
            RunFiles::unchecked(folder)
        });
        let mut setup = Setup::read(&run, complete)?;
        let rounds = rounds(&run, in_progress, &mut problems)?;
        let timings = timings(&run, in_progress, rounds.len(), &mut problems);
        let latents = latents(&run, &mut problems);
        let summary: Option<Summary> =
            optional(&run, files::SUMMARY, &mut problems, || run.json(files::SUMMARY));
        // No figure shows it, but a run that was changed is not the run that was recorded.
        optional(&run, files::ASSIGNMENT, &mut problems, || run.bytes(files::ASSIGNMENT));
        let mut matrix = |name| optional(&run, name, &mut problems, || Matrix::read(&run, name));
        let (partition, confusion) = (matrix(files::PARTITION), matrix(files::CONFUSION));
        let similarity = matrix(files::SIMILARITY);
        let samples = optional(&run, files::SAMPLES, &mut problems, || run.json(files::SAMPLES));
        if let Some(summary) = &summary {
            setup.add_fingerprint(&summary.data_fingerprint);
        }
        let mut history = Self {
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
            is_finished: false,
        };
        let all = history.last().round >= history.planned();
        history.is_finished = history.summary.is_some() && all;
        Ok(history)
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

    pub fn planned(&self) -> u32 {
        let planned = self.setup.number("rounds").and_then(|rounds| rounds.try_into().ok());
        planned.unwrap_or_else(|| self.last().round)
    }

    /// Drops the rounds after this one, and the summary, which is of all.
    pub(crate) fn cut_after(&mut self, last: u32) {
        let kept = self.rounds.partition_point(|record| record.round <= last);
        if kept < self.rounds.len() {
            self.summary = None;
        }
        self.rounds.truncate(kept);
        self.timings.truncate(kept);
    }

    /// Mean seconds of a round without pre-training, in all or in a phase.
    pub fn mean_seconds(&self, of: impl Fn(&Timing) -> f64) -> Option<f64> {
        let rounds = self.timings.iter().filter(|timing| timing.round > 0);
        Average::of_all(rounds.map(|timing| Some(of(timing)))).map(|average| average.mean)
    }

    pub fn last(&self) -> &RoundRecord {
        &self.rounds[self.rounds.len() - 1]
    }

    /// Mean test accuracy of the last ten rounds, or of as many as there are after pre-training.
    pub fn last_ten(&self) -> f64 {
        let trained = &self.rounds[self.rounds.len().min(2) - 1..];
        let last = &trained[trained.len().saturating_sub(10)..];
        Average::of(last.iter().map(|round| round.test_accuracy)).mean
    }
}

/// One run per seed, sorted by it: of several, the one that is whole. `left_out` is called with the path of every other
/// one and of the one in its place.
pub(crate) fn one_per_seed(
    mut runs: Vec<History>,
    mut left_out: impl FnMut(&Path, &Path),
) -> Vec<History> {
    runs.sort_by_key(|run| (run.seed(), !run.problems.is_empty(), !run.is_finished));
    runs.dedup_by(|run, kept| {
        let repeated = run.seed() == kept.seed();
        if repeated {
            left_out(&run.setup.path, &kept.setup.path);
        }
        repeated
    });
    runs
}

fn lines(bytes: &[u8], in_progress: bool) -> String {
    if in_progress { complete_lines(bytes).0 } else { String::from_utf8_lossy(bytes).into_owned() }
}

/// Reads the rounds up to the first line that is damaged. It is an error if that is the first of all.
fn rounds(
    run: &RunFiles,
    in_progress: bool,
    problems: &mut Vec<String>,
) -> Result<Vec<RoundRecord>> {
    // Every line has its own checksum: a damaged line is named, and those before it are shown.
    let bytes = RunFiles::unchecked(&run.folder).bytes(files::ROUNDS)?;
    let (rounds, problem) = read_rounds(&lines(&bytes, in_progress));
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

/// Reads the timings of the rounds up to the first line that is damaged; a run without the file has none.
fn timings(
    run: &RunFiles,
    in_progress: bool,
    rounds: usize,
    problems: &mut Vec<String>,
) -> Vec<Timing> {
    let name = files::TIMINGS;
    let bytes = optional(run, name, problems, || run.bytes(name));
    let Some(bytes) = bytes else { return Vec::new() };
    let (read, problem) = read_timings(&lines(&bytes, in_progress));
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
    let rounds = rounds_with_latents(&run.folder).unwrap_or_else(|error| {
        problems.push(format!("{}: {error}", files::LATENTS));
        Vec::new()
    });
    let read = |round| {
        let name = files::latents(round);
        let latents = optional(run, &name, problems, || {
            Latents::decode(&run.bytes(&name)?)
                .map_err(|problem| ReportError::Other(format!("{name}: {problem}")))
        });
        Some((round, latents?))
    };
    rounds.into_iter().filter_map(read).collect()
}

/// Reads a file that a run need not have, and notes if it is damaged.
fn optional<T>(
    run: &RunFiles,
    name: &str,
    problems: &mut Vec<String>,
    read: impl FnOnce() -> Result<T>,
) -> Option<T> {
    let found = if run.exists(name) { read().map(Some) } else { Ok(None) };
    found.unwrap_or_else(|error| {
        problems.push(error.in_run_folder());
        None
    })
}
