//! `fedanchor run`: an experiment from start to finish.

use super::interrupt::{Interrupted, advice, left_undone, stop_on_interrupt};
use super::progress::Progress;
use super::tracked::Tracked;
use super::{bytes, counted};
use crate::cli::RunArgs;
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::config::Precision;
use fedanchor::{Experiment, Resume, RunOptions};
use fedanchor_record::{ServerOnlyTrial, Summary, files};
use indicatif::ProgressBar;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub fn run(args: RunArgs, printer: &Printer) -> Result<()> {
    let mut settings = args.settings;
    settings.extend(args.device.map(|device| format!("device={device}")));
    settings.extend(args.precision.map(|precision| format!("precision={precision}")));
    let file = args.experiment.as_deref();
    let workers = args.workers.map(usize::from);
    if let Some(folder) = &args.resume {
        let config = folder.join(files::CONFIG);
        let experiment = resolved(Some(file.unwrap_or(&config)), &settings, printer)?;
        let mut progress = Progress::new(printer, &experiment, folder);
        let stop = stop_on_interrupt(progress.bar(), *printer, "stopping after this round")?;
        let mut tracked = Tracked::new(&mut progress, args.tensorboard, folder);
        let resume = if args.force { Resume::Force } else { Resume::Yes };
        let options = RunOptions { resume, workers, stop: &stop, ..RunOptions::new(folder) };
        let summary = fedanchor::run(&experiment, options, &mut tracked)?;
        tracked.finish();
        progress.finish();
        report(&summary, folder, printer, "");
        return unless_interrupted(&experiment, &summary, folder, &stop);
    }
    let experiment = resolved(file, &settings, printer)?;
    if args.seeds.is_empty() {
        let out = args.out.unwrap_or_else(|| new_folder(file, &experiment));
        let mut progress = Progress::new(printer, &experiment, &out);
        progress.bar().set_message("pre-training on the labelled images");
        let stop = stop_on_interrupt(progress.bar(), *printer, "stopping after this round")?;
        let mut tracked = Tracked::new(&mut progress, args.tensorboard, &out);
        let options = RunOptions { workers, stop: &stop, ..RunOptions::new(&out) };
        let summary = fedanchor::run(&experiment, options, &mut tracked)?;
        tracked.finish();
        progress.finish();
        report(&summary, &out, printer, "");
        return unless_interrupted(&experiment, &summary, &out, &stop);
    }
    let runs = args.seeds.iter().map(|&seed| {
        let experiment = Experiment { seed, ..experiment.clone() };
        let out = match &args.out {
            Some(folder) => folder.join(format!("seed{seed}")),
            None => new_folder(file, &experiment),
        };
        (experiment, out)
    });
    run_seeds(&runs.collect::<Vec<_>>(), workers, args.tensorboard, printer)
}

/// Resolves the experiment, and reports settings that have no effect.
pub(super) fn resolved(
    file: Option<&Path>,
    settings: &[String],
    printer: &Printer,
) -> Result<Experiment> {
    let resolved = super::resolved(file, settings)?;
    resolved.notes.iter().for_each(|note| printer.status(format!("note: {note}")));
    Ok(resolved.experiment)
}

fn unless_interrupted(
    experiment: &Experiment,
    summary: &Summary,
    out: &Path,
    stop: &AtomicBool,
) -> Result<()> {
    match left_undone(experiment, summary, stop)? {
        Some(done) => Err(Interrupted::new(done, advice(experiment, summary, out)).into()),
        None => Ok(()),
    }
}

