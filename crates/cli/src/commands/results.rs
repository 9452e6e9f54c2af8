//! `fedanchor table | compare | report | verify`: what run folders contain.

use super::{complete, counted};
use crate::cli::{CompareArgs, ReportArgs, TableArgs, TableFormat, VerifyArgs};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::Verification;
use fedanchor_report::{Options, Study, Table, render};
use fedanchor_report::{comparison_text, find_folders, find_runs, read_histories};
use serde::Serialize;
use std::path::{Path, PathBuf};

pub fn table(args: &TableArgs, printer: &Printer) -> Result<()> {
    let runs = find_runs(&args.folders, &complete)?;
    let table = Table::new(&runs);
    if table.rows.is_empty() {
        table.notes().iter().for_each(|note| printer.status(note));
        bail!("no finished run");
    }
    let render = match args.format {
        _ if args.output.json => render::json,
        TableFormat::Text => render::text,
        TableFormat::Markdown => render::markdown,
        TableFormat::Csv => render::csv,
        TableFormat::Latex => render::latex,
    };
    printer.text(&render(&table));
    if args.format == TableFormat::Csv {
        table.notes().iter().for_each(|note| printer.status(note));
    }
    Ok(())
}

pub fn compare(args: &CompareArgs, printer: &Printer) -> Result<()> {
    let comparison = fedanchor_report::compare(&args.a, &args.b, args.accuracy, &complete)?;
    args.output.print(printer, &comparison, || printer.text(&comparison_text(&comparison)));
    Ok(())
}

pub fn report(args: &ReportArgs, printer: &Printer) -> Result<()> {
    let study = Study::new(read_histories(&args.folders, &complete)?);
    let cache = fedanchor_data::cache::folder("t-sne");
    let options = Options { smooth: args.smooth.into(), cache };
    let page = fedanchor_report::write_report(&study, &options, &args.out)?;
    study.problems.iter().for_each(|problem| printer.status(format!("note: {problem}")));
    let experiments = study.sections.iter().flat_map(|section| &section.experiments);
    let runs: usize = experiments.map(|experiment| experiment.runs.len()).sum();
    printer.line(format!("{} over {}", page.display(), counted(runs, "run", "runs")));
    if args.open {
        open::that(&page).with_context(|| format!("no browser could open {}", page.display()))?;
    }
    Ok(())
}

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
            print_verified(&path, &verification, printer);
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

fn print_verified(path: &Path, verification: &Verification, printer: &Printer) {
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
