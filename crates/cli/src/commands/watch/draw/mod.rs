//! Draws the dashboard.
//!
//! Top to bottom: what the run is and how far it is, accuracy and pseudo-labels as curves, a panel that keys
//! change, and the keys. A tall terminal shows losses and times as well; in a narrow or low one, what does not
//! fit is left out. Every function draws a [`View`], which is plain data.

mod curves;
mod palette;
mod panels;
#[cfg(test)]
mod tests;
mod times;

use super::text::{name, progress, shorten, shorten_start, state, times as elapsed, title};
use super::view::{Panel, View};
use curves::{accuracy, losses, pseudo_labels};
use fedanchor_record::words::printable;
use fedanchor_report::LiveRun;
use palette::Palette;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};

/// Columns from which two charts stand side by side.
const WIDE: u16 = 70;
/// Rows, without that of the keys, from which losses and times are shown beside the panel.
const TALL: u16 = 35;
/// Rows below which every one counts.
const LOW: u16 = 16;
/// Rows below which a chart says nothing.
const CHART: u16 = 5;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame, view: &View) {
    let palette = Palette::new(view.colour);
    let [main, keys] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    match view.run() {
        Some(run) => draw_run(frame, main, view, run, palette),
        None => draw_waiting(frame, main, view),
    }
    let several = if view.runs.len() > 1 { "  n/p run" } else { "" };
    let text = format!("q quit  Tab panel{several}  ? help");
    frame.render_widget(Line::styled(text, palette.faint()), keys);
    if view.help {
        draw_help(frame, palette);
    }
}

fn draw_waiting(frame: &mut Frame, area: Rect, view: &View) {
    let folder = printable(&view.folder.display().to_string());
    let mut lines = vec![Line::raw(format!("waiting for a run in {folder}"))];
    lines.extend(view.problem.map(|problem| Line::raw(printable(problem))));
    let middle = Layout::vertical([Constraint::Length(area.height / 3), Constraint::Fill(1)]);
    let [_, area] = middle.areas(area);
    let text = Paragraph::new(lines).alignment(Alignment::Center).wrap(Wrap { trim: true });
    frame.render_widget(text, area);
}

fn draw_run(frame: &mut Frame, area: Rect, view: &View, run: &LiveRun, palette: Palette) {
    let head = header(view, run, area, palette);
    let head_rows = (head.len() as u16).min(area.height);
    // The tabs and two lines of the panel come before the charts.
    let room = area.height.saturating_sub(head_rows + 3);
    let rows = if area.height >= TALL { 2 } else { u16::from(room >= CHART) };
    let charts = (0..rows).map(|_| Constraint::Fill(1));
    let panel =
        if area.height < LOW && rows > 0 { Constraint::Length(2) } else { Constraint::Fill(1) };
    let parts = std::iter::once(Constraint::Length(head_rows)).chain(charts);
    let parts = Layout::vertical(parts.chain([Constraint::Length(1), panel])).split(area);
    frame.render_widget(Paragraph::new(head), parts[0]);
    let [charts @ .., tab_row, panel] = &parts[1..] else { return };
    if let Some(area) = charts.first() {
        let [left, right] = side_by_side(*area);
        let best = run.best().map_or(String::new(), |best| {
            format!(", peak {:.2} in round {}", best.test_accuracy, best.round)
        });
        let left = below_title(frame, left, &format!("Accuracy (%){best}"));
        accuracy(frame, left, run, palette);
        let right = below_title(frame, right, "Pseudo-labels (%)");
        pseudo_labels(frame, right, run, palette);
    }
    if let Some(area) = charts.get(1) {
        let [left, right] = side_by_side(*area);
        let left = below_title(frame, left, "Losses");
        losses(frame, left, run, palette);
        let right = below_title(frame, right, "Seconds per round");
        times::draw(frame, right, run, palette);
    }
    frame.render_widget(tabs(view, run, palette), *tab_row);
    match view.panel {
        Panel::Clients => panels::clients(frame, *panel, run, palette),
        Panel::Losses => losses(frame, *panel, run, palette),
        Panel::Times => times::draw(frame, *panel, run, palette),
        Panel::Notes => panels::notes(frame, *panel, run),
        Panel::Runs => panels::runs(frame, *panel, view, palette),
    }
}

