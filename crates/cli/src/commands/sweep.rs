//! `fedanchor sweep`: the runs of a sweep file, as many at once as a device is good for. Runs that came
//! to their end are not run again, so a sweep that was broken off is started again as it was.

use super::run::{side_by_side, stop_on_interrupt, wait_without_spinning};
use crate::cli::SweepArgs;
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::config::sweep as read_sweep;
use fedanchor::folder::RunFolder;
use fedanchor::simulation::Simulation;
use fedanchor::{Experiment, Observer};
use fedanchor_record::{RoundRecord, Summary, Timing, files};
use fedanchor_report::{Format, Run, Table, find_runs, render};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Runs at once on a GPU: more were no faster together.
const ON_GPU: usize = 3;

/// One run of the sweep.
struct Job {
    name: String,
    experiment: Experiment,
    folder: PathBuf,
}

pub fn sweep(args: SweepArgs, printer: &Printer) -> Result<()> {
    let mut settings = args.settings;
    settings.extend(args.device.map(|device| format!("device={device}")));
    let name = args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file).with_context(|| name.clone())?;
    let sweep = read_sweep(&text, &settings).with_context(|| name)?;
    let cells = sweep.chosen(&args.cells)?;
    if args.list {
        cells.iter().for_each(|cell| printer.line(&cell.name));
        return Ok(());
    }
    let stem = args.file.file_stem().map(|stem| Path::new("runs").join(stem));
    let out = args.out.or(stem).context("the sweep file has no name; use --out")?;
    let seeds = if args.seeds.is_empty() { sweep.seeds.clone() } else { args.seeds };
    let jobs: Vec<Job> = cells
        .iter()
        .flat_map(|cell| {
            let out = &out;
            seeds.iter().map(move |&seed| Job {
                name: format!("{} seed {seed}", cell.name),
                experiment: Experiment { seed, ..cell.experiment.clone() },
                folder: out.join(&cell.name).join(format!("seed{seed}")),
            })
        })
        .collect();
    // A wrong folder is found before hours of work, not after.
    let mut waiting = Vec::new();
    let (total, mut skipped) = (jobs.len(), 0);
    for job in jobs {
        if is_finished(&job)? {
            skipped += 1;
        } else {
            waiting.push(job);
        }
    }
    if skipped > 0 {
        printer.talk(format!("{skipped} of {total} runs are there already"));
    }
    if !waiting.is_empty() {
        wait_without_spinning();
    }
    let many = waiting.iter().all(|job| side_by_side(&job.experiment));
    let at_once = args.jobs.map_or(if many { ON_GPU } else { 1 }, usize::from);
    let workers = args.workers.map(usize::from);
    let failed = run_all(&waiting, at_once.min(waiting.len()), workers, printer)?;

    let runs = find_runs(std::slice::from_ref(&out))?;
    printer.line(render(&Table::new(&runs), Format::Text).trim_end());
    if failed.is_empty() {
        return Ok(());
    }
    for (name, error) in &failed {
        printer.talk(format!("failed: {name}: {error}"));
    }
    bail!(
        "{} of {total} runs did not come to their end; the same command runs them again",
        failed.len()
    );
}

