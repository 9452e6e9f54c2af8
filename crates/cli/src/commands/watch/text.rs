//! Text of a run for people, safe to print.

use crate::commands::round_text::{clock, validation};
use fedanchor::resume_command;
use fedanchor_record::words::printable;
use fedanchor_report::{LiveRun, Status};
use ratatui::text::Span;
use std::path::Path;
use std::time::SystemTime;

/// The start of a text that takes at most this many columns.
pub(super) fn shorten(text: &str, columns: usize) -> String {
    let mut kept = fitting(text.chars(), columns);
    if kept.len() < text.len() && columns > 0 {
        kept.pop();
        kept.push('…');
    }
    kept
}

/// The end of a text that takes at most this many columns: of a path, the end tells more.
pub(super) fn shorten_start(text: &str, columns: usize) -> String {
    let kept: String = fitting(text.chars().rev(), columns).chars().rev().collect();
    if kept.len() == text.len() {
        return kept;
    }
    let rest = kept.chars().next().map_or(0, char::len_utf8);
    if columns == 0 { kept } else { format!("…{}", &kept[rest..]) }
}

fn fitting(text: impl Iterator<Item = char>, columns: usize) -> String {
    let mut width = 0;
    let fits = |&c: &char| {
        width += Span::raw(c.to_string()).width();
        width <= columns
    };
    text.take_while(fits).collect()
}

/// The name of a run in a folder: its path from there.
pub(super) fn name(run: &LiveRun, folder: &Path) -> String {
    let path = run.path.strip_prefix(folder).unwrap_or(&run.path);
    let path = if path.as_os_str().is_empty() { &run.path } else { path };
    printable(&path.display().to_string())
}

/// What a run is: `fedanchor on cifar10`.
pub(super) fn title(run: &LiveRun) -> String {
    match &run.heading {
        Some(heading) => printable(&format!("{} on {}", heading.method, heading.data)),
        None => "unknown experiment".to_owned(),
    }
}

/// What a run is doing, in one or a few words.
pub(super) fn state(run: &LiveRun) -> &'static str {
    match run.status {
        Status::Missing => "not started",
        Status::Running if run.is_comparing() => "comparing with the anchors alone",
        Status::Running if run.rounds.is_empty() => "pre-training",
        Status::Running => "running",
        Status::Finished => "finished",
        Status::Stopped => "stopped",
    }
}

/// `round 3 of 40`.
pub(super) fn progress(run: &LiveRun) -> String {
    let done = run.last().map_or(0, |last| last.round);
    let planned = run.planned.map_or(String::new(), |planned| format!(" of {planned}"));
    format!("round {done}{planned}")
}

/// `1:23 elapsed, 4:05 left`.
pub(super) fn times(run: &LiveRun, now: SystemTime) -> String {
    let left = run.remaining(now).map_or(String::new(), |left| format!(", {} left", clock(left)));
    format!("{} elapsed{left}", clock(run.elapsed(now)))
}

/// How to resume a run that was stopped.
pub(super) fn advice(run: &LiveRun) -> Option<String> {
    let stopped = run.status == Status::Stopped;
    stopped.then(|| printable(&format!("resume with `{}`", resume_command(&run.path))))
}

/// A run in one line.
pub(super) fn state_line(run: &LiveRun, now: SystemTime) -> String {
    let path = printable(&run.path.display().to_string());
    let seed = run.seed.map_or(String::new(), |seed| format!(", seed {seed}"));
    let accuracy = run.last().map_or(String::new(), |last| {
        format!(", accuracy {:.2} %{}", last.test_accuracy, validation(last))
    });
    let advice = advice(run).map_or(String::new(), |advice| format!("; {advice}"));
    format!(
        "{path}: {}{seed}: {}, {}{accuracy}, {}{advice}",
        title(run),
        state(run),
        progress(run),
        times(run, now)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_columns() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdef", 4), "abc…");
        assert_eq!(shorten_start("abcdef", 6), "abcdef");
        assert_eq!(shorten_start("abcdef", 4), "…def");
        for columns in 0..3 {
            assert!(Span::raw(shorten("大大大", columns)).width() <= columns);
            assert!(Span::raw(shorten_start("大大大", columns)).width() <= columns);
        }
        assert_eq!(shorten("大大大", 5), "大…");
        assert_eq!(shorten_start("大大大", 5), "…大");
    }
}
