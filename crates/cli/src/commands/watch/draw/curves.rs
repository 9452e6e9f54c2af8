//! The curves: accuracy, pseudo-labels and losses by round.

use super::palette::Palette;
use super::{side_by_side, wrapped};
use crate::commands::round_text;
use fedanchor_record::{Losses, RoundRecord};
use fedanchor_report::LiveRun;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

/// Numbers beyond this are damage, and would flatten every other curve.
const ABSURD: f64 = 1e9;
/// Rounds that the axis of a young run has.
const FEW_ROUNDS: u32 = 10;

/// A curve by round. The number chooses its colour and marker, so that a curve keeps them whether or not the
/// others are there.
struct Curve {
    number: usize,
    name: &'static str,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn new(
        number: usize,
        name: &'static str,
        run: &LiveRun,
        value: impl Fn(&RoundRecord) -> Option<f64>,
    ) -> Self {
        let points = run.rounds.iter().filter_map(|record| {
            let value = value(record).filter(|value| value.abs() < ABSURD)?;
            Some((f64::from(record.round), value))
        });
        Self { number, name, points: points.collect() }
    }

    /// The same value in all rounds.
    fn level(number: usize, name: &'static str, run: &LiveRun, value: Option<f64>) -> Self {
        let mut curve = Self::new(number, name, run, |_| value);
        let end = f64::from(last_round(run));
        curve.points.extend(curve.points.last().map(|&(_, value)| (end, value)));
        curve
    }
}

pub(super) fn accuracy(frame: &mut Frame, area: Rect, run: &LiveRun, palette: Palette) {
    let floor = run.summary.as_ref().and_then(|summary| summary.server_only_accuracy);
    let curves = [
        Curve::level(5, "anchors alone", run, floor),
        Curve::new(1, "validation", run, |record| record.validation_accuracy),
        Curve::new(0, "test", run, |record| Some(record.test_accuracy)),
    ];
    draw(frame, area, run, palette, curves, percentages);
}

pub(super) fn pseudo_labels(frame: &mut Frame, area: Rect, run: &LiveRun, palette: Palette) {
    let share = |record: &RoundRecord| {
        (record.seen > 0).then(|| 100.0 * record.kept as f64 / record.seen as f64)
    };
    let curves = [
        Curve::new(1, "accuracy", run, |record| round_text::pseudo_labels(record).all),
        Curve::new(2, "accuracy of kept", run, |record| round_text::pseudo_labels(record).kept),
        Curve::new(0, "kept", run, share),
    ];
    draw(frame, area, run, palette, curves, percentages);
}

pub(super) fn losses(frame: &mut Frame, area: Rect, run: &LiveRun, palette: Palette) {
    let curve = |number, name, value: fn(&Losses) -> Option<f64>| {
        Curve::new(number, name, run, move |record| value(&record.losses))
    };
    let losses = [
        curve(1, "client fix", |losses| losses.get("client_fix")),
        curve(2, "client mix", |losses| losses.get("client_mix")),
        curve(3, "server fix", |losses| losses.get("server_fix")),
        curve(4, "server mix", |losses| losses.get("server_mix")),
        Curve::new(0, "test", run, |record| Some(record.test_loss)),
    ];
    // It is no cross entropy and may be far from the others.
    let contrastive = curve(5, "contrastive", |losses| losses.get("server_contrastive"));
    if contrastive.points.is_empty() {
        draw(frame, area, run, palette, losses, numbers);
        return;
    }
    let [left, right] = side_by_side(area);
    draw(frame, left, run, palette, losses, numbers);
    draw(frame, right, run, palette, [contrastive], numbers);
}

