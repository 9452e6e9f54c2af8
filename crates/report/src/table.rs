//! One row per experiment: the runs of an experiment are averaged over their seeds.
//!
//! Two runs belong to the same experiment if their whole resolved configs agree: see
//! [`group`]. A column of the differing keys tells rows of the same heading apart.

use crate::elsewhere::elsewhere;
use crate::heading::Heading;
use crate::published::{self, Published, published};
use crate::runs::{Run, Runs};
use crate::setup::{Group, group};
use fedanchor_record::Summary;
use serde::Serialize;

/// The method that trains on every label.
const SUPERVISED: &str = "supervised";

/// A table over runs, ready to be rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// One row per experiment, in the order of the paper's tables.
    pub rows: Vec<Row>,
    /// Notes that rows refer to by number, from 1.
    pub(crate) remarks: Vec<String>,
    /// Runs that are in no row, and why.
    pub(crate) left_out: Vec<String>,
}

/// An experiment and its accuracies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The settings that identify it to a reader.
    #[serde(flatten)]
    pub heading: Heading,
    /// The keys that distinguish it from other rows of the same heading, for example
    /// `client.batch=32, method.server_mixup=true`; empty if there is no such row.
    pub settings: String,
    pub rounds: u32,
    /// Number of runs, each with a different seed.
    pub seeds: usize,
    /// Test accuracy after the last round, in percent.
    #[serde(rename = "final")]
    pub last: Average,
    /// Test accuracy of the best round, in percent: optimistic, as it is chosen on the test images.
    pub best: Average,
    /// The best test accuracy on the anchors alone, over the runs that were compared with it.
    #[serde(rename = "anchors_alone")]
    pub floor: Option<Average>,
    pub published: Option<Published>,
    /// The mean accuracy after the last round minus the published one.
    pub difference: Option<f64>,
    /// Whether no other row of the same data, model, anchors and partition has a higher final mean.
    pub leads: bool,
    /// Numbers of its notes.
    #[serde(skip)]
    pub notes: Vec<usize>,
}

/// Mean and sample standard deviation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Average {
    /// The mean.
    pub mean: f64,
    /// The standard deviation, dividing by n - 1; `None` for a single number.
    pub std: Option<f64>,
}

impl Average {
    /// Of one number or more.
    pub fn of(numbers: impl Iterator<Item = f64> + Clone) -> Self {
        let count = numbers.clone().count() as f64;
        let mean = numbers.clone().sum::<f64>() / count;
        let squares: f64 = numbers.map(|number| (number - mean).powi(2)).sum();
        Self { mean, std: (count > 1.0).then(|| (squares / (count - 1.0)).sqrt()) }
    }

    /// Of numbers that must all be there: a mean over some would be taken for one over all.
    pub(crate) fn of_all(numbers: impl Iterator<Item = Option<f64>>) -> Option<Self> {
        let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
        (!numbers.is_empty()).then(|| Self::of(numbers.into_iter()))
    }
}

/// Rounded to two decimals, as shown: rows that show the same number compare as equal.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

impl Table {
    /// Groups the finished runs, averages each group, and looks up its published number.
    pub fn new(runs: &Runs) -> Self {
        let finished = &runs.finished;
        let groups = group(finished.iter().map(|run| &run.setup));
        let mut rows: Vec<(Row, Vec<String>)> =
            groups.iter().map(|one| row(one, &groups, finished)).collect();
        rows.sort_by(|(a, _), (b, _)| {
            a.heading.order(&b.heading).then_with(|| a.settings.cmp(&b.settings))
        });
        let mut remarks: Vec<String> = Vec::new();
        let rows = rows.into_iter().map(|(mut row, texts)| {
            for text in texts {
                let known = remarks.iter().position(|other| *other == text);
                row.notes.push(known.unwrap_or(remarks.len()) + 1);
                if known.is_none() {
                    remarks.push(text);
                }
            }
            row
        });
        let mut rows: Vec<Row> = rows.collect();
        mark_leaders(&mut rows);
        let unfinished = runs.unfinished.iter().map(ToString::to_string);
        let left_out = unfinished.chain(runs.damaged.iter().map(ToString::to_string)).collect();
        Self { rows, remarks, left_out }
    }

