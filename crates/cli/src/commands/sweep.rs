//! `fedanchor sweep`: the runs of a sweep file, as many at the same time as suit the device. Finished runs are skipped and
//! interrupted ones resumed, so the same command resumes a sweep.

use super::interrupt::{
    Interrupted, interruption, lacks_comparison, stop_on_interrupt, this_command,
};
use super::progress::Progress;
use super::run::side_by_side;
use super::{check_seeds, complete, counted, joined, read_toml};
use crate::cli::{SweepArgs, TrainingArgs};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::config::differences;
use fedanchor::experiment::{settle, sweep_file};
use fedanchor::simulation::{assign, load};
use fedanchor::{Experiment, Resume, RunOptions};
use fedanchor_data::DataSet;
use fedanchor_record::{KeyRole, Summary, files};
use fedanchor_report::{Run, Table, find_runs, render};
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs at the same time on a GPU: more were not faster together.
const ON_GPU: usize = 3;

/// One run of the sweep.
struct Job {
    name: String,
    experiment: Experiment,
    /// The config that the run folder will have.
    settled: toml::Table,
    folder: PathBuf,
}

pub fn sweep(args: SweepArgs, printer: &Printer) -> Result<()> {
    let training = &args.training;
    let name = args.file.display().to_string();
    let folder = args.file.parent().unwrap_or(Path::new(""));
    let sweep = sweep_file(&read_toml(&args.file)?, folder, &args.cells, &training.settings())
        .with_context(|| name)?;
    if args.list {
        let names: Vec<&String> = sweep.cells.iter().map(|cell| &cell.name).collect();
        args.output.print(printer, &names, || names.iter().for_each(|name| printer.line(name)));
        return Ok(());
    }
    sweep.notes.iter().for_each(|note| printer.status(format!("note: {note}")));
    let stem = args.file.file_stem().map(|stem| Path::new("runs").join(stem));
    let out = args.out.or(stem).context("the sweep file has no name; use --out")?;
    let seeds = if args.seeds.is_empty() { sweep.seeds } else { args.seeds };
    check_seeds(&seeds)?;
    // Missing data, settings that do not fit it, a wrong folder: found before hours of work.
    let (mut waiting, mut ends) = (Vec::new(), Vec::new());
    let total = sweep.cells.len() * seeds.len();
    let mut sets = HashMap::new();
    for cell in &sweep.cells {
        for &seed in &seeds {
            let name = format!("{} seed {seed}", cell.name);
            let folder = out.join(&cell.name).join(format!("seed{seed}"));
            let experiment = Experiment { seed, ..cell.experiment.clone() };
            let settled =
                settled(&experiment, &mut sets).with_context(|| format!("cell {name}"))?;
            let job = Job { name, experiment, settled, folder };
            match is_finished(&job) {
                Ok(true) => {}
                Ok(false) => waiting.push(job),
                Err(error) => ends.push((job.name, End::Failed(format!("{error:#}")))),
            }
        }
    }
    drop(sets);
    let skipped = total - waiting.len() - ends.len();
    if skipped > 0 {
        printer.status(format!("skipping {skipped} of {total} runs, which are finished"));
    }
    let many = waiting.iter().all(|job| side_by_side(&job.experiment));
    let at_once = args.jobs.map_or(if many { ON_GPU } else { 1 }, usize::from);
    let done = run_all(&waiting, at_once.min(waiting.len()), training, printer)?;
    ends.splice(..0, done);

    for (name, end) in &ends {
        printer.failure(match end {
            End::Failed(error) => format!("failed: {name}: {error}"),
            End::Interrupted(done) => format!("interrupted: {name}: {done}"),
        });
    }
    // Without a finished run there is nothing to show.
    if let Ok(runs) = find_runs(std::slice::from_ref(&out), &complete) {
        let table = Table::new(&runs);
        let render = if args.output.json { render::json } else { render::text };
        printer.text(&render(&table));
    }
    if ends.is_empty() {
        return Ok(());
    }
    let done = format!("{} of {total} runs did not finish", ends.len());
    // A failure needs the user, even if the other runs were interrupted.
    if ends.iter().any(|(_, end)| matches!(end, End::Failed(_))) {
        bail!("{done}; run the same command again to resume them");
    }
    let advice = format!("resume with `{}`", this_command());
    Err(Interrupted { done, advice }.into())
}