/// Runs the jobs, some at once, and returns the names of those that failed or were not begun.
fn run_all(
    jobs: &[Job],
    at_once: usize,
    workers: Option<usize>,
    printer: &Printer,
) -> Result<Vec<(String, String)>> {
    let stop = stop_on_interrupt(ProgressBar::hidden())?;
    let queue = Mutex::new(jobs.iter().enumerate());
    let failed = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let fail = |job: &Job, error: String| {
        let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        failed.push((job.name.clone(), error));
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((number, job)) = next() {
                    if stop.load(Ordering::Relaxed) {
                        fail(job, "interrupted before it began".to_owned());
                        continue;
                    }
                    printer.talk(format!("{} of {}: {}", number + 1, jobs.len(), job.name));
                    match one(job, workers, &stop, printer) {
                        Ok(summary) if summary.rounds < summary.rounds_planned => fail(
                            job,
                            format!(
                                "interrupted after {} of {} rounds",
                                summary.rounds, summary.rounds_planned
                            ),
                        ),
                        Ok(summary) => printer.talk(format!(
                            "{}: {:.2} % after {} rounds in {:.0} s",
                            job.name, summary.final_accuracy, summary.rounds, summary.seconds
                        )),
                        Err(error) => {
                            printer.talk(format!("{}: error: {error:#}", job.name));
                            fail(job, format!("{error:#}"));
                        }
                    }
                }
            });
        }
    });
    Ok(failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn one(job: &Job, workers: Option<usize>, stop: &AtomicBool, printer: &Printer) -> Result<Summary> {
    let mut watcher =
        Tenths { printer, name: &job.name, rounds: job.experiment.rounds, start: Instant::now() };
    let (experiment, folder) = (&job.experiment, &job.folder);
    if folder.join(files::CONFIG).exists() {
        match fedanchor::resume(experiment, folder, workers, false, stop, &mut watcher) {
            // It was begun with other settings: what there is of it is of no use.
            Err(fedanchor::Error::File { path, .. }) if path == *folder => {}
            outcome => return Ok(outcome?),
        }
    }
    RunFolder::discard(folder)?;
    Ok(fedanchor::run(experiment, folder, workers, stop, &mut watcher)?)
}

/// Whether the run's folder holds it, finished. A finished run of another experiment is an error.
fn is_finished(job: &Job) -> Result<bool> {
    let Some(run) = Run::finished(&job.folder)? else { return Ok(false) };
    let wanted = toml::Table::try_from(&job.experiment)?;
    match difference(&wanted, &run.config, "") {
        None => Ok(true),
        Some(key) => bail!(
            "{}: holds a finished run of another experiment (it differs in {key}): use another --out, or \
             remove it",
            job.folder.display()
        ),
    }
}

/// The first key on which a finished run differs from the one wanted. What was left to the data stands
/// only in the finished one; where it ran does not matter.
fn difference(wanted: &toml::Table, there: &toml::Table, path: &str) -> Option<String> {
    wanted.iter().find_map(|(key, value)| {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if ["device", "compare", "checkpoint", "data.path"].contains(&name.as_str()) {
            return None;
        }
        match (value, there.get(key)) {
            (toml::Value::Table(wanted), Some(toml::Value::Table(there))) => {
                difference(wanted, there, &name)
            }
            (value, found) => (found != Some(value)).then_some(name),
        }
    })
}

/// A line for every tenth of a run.
struct Tenths<'a> {
    printer: &'a Printer,
    name: &'a str,
    rounds: u32,
    start: Instant,
}

impl Observer for Tenths<'_> {
    fn started(&mut self, _: &Simulation) {
        self.start = Instant::now();
    }

    fn round(&mut self, record: &RoundRecord, _: &Timing) {
        let tenth = (self.rounds / 10).max(1);
        if record.round > 0 && record.round < self.rounds && record.round.is_multiple_of(tenth) {
            let seconds = self.start.elapsed().as_secs_f64();
            let left = seconds / f64::from(record.round) * f64::from(self.rounds - record.round);
            self.printer.talk(format!(
                "{}: round {}/{}, {:.2} %, {left:.0} s left",
                self.name, record.round, self.rounds, record.test_accuracy
            ));
        }
    }

    fn comparing(&mut self) {}

    fn notice(&mut self, text: &str) {
        self.printer.talk(format!("{}: note: {text}", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_run_is_compared_key_by_key() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let there =
            table("rounds = 3\ndevice = \"cuda:0\"\n[augment]\nflip = true\nstrong = \"a\"");
        let same = table("rounds = 3\ndevice = \"cpu\"\n[augment]\nstrong = \"a\"");
        assert_eq!(difference(&same, &there, ""), None);
        let other = table("rounds = 3\n[augment]\nstrong = \"b\"");
        assert_eq!(difference(&other, &there, ""), Some("augment.strong".to_owned()));
        assert_eq!(difference(&table("seed = 1"), &there, ""), Some("seed".to_owned()));
    }
}
