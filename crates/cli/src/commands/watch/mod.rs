//! `fedanchor watch`: runs in progress, or after their end. Everything comes from their folders; the runs do not notice.
//!
//! In the terminal there is one line per round, which also works over ssh, in pipes and in logs. Curves are for the
//! browser: a full-screen dashboard in the terminal would show them once more, less well.

#[cfg(test)]
mod fixtures;
mod lines;
mod web;

use super::counted;
use super::pace::clock;
use super::progress::accuracy;
use crate::cli::WatchArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::resume_command;
use fedanchor_record::words::printable;
use fedanchor_report::{Followers, LiveRun, Status};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Time between two looks at the folder.
const POLL: Duration = Duration::from_millis(500);

pub fn watch(args: &WatchArgs, printer: &Printer) -> Result<()> {
    let mut followers = Followers::new(args.folder.clone());
    followers.poll();
    // A file of that name, for example, will not go away by waiting.
    if let (Some(problem), []) = (&followers.problem, &followers.runs[..]) {
        bail!("{problem}");
    }
    match &args.web {
        _ if args.once => once(&followers, printer),
        Some(address) => web::serve(followers, address, printer),
        None => lines::follow(followers, printer),
    }
}

/// Prints the current state of every run.
fn once(followers: &Followers, printer: &Printer) -> Result<()> {
    if followers.runs.is_empty() {
        let folder = followers.folder.display();
        bail!(
            "{folder}: contains no run: give a folder written by `fedanchor run` or `fedanchor sweep`"
        );
    }
    // The runs that were found are shown all the same.
    followers.problem.iter().for_each(|problem| printer.status(format!("note: {problem}")));
    for follower in &followers.runs {
        let run = &follower.run;
        printer.line(state_line(run, SystemTime::now()));
        for problem in &run.problems {
            printer.status(format!("note: {}: {problem}", run.path.display()));
        }
    }
    Ok(())
}

/// The name of a run in a folder: its path from there.
fn name(run: &LiveRun, folder: &Path) -> String {
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
fn header(run: &LiveRun, folder: &Path) -> String {
    let setup = run.heading.iter().flat_map(|heading| {
        [counted(heading.anchors, "anchor", "anchors"), printable(&heading.model)]
    });
    let seed = run.seed.map(|seed| format!("seed {seed}"));
    let rounds = run.planned.map(|planned| counted(planned, "round", "rounds"));
    let all: Vec<String> = setup.chain(seed).chain(rounds).collect();
    format!("{}: {}: {}", name(run, folder), title(run), all.join(", "))
}

/// What a run is doing.
fn state(run: &LiveRun) -> &'static str {
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
fn progress(run: &LiveRun) -> String {
    let done = run.last().map_or(0, |last| last.round);
    let planned = run.planned.map_or(String::new(), |planned| format!(" of {planned}"));
    format!("round {done}{planned}")
}

/// A run in one line.
fn state_line(run: &LiveRun, now: SystemTime) -> String {
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
