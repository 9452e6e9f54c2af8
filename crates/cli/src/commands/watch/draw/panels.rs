//! The panels of text: clients, notes and runs.

use super::super::view::View;
use super::palette::Palette;
use crate::commands::watch::text::{advice, name, progress, shorten_start, state};
use crate::commands::{bytes, counted, round_text};
use fedanchor_record::words::printable;
use fedanchor_record::{Outcome, RoundRecord};
use fedanchor_report::LiveRun;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

/// The clients of the last round: those of the round in progress are not recorded yet.
pub(super) fn clients(frame: &mut Frame, area: Rect, run: &LiveRun, palette: Palette) {
    let Some(last) = run.last().filter(|last| last.round > 0) else {
        frame.render_widget(Line::styled("no round yet", palette.faint()), area);
        return;
    };
    let RoundRecord { round, clients, trained, rejected, failed, .. } = last;
    let outcome = match last.outcome {
        Outcome::Applied => "applied",
        Outcome::NoQuorum => "skipped: too few valid answers",
        Outcome::RolledBack => "rolled back",
    };
    let mut lines = vec![Line::from(vec![
        Span::styled(format!("Round {round}: "), palette.strong()),
        Span::raw(format!(
            "{} drawn, {trained} trained, {} rejected, {} failed; {outcome}",
            counted(clients.len(), "client", "clients"),
            rejected.len(),
            failed.len(),
        )),
    ])];
    let mut add = |label: &str, text: String| {
        let label = Span::styled(format!("{label:<10}"), palette.faint());
        lines.push(Line::from(vec![label, Span::raw(text)]));
    };
    add("drawn", numbers(clients));
    for note in rejected {
        add("rejected", printable(&format!("{}: {}", note.client, note.reason)));
    }
    for note in failed {
        add("failed", printable(&format!("{}: {}", note.client, note.reason)));
    }
    let excluded: Vec<u32> = run.rounds.iter().flat_map(|record| record.excluded.clone()).collect();
    if !excluded.is_empty() {
        add("excluded", numbers(&excluded));
    }
    if let (Some(before), Some(after)) = (last.anchor_accuracy_before, last.anchor_accuracy) {
        add("anchors", format!("{before:.1} % before the round, {after:.1} % after aggregation"));
    }
    add("traffic", format!("{} down, {} up", bytes(last.bytes_down), bytes(last.bytes_up)));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

fn numbers(all: &[u32]) -> String {
    match all {
        [] => "none".to_owned(),
        _ => all.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// What a person should know, the newest first.
pub(super) fn notes(frame: &mut Frame, area: Rect, run: &LiveRun) {
    let mut notes = all_notes(run);
    if notes.is_empty() {
        notes.push("nothing to note".to_owned());
    }
    let lines: Vec<Line> = notes.into_iter().map(Line::raw).collect();
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

/// The notes of a run: how to resume it, what cannot be read, and what its rounds noted.
pub(super) fn all_notes(run: &LiveRun) -> Vec<String> {
    let of_round = |record: &RoundRecord| {
        let notes = round_text::notes(record).into_iter().chain(record.notes.iter().cloned());
        let notes = notes.map(|note| printable(&format!("round {}: {note}", record.round)));
        notes.collect::<Vec<_>>()
    };
    let problems = run.problems.iter().map(|problem| printable(problem));
    let rounds = run.rounds.iter().rev().flat_map(of_round);
    advice(run).into_iter().chain(problems).chain(rounds).collect()
}

/// All runs, the one that is shown marked.
pub(super) fn runs(frame: &mut Frame, area: Rect, view: &View, palette: Palette) {
    let state_width = view.runs.iter().map(|run| state(run).len()).max().unwrap_or(0) as u16;
    let round_width = view.runs.iter().map(|run| progress(run).len()).max().unwrap_or(0) as u16;
    let name_width = usize::from(area.width.saturating_sub(state_width + round_width + 12));
    let rows = view.runs.iter().map(|run| {
        let accuracy =
            run.last().map_or(String::new(), |last| format!("{:>7.2} %", last.test_accuracy));
        Row::new([
            Cell::new(shorten_start(&name(run, view.folder), name_width)),
            Cell::new(Span::styled(state(run), palette.status(run.status))),
            Cell::new(progress(run)),
            Cell::new(accuracy),
        ])
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(state_width),
        Constraint::Length(round_width),
        Constraint::Length(9),
    ];
    let table = Table::new(rows, widths).row_highlight_style(palette.marked());
    let mut state = TableState::default().with_selected(Some(view.selected));
    frame.render_stateful_widget(table, area, &mut state);
}
