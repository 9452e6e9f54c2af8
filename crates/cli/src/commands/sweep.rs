//! `fedanchor sweep`: the runs of a sweep file, as many at once as suit the device. Finished runs are
//! skipped and interrupted ones resumed, so an interrupted sweep continues with the same command.

use super::interrupt::{
    Interrupted, lacks_comparison, left_undone, stop_on_interrupt, this_command,
};
use super::progress::with_events;
use super::rounds::{self, Pace};
use super::run::side_by_side;
use super::{LONGEST, counted};
use crate::cli::SweepArgs;
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::config::differences;
use fedanchor::experiment::{settle, sweep_file};
use fedanchor::simulation::{assign, load};
use fedanchor::{Experiment, Federation, Observer};
use fedanchor_data::Partition;
use fedanchor_record::{Incidents, KeyRole, RoundRecord, Summary, Timing, files};
use fedanchor_report::{Format, Run, Table, find_runs, render};
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs at once on a GPU: more were no faster together.
const ON_GPU: usize = 3;

/// One run of the sweep.
struct Job {
    name: String,
    experiment: Experiment,
    /// As the run folder's config will have it.
    settled: toml::Table,
    folder: PathBuf,
    tensorboard: bool,
}

pub fn sweep(args: SweepArgs, printer: &Printer) -> Result<()> {
    let mut settings = args.settings;
    settings.extend(args.device.map(|device| format!("device={device}")));
    let name = args.file.display().to_string();
    let text = fedanchor_disk::read_text(&args.file, LONGEST).with_context(|| name.clone())?;
    let folder = args.file.parent().unwrap_or(Path::new(""));
    let sweep = sweep_file(&text, folder, &args.cells, &settings).with_context(|| name)?;
    let cells = &sweep.cells;
    if args.list {
        match args.output.json {
            true => printer.json(&cells.iter().map(|cell| &cell.name).collect::<Vec<_>>()),
            false => cells.iter().for_each(|cell| printer.line(&cell.name)),
        }
        return Ok(());
    }
    sweep.notes.iter().for_each(|note| printer.status(format!("note: {note}")));
    let stem = args.file.file_stem().map(|stem| Path::new("runs").join(stem));
    let out = args.out.or(stem).context("the sweep file has no name; use --out")?;
    let seeds = if args.seeds.is_empty() { sweep.seeds.clone() } else { args.seeds };
    if let Some(twice) = (1..seeds.len()).find(|&at| seeds[..at].contains(&seeds[at])) {
        bail!("seed {} is given twice", seeds[twice]);
    }
    let jobs: Vec<Job> = cells
        .iter()
        .flat_map(|cell| {
            let out = &out;
            seeds.iter().map(move |&seed| Job {
                name: format!("{} seed {seed}", cell.name),
                experiment: Experiment { seed, ..cell.experiment.clone() },
                settled: toml::Table::new(),
                folder: out.join(&cell.name).join(format!("seed{seed}")),
                tensorboard: args.tensorboard,
            })
        })
        .collect();
    // Missing data, a setting that does not fit it, a wrong folder: found before hours of work.
    let mut sets = HashMap::new();
    let (mut waiting, mut damaged) = (Vec::new(), Vec::new());
    let (total, mut skipped) = (jobs.len(), 0);
    for mut job in jobs {
        let key = toml::to_string(&job.experiment.data)?;
        let data = match sets.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let data = load(&job.experiment);
                place.insert(data.with_context(|| format!("cell {}", job.name))?)
            }
        };
        let classes = data.train.classes.len();
        let assigned =
            assign(&job.experiment, data).with_context(|| format!("cell {}", job.name))?;
        let settled = settle(&assigned.experiment, data.train.shape, classes, data.flip);
        job.settled =
            toml::Table::try_from(settled.with_context(|| format!("cell {}", job.name))?)?;
        match is_finished(&job) {
            Ok(true) => skipped += 1,
            Ok(false) => waiting.push(job),
            Err(error) => damaged.push((job.name, End::Failed(format!("{error:#}")))),
        }
    }
    drop(sets);
    if skipped > 0 {
        printer.status(format!("skipping {skipped} of {total} runs, which are finished"));
    }
    let many = waiting.iter().all(|job| side_by_side(&job.experiment));
    let at_once = args.jobs.map_or(if many { ON_GPU } else { 1 }, usize::from);
    let workers = args.workers.map(usize::from);
    let mut ends = run_all(&waiting, at_once.min(waiting.len()), workers, printer)?;
    ends.append(&mut damaged);

    for (name, end) in &ends {
        match end {
            End::Failed(error) => printer.failure(format!("failed: {name}: {error}")),
            End::Interrupted(done) => printer.failure(format!("interrupted: {name}: {done}")),
        }
    }
    // Where nothing finished there is nothing to show.
    if let Ok(runs) = find_runs(std::slice::from_ref(&out)) {
        let table = Table::new(&runs.completed(&super::complete));
        let format = if args.output.json { Format::Json } else { Format::Text };
        printer.text(&render(&table, format));
    }
    if ends.is_empty() {
        return Ok(());
    }
    let done = format!("{} of {total} runs did not finish", ends.len());
    // A failure needs the user, also where the rest was interrupted.
    if ends.iter().any(|(_, end)| matches!(end, End::Failed(_))) {
        bail!("{done}; run the same command again to resume them");
    }
    Err(Interrupted::new(done, format!("resume with `{}`", this_command())).into())
}

