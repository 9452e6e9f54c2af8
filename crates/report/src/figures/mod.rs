//! The figures of a report, as values: what the paper shows, and what a person wants to know of a run.

mod cost;
mod labels;
mod latents;
mod learning;
mod model;

use crate::chart::{Chart, Line};
use crate::history::History;
use crate::study::{Experiment, Section, Study};
use crate::table::Average;
use fedanchor_record::RoundRecord;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Experiments whose models are shown one by one at most.
const MOST_MODELS: usize = 24;
/// Lines that are drawn until a reader asks for more.
const MOST_LINES: usize = 8;

/// A figure, in one or several frames between which a reader chooses.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the others have comments
pub struct Figure {
    /// Short name for files, unique in the report.
    pub id: String,
    /// What it shows, for example `accuracy`.
    pub name: String,
    pub title: String,
    /// The content, and how it was computed.
    pub caption: String,
    /// What the frames differ in, for example `round`.
    pub choice: &'static str,
    pub chosen: usize,
    pub frames: Vec<Frame>,
}

/// One state of a figure.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the chart is the content
pub struct Frame {
    /// What the reader chooses it by; empty if there is no choice.
    pub name: String,
    pub chart: Chart,
}

/// How figures are drawn.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Rounds over which accuracies are averaged: 1 or 0 for none. The paper's figure 4 has 5.
    pub smooth: usize,
    /// Folder in which layouts of latents are kept; without one they are computed every time.
    pub cache: Option<PathBuf>,
}

impl Figure {
    /// A figure without frames.
    fn new(section: &Section, name: &str, title: &str, caption: &str) -> Self {
        Self {
            id: format!("{}-{name}", section.id),
            name: name.to_owned(),
            title: title.to_owned(),
            caption: caption.to_owned(),
            choice: "",
            chosen: 0,
            frames: Vec::new(),
        }
    }

    /// The same with one frame, if there is anything to draw.
    fn single(self, chart: Chart) -> Option<Self> {
        self.framed("", vec![Frame { name: String::new(), chart }])
    }

    /// The same with several frames, without those that are empty; `None` if all are.
    fn framed(mut self, choice: &'static str, frames: Vec<Frame>) -> Option<Self> {
        (self.choice, self.frames) = (choice, frames);
        self.frames.retain(|frame| !frame.chart.is_empty());
        let left_out = self.frames.iter().find_map(|frame| match &frame.chart {
            Chart::Lines(lines) => lines.left_out(),
            _ => None,
        });
        if let Some((shown, all)) = left_out {
            self.caption += &format!(
                " {shown} of {all} lines are shown at first and in the files; the page shows the others when \
                 their boxes are ticked."
            );
        }
        (!self.frames.is_empty()).then_some(self)
    }

    /// The same with a frame per experiment that has something to draw.
    fn by_experiment(
        self,
        section: &Section,
        draw: impl Fn(&Experiment) -> Option<Chart>,
    ) -> Option<Self> {
        let frames = section.experiments.iter().filter_map(|one| {
            let chart = draw(one).filter(|chart| !chart.is_empty())?;
            Some(Frame { name: one.name.clone(), chart })
        });
        let mut frames: Vec<Frame> = frames.collect();
        let all = frames.len();
        frames.truncate(MOST_MODELS);
        self.limited(frames.len(), all).framed("experiment", frames)
    }

    /// The same, whose caption says so if not all experiments are shown.
    fn limited(mut self, shown: usize, all: usize) -> Self {
        if shown < all {
            self.caption += &format!(" The first {shown} of {all} experiments are shown.");
        }
        self
    }

    /// The title of one of its frames.
    pub fn title_of(&self, frame: &Frame) -> String {
        match (&frame.chart, frame.name.as_str()) {
            (_, "") => self.title.clone(),
            (Chart::Bars(_), labels::LAST) => format!("{}, last round", self.title),
            (Chart::Bars(_), round) if self.choice == "round" => {
                format!("{}, round {round}", self.title)
            }
            (_, name) => format!("{}: {name}", self.title),
        }
    }
}

