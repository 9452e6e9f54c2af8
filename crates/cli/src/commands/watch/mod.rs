//! `fedanchor watch`: a run while it is going on, or after.
//!
//! The run is not asked and does not know: everything comes from its folder. On a terminal it is a
//! dashboard, elsewhere one line per round, and with `--web` the page of a report, served to browsers.

mod dashboard;
mod draw;
#[cfg(test)]
mod fixtures;
mod lines;
mod terminal;
mod text;
mod view;
mod web;

use crate::cli::WatchArgs;
use crate::in_colour;
use crate::printer::Printer;
use anyhow::{Result, bail};
use dashboard::Dashboard;
use fedanchor_record::words;
use fedanchor_report::Followers;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

/// Time between two looks at the folder.
const POLL: Duration = Duration::from_millis(500);

pub fn watch(args: &WatchArgs, printer: &Printer) -> Result<()> {
    let mut followers = Followers::new(args.folder.clone());
    followers.poll();
    if args.once {
        return once(&followers, printer);
    }
    // What is in the way from the start, a file of that name for example, will not go away by waiting.
    if let (Some(problem), []) = (followers.problem(), followers.runs()) {
        bail!("{problem}");
    }
    if let Some(address) = &args.web {
        return web::serve(followers, address, printer);
    }
    if std::io::stdout().is_terminal() {
        let colour = in_colour(true, std::env::var_os("NO_COLOR"));
        terminal::show(Dashboard::new(followers, colour))
    } else {
        lines::follow(followers, printer)
    }
}

/// Prints the current state of every run.
fn once(followers: &Followers, printer: &Printer) -> Result<()> {
    if followers.runs().is_empty() {
        if let Some(problem) = followers.problem() {
            bail!("{problem}");
        }
        let folder = followers.folder().display();
        bail!(
            "{folder}: contains no run: give a folder written by `fedanchor run` or `fedanchor sweep`"
        );
    }
    // A folder that cannot be searched hides no run but its own.
    if let Some(problem) = followers.problem() {
        printer.status(words::printable(&format!("note: {problem}")));
    }
    for follower in followers.runs() {
        let run = follower.run();
        printer.line(text::state_line(run, SystemTime::now()));
        for problem in &run.problems {
            printer.status(words::printable(&format!("note: {}: {problem}", run.path.display())));
        }
    }
    Ok(())
}
