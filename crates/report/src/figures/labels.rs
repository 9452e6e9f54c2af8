//! How right the pseudo-labels are. Known only where the true labels of the clients' images are.

use super::{Figure, Frame, MOST_LINES, Options, line, short};
use crate::chart::{Axis, Bars, Chart, Line, Lines, Series};
use crate::study::{Section, Study};
use fedanchor_record::{LabelAccuracy, RoundRecord};
use std::collections::BTreeSet;

/// Rounds between which a reader of the bars can choose.
const MOST_ROUNDS: usize = 40;

/// The accuracy of the labels that clients train on: the anchor head's where there is one.
fn used(round: &RoundRecord, kept: bool) -> Option<f64> {
    of_head(&round.anchor_head, kept).or(of_head(&round.classifier_head, kept))
}

fn of_head(head: &LabelAccuracy, kept: bool) -> Option<f64> {
    if kept { head.kept } else { head.all }
}

/// Accuracy of the pseudo-labels by round, of the kept samples or of all.
pub(super) fn accuracy(section: &Section, kept: bool, options: &Options) -> Option<Figure> {
    let mut lines = Vec::new();
    let mut heads = section.experiments.iter().map(|one| one.style + 1).max().unwrap_or(0)..;
    let labelling = section.experiments.iter().filter(|one| one.has_labels());
    for (place, experiment) in labelling.enumerate() {
        lines.push(line(experiment, place, options.smooth, &|round| used(round, kept)));
        // The other head, on the same samples.
        let anchor = |round: &RoundRecord| round.anchor_head.all.is_some();
        if experiment.runs.iter().any(|run| run.rounds.iter().any(anchor)) {
            let head = |round: &RoundRecord| of_head(&round.classifier_head, kept);
            let other = line(experiment, place, options.smooth, &head);
            let (name, style) = (other.name + ", classifier head", heads.next().unwrap_or(place));
            lines.push(Line { name, style, ..other });
        }
    }
    // The heads count as lines too.
    let drawn = lines.iter_mut().filter(|line| line.shown && !line.points.is_empty());
    drawn.skip(MOST_LINES).for_each(|line| line.shown = false);
    let lines = Lines::by_round(Axis::new("correct pseudo-labels (%)"), lines);
    let (name, title, which) = match kept {
        true => ("labels-kept", "Pseudo-labels of kept samples", "the kept samples"),
        false => ("labels-all", "Pseudo-labels of all samples", "all samples of a round's clients"),
    };
    let caption = format!(
        "Share of correct pseudo-labels among {which}: by the anchor head where the method has one, and \
         by the classification head on the same samples. Means over seeds, bands one standard \
         deviation."
    );
    Figure::new(section, name, title, &caption).single(Chart::Lines(lines))
}

/// The name of the frame with the last round of each section.
pub(super) const LAST: &str = "last";

/// The rounds at which any run has pseudo-labels whose accuracy is known.
fn known_rounds(section: &Section) -> impl Iterator<Item = u32> {
    let labelling = section.experiments.iter().filter(|one| one.has_labels());
    let rounds = labelling.flat_map(|one| &one.runs).flat_map(|run| &run.rounds);
    rounds.filter(|round| used(round, false).is_some()).map(|round| round.round)
}

/// Accuracy of all pseudo-labels, method by section: at the last round of each section, and at one round.
pub(super) fn bars(study: &Study) -> Option<Figure> {
    let rounds: BTreeSet<u32> = study.sections.iter().flat_map(known_rounds).collect();
    let every = rounds.len().div_ceil(MOST_ROUNDS).max(1);
    let mut shown: BTreeSet<u32> = rounds.iter().copied().step_by(every).collect();
    shown.extend(rounds.last());
    let mut frames = vec![frame(study, None)];
    frames.extend(shown.into_iter().map(|round| frame(study, Some(round))));
    let caption = "Share of correct pseudo-labels among all samples of the clients of a round, mean over seeds. Of \
                   several experiments of one method, the first in its section.";
    let title = "Pseudo-labels by method and data set";
    let figure = Figure::new(study.sections.first()?, "labels-bars", title, caption);
    let mut figure = figure.framed("round", frames)?;
    figure.id = "labels-bars".to_owned();
    Some(figure)
}

/// The bars at a round, or at the last one of each section: sections and methods that have a value there.
fn frame(study: &Study, round: Option<u32>) -> Frame {
    let at = |section: &Section| round.or_else(|| known_rounds(section).max());
    let sections: Vec<(&Section, u32)> = study
        .sections
        .iter()
        .filter_map(|section| Some((section, at(section)?)))
        .filter(|&(section, round)| known_rounds(section).any(|known| known == round))
        .collect();
    let methods: BTreeSet<(usize, &str)> = sections
        .iter()
        .flat_map(|(section, _)| &section.experiments)
        .map(|one| (one.heading().style(), one.heading().method.as_str()))
        .collect();
    let series = methods.into_iter().map(|(style, method)| {
        let values = sections.iter().map(|&(section, round)| value(section, method, round));
        Series { name: method.to_owned(), values: values.collect(), style }
    });
    let series = series.filter(|series| series.values.iter().any(Option::is_some)).collect();
    let several = sections.iter().any(|(_, round)| *round != sections[0].1);
    let groups = sections.iter().map(|&(section, round)| {
        let alike = sections.iter().filter(|(other, _)| other.short == section.short).count() > 1;
        let name = if alike { &section.title } else { &section.short };
        if several { format!("{name}, round {round}") } else { name.clone() }
    });
    let bars = Bars {
        axis: Axis { max: Some(100.0), ..Axis::new("correct pseudo-labels (%)").from_zero() },
        groups: groups.collect(),
        series,
        stacked: false,
    };
    let name = round.map_or(LAST.to_owned(), |round| round.to_string());
    Frame { name, chart: Chart::Bars(bars) }
}

fn value(section: &Section, method: &str, round: u32) -> Option<f64> {
    let mut same =
        section.experiments.iter().filter(|one| one.heading().method == method && one.has_labels());
    same.find_map(|experiment| {
        let average = experiment
            .average(|run| used(run.rounds.iter().find(|other| other.round == round)?, false));
        average.map(|average| short(average.mean))
    })
}
