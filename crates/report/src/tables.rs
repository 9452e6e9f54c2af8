//! Tables of a report, as CSV and LaTeX.

use crate::escape;
use crate::history::History;
use crate::render::shown;
use crate::study::{Experiment, Section};
use crate::table::Average;
use fedanchor_record::{Outcome, RoundRecord};
use std::collections::BTreeSet;

/// What stands between a mean and its deviation.
const BETWEEN: &str = " ± ";

/// A table of text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextTable {
    /// Short name for files, unique in the report.
    pub id: String,
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Titles of the columns whose cells are a mean and a deviation.
    averages: &'static [&'static str],
}

impl TextTable {
    fn new(id: String, title: &str, columns: &str) -> Self {
        let columns = columns.split(',').map(str::to_owned).collect();
        Self { id, title: title.to_owned(), columns, rows: Vec::new(), averages: &[] }
    }

    /// The table without columns that are empty.
    fn trimmed(mut self) -> Self {
        let used: Vec<bool> = (0..self.columns.len())
            .map(|column| self.rows.iter().any(|row| !row[column].is_empty()))
            .collect();
        for cells in self.rows.iter_mut().chain([&mut self.columns]) {
            let mut used = used.iter();
            cells.retain(|_| used.next().is_some_and(|used| *used));
        }
        self
    }

    /// Whether a column has nothing but numbers, with or without a deviation.
    pub(crate) fn is_number(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
        column > 0 && cells.all(|cell| cell.split(BETWEEN).all(|part| part.parse::<f64>().is_ok()))
    }

    /// As comma-separated values with a header. Mean and deviation have separate columns.
    pub fn csv(&self) -> String {
        let line = |cells: &[String], split: &dyn Fn(&str) -> [String; 2]| -> Vec<String> {
            let cells = cells.iter().zip(&self.columns).flat_map(|(cell, title)| {
                match self.averages.contains(&title.as_str()) {
                    true => split(cell).to_vec(),
                    false => vec![cell.clone()],
                }
            });
            cells.collect()
        };
        let head = ["mean", "deviation"];
        let head = line(&self.columns, &|title| head.map(|which| format!("{title} {which}")));
        let parts = |cell: &str| {
            let (mean, deviation) = cell.split_once(BETWEEN).unwrap_or((cell, ""));
            [mean, deviation].map(str::to_owned)
        };
        escape::csv(head, self.rows.iter().map(|row| line(row, &parts)))
    }

    /// As a `tabular` for the package `booktabs`.
    pub fn latex(&self) -> String {
        let titles: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let rows =
            self.rows.iter().map(|row| (row.iter().map(String::as_str).collect(), String::new()));
        let table = escape::latex_table(&titles, |column| self.is_number(column), rows);
        format!("% {}\n{table}", escape::one_line(&self.title))
    }
}

/// The experiments of a section and their accuracies.
fn summary(section: &Section) -> TextTable {
    let mut table = TextTable::new(
        format!("{}-summary", section.id),
        "Test accuracy (%): mean ± standard deviation over seeds",
        "experiment,preset,seeds,rounds,last ten,final,best,validation,anchors alone,published,megabytes,\
         seconds per round,build,state",
    );
    table.averages = &["last ten", "final", "best", "validation", "anchors alone", "published"];
    for experiment in &section.experiments {
        let average = |of: &dyn Fn(&History) -> Option<f64>| {
            experiment.average(of).as_ref().map_or(String::new(), shown)
        };
        let best = |run: &History| {
            run.rounds.iter().map(|round| round.test_accuracy).max_by(f64::total_cmp)
        };
        let traffic = |run: &History| {
            let bytes: u64 = run.rounds.iter().map(|round| round.bytes_down + round.bytes_up).sum();
            Some(bytes as f64 / 1e6)
        };
        let pace = |run: &History| run.mean_seconds(|timing| timing.total);
        let rounds = experiment.runs.iter().map(|run| run.last().round);
        let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
        let number = |average: Option<Average>, decimals: usize| {
            average.map_or(String::new(), |average| format!("{:.decimals$}", average.mean))
        };
        table.rows.push(vec![
            experiment.name.clone(),
            experiment.heading().preset.clone(),
            experiment.runs.len().to_string(),
            if least == most { most.to_string() } else { format!("{least} to {most}") },
            average(&|run| Some(run.last_ten())),
            average(&|run| Some(run.last().test_accuracy)),
            average(&best),
            average(&|run| run.last().validation_accuracy),
            average(&|run| run.summary.as_ref()?.server_only_accuracy),
            experiment.published.map_or(String::new(), |published| published.to_string()),
            number(experiment.average(traffic), 1),
            number(experiment.average(pace), 2),
            builds(experiment),
            if experiment.is_finished() { String::new() } else { "not finished".to_owned() },
        ]);
    }
    table.trimmed()
}

