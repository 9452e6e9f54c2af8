//! The phases of the last rounds as bars.

use super::palette::Palette;
use super::wrapped;
use fedanchor_record::Timing;
use fedanchor_report::LiveRun;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// A phase: its name, its sign in a bar, and its seconds.
type Phase = (&'static str, &'static str, fn(&Timing) -> f64);

const PHASES: [Phase; 6] = [
    ("broadcast", "░", |timing| timing.broadcast),
    ("clients", "█", |timing| timing.clients),
    ("aggregate", "▚", |timing| timing.aggregate),
    ("server", "▓", |timing| timing.server),
    ("test", "▒", |timing| timing.test),
    ("other", "·", other),
];

/// What is left of a round: checkpoints and records.
fn other(timing: &Timing) -> f64 {
    let named: f64 = PHASES[..5].iter().map(|(_, _, seconds)| sane(seconds(timing))).sum();
    timing.total - named
}

pub(super) fn draw(frame: &mut Frame, area: Rect, run: &LiveRun, palette: Palette) {
    let Some(last) = run.timings.last() else {
        frame.render_widget(Line::styled("nothing yet", palette.faint()), area);
        return;
    };
    let keys = PHASES.iter().enumerate().map(|(number, (name, sign, seconds))| {
        let seconds = in_seconds(sane(seconds(last)));
        Span::styled(format!("{sign} {name} {seconds}"), palette.fill(number))
    });
    let legend = wrapped(keys.collect(), usize::from(area.width));
    let rows = Constraint::Length(legend.len() as u16);
    let [top, bottom] = Layout::vertical([rows, Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(legend), top);
    // The newest round first.
    let rows = usize::from(bottom.height).saturating_sub(1);
    let shown: Vec<&Timing> = run.timings.iter().rev().take(rows).collect();
    let longest = shown.iter().map(|timing| sum(timing)).fold(f64::MIN_POSITIVE, f64::max);
    let bars = shown.iter().map(|timing| bar(timing, longest, usize::from(area.width), palette));
    let head = Line::styled(" round   total", palette.faint());
    let lines = std::iter::once(head).chain(bars);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), bottom);
}

/// `   12    1.24 ████▓▓▒`.
fn bar<'a>(timing: &Timing, longest: f64, width: usize, palette: Palette) -> Line<'a> {
    let label = format!("{:>6} {:>7} ", timing.round, in_seconds(sum(timing)));
    let columns = width.saturating_sub(label.len()) as f64;
    let mut line = Line::raw(label);
    let (mut until, mut drawn) = (0.0, 0);
    for (number, (_, sign, seconds)) in PHASES.iter().enumerate() {
        until += sane(seconds(timing)) / longest * columns;
        // Rounded ends: errors do not add up.
        let end = until.round() as usize;
        line.push_span(Span::styled(sign.repeat(end.saturating_sub(drawn)), palette.fill(number)));
        drawn = end.max(drawn);
    }
    line
}

fn sum(timing: &Timing) -> f64 {
    PHASES.iter().map(|(_, _, seconds)| sane(seconds(timing))).sum()
}

/// Seconds as they can be drawn: damaged records may hold anything.
fn sane(seconds: f64) -> f64 {
    seconds.clamp(0.0, 1e9)
}

fn in_seconds(seconds: f64) -> String {
    match seconds {
        0.0..100.0 => format!("{seconds:.2}"),
        100.0..1e6 => format!("{seconds:.0}"),
        _ => format!("{seconds:.1e}"),
    }
}
