//! How well a model learns, by round.

use super::{Figure, Of, Options, line, short};
use crate::chart::{Axis, Bars, Chart, Line, Lines, Reference, Series};
use crate::published::SWITCHES;
use crate::study::{Experiment, Section};
use fedanchor_record::{RoundRecord, SiteTest};
use std::collections::BTreeMap;

const OVER_SEEDS: &str = "Lines are means over seeds, bands one standard deviation.";

fn lines(section: &Section, smooth: usize, y: Axis, of: Of) -> Lines {
    let experiments = section.experiments.iter().enumerate();
    let lines = experiments.map(|(place, one)| line(one, place, smooth, of)).collect();
    Lines::by_round(y, lines)
}

/// Test accuracy by round, with what the paper reports and the bounds that are known.
pub(super) fn accuracy(section: &Section, options: &Options) -> Option<Figure> {
    let y = Axis::new("test accuracy (%)");
    let mut lines = lines(section, options.smooth, y, &|round| Some(round.test_accuracy));
    lines.references = references(section);
    let caption = format!("Accuracy of the global model on all test images. {OVER_SEEDS}");
    Figure::new(section, "accuracy", "Test accuracy", &caption).single(Chart::Lines(lines))
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
    for reference in published(section) {
        if !references.contains(&reference) {
            references.push(reference);
        }
    }
    references
}

/// The published number of each experiment, with the deciding settings where a method has several numbers.
fn published(section: &Section) -> impl Iterator<Item = Reference> {
    section.experiments.iter().enumerate().filter_map(|(place, experiment)| {
        let value = experiment.published?.mean;
        let method = &experiment.heading().method;
        let peers = section.experiments.iter().enumerate();
        let peers: Vec<(usize, f64)> = peers
            .filter(|(_, other)| other.heading().method == *method)
            .filter_map(|(place, other)| Some((place, other.published?.mean)))
            .collect();
        let mut name = method.clone();
        if peers.iter().any(|(_, other)| *other != value) {
            let deciding = section.differences.iter().filter(|(key, values)| {
                let differs = peers.iter().any(|(peer, _)| values[*peer] != values[place]);
                SWITCHES.contains(&key.as_str()) && differs
            });
            let settings: Vec<String> = deciding
                .filter_map(|(key, values)| {
                    let key = key.strip_prefix("method.").unwrap_or(key);
                    Some(format!("{key}={}", values[place].as_ref()?))
                })
                .collect();
            name = format!("{name} ({})", settings.join(", "));
        }
        Some(Reference { name: format!("{name}, published"), value })
    })
}

/// Validation accuracy by round, where images are held out for it.
pub(super) fn validation(section: &Section, options: &Options) -> Option<Figure> {
    let y = Axis::new("validation accuracy (%)");
    let lines = lines(section, options.smooth, y, &|round| round.validation_accuracy);
    let caption =
        format!("Accuracy on the validation images: settings are chosen on it. {OVER_SEEDS}");
    Figure::new(section, "validation", "Validation accuracy", &caption).single(Chart::Lines(lines))
}

/// Accuracy on labelled images of clients by round: the worst, the mean, the best.
pub(super) fn sites(section: &Section) -> Option<Figure> {
    let caption = "Accuracy of the model on labelled images of clients, each on its own: the worst of the clients that \
                   were asked in a round, their mean, and the best. The model is that of the round before.";
    let figure = Figure::new(section, "sites", "Accuracy where the data is", caption);
    figure.by_experiment(section, |one| {
        let of = |at: usize| {
            let value = move |round: &RoundRecord| Some(SiteTest::range(&round.sites)?[at]);
            let name = ["worst", "mean", "best"][at].to_owned();
            Line { name, style: at, ..line(one, 0, 1, &value) }
        };
        let lines = [0, 1, 2].map(of).into_iter().filter(|line| !line.points.is_empty());
        let y = Axis::new("accuracy of clients (%)");
        Some(Chart::Lines(Lines::by_round(y, lines.collect())))
    })
}

/// The last accuracy of every client that tested the model.
pub(super) fn last_of_sites(section: &Section) -> Option<Figure> {
    let caption = "The last accuracy of the model on the labelled images of each client.";
    let figure = Figure::new(section, "clients", "Accuracy by client", caption);
    figure.by_experiment(section, |one| {
        let mut last = BTreeMap::new();
        for round in &one.runs[0].rounds {
            let names: BTreeMap<_, _> = round.clients.iter().zip(&round.client_names).collect();
            for test in &round.sites {
                let name = names.get(&test.client).map(|name| (*name).clone());
                let name = name.unwrap_or_else(|| format!("client {}", test.client));
                last.insert(test.client, (name, short(test.accuracy)));
            }
        }
        if last.is_empty() {
            return None;
        }
        let (groups, values) =
            last.into_values().map(|(name, accuracy)| (name, Some(accuracy))).unzip();
        let axis = Axis::new("accuracy (%)").from_zero();
        let series = vec![Series { name: "accuracy".to_owned(), values, style: 0 }];
        Some(Chart::Bars(Bars { axis, groups, series, stacked: false }))
    })
}

/// Kept samples per client by round.
pub(super) fn kept(section: &Section) -> Option<Figure> {
    let per_client = |round: &RoundRecord| {
        let accepted =
            round.trained.checked_sub(round.rejected.len()).filter(|&count| count > 0)?;
        (round.seen > 0).then(|| round.kept as f64 / accepted as f64)
    };
    let y = Axis::new("kept samples per client").from_zero();
    let experiments = section.experiments.iter().enumerate();
    let lines = experiments.filter(|(_, one)| one.selects()).map(|(place, one)| {
        let mut shown = line(one, place, 1, &per_client);
        let spread = line(one, place, 1, &|round| per_client(round).and(round.kept_deviation));
        // Records of earlier versions do not have it: the spread over seeds stays.
        if spread.points.len() == shown.points.len() {
            let ends = shown.points.iter().zip(&spread.points);
            let ends = ends.map(|(at, by)| [short(at[1] - by[1]).max(0.0), short(at[1] + by[1])]);
            shown.band = ends.collect();
        }
        shown
    });
    let lines = Lines::by_round(y, lines.collect());
    let caption = "Samples per client whose score passed the threshold: mean over the clients of a round and \
                   over seeds. Bands are one standard deviation over clients where the records have it, \
                   otherwise over seeds.";
    Figure::new(section, "kept", "Kept samples", caption).single(Chart::Lines(lines))
}

/// Losses by round, one frame per experiment.
pub(super) fn losses(section: &Section) -> Option<Figure> {
    let draw = |experiment: &Experiment| {
        let rounds = experiment.runs.iter().flat_map(|run| &run.rounds);
        let mut names: Vec<&str> = Vec::new();
        for name in rounds.flat_map(|round| round.losses.names()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let lines = names.into_iter().enumerate().map(|(place, loss)| {
            let line = line(experiment, place, 1, &|round| round.losses.get(loss));
            let name = loss.replacen("client_", "clients, ", 1).replacen("server_", "server, ", 1);
            Line { name: name.replace('_', " "), style: place, ..line }
        });
        let lines = lines.filter(|line| !line.points.is_empty()).collect();
        Some(Chart::Lines(Lines::by_round(Axis::new("loss"), lines)))
    };
    let caption = format!("Mean losses of each round's training. {OVER_SEEDS}");
    Figure::new(section, "losses", "Losses", &caption).by_experiment(section, draw)
}