/// The builds that computed an experiment's rounds, each once.
fn builds(experiment: &Experiment) -> String {
    let all = experiment.runs.iter().flat_map(History::builds);
    let names: BTreeSet<String> = all.map(|rounds| rounds.build.to_string()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The settings in which the experiments of a section differ, and only those. Another method has other
/// settings: those that only one method has, with one value, follow from `method.name` and are counted.
/// Whichever are more, settings or experiments, are the rows.
fn differences(section: &Section) -> Option<TextTable> {
    let mut own: Vec<(&str, usize)> = Vec::new();
    let mut shown: Vec<&(String, Vec<Option<String>>)> = Vec::new();
    for difference in &section.differences {
        match only_method(section, difference) {
            None => shown.push(difference),
            Some(method) => match own.iter_mut().find(|(other, _)| *other == method) {
                Some((_, count)) => *count += 1,
                None => own.push((method, 1)),
            },
        }
    }
    if shown.is_empty() {
        return None;
    }
    let mut title = "Settings in which the experiments differ".to_owned();
    for (method, count) in own {
        let what = if count == 1 { "setting" } else { "settings" };
        title += &format!(", and {count} {what} that only {method} has");
    }
    let names = section.experiments.iter().map(|one| one.name.clone());
    let title_row = std::iter::once("setting".to_owned()).chain(names).collect();
    let row = |(key, values): &(String, Vec<Option<String>>)| {
        let cells = values.iter().map(|value| value.clone().unwrap_or_default());
        std::iter::once(key.clone()).chain(cells).collect()
    };
    let mut rows: Vec<Vec<String>> = vec![title_row];
    rows.extend(shown.iter().map(|difference| row(difference)));
    if section.experiments.len() > shown.len() {
        rows[0][0] = "experiment".to_owned();
        let column = |place: usize| rows.iter().map(|row| row[place].clone()).collect();
        rows = (0..rows[0].len()).map(column).collect();
    }
    let id = format!("{}-differences", section.id);
    Some(TextTable { columns: rows.remove(0), rows, ..TextTable::new(id, &title, "") })
}

/// The method of all experiments that have a setting, if they have the same value and others have none.
fn only_method<'a>(
    section: &'a Section,
    (key, values): &(String, Vec<Option<String>>),
) -> Option<&'a str> {
    let method = |place: usize| section.experiments[place].heading().method.as_str();
    let first = values.iter().position(Option::is_some)?;
    let own =
        values.iter().enumerate().all(|(place, value)| match method(place) == method(first) {
            true => *value == values[first],
            false => value.is_none(),
        });
    (key.starts_with("method.") && own).then(|| method(first))
}

/// What went wrong in the rounds of a section, if anything did.
fn events(section: &Section) -> Option<TextTable> {
    let mut table = TextTable::new(
        format!("{}-events", section.id),
        "Rejected updates, failed and excluded clients, and rounds that changed nothing",
        "experiment,seed,rejected,failed,excluded,no quorum,rolled back",
    );
    for experiment in &section.experiments {
        for run in &experiment.runs {
            let kinds: [fn(&RoundRecord) -> usize; 5] = [
                |round| round.rejected.len(),
                |round| round.failed.len(),
                |round| round.excluded.len(),
                |round| usize::from(round.outcome == Outcome::NoQuorum),
                |round| usize::from(round.outcome == Outcome::RolledBack),
            ];
            let counts = kinds.map(|of| run.rounds.iter().map(of).sum::<usize>());
            if counts.iter().any(|&count| count > 0) {
                let counts = counts.iter().map(usize::to_string);
                let names = [experiment.name.clone(), run.seed().to_string()];
                table.rows.push(names.into_iter().chain(counts).collect());
            }
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// What runs noted, by round.
pub(crate) fn notes(section: &Section) -> Vec<String> {
    let mut notes = Vec::new();
    for experiment in &section.experiments {
        for run in &experiment.runs {
            let name = format!("{}, seed {}", experiment.name, run.seed());
            for round in &run.rounds {
                let of_round = round.notes.iter();
                notes.extend(of_round.map(|note| format!("{name}, round {}: {note}", round.round)));
            }
        }
    }
    notes
}

/// All tables of a section.
pub(crate) fn of_section(section: &Section) -> Vec<TextTable> {
    [Some(summary(section)), differences(section), events(section)].into_iter().flatten().collect()
}
