//! `fedanchor verify`: whether runs are what was written.

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
    files: usize,
    rounds: usize,
    checkpoints: usize,
    problems: Vec<String>,
    notes: Vec<String>,
}

pub fn verify(args: &VerifyArgs, printer: &Printer) -> Result<()> {
    let found = find_folders(&args.dirs)?;
    let mut all = Vec::new();
    for path in found.folders {
        let verification = fedanchor::verify(&path).unwrap_or_else(|error| Verification {
            problems: vec![error.to_string()],
            ..Verification::default()
        });
        if !args.output.json {
            print(&path, &verification, printer);
        }
        let intact = verification.is_intact();
        let Verification { files, rounds, checkpoints, problems, notes } = verification;
        all.push(Verified { path, intact, files, rounds, checkpoints, problems, notes });
    }
    for damaged in found.damaged {
        if !args.output.json {
            printer.line(damaged.to_string());
        }
        let (path, problems) = (damaged.path, vec![damaged.problem]);
        let (files, rounds, checkpoints, notes) = Default::default();
        all.push(Verified { path, intact: false, files, rounds, checkpoints, problems, notes });
    }
    if args.output.json {
        printer.json(&all);
    }
    match all.iter().filter(|run| !run.intact).count() {
        0 => Ok(()),
        damaged => bail!("{damaged} of {} damaged", counted(all.len(), "run is", "runs are")),
    }
}

fn print(path: &Path, verification: &Verification, printer: &Printer) {
    let Verification { files, rounds, checkpoints, problems, notes } = verification;
    let state = if problems.is_empty() { "intact" } else { "DAMAGED" };
    printer.line(format!(
        "{}: {state}: {}, {}, {}",
        path.display(),
        counted(*files, "file", "files"),
        counted(rounds.saturating_sub(1), "round", "rounds"),
        counted(*checkpoints, "checkpoint file", "checkpoint files"),
    ));
    problems.iter().for_each(|problem| printer.line(format!("  {problem}")));
    notes.iter().for_each(|note| printer.line(format!("  note: {note}")));
}