/// How a run ended that did not finish.
enum End {
    Failed(String),
    /// What was done by then.
    Interrupted(String),
}

/// Runs the jobs, some at once, and returns the names of those that did not finish, and why.
fn run_all(
    jobs: &[Job],
    at_once: usize,
    workers: Option<usize>,
    printer: &Printer,
) -> Result<Vec<(String, End)>> {
    let stop = stop_on_interrupt(ProgressBar::hidden(), *printer, "stopping after this round")?;
    let queue = Mutex::new(jobs.iter().enumerate());
    let ends = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let end = |job: &Job, end: End| {
        let mut ends = ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ends.push((job.name.clone(), end));
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((number, job)) = next() {
                    if stop.load(Ordering::Relaxed) {
                        end(job, End::Interrupted("not started".to_owned()));
                        continue;
                    }
                    printer.status(format!("{} of {}: {}", number + 1, jobs.len(), job.name));
                    let outcome = one(job, workers, &stop, printer).and_then(|summary| {
                        Ok((left_undone(&job.experiment, &summary, &stop)?, summary))
                    });
                    match outcome {
                        Ok((Some(done), _)) => end(job, End::Interrupted(done)),
                        Ok((None, summary)) => printer.status(format!(
                            "{}: {:.2} % after {} in {:.0} s",
                            job.name,
                            summary.final_accuracy,
                            counted(summary.rounds, "round", "rounds"),
                            summary.seconds
                        )),
                        Err(error) => {
                            let text = format!("{}: error: {error:#}", job.name);
                            text.lines().for_each(|line| printer.status(line));
                            end(job, End::Failed(format!("{error:#}")));
                        }
                    }
                }
            });
        }
    });
    Ok(ends.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn one(job: &Job, workers: Option<usize>, stop: &AtomicBool, printer: &Printer) -> Result<Summary> {
    let mut progress = Tenths {
        printer,
        name: &job.name,
        rounds: job.experiment.rounds,
        pace: Pace::default(),
        incidents: Incidents::default(),
    };
    let (experiment, folder) = (&job.experiment, &job.folder);
    // A run that another process has finished meanwhile is skipped.
    if let Some(run) = Run::finished(folder)?
        && !lacks_comparison(experiment, &run.summary)?
    {
        return Ok(run.summary);
    }
    // An interrupted run is resumed; one of another experiment is an error.
    let resumes = folder.join(files::CONFIG).try_exists()?;
    let summary = with_events(&mut progress, job.tensorboard, folder, |observer| match resumes {
        true => fedanchor::resume(experiment, folder, workers, false, stop, observer),
        false => fedanchor::run(experiment, folder, workers, stop, observer),
    })?;
    if !progress.incidents.is_empty() {
        printer.status(format!("{}: note: {}", job.name, progress.incidents));
    }
    Ok(summary)
}

/// Whether the run's folder holds it, finished and intact. A finished run of another experiment, a damaged one, and
/// one whose rounds changed nothing are errors.
fn is_finished(job: &Job) -> Result<bool> {
    let Some(run) = Run::finished(&job.folder)? else { return Ok(false) };
    let run = run.completed(&super::complete);
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

/// A line for every tenth of a run.
struct Tenths<'a> {
    printer: &'a Printer,
    name: &'a str,
    rounds: u32,
    pace: Pace,
    /// What went wrong in the rounds of this process.
    incidents: Incidents,
}

impl Observer for Tenths<'_> {
    fn started(&mut self, _: &Federation, _: Option<&Partition>) {}

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        self.incidents.add(record);
        let left = self.pace.add(timing, self.rounds);
        // Neither pre-training nor the last round.
        if left.is_some() && record.round.is_multiple_of((self.rounds / 10).max(1)) {
            let line = rounds::line(record, Some(timing), Some(self.rounds), left);
            self.printer.status(format!("{}: {line}", self.name));
        }
    }

    fn comparing(&mut self) {}

    fn notice(&mut self, text: &str) {
        self.printer.status(format!("{}: note: {text}", self.name));
    }
}
