//! `fedanchor init`: from a folder of pictures to an experiment file that runs.

mod answers;
mod file;
mod start;

use super::pictures::watched;
use super::{check_exists, counted, findings, quoted_path, same_file, write};
use crate::cli::InitArgs;
use crate::printer::Printer;
use answers::{Answers, Terminal};
use anyhow::{Result, bail, ensure};
use fedanchor::Simulation;
use fedanchor_data::formats::{self, Options};
use fedanchor_data::inspection::{Inspection, Part, survey};
use fedanchor_data::{Cache, Normalisation};
use std::path::{Path, PathBuf};

/// The default share of the labelled pictures to test on.
const TEST_SHARE: f64 = 0.2;

pub fn init(args: &InitArgs, printer: &Printer) -> Result<()> {
    let json = args.output.json;
    let printer = &printer.for_json(json);
    // With --json, standard output has only the findings.
    let say = |text: String| if json { printer.status(text) } else { printer.line(text) };
    check_free(&args.out, args.force)?;
    const FOLDER: &str =
        "give the folder of your pictures (`fedanchor data example` writes one to try)";
    check_exists(&args.folder, FOLDER)?;
    if let Some(labels) = &args.labels {
        check_exists(
            labels,
            "give a CSV file that `fedanchor label` wrote, with labels that you have reviewed, or a JSON export of \
             Label Studio",
        )?;
    }
    let path = match &args.labels {
        None => args.folder.clone(),
        Some(labels) => with_labels(args, labels, &say)?,
    };
    let test_share = test_share(args, &path)?;
    let cache = Cache::of_user()?; // for the run
    let options = Options { test_share, skip_unreadable: true, cache, ..Options::default() };
    let inspection = watched(printer, "looking at", &options, |options| survey(&path, options))?;
    if json {
        printer.json(&inspection);
    } else {
        findings::report(&inspection, printer);
        let parts = inspection.parts.iter();
        let parts: Vec<_> = parts.map(|part| (part.name.as_str(), part.by_class.clone())).collect();
        findings::by_class(&inspection.classes, &parts, printer);
    }
    if let Some(share) = test_share {
        let percent = 100.0 * share;
        say(format!(
            "no test folder: {percent:.0} % of the labelled pictures are set aside for testing"
        ));
    }
    if let Some(refusal) = &inspection.refusal {
        bail!(refusal.clone());
    }
    let mut terminal = Terminal::new(printer, !args.yes);
    let answers = Answers::collect(args, &inspection, &mut terminal)?;
    let is_sure = args.mirror.is_some() || terminal.asks();
    if args.clients.is_some_and(|clients| clients != answers.clients) {
        printer
            .status("note: --clients is not used: every folder of unlabelled pictures is a client");
    }
    let options = Options { size: Some(answers.size), fit: answers.fit, ..options };
    let mut about = file::About {
        inspection: &inspection,
        answers: &answers,
        mirror: answers.mirror,
        path: &formats::seen_from(&path, &args.out)?,
        normalisation: &Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] },
        test_share,
        device: &args.device,
        trunk: None,
        reason: None,
        unfreeze: false,
        size: args.size,
    };
    let start = start::choose(args, &about, is_sure, &path, &options, printer, &say)?;
    about.trunk = start.trunk.as_deref();
    about.reason = start.reason.as_deref();
    about.unfreeze = start.unfreeze;
    about.mirror = start.mirror.unwrap_or(answers.mirror);
    if about.trunk.is_some() {
        let text = file::experiment(&about);
        fedanchor::resolve(&text, &[])?;
        return finish(args, &text, &say, printer);
    }
    let data = watched(printer, "decoding", &options, |options| formats::open(&path, options))?;
    let normalisation = data.normalisation.clone();
    about.normalisation = &normalisation;
    let text = file::experiment(&about);
    // Fails here if a run would fail.
    let experiment = fedanchor::resolve(&text, &[])?;
    Simulation::new(experiment, data, None)?.federation.settled()?;
    finish(args, &text, &say, printer)
}

/// Writes the experiment file and says how to go on.
fn finish(args: &InitArgs, text: &str, say: &dyn Fn(String), printer: &Printer) -> Result<()> {
    write(&args.out, text)?;
    let out = args.out.display();
    say(format!("wrote {out}"));
    printer.status(format!("next: fedanchor run {}", quoted_path(&args.out)));
    Ok(())
}

fn check_free(out: &Path, force: bool) -> Result<()> {
    let advice = "choose another name with --out, or overwrite it with --force";
    ensure!(force || !out.exists(), "{}: already exists: {advice}", out.display());
    let folder = out.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    ensure!(
        folder.is_dir(),
        "{}: there is no such folder: make it, or choose another name with --out",
        folder.display()
    );
    Ok(())
}

/// The share of the labelled pictures to test on, if there is no test part.
fn test_share(args: &InitArgs, path: &Path) -> Result<Option<f64>> {
    Ok(formats::lacks_test(path)?.then_some(args.test_share.unwrap_or(TEST_SHARE)))
}

/// Writes a table of all pictures with the labels of the CSV file. Pictures for testing are set aside before, so that they
/// keep labels that no model proposed.
fn with_labels(args: &InitArgs, labels: &Path, say: &dyn Fn(String)) -> Result<PathBuf> {
    let table = args.out.with_extension("csv");
    if table == args.out || same_file(&table, labels) || same_file(&table, &args.folder) {
        bail!(
            "--out: the table of pictures would overwrite {}: choose another name",
            table.display()
        );
    }
    check_free(&table, args.force)?;
    let share = test_share(args, &args.folder)?;
    let relabelled = formats::relabelled(&args.folder, labels, &table, share)?;
    write(&table, &relabelled.text)?;
    say(format!(
        "wrote {}: {} newly labelled by {}",
        table.display(),
        counted(relabelled.labelled, "picture", "pictures"),
        labels.display()
    ));
    Ok(table)
}

/// The part with the labelled pictures.
fn labelled(inspection: &Inspection) -> Option<&Part> {
    inspection.parts.iter().find(|part| ["labelled", "train"].contains(&part.name.as_str()))
}

fn part<'a>(inspection: &'a Inspection, name: &str) -> Option<&'a Part> {
    inspection.parts.iter().find(|part| part.name == name)
}
