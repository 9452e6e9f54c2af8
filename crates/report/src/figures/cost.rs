//! What a run costs: traffic, time, and rounds or updates that were lost.

use super::{Figure, MOST_MODELS, Options, line, short};
use crate::chart::{Axis, Bars, Chart, Lines, Series};
use crate::study::{Experiment, Section};
use fedanchor_record::{RoundRecord, Timing};

/// Test accuracy against the bytes sent so far.
pub(super) fn traffic(section: &Section, options: &Options) -> Option<Figure> {
    let sent = |before: f64, round: &RoundRecord| {
        before + (round.bytes_down + round.bytes_up) as f64 / 1e6
    };
    let lines = against(section, options, "traffic between server and clients (MB)", sent);
    let caption =
        "Test accuracy against the encoded size of all messages so far (of the first seed).";
    Figure::new(section, "traffic", "Accuracy against traffic", caption).single(Chart::Lines(lines))
}

/// Test accuracy against what private rounds have cost so far.
pub(super) fn privacy(section: &Section, options: &Options) -> Option<Figure> {
    let spent = |before: f64, round: &RoundRecord| round.privacy.map_or(before, |one| one.epsilon);
    let lines = against(section, options, "epsilon", spent);
    let caption = "Test accuracy against epsilon of all rounds so far: how much any one client can have \
                   changed what was published. Delta is in the settings.";
    Figure::new(section, "privacy", "Accuracy against privacy", caption).single(Chart::Lines(lines))
}

/// Test accuracy against something that grows by round, of the experiments in which it does. `total` gives it from what
/// it was before a round.
fn against(
    section: &Section,
    options: &Options,
    x: &str,
    total: impl Fn(f64, &RoundRecord) -> f64,
) -> Lines {
    let grows = |one: &&Experiment| one.runs[0].rounds.iter().fold(0.0, &total) > 0.0;
    let experiments = section.experiments.iter().filter(grows).enumerate();
    let lines = experiments.map(|(place, experiment)| {
        let mut line = line(experiment, place, options.smooth, &|round| Some(round.test_accuracy));
        let mut so_far = 0.0;
        let rounds = &experiment.runs[0].rounds;
        line.points.truncate(rounds.len());
        line.band.truncate(rounds.len());
        for (point, round) in line.points.iter_mut().zip(rounds) {
            so_far = total(so_far, round);
            point[0] = short(so_far);
        }
        line
    });
    let y = Axis::new("test accuracy (%)");
    Lines { x: Axis::new(x), ..Lines::by_round(y, lines.collect()) }
}

/// Mean seconds per round by phase.
pub(super) fn phases(section: &Section) -> Option<Figure> {
    type Phase = (&'static str, fn(&Timing) -> f64);
    let phases: [Phase; 6] = [
        ("broadcast", |timing| timing.broadcast),
        ("clients", |timing| timing.clients),
        ("aggregation", |timing| timing.aggregate),
        ("server", |timing| timing.server),
        ("test", |timing| timing.test),
        ("other", |timing| {
            let phases =
                timing.broadcast + timing.clients + timing.aggregate + timing.server + timing.test;
            (timing.total - phases).max(0.0)
        }),
    ];
    let timed = |one: &&Experiment| one.runs.iter().any(|run| run.timings.len() > 1);
    let mut experiments: Vec<&Experiment> = section.experiments.iter().filter(timed).collect();
    let all = experiments.len();
    experiments.truncate(MOST_MODELS);
    let series = phases.into_iter().enumerate().map(|(style, (name, of))| Series {
        name: name.to_owned(),
        values: experiments
            .iter()
            .map(|one| Some(short(one.average(|run| run.mean_seconds(of))?.mean)))
            .collect(),
        style,
    });
    let bars = Bars {
        axis: Axis::new("seconds per round").from_zero(),
        groups: experiments.iter().map(|one| one.name.clone()).collect(),
        series: series.collect(),
        stacked: true,
    };
    let caption = "Mean seconds of a round by phase, without pre-training; the clients' part includes their \
                   pseudo-labels. Times of runs on other machines, or of runs that shared one, are not comparable.";
    let figure = Figure::new(section, "phases", "Time per round by phase", caption);
    figure.limited(experiments.len(), all).single(Chart::Bars(bars))
}

/// Rejected updates by round, where there are any.
pub(super) fn rejected(section: &Section) -> Option<Figure> {
    let rejects = |one: &&Experiment| {
        one.runs.iter().flat_map(|run| &run.rounds).any(|round| !round.rejected.is_empty())
    };
    let experiments = section.experiments.iter().filter(rejects).enumerate();
    let lines = experiments.map(|(place, one)| {
        line(one, place, 1, &|round| (round.round > 0).then_some(round.rejected.len() as f64))
    });
    let y = Axis::new("rejected updates").from_zero().whole();
    let lines = Lines::by_round(y, lines.collect());
    let caption = "Updates that the server rejected in each round. Means over seeds, bands one standard \
                   deviation.";
    Figure::new(section, "rejected", "Rejected updates", caption).single(Chart::Lines(lines))
}
