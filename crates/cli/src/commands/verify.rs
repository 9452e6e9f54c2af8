//! `fedanchor verify`: whether runs are unchanged since they were written.

use super::counted;
use crate::cli::VerifyArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::Verification;
use fedanchor_report::find_folders;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A run as `--json` shows it.
#[derive(Serialize)]
struct Verified {
    path: PathBuf,
    intact: bool,
    #[serde(flatten)]
    verification: Verification,
}

pub fn verify(args: &VerifyArgs, printer: &Printer) -> Result<()> {
    let found = find_folders(&args.dirs)?;
    let unread = |problem| Verification { problems: vec![problem], ..Verification::default() };
    let mut all = Vec::new();
    for path in found.folders {
        let verification =
            fedanchor::verify(&path).unwrap_or_else(|error| unread(error.to_string()));
        if !args.output.json {
            print(&path, &verification, printer);
        }
        all.push(Verified { path, intact: verification.is_intact(), verification });
    }
    for damaged in found.damaged {
        if !args.output.json {
            printer.line(damaged.to_string());
        }
        let verification = unread(damaged.problem);
        all.push(Verified { path: damaged.path, intact: false, verification });
    }
    args.output.print(printer, &all, || ());
    match all.iter().filter(|run| !run.intact).count() {
        0 => Ok(()),
        damaged => bail!("{damaged} of {} damaged", counted(all.len(), "run is", "runs are")),
    }
}

fn print(path: &Path, verification: &Verification, printer: &Printer) {
    let Verification { files, rounds, checkpoints, builds, problems, notes } = verification;
    let state = if problems.is_empty() { "intact" } else { "DAMAGED" };
    printer.line(format!(
        "{}: {state}: {}, {}, {}",
        path.display(),
        counted(*files, "file", "files"),
        counted(rounds.saturating_sub(1), "round", "rounds"),
        counted(*checkpoints, "checkpoint file", "checkpoint files"),
    ));
    builds.iter().for_each(|build| printer.line(format!("  {build}")));
    problems.iter().for_each(|problem| printer.line(format!("  {problem}")));
    notes.iter().for_each(|note| printer.line(format!("  note: {note}")));
}
