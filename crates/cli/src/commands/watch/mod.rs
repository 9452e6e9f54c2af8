//! `fedanchor watch`: runs in progress, or after their end. Everything comes from their folders; the runs do not notice.
//!
//! In the terminal there is one line per round, which also works over ssh, in pipes and in logs. Curves are for the
//! browser: a full-screen dashboard in the terminal would show them once more, less well.

#[cfg(test)]
mod fixtures;
mod lines;
mod text;
mod web;

use crate::cli::WatchArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_report::Followers;
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
        printer.line(text::state_line(run, SystemTime::now()));
        for problem in &run.problems {
            printer.status(format!("note: {}: {problem}", run.path.display()));
        }
    }
    Ok(())
}
