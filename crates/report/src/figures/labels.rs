//! How right the pseudo-labels are. Known only where the true labels of the clients' images are.

use super::series::{line, short};
use super::{Figure, Frame, Options};
use crate::study::{Experiment, Section, Study};
use fedanchor_draw::{Axis, Bars, Chart, Lines, Series};
use fedanchor_record::RoundRecord;

/// Rounds between which a reader of the bars can choose.
const MOST_ROUNDS: usize = 40;

/// The accuracy of the labels that clients train on: the anchor head's where there is one.
fn used(round: &RoundRecord, kept: bool) -> Option<f64> {
    let of = |head: &fedanchor_record::LabelAccuracy| if kept { head.kept } else { head.all };
    of(&round.anchor_head).or(of(&round.classifier_head))
}

/// Accuracy of the pseudo-labels by round, of the kept samples or of all.
pub(super) fn accuracy(section: &Section, kept: bool, options: Options) -> Option<Figure> {
    let mut lines = Vec::new();
    let mut heads = section.experiments.len()..;
    for (place, experiment) in section.experiments.iter().enumerate() {
        lines.push(line(experiment, place, options.smooth, &|round| used(round, kept)));
        // The other head beside it, on the same samples.
        let anchor = |round: &RoundRecord| round.anchor_head.all.is_some();
        if experiment.runs.iter().any(|run| run.rounds.iter().any(anchor)) {
            let head = |round: &RoundRecord| {
                let head = &round.classifier_head;
                if kept { head.kept } else { head.all }
            };
            let next = heads.next().unwrap_or(place);
            let mut other = line(experiment, next, options.smooth, &head);
            other.name += ", classifier head";
            other.shown = next < super::MOST_LINES + 4;
            lines.push(other);
        }
    }
    let y = Axis::new("correct pseudo-labels (%)");
    let lines = Lines { x: Axis::new("round"), y, lines, references: Vec::new() };
    let (name, title, which) = match kept {
        true => ("labels-kept", "Pseudo-labels of kept samples", "the kept samples"),
        false => ("labels-all", "Pseudo-labels of all samples", "all samples of a round's clients"),
    };
    let caption = format!(
        "Share of correct pseudo-labels among {which}: by the anchor head where the method has one, with \
         the classification head on the same samples beside it. Means over seeds, bands one standard \
         deviation."
    );
    Figure::single(section, name, title, &caption, Chart::Lines(lines))
}

/// Accuracy of all pseudo-labels at one round, method by data set.
pub(super) fn bars(study: &Study, options: Options) -> Option<Figure> {
    let sections: Vec<&Section> =
        study.sections.iter().filter(|section| section.experiments.iter().any(is_known)).collect();
    let section = *sections.first()?;
    let mut methods: Vec<&str> = Vec::new();
    let mut rounds: Vec<u32> = Vec::new();
    for experiment in
        sections.iter().flat_map(|section| &section.experiments).filter(|one| is_known(one))
    {
        let method = experiment.heading().method.as_str();
        if !methods.contains(&method) {
            methods.push(method);
        }
        let known = experiment.runs[0].rounds.iter().filter(|round| used(round, false).is_some());
        rounds.extend(known.map(|round| round.round));
    }
    rounds.sort_unstable();
    rounds.dedup();
    let every = rounds.len().div_ceil(MOST_ROUNDS).max(1);
    let last = *rounds.last()?;
    let wanted = options.round.unwrap_or(last);
    let mut shown: Vec<u32> = rounds.iter().copied().step_by(every).collect();
    shown.extend([last, wanted].into_iter().filter(|round| rounds.binary_search(round).is_ok()));
    shown.sort_unstable();
    shown.dedup();
    let frames: Vec<Frame> = shown
        .iter()
        .map(|&round| {
            let series = methods.iter().enumerate().map(|(style, method)| Series {
                name: (*method).to_owned(),
                values: sections.iter().map(|section| at(section, method, round)).collect(),
                style,
            });
            let bars = Bars {
                x: Axis::new("data set"),
                y: Axis::new("correct pseudo-labels (%)").within(0.0, 100.0),
                groups: sections.iter().map(|section| section.short.clone()).collect(),
                series: series.collect(),
                stacked: false,
            };
            Frame { name: round.to_string(), chart: Chart::Bars(bars) }
        })
        .collect();
    let mut figure = Figure::framed(
        section,
        "labels-bars",
        "Pseudo-labels by method and data set",
        "Share of correct pseudo-labels among all samples of the clients of a round, mean over seeds. Of \
         several experiments of one method, the first in its section.",
        "round",
        frames,
    )?;
    figure.id = "labels-bars".to_owned();
    let place = figure.frames.iter().rposition(|frame| frame.name == wanted.to_string());
    figure.chosen = place.unwrap_or(figure.frames.len() - 1);
    Some(figure)
}

fn is_known(experiment: &Experiment) -> bool {
    let rounds = experiment.runs.iter().flat_map(|run| &run.rounds);
    rounds.into_iter().any(|round| used(round, false).is_some())
}

fn at(section: &Section, method: &str, round: u32) -> Option<f64> {
    let mut same = section.experiments.iter().filter(|one| one.heading().method == method);
    let experiment = same.find(|one| is_known(one))?;
    let average = experiment
        .average(|run| used(run.rounds.iter().find(|other| other.round == round)?, false));
    average.map(|average| short(average.mean))
}
