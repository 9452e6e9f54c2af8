//! A run in words, safe to print.

use crate::commands::counted;
use crate::commands::rounds::{accuracy, clock};
use fedanchor::resume_command;
use fedanchor_record::words::printable;
use fedanchor_report::{LiveRun, Status};
use std::path::Path;
use std::time::SystemTime;

/// The name of a run in a folder: its path from there.
pub(super) fn name(run: &LiveRun, folder: &Path) -> String {
    let path = run.path.strip_prefix(folder).unwrap_or(&run.path);
    let path = if path.as_os_str().is_empty() { &run.path } else { path };
    printable(&path.display().to_string())
}

/// `fedanchor on cifar10`.
fn title(run: &LiveRun) -> String {
    match &run.heading {
        Some(heading) => printable(&format!("{} on {}", heading.method, heading.data)),
        None => "unknown experiment".to_owned(),
    }
}

/// The line before the first round: `runs/a: fedanchor on cifar10: 500 anchors, resnet18, seed 0, 300 rounds`.
pub(super) fn header(run: &LiveRun, folder: &Path) -> String {
    let setup = run.heading.iter().flat_map(|heading| {
        [counted(heading.anchors, "anchor", "anchors"), printable(&heading.model)]
    });
    let seed = run.seed.map(|seed| format!("seed {seed}"));
    let rounds = run.planned.map(|planned| counted(planned, "round", "rounds"));
    let all: Vec<String> = setup.chain(seed).chain(rounds).collect();
    format!("{}: {}: {}", name(run, folder), title(run), all.join(", "))
}

/// What a run is doing.
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

/// A run in one line.
pub(super) fn state_line(run: &LiveRun, now: SystemTime) -> String {
    let seed = run.seed.map_or(String::new(), |seed| format!(", seed {seed}"));
    let mut line = format!(
        "{}: {}{seed}: {}, {}",
        printable(&run.path.display().to_string()),
        title(run),
        state(run),
        progress(run)
    );
    if let Some(last) = run.last() {
        line += &format!(", {}", accuracy(last));
    }
    line += &format!(", {} elapsed", clock(run.elapsed(now)));
    if let Some(left) = run.remaining(now) {
        line += &format!(", {} left", clock(left));
    }
    if run.status == Status::Stopped {
        line += &printable(&format!("; resume with `{}`", resume_command(&run.path)));
    }
    line
}