/// The config that a run folder will have; `sets` keeps the data sets that were read.
fn settled(experiment: &Experiment, sets: &mut HashMap<String, DataSet>) -> Result<toml::Table> {
    let data = match sets.entry(toml::to_string(&experiment.data)?) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => place.insert(load(experiment)?),
    };
    let assigned = assign(experiment, data)?;
    let (shape, classes) = (data.train.shape, data.train.classes.len());
    Ok(toml::Table::try_from(settle(&assigned.experiment, shape, classes, data.flip)?)?)
}

/// How a run ended that did not finish.
enum End {
    Failed(String),
    /// What was done by then.
    Interrupted(String),
}

/// Runs the jobs, some at the same time. Returns the names of those that did not finish, and why.
fn run_all(
    jobs: &[Job],
    at_once: usize,
    training: &TrainingArgs,
    printer: &Printer,
) -> Result<Vec<(String, End)>> {
    let stop = stop_on_interrupt(ProgressBar::hidden(), *printer, "stopping after this round")?;
    let queue = Mutex::new(jobs.iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let end = |number: usize, job: &Job| {
        if stop.load(Ordering::Relaxed) {
            return Some(End::Interrupted("not started".to_owned()));
        }
        let name = &job.name;
        printer.status(format!("{} of {}: {name}", number + 1, jobs.len()));
        let outcome = one(job, training, &stop, printer).and_then(|summary| {
            Ok((interruption(&job.experiment, &summary, &job.folder, &stop)?, summary))
        });
        match outcome {
            Ok((Some(stopped), _)) => Some(End::Interrupted(stopped.done)),
            Ok((None, summary)) => {
                printer.status(format!(
                    "{name}: {:.2} % after {} in {:.0} s",
                    summary.final_accuracy,
                    counted(summary.rounds, "round", "rounds"),
                    summary.seconds
                ));
                None
            }
            Err(error) => {
                let text = format!("{name}: error: {error:#}");
                text.lines().for_each(|line| printer.status(line));
                Some(End::Failed(format!("{error:#}")))
            }
        }
    };
    let work = || {
        let ends = std::iter::from_fn(next)
            .filter_map(|(number, job)| Some((job.name.clone(), end(number, job)?)));
        ends.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        Ok(threads.into_iter().flat_map(joined).collect())
    })
}

fn one(
    job: &Job,
    training: &TrainingArgs,
    stop: &AtomicBool,
    printer: &Printer,
) -> Result<Summary> {
    let (experiment, folder) = (&job.experiment, &job.folder);
    let name = format!("{}: ", job.name);
    let mut progress = Progress::new(printer, experiment, folder, &name, training).brief();
    // Another process may have finished it meanwhile.
    if let Some(run) = Run::finished(folder, &complete)?
        && !lacks_comparison(experiment, &run.summary)?
    {
        return Ok(run.summary);
    }
    // An interrupted run is resumed; one of another experiment is an error.
    let started = folder.join(files::CONFIG).try_exists()?;
    let resume = if started { Resume::Yes } else { Resume::No };
    let workers = training.workers();
    let options = RunOptions { resume, workers, stop, ..RunOptions::new(folder) };
    let summary = fedanchor::run(experiment, options, &mut progress)?;
    progress.finish();
    Ok(summary)
}

/// Whether the folder holds the run, finished and intact. A finished run of another experiment, a damaged run, and one
/// whose rounds changed nothing are errors.
fn is_finished(job: &Job) -> Result<bool> {
    let Some(run) = Run::finished(&job.folder, &complete)? else { return Ok(false) };
    // Where a run was computed does not matter once it is finished.
    let other = differences(&run.setup.config, &job.settled);
    let other = other.iter().filter(|key| KeyRole::of(&key.key) != KeyRole::Machine);
    let mut other: Vec<String> = other.map(ToString::to_string).collect();
    if run.summary.rounds != job.experiment.rounds {
        other.push(format!("rounds (there {}, now {})", run.summary.rounds, job.experiment.rounds));
    }
    let folder = job.folder.display();
    if !other.is_empty() {
        bail!(
            "{folder}: holds a finished run of another experiment (it differs in {}): use another --out, or remove it",
            other.join(", ")
        );
    }
    if lacks_comparison(&job.experiment, &run.summary)? {
        return Ok(false);
    }
    if let Some(problem) = fedanchor::verify(&job.folder)?.problems.first() {
        bail!("{folder}: {problem}; remove the folder to repeat the run");
    }
    if run.summary.is_without_effect() {
        let Summary { rounds, incidents, .. } = run.summary;
        return Err(fedanchor::Error::WithoutEffect { rounds, incidents }.into());
    }
    Ok(true)
}