/// Draws a title; what is below it is left for its content.
fn below_title(frame: &mut Frame, area: Rect, title: &str) -> Rect {
    let block = Block::new().borders(Borders::TOP).title(Span::raw(format!(" {title} ")));
    let below = block.inner(area);
    frame.render_widget(block, area);
    below
}

/// Two halves with a gap, or only the left one where there is no room for both.
fn side_by_side(area: Rect) -> [Rect; 2] {
    let right = if area.width >= WIDE { Constraint::Fill(1) } else { Constraint::Length(0) };
    let spacing = u16::from(area.width >= WIDE);
    Layout::horizontal([Constraint::Fill(1), right]).spacing(spacing).areas(area)
}

/// What the run is and how far it is, in as many lines as it takes, and its folder.
fn header<'a>(view: &View, run: &LiveRun, area: Rect, palette: Palette) -> Vec<Line<'a>> {
    let width = usize::from(area.width);
    let mut parts = vec![Span::styled(shorten(&title(run), width), palette.strong())];
    parts.extend(run.seed.map(|seed| Span::raw(format!("seed {seed}"))));
    parts.push(Span::raw(progress(run)));
    parts.push(Span::styled(state(run), palette.status(run.status)));
    parts.push(Span::raw(elapsed(run, view.now)));
    let mut lines = wrapped(parts, width);
    if area.height < LOW {
        lines.truncate(2);
        return lines;
    }
    let place = match view.runs.len() {
        0 | 1 => String::new(),
        all => format!(" ({} of {all})", view.selected + 1),
    };
    let path = shorten_start(&name(run, view.folder), width.saturating_sub(place.len()));
    lines.push(Line::styled(format!("{path}{place}"), palette.faint()));
    lines
}

/// Parts with gaps between them, on as many lines as they need.
fn wrapped<'a>(parts: Vec<Span<'a>>, width: usize) -> Vec<Line<'a>> {
    const GAP: &str = "  ";
    let mut lines: Vec<Line> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.width() + GAP.len() + part.width() <= width => {
                line.push_span(Span::raw(GAP));
                line.push_span(part);
            }
            _ => lines.push(Line::from(part)),
        }
    }
    lines
}

fn tabs<'a>(view: &View, run: &LiveRun, palette: Palette) -> Line<'a> {
    let mut line = Line::default();
    for panel in Panel::all(view.runs.len() > 1) {
        let text = match panel {
            Panel::Clients => " Clients ".to_owned(),
            Panel::Losses => " Losses ".to_owned(),
            Panel::Times => " Seconds ".to_owned(),
            Panel::Notes => match panels::all_notes(run).len() {
                0 => " Notes ".to_owned(),
                count => format!(" Notes ({count}) "),
            },
            Panel::Runs => format!(" Runs ({}) ", view.runs.len()),
        };
        let style = if *panel == view.panel { palette.marked() } else { palette.faint() };
        line.push_span(Span::styled(text, style));
    }
    line
}

fn draw_help(frame: &mut Frame, palette: Palette) {
    const KEYS: [&str; 6] = [
        "q, Esc, Ctrl-C   leave; the run continues",
        "Tab, right       next panel",
        "Shift-Tab, left  previous panel",
        "n, down          next run, the newest is first",
        "p, up            previous run",
        "?                this help; any key closes it",
    ];
    let width = KEYS.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 4;
    let area =
        frame.area().centered(Constraint::Length(width), Constraint::Length(KEYS.len() as u16 + 2));
    frame.render_widget(Clear, area);
    let lines: Vec<Line> = KEYS.iter().map(|line| Line::raw(format!(" {line}"))).collect();
    let block = Block::bordered().title(Span::styled(" Keys ", palette.strong()));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
