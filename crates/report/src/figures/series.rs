//! Numbers by round, averaged over the seeds of an experiment.

use super::MOST_LINES;
use crate::chart::Line;
use crate::history::History;
use crate::study::Experiment;
use crate::table::Average;
use fedanchor_record::RoundRecord;
use std::collections::BTreeMap;

/// A number of a round.
pub(super) type Of<'a> = &'a dyn Fn(&RoundRecord) -> Option<f64>;

/// Digits that a figure can show; more would only make the page larger.
pub(super) fn short(value: f64) -> f64 {
    if value.abs() >= 1000.0 { value.round() } else { (value * 1000.0).round() / 1000.0 }
}

/// An experiment as a line: the mean over the runs that have a round, with a band of one standard
/// deviation where there are several. `place` is its place in the section and decides whether it is shown at
/// first.
pub(super) fn line(experiment: &Experiment, place: usize, smooth: usize, of: Of) -> Line {
    let runs: Vec<Vec<(u32, f64)>> =
        experiment.runs.iter().map(|run| smoothed(run, smooth, of)).collect();
    Line { style: experiment.style, ..averaged(&experiment.name, place, &runs) }
}

/// The average of several lines.
pub(super) fn averaged(name: &str, place: usize, runs: &[Vec<(u32, f64)>]) -> Line {
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