    /// The text below the table: the numbered notes, then the runs that are in no row.
    pub fn notes(&self) -> Vec<String> {
        let remarks = self.remarks.iter().enumerate();
        let remarks = remarks.map(|(index, text)| format!("[{}] {text}", index + 1));
        let left_out = self.left_out.iter().map(|run| format!("not in the table: {run}"));
        remarks.chain(left_out).collect()
    }
}

/// The row of a group, and the notes about it.
fn row(group: &Group, all: &[Group], runs: &[Run]) -> (Row, Vec<String>) {
    let mut notes = Vec::new();
    let mut seeds: Vec<&Run> = Vec::new();
    for run in group.members.iter().map(|&place| &runs[place]) {
        let seed = run.summary.seed;
        match seeds.iter().find(|other| other.summary.seed == seed) {
            None => seeds.push(run),
            Some(first) => notes.push(format!(
                "seed {seed}: {} is left out: {} is a run of the same experiment and seed",
                run.setup.path.display(),
                first.setup.path.display()
            )),
        }
    }
    for summary in seeds.iter().map(|run| &run.summary) {
        let Summary { seed, incidents, .. } = summary;
        if !incidents.is_empty() {
            notes.push(format!("seed {seed}: {incidents}"));
        }
        notes.extend(summary.warning().map(|warning| format!("seed {seed}: {warning}")));
    }
    let setup = &seeds[0].setup;
    let rounds = seeds[0].summary.rounds;
    let published = published(setup);
    if !published.is_empty() && rounds != published::ROUNDS {
        let theirs = published::ROUNDS;
        notes.push(format!("published after {theirs} rounds, ours after {rounds}"));
    }
    let preset = &setup.heading.preset;
    if !published.is_empty() && preset != "paper" {
        notes.push(format!("published with the paper's recipe, ours with preset {preset}"));
    }
    notes.extend(published.iter().skip(1).map(|other| {
        format!("table {} of the paper gives {other} for the same setting", other.table)
    }));
    notes.extend(elsewhere(setup));
    let last = Average::of(seeds.iter().map(|run| run.summary.final_accuracy));
    let row = Row {
        heading: setup.heading.clone(),
        settings: group.distinction(all),
        rounds,
        seeds: seeds.len(),
        last,
        best: Average::of(seeds.iter().map(|run| run.summary.best_accuracy)),
        floor: Average::of_all(seeds.iter().map(|run| run.summary.server_only_accuracy)),
        published: published.first().copied(),
        difference: published.first().map(|published| last.mean - published.mean),
        leads: false,
        notes: Vec::new(),
    };
    (row, notes)
}

/// Marks the best rows of every task, without supervised training and rows that are alone in their task.
fn mark_leaders(rows: &mut [Row]) {
    let leads: Vec<bool> = rows
        .iter()
        .map(|row| {
            let compared = || {
                let same = rows.iter().filter(|other| other.heading.same_task(&row.heading));
                same.filter(|other| other.heading.method != SUPERVISED)
            };
            row.heading.method != SUPERVISED
                && compared().count() > 1
                && compared().all(|other| rounded(other.last.mean) <= rounded(row.last.mean))
        })
        .collect();
    for (row, leads) in rows.iter_mut().zip(leads) {
        row.leads = leads;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_sample_standard_deviation() {
        // Mean 82, squares 4 + 0 + 4, divided by 2.
        let three = Average::of([80.0, 82.0, 84.0].into_iter());
        assert_eq!(three, Average { mean: 82.0, std: Some(2.0) });
        let one = Average::of([80.0].into_iter());
        assert_eq!(one, Average { mean: 80.0, std: None });
    }
}
