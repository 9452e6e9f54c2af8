//! How well a model learns, by round.

use super::series::{line, short};
use super::{Figure, Frame, Options};
use crate::study::{Experiment, Section};
use fedanchor_draw::{Axis, Chart, Line, Lines, Reference};
use fedanchor_record::RoundRecord;

const OVER_SEEDS: &str = "Lines are means over seeds, bands one standard deviation.";

fn lines(section: &Section, smooth: usize, y: Axis, of: super::series::Of) -> Lines {
    let experiments = section.experiments.iter().enumerate();
    let lines = experiments.map(|(place, one)| line(one, place, smooth, of)).collect();
    Lines { x: Axis::new("round"), y, lines, references: Vec::new() }
}

/// Test accuracy by round, with what the paper reports and the bounds that are known.
pub(super) fn accuracy(section: &Section, options: Options) -> Option<Figure> {
    let y = Axis::new("test accuracy (%)");
    let mut lines = lines(section, options.smooth, y, &|round| Some(round.test_accuracy));
    lines.references = references(section);
    let caption = format!("Accuracy of the global model on all test images. {OVER_SEEDS}");
    Figure::single(section, "accuracy", "Test accuracy", &caption, Chart::Lines(lines))
}

fn references(section: &Section) -> Vec<Reference> {
    let mut references = Vec::new();
    let floor = |one: &Experiment| one.average(|run| run.summary.as_ref()?.server_only_accuracy);
    if let Some(floor) = section.experiments.iter().find_map(floor) {
        references.push(Reference { name: "anchors alone".to_owned(), value: floor.mean });
    }
    for experiment in &section.experiments {
        if experiment.heading().method == "supervised"
            && let Some(bound) = experiment.average(|run| Some(run.last_ten()))
        {
            references.push(Reference { name: "all labels (bound)".to_owned(), value: bound.mean });
        }
    }
    let mut published: Vec<Reference> = Vec::new();
    for experiment in &section.experiments {
        let Some(number) = experiment.published else { continue };
        let name = format!("{}, published", experiment.heading().method);
        if !published.iter().any(|other| other.name == name) {
            published.push(Reference { name, value: number.mean });
        }
    }
    references.extend(published);
    references
}

/// Validation accuracy by round, where images are held out for it.
pub(super) fn validation(section: &Section, options: Options) -> Option<Figure> {
    let y = Axis::new("validation accuracy (%)");
    let lines = lines(section, options.smooth, y, &|round| round.validation_accuracy);
    let caption =
        format!("Accuracy on the validation images: settings are chosen on it. {OVER_SEEDS}");
    Figure::single(section, "validation", "Validation accuracy", &caption, Chart::Lines(lines))
}

/// Kept samples per client by round.
pub(super) fn kept(section: &Section) -> Option<Figure> {
    let per_client = |round: &RoundRecord| {
        let accepted =
            round.trained.checked_sub(round.rejected.len()).filter(|&count| count > 0)?;
        (round.seen > 0).then(|| round.kept as f64 / accepted as f64)
    };
    let y = Axis::new("kept samples per client").from_zero();
    let mut lines = lines(section, 1, y, &per_client);
    for ((place, experiment), shown) in section.experiments.iter().enumerate().zip(&mut lines.lines)
    {
        let spread =
            line(experiment, place, 1, &|round| per_client(round).and(round.kept_deviation));
        // Records of earlier versions do not have it: the spread over seeds stays.
        if spread.points.len() == shown.points.len() {
            let ends = shown.points.iter().zip(&spread.points);
            shown.band = ends
                .map(|(at, by)| [short(at[1] - by[1]).max(0.0), short(at[1] + by[1])])
                .collect();
        }
    }
    let caption = "Samples per client whose score passed the threshold: mean over the clients of a round and \
                   over seeds. Bands are one standard deviation over clients where the records have it, \
                   otherwise over seeds.";
    Figure::single(section, "kept", "Kept samples", caption, Chart::Lines(lines))
}

/// Losses by round, one frame per experiment.
pub(super) fn losses(section: &Section) -> Option<Figure> {
    let parts: [(&str, super::series::Of); 5] = [
        ("clients, fixed labels", &|round| round.losses.client_fix),
        ("clients, mixup", &|round| round.losses.client_mix),
        ("server, cross entropy", &|round| round.losses.server_fix),
        ("server, mixup", &|round| round.losses.server_mix),
        ("server, contrastive", &|round| round.losses.server_contrastive),
    ];
    let frames = section.experiments.iter().take(super::MOST_LINES).map(|experiment| {
        let lines = parts.iter().enumerate().map(|(place, (name, of))| {
            let line = line(experiment, place, 1, of);
            Line { name: (*name).to_owned(), ..line }
        });
        let lines = lines.filter(|line| !line.points.is_empty()).collect();
        let (x, y) = (Axis::new("round"), Axis::new("loss"));
        let lines = Lines { x, y, lines, references: Vec::new() };
        Frame { name: experiment.name.clone(), chart: Chart::Lines(lines) }
    });
    let caption = format!("Mean losses of each round's training. {OVER_SEEDS}");
    Figure::framed(section, "losses", "Losses", &caption, "experiment", frames.collect())
}
