//! The figures of a report, as values: what the paper shows, and what a person wants to know of a run.

mod cost;
mod labels;
mod latents;
mod learning;
mod model;
mod series;

pub use latents::Embedding;

use crate::chart::Chart;
use crate::error::{ReportError, Result};
use crate::study::{Experiment, Section, Study};

/// Experiments whose models are shown one by one at most.
const MOST_MODELS: usize = 24;
/// Lines that are drawn until a reader asks for more.
const MOST_LINES: usize = 8;

/// A figure, in one or several frames between which a reader chooses.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Short name for files, unique in the report.
    pub id: String,
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
pub struct Frame {
    /// What the reader chooses it by; empty if there is no choice.
    pub name: String,
    pub chart: Chart,
}

/// How figures are drawn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Rounds over which accuracies are averaged: 1 or 0 for none. The paper's figure 4 has 5.
    pub smooth: usize,
    /// The round of the bars of pseudo-label accuracy; the last one of each section by default.
    pub round: Option<u32>,
}

impl Figure {
    /// A figure of one frame, if there is anything to draw.
    fn single(
        section: &Section,
        name: &str,
        title: &str,
        caption: &str,
        chart: Chart,
    ) -> Option<Self> {
        let frames = vec![Frame { name: String::new(), chart }];
        Self::framed(section, name, title, caption, "", frames)
    }

    /// A figure with a frame per experiment that has something to draw.
    fn by_experiment(
        section: &Section,
        name: &str,
        title: &str,
        caption: &str,
        draw: impl Fn(&Experiment) -> Option<Chart>,
    ) -> Option<Self> {
        let frames = section.experiments.iter().filter_map(|one| {
            let chart = draw(one).filter(|chart| !chart.is_empty())?;
            Some(Frame { name: one.name.clone(), chart })
        });
        let mut frames: Vec<Frame> = frames.collect();
        let all = frames.len();
        frames.truncate(MOST_MODELS);
        let caption = limited(caption, frames.len(), all);
        Self::framed(section, name, title, &caption, "experiment", frames)
    }

    /// A figure of several frames, without those that are empty; `None` if all are.
    fn framed(
        section: &Section,
        name: &str,
        title: &str,
        caption: &str,
        choice: &'static str,
        frames: Vec<Frame>,
    ) -> Option<Self> {
        let frames: Vec<Frame> =
            frames.into_iter().filter(|frame| !frame.chart.is_empty()).collect();
        let mut caption = caption.to_owned();
        if let Some((shown, all)) = frames.iter().find_map(Frame::left_out) {
            caption += &format!(
                " {shown} of {all} lines are shown at first and in the files; the page shows the others when \
                 their boxes are ticked."
            );
        }
        (!frames.is_empty()).then(|| Self {
            id: format!("{}-{name}", section.id),
            title: title.to_owned(),
            caption,
            choice,
            chosen: 0,
            frames,
        })
    }
}

impl Figure {
    /// The title of one of its frames.
    pub(crate) fn title_of(&self, frame: &Frame) -> String {
        match (&frame.chart, frame.name.as_str()) {
            (_, "") => self.title.clone(),
            (Chart::Bars(_), labels::LAST) => format!("{}, last round", self.title),
            (Chart::Bars(_), round) => format!("{}, round {round}", self.title),
            (_, name) => format!("{}: {name}", self.title),
        }
    }
}

impl Frame {
    /// How many lines are shown at first, and how many there are, if these are more.
    fn left_out(&self) -> Option<(usize, usize)> {
        let Chart::Lines(chart) = &self.chart else { return None };
        let all = chart.lines.iter().filter(|line| !line.points.is_empty());
        let (shown, all) = (all.clone().filter(|line| line.shown).count(), all.count());
        (shown < all).then_some((shown, all))
    }
}

/// The caption of a figure that shows the first of many experiments.
fn limited(caption: &str, shown: usize, all: usize) -> String {
    match shown < all {
        true => format!("{caption} The first {shown} of {all} experiments are shown."),
        false => caption.to_owned(),
    }
}

/// The figures of a section.
pub(crate) fn of_section(
    section: &Section,
    options: Options,
    embedding: &Embedding,
) -> Vec<Figure> {
    let figures = [
        learning::accuracy(section, options),
        learning::validation(section, options),
        learning::kept(section),
        labels::accuracy(section, true, options),
        labels::accuracy(section, false, options),
        learning::losses(section),
        latents::plane(section, embedding),
        model::confusion(section),
        model::similarity(section),
        model::partition(section),
        model::samples(section),
        cost::traffic(section, options),
        cost::phases(section),
        cost::rejected(section),
    ];
    figures.into_iter().flatten().collect()
}

/// Fails if a round was chosen at which no run has pseudo-labels.
pub(crate) fn check_round(study: &Study, options: Options) -> Result<()> {
    let Some(round) = options.round else { return Ok(()) };
    let known = labels::rounds(study);
    if known.binary_search(&round).is_ok() {
        return Ok(());
    }
    let hint = match &known[..] {
        [first, .., last] => format!("`--round` can be {first} to {last}"),
        [only] => format!("`--round` can be {only}"),
        [] => "leave out `--round`, since no round has any".to_owned(),
    };
    Err(ReportError::Other(format!("no run has pseudo-labels at round {round}: {hint}")))
}

/// The figures over all sections.
pub(crate) fn of_study(study: &Study, options: Options) -> Vec<Figure> {
    labels::bars(study, options).into_iter().collect()
}
