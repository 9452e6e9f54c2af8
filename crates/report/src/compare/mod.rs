//! A comparison of two experiments: the settings that differ, how much better the second one is and whether that is more
//! than the spread of its seeds, and what both cost.
//!
//! Runs that finished are compared at their own ends, whatever their number of rounds. Where one did not,
//! all of them are compared up to the last round that all have: an early round compared with a late one would say
//! nothing about the settings.

mod outcome;
mod reading;
mod significance;
mod text;

pub use outcome::{Outcome, Reached, Side};
pub use significance::{Difference, Evidence};
pub use text::comparison_text;

use crate::error::{ReportError, Result};
use crate::history::History;
use crate::setup::{Complete, FINGERPRINT};
use crate::table::Average;
use reading::{changed_settings, check_apart, read};
use serde::Serialize;
use std::path::Path;

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