/// Draws curves below a legend with their last values.
fn draw<const N: usize>(
    frame: &mut Frame,
    area: Rect,
    run: &LiveRun,
    palette: Palette,
    curves: [Curve; N],
    bounds: fn(f64, f64) -> [f64; 2],
) {
    let curves: Vec<Curve> = curves.into_iter().filter(|curve| !curve.points.is_empty()).collect();
    if curves.is_empty() {
        frame.render_widget(Line::styled("nothing yet", palette.faint()), area);
        return;
    }
    // Each is drawn over those before it.
    let datasets: Vec<Dataset> = curves.iter().map(|curve| dataset(curve, palette)).collect();
    let values = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let y = bounds(values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let x = last_round(run);
    let mut legend: Vec<&Curve> = curves.iter().collect();
    legend.sort_by_key(|curve| curve.number);
    let legend = wrapped(
        legend.into_iter().map(|curve| key(curve, palette)).collect(),
        usize::from(area.width),
    );
    let rows = Constraint::Length(legend.len() as u16);
    let [top, bottom] = Layout::vertical([rows, Constraint::Fill(1)]).areas(area);
    // Two rows are the axis and its labels.
    let heights =
        if bottom.height < 7 { vec![y[0], y[1]] } else { vec![y[0], (y[0] + y[1]) / 2.0, y[1]] };
    let digits = digits(&heights);
    let heights = heights.into_iter().map(|value| format!("{value:.digits$}"));
    let rounds = ["0".to_owned(), format!("round {x}")];
    let chart = Chart::new(datasets)
        .legend_position(None)
        .x_axis(Axis::default().bounds([0.0, f64::from(x)]).labels(rounds))
        .y_axis(Axis::default().bounds(y).labels(heights).labels_alignment(Alignment::Right));
    frame.render_widget(Paragraph::new(legend), top);
    frame.render_widget(chart, bottom);
}

fn dataset<'a>(curve: &'a Curve, palette: Palette) -> Dataset<'a> {
    let (style, marker, _) = palette.line(curve.number);
    Dataset::default().marker(marker).graph_type(GraphType::Line).style(style).data(&curve.points)
}

/// The entry of a curve in the legend: its sign, its name and its last value.
fn key<'a>(curve: &Curve, palette: Palette) -> Span<'a> {
    let (style, _, sign) = palette.line(curve.number);
    let last = curve.points.last().map_or(0.0, |point| point.1);
    let last = if last.abs() < 1000.0 { format!("{last:.2}") } else { format!("{last:.2e}") };
    Span::styled(format!("{sign} {} {last}", curve.name), style)
}

/// The last round of the axis: 10, 20, 50, 100 and so on, but no more than are planned.
fn last_round(run: &LiveRun) -> u32 {
    let done = run.last().map_or(0, |last| last.round).max(1);
    let mut end = FEW_ROUNDS;
    while end < done {
        let next = if end.to_string().starts_with('2') {
            end.saturating_mul(5) / 2
        } else {
            end.saturating_mul(2)
        };
        end = if next > end { next } else { done };
    }
    end.min(run.planned.unwrap_or(u32::MAX)).max(done)
}

/// The digits after the point that all of these numbers need, at most 4.
fn digits(values: &[f64]) -> usize {
    let exact = |value: f64, digits: i32| {
        let scaled = value * 10f64.powi(digits);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1.0)
    };
    let enough = |&digits: &i32| values.iter().all(|&value| exact(value, digits));
    (0..4).find(enough).unwrap_or(4) as usize
}

/// Bounds in steps of ten percent.
fn percentages(least: f64, most: f64) -> [f64; 2] {
    let low = ((least / 10.0).floor() * 10.0).clamp(0.0, 90.0);
    let high = ((most / 10.0).ceil() * 10.0).clamp(low + 10.0, 100.0);
    [low, high]
}

/// Bounds of numbers of any size, with 0 among them.
fn numbers(least: f64, most: f64) -> [f64; 2] {
    let (least, most) = (least.min(0.0), most.max(0.0));
    let span = (most - least).max(1e-6);
    let step = 10f64.powf(span.log10().floor()) / 2.0;
    let (low, high) = ((least / step).floor() * step, (most / step).ceil() * step);
    [low, if high > low { high } else { low + step }]
}