/// One run per seed; one that fails does not end the others.
fn run_seeds(
    runs: &[(Experiment, PathBuf)],
    workers: Option<usize>,
    tensorboard: bool,
    printer: &Printer,
) -> Result<()> {
    for (number, (experiment, _)) in runs.iter().enumerate() {
        if runs[..number].iter().any(|(other, _)| other.seed == experiment.seed) {
            bail!("--seeds: {} is given twice", experiment.seed);
        }
    }
    let stop = stop_on_interrupt(ProgressBar::hidden(), *printer, "stopping after this round")?;
    let one = |(experiment, out): &(Experiment, PathBuf)| {
        let mut progress = Progress::of_seed(printer, experiment, out);
        let mut tracked = Tracked::new(&mut progress, tensorboard, out);
        let options = RunOptions { workers, stop: &stop, ..RunOptions::new(out) };
        let summary = fedanchor::run(experiment, options, &mut tracked)?;
        tracked.finish();
        report(&summary, out, printer, &format!("seed {}: ", experiment.seed));
        Ok(summary)
    };
    let outcomes: Vec<fedanchor::Result<Summary>> = if side_by_side(&runs[0].0) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = runs.iter().map(|run| scope.spawn(|| one(run))).collect();
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect()
        })
    } else {
        // No seed is started after Ctrl-C.
        runs.iter().take_while(|_| !stop.load(Ordering::Relaxed)).map(one).collect()
    };
    let mut accuracies = Vec::new();
    let mut failed = None;
    let mut advised = Vec::new();
    let not_started: Vec<String> =
        runs[outcomes.len()..].iter().map(|(experiment, _)| experiment.seed.to_string()).collect();
    for ((experiment, out), outcome) in runs.iter().zip(outcomes) {
        match outcome {
            Ok(summary) => match left_undone(experiment, &summary, &stop)? {
                Some(done) => {
                    let advice = advice(experiment, &summary, out);
                    advised.push(format!("seed {}: {done}; {advice}", experiment.seed));
                }
                None => accuracies.push(summary.final_accuracy),
            },
            Err(error) => {
                printer.failure(format!("seed {}: error: {error}", experiment.seed));
                failed = Some(error);
            }
        }
    }
    advised.iter().for_each(|line| printer.failure(line));
    if accuracies.len() < runs.len() && failed.is_none() {
        let done = format!("{} of {} seeds finished", accuracies.len(), runs.len());
        let advice = match &not_started[..] {
            [] => "resume the others as stated above".to_owned(),
            seeds => format!(
                "{}start the others with the same command and `--seeds {}`",
                if advised.is_empty() { "" } else { "resume as stated above, and " },
                seeds.join(",")
            ),
        };
        return Err(Interrupted::new(done, advice).into());
    }
    if let [_, _, ..] = accuracies[..] {
        let count = accuracies.len() as f64;
        let mean = accuracies.iter().sum::<f64>() / count;
        let squares: f64 = accuracies.iter().map(|accuracy| (accuracy - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0)).sqrt();
        printer.line(format!(
            "mean of {} seeds: {mean:.2} %, standard deviation {deviation:.2}",
            accuracies.len()
        ));
    }
    match failed {
        Some(error) => Err(error).context("not every seed came to its end"),
        None => Ok(()),
    }
}

/// Whether runs share a device well. One run uses all cores of a CPU; in single precision a run beside
/// another was seen to fail on a GPU: cuDNN searches for its algorithms there, perhaps while the other
/// captures its steps.
pub(super) fn side_by_side(experiment: &Experiment) -> bool {
    experiment.device != "cpu" && experiment.precision == Precision::Bf16
}

/// `runs/NAME-METHOD-seedN`, with a number appended if that exists.
fn new_folder(file: Option<&Path>, experiment: &Experiment) -> PathBuf {
    let name = file.and_then(Path::file_stem).map_or("quick".into(), |stem| stem.to_string_lossy());
    let base = format!("{name}-{}-seed{}", experiment.method.name, experiment.seed);
    let runs = Path::new("runs");
    let numbered = (2..).map(|number| runs.join(format!("{base}-{number}")));
    std::iter::once(runs.join(&base))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| runs.join(&base))
}

/// OpenMP's threads spin while they wait for one another. On a machine that does anything else at the same
/// time, they then keep each other from running, and a round takes ten times as long. The policy is read
/// before `main`, so the program starts itself again with it; a policy of the user's stays.
pub(super) fn wait_without_spinning() {
    const POLICY: &str = "OMP_WAIT_POLICY";
    if std::env::var_os(POLICY).is_none()
        && let Ok(program) = std::env::current_exe()
    {
        let mut again = std::process::Command::new(program);
        // Returns only if it fails; then this process does the work.
        let _ = again.args(std::env::args_os().skip(1)).env(POLICY, "PASSIVE").exec();
    }
}

pub(super) fn report(summary: &Summary, out: &Path, printer: &Printer, name: &str) {
    let memory = summary.peak_memory.map(|peak| format!(", peak memory {}", bytes(peak)));
    let gpu = summary.peak_gpu_memory.map(|peak| format!(", {} on the GPU", bytes(peak)));
    printer.status(format!(
        "{name}{} of {} rounds in {:.0} s{}{}; {} down, {} up; wrote {}",
        summary.rounds,
        summary.rounds_planned,
        summary.seconds,
        memory.unwrap_or_default(),
        gpu.unwrap_or_default(),
        bytes(summary.bytes_down),
        bytes(summary.bytes_up),
        out.display(),
    ));
    let alone = summary.best_server_only().map(|best| {
        let ServerOnlyTrial { pretrain_epochs, rounds, test_accuracy } = best;
        let rounds = match rounds {
            0 => String::new(),
            rounds => format!(" and {}", counted(rounds, "round", "rounds")),
        };
        let epochs = counted(pretrain_epochs, "epoch", "epochs");
        let count = summary.server_only.len();
        format!("anchors alone {test_accuracy:.2} % ({epochs}{rounds}, the best of {count}), ")
    });
    printer.line(format!(
        "{name}test accuracy: {}{} {:.2} %",
        alone.unwrap_or_default(),
        summary.method,
        summary.final_accuracy
    ));
}