/// The figures of a section.
pub(crate) fn of_section(section: &Section, options: &Options) -> Vec<Figure> {
    let figures = [
        learning::accuracy(section, options),
        learning::validation(section, options),
        learning::sites(section),
        learning::last_of_sites(section),
        learning::kept(section),
        labels::accuracy(section, true, options),
        labels::accuracy(section, false, options),
        learning::losses(section),
        latents::plane(section, options),
        model::confusion(section),
        model::similarity(section),
        model::partition(section),
        model::samples(section),
        cost::traffic(section, options),
        cost::privacy(section, options),
        cost::phases(section),
        cost::rejected(section),
    ];
    figures.into_iter().flatten().collect()
}

/// The figures over all sections.
pub(crate) fn of_study(study: &Study) -> Vec<Figure> {
    labels::bars(study).into_iter().collect()
}

/// A number of a round.
type Of<'a> = &'a dyn Fn(&RoundRecord) -> Option<f64>;

/// Digits that a figure can show; more would only make the page larger.
fn short(value: f64) -> f64 {
    if value.abs() >= 1000.0 { value.round() } else { (value * 1000.0).round() / 1000.0 }
}

/// An experiment as a line: the mean over the runs that have a round, with a band of one standard
/// deviation where there are several. `place` is its place in the section and decides whether it is shown at
/// first.
fn line(experiment: &Experiment, place: usize, smooth: usize, of: Of) -> Line {
    let runs: Vec<Vec<(u32, f64)>> =
        experiment.runs.iter().map(|run| smoothed(run, smooth, of)).collect();
    Line { style: experiment.style, ..averaged(&experiment.name, place, &runs) }
}

/// The average of several lines.
fn averaged(name: &str, place: usize, runs: &[Vec<(u32, f64)>]) -> Line {
    let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (round, value) in runs.iter().flatten() {
        rounds.entry(*round).or_default().push(*value);
    }
    let mut line = Line { style: place, shown: place < MOST_LINES, ..Line::new(name, Vec::new()) };
    for (round, values) in rounds {
        let average = Average::of(values.into_iter());
        line.points.push([f64::from(round), short(average.mean)]);
        if runs.len() > 1 {
            let std = average.std.unwrap_or(0.0);
            line.band.push([short(average.mean - std), short(average.mean + std)]);
        }
    }
    line
}

/// The rounds that have a number, each averaged with those before it.
fn smoothed(run: &History, smooth: usize, of: Of) -> Vec<(u32, f64)> {
    let numbers = run.rounds.iter().filter_map(|round| Some((round.round, of(round)?)));
    let numbers: Vec<(u32, f64)> = numbers.filter(|(_, value)| value.is_finite()).collect();
    let window = smooth.max(1);
    (0..numbers.len())
        .map(|end| {
            let start = (end + 1).saturating_sub(window);
            let part = numbers[start..=end].iter().map(|(_, value)| *value);
            (numbers[end].0, Average::of(part).mean)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_averaged_where_runs_have_a_round() {
        let runs = [vec![(0, 70.0), (1, 80.0), (2, 90.0)], vec![(0, 74.0), (1, 82.0)]];
        let line = averaged("x", 1, &runs);
        assert_eq!(line.points, [[0.0, 72.0], [1.0, 81.0], [2.0, 90.0]]);
        let deviation = 8.0_f64.sqrt();
        assert_eq!(line.band[0], [short(72.0 - deviation), short(72.0 + deviation)]);
        assert_eq!(line.band[2], [90.0, 90.0]);
        assert!(averaged("x", 1, &runs[..1]).band.is_empty());
        assert!(line.shown && !averaged("x", MOST_LINES, &runs).shown);
    }
}
