//! A comparison of two experiments: the settings that differ, how much better the second one is and whether that is more
//! than the spread of its seeds, and what both cost.
//!
//! Runs that finished are compared at their own ends, whatever their number of rounds. Where one did not,
//! all of them are compared up to the last round that all have: an early round compared with a late one would say
//! nothing about the settings.

mod significance;
mod text;

pub use significance::{Difference, Evidence};
pub use text::comparison_text;

use crate::error::{ReportError, Result};
use crate::history::{Histories, History, one_per_seed, read_histories};
use crate::setup::{Complete, FINGERPRINT, Group, differing, group};
use crate::table::Average;
use fedanchor_record::{KeyRole, Timing, files};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Experiments that an error names.
const NAMED: usize = 8;

/// A comparison of two experiments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The first experiment.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// Settings that are not the same in both, in the order of the config.
    pub settings: Vec<ChangedSetting>,
    /// The accuracy whose costs are compared, in percent.
    pub accuracy: f64,
    /// Whether it was given; otherwise it is the lower of both final accuracies, rounded down.
    pub accuracy_given: bool,
    /// The last round that is compared, if not all runs finished.
    pub up_to_round: Option<u32>,
    /// Mean test accuracy of the last ten rounds: B minus A.
    pub last_ten: Difference,
    /// Test accuracy after the last round: B minus A.
    pub final_accuracy: Difference,
    /// What a reader must know: runs that are unfinished, damaged or left out.
    pub notes: Vec<String>,
}

/// A setting that is not the same in both experiments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedSetting {
    pub key: String,
    /// Its value in the first experiment; `None` if it has no such setting.
    pub a: Option<String>,
    pub b: Option<String>,
}

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

/// Compares the experiments in two folders, each a run folder or one that contains the runs of one experiment.
/// `accuracy` is described at [`Comparison::accuracy_given`].
pub fn compare(
    a: &Path,
    b: &Path,
    accuracy: Option<f64>,
    complete: Complete,
) -> Result<Comparison> {
    if let Some(accuracy) = accuracy.filter(|accuracy| !(0.0..=100.0).contains(accuracy)) {
        let problem = format!("accuracy {accuracy}: expected a percentage from 0 to 100");
        return Err(ReportError::Other(problem));
    }
    let mut notes = Vec::new();
    let mut runs_a = read(a, complete, &mut notes)?;
    let mut runs_b = read(b, complete, &mut notes)?;
    check_apart(&runs_a, &runs_b)?;
    let settings = changed_settings(&runs_a, &runs_b);
    let up_to_round = last_common(&runs_a, &runs_b, &mut notes);
    if let Some(last) = up_to_round {
        runs_a.iter_mut().chain(&mut runs_b).for_each(|run| run.cut_after(last));
    }
    if settings.iter().any(|setting| setting.key == FINGERPRINT) {
        notes.push(
            "the data sets differ (data_fingerprint): accuracies are of different images"
                .to_owned(),
        );
    }
    let chosen = accuracy.unwrap_or_else(|| {
        let [a, b] = [&runs_a, &runs_b]
            .map(|runs| Average::of(runs.iter().map(|run| run.last().test_accuracy)).mean);
        a.min(b).floor()
    });
    let a = Side::of(a, &runs_a, chosen);
    let b = Side::of(b, &runs_b, chosen);
    let difference = |value: fn(&Outcome) -> f64| {
        let [first, second] = [&a, &b]
            .map(|side| side.runs.iter().map(|run| (run.seed, value(run))).collect::<Vec<_>>());
        Difference::of(&first, &second)
    };
    let last_ten = difference(|run| run.last_ten);
    let final_accuracy = difference(|run| run.final_accuracy);
    notes.extend(unpaired(&a, &b, &last_ten.evidence));
    Ok(Comparison {
        last_ten,
        final_accuracy,
        a,
        b,
        settings,
        accuracy: chosen,
        accuracy_given: accuracy.is_some(),
        up_to_round,
        notes,
    })
}

/// The runs in a folder, one per seed and sorted by it. They must be of one experiment.
fn read(folder: &Path, complete: Complete, notes: &mut Vec<String>) -> Result<Vec<History>> {
    let Histories { runs, damaged } = read_histories(&[folder.to_owned()], complete)?;
    let mut problems: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    let (runs, incomplete): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|run| run.rounds[0].round == 0);
    problems.extend(
        incomplete.iter().map(|run| {
            format!("{}: {}: round 0 is missing", run.setup.path.display(), files::ROUNDS)
        }),
    );
    if runs.is_empty() {
        let problem = format!("no run in it can be compared: {}", problems.join("; "));
        return Err(ReportError::about(folder, problem));
    }
    let groups = group(runs.iter().map(|run| &run.setup));
    if groups.len() > 1 {
        let problem = format!(
            "contains runs of {} experiments: give a folder with the runs of one; found {}",
            groups.len(),
            names(&groups, &runs)
        );
        return Err(ReportError::about(folder, problem));
    }
    notes.extend(problems.into_iter().map(|problem| format!("left out: {problem}")));
    for run in &runs {
        let path = run.setup.path.display();
        notes.extend(run.problems.iter().map(|problem| format!("{path}: {problem}")));
    }
    Ok(one_per_seed(runs, |run, kept| {
        let (run, kept) = (run.display(), kept.display());
        notes.push(format!("left out: {run}: {kept} is a run of the same experiment and seed"));
    }))
}

/// Each experiment in a few words, and where its first run is; of many, the first few.
fn names(groups: &[Group], runs: &[History]) -> String {
    let words = |group: &Group| {
        let heading = &runs[group.members[0]].setup.heading;
        [
            heading.method.clone(),
            heading.data.clone(),
            heading.model.clone(),
            format!("{} anchors", heading.anchors),
            heading.partition.to_string(),
            format!("preset {}", heading.preset),
            group.distinction(groups),
        ]
    };
    let all: Vec<[String; 7]> = groups.iter().map(words).collect();
    let differs = |column: usize| all.iter().any(|one| one[column] != all[0][column]);
    let name = |(group, words): (&Group, &[String; 7])| {
        let shown = words
            .iter()
            .enumerate()
            .filter(|(column, word)| !word.is_empty() && (*column == 0 || differs(*column)));
        let shown: Vec<&str> = shown.map(|(_, word)| word.as_str()).collect();
        let path = runs[group.members[0]].setup.path.display();
        let more = match group.members.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{} ({path}{more})", shown.join(", "))
    };
    let mut names: Vec<String> = groups.iter().zip(&all).take(NAMED).map(name).collect();
    if groups.len() > NAMED {
        names.push(format!("and {} more", groups.len() - NAMED));
    }
    names.join("; ")
}

/// No run may be in both experiments, under whatever path.
fn check_apart(a: &[History], b: &[History]) -> Result<()> {
    for run in b {
        let path = &run.setup.path;
        let real = fs_err::canonicalize(path)?;
        for other in a {
            if fs_err::canonicalize(&other.setup.path)? == real {
                let problem = "is on both sides of the comparison: give two different folders";
                return Err(ReportError::about(path, problem));
            }
        }
    }
    Ok(())
}

/// The settings that differ; also where the runs were computed, which explains different seconds.
fn changed_settings(a: &[History], b: &[History]) -> Vec<ChangedSetting> {
    let [group_a, group_b] = [a, b].map(|runs| group(runs.iter().map(|run| &run.setup)));
    let ([group_a], [group_b]) = (&group_a[..], &group_b[..]) else { return Vec::new() };
    let mut changed = Vec::new();
    for key in differing(&[group_a, group_b]) {
        let [a, b] = [group_a, group_b]
            .map(|group| group.settings.get(key).map(|value| (*value).to_owned()));
        // A run that was not finished has no fingerprint.
        if key != FINGERPRINT || (a.is_some() && b.is_some()) {
            changed.push(ChangedSetting { key: key.to_owned(), a, b });
        }
    }
    let machine = a[0].setup.settings.iter().map(|(key, _)| key);
    for key in machine.filter(|key| KeyRole::of(key) == KeyRole::Machine) {
        let [a, b] = [a, b].map(|runs| values(runs, key));
        if a != b {
            changed.push(ChangedSetting { key: key.clone(), a, b });
        }
    }
    changed
}

/// The values of a setting in these runs, each once.
fn values(runs: &[History], key: &str) -> Option<String> {
    let settings = runs.iter().flat_map(|run| &run.setup.settings);
    let values = settings.filter(|(other, _)| other == key).map(|(_, value)| value.as_str());
    let values = Vec::from_iter(BTreeSet::from_iter(values));
    (!values.is_empty()).then(|| values.join(", "))
}

/// The last round of all runs, if not all are finished.
fn last_common(a: &[History], b: &[History], notes: &mut Vec<String>) -> Option<u32> {
    let all = || a.iter().chain(b);
    let unfinished: Vec<&History> = all().filter(|run| !run.is_finished).collect();
    if unfinished.is_empty() {
        let (first, second) = (a[0].last().round, b[0].last().round);
        if first != second {
            notes.push(format!(
                "A ran {first} rounds and B {second}: each is compared at its own end"
            ));
        }
        return None;
    }
    let last = all().map(|run| run.last().round).min()?;
    notes.push(format!("not all runs are finished: all are compared up to round {last}"));
    notes.extend(unfinished.iter().map(|run| {
        let (path, last, planned) = (run.setup.path.display(), run.last().round, run.planned());
        format!("unfinished: {path}: {last} of {planned} rounds")
    }));
    Some(last)
}

/// Which seeds have no partner in a comparison of pairs.
fn unpaired(a: &Side, b: &Side, evidence: &Evidence) -> Vec<String> {
    let Evidence::Paired { seeds, .. } = evidence else { return Vec::new() };
    let note = |(name, side): (&str, &Side)| {
        let alone: Vec<String> = side
            .runs
            .iter()
            .filter(|run| !seeds.contains(&run.seed))
            .map(|run| run.seed.to_string())
            .collect();
        let what = if alone.len() == 1 { "seed" } else { "seeds" };
        (!alone.is_empty()).then(|| {
            format!(
                "{what} {} only in {name}: part of its means, but not of the differences and their tests",
                alone.join(", ")
            )
        })
    };
    [("A", a), ("B", b)].into_iter().filter_map(note).collect()
}

impl Side {
    /// Of an experiment's runs, at least one.
    fn of(folder: &Path, runs: &[History], accuracy: f64) -> Self {
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
