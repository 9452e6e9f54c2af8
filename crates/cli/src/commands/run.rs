//! `fedanchor run`: an experiment from start to finish.

use super::interrupt::{Interrupted, interruption, stop_on_interrupt};
use super::progress::Progress;
use super::{bytes, check_seeds, counted, experiment, joined};
use crate::cli::{RunArgs, TrainingArgs};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::config::Precision;
use fedanchor::{Experiment, Resume, RunOptions};
use fedanchor_record::{ServerOnlyTrial, Summary, files};
use fedanchor_report::Average;
use indicatif::ProgressBar;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

pub fn run(args: RunArgs, printer: &Printer) -> Result<()> {
    let (training, resume) = (&args.training, args.resume);
    let file = args.experiment.as_deref();
    let stored = resume.resume.as_ref().map(|folder| folder.join(files::CONFIG));
    if let (Some(folder), Some(config)) = (&resume.resume, &stored)
        && !config.exists()
    {
        bail!("{}: is not a run folder: it has no {}", folder.display(), files::CONFIG);
    }
    let experiment = experiment(file.or(stored.as_deref()), &training.settings(), printer)?;
    if !args.seeds.is_empty() {
        check_seeds(&args.seeds)?;
        let runs = args.seeds.iter().map(|&seed| {
            let experiment = Experiment { seed, ..experiment.clone() };
            let out = match &args.out {
                Some(folder) => folder.join(format!("seed{seed}")),
                None => new_folder(file, &experiment),
            };
            (experiment, out)
        });
        return run_seeds(&runs.collect::<Vec<_>>(), training, printer);
    }
    let kind = resume.resume();
    let out = resume.resume.or(args.out).unwrap_or_else(|| new_folder(file, &experiment));
    let mut progress = Progress::new(printer, &experiment, &out, "", training);
    let stop = stop_on_interrupt(progress.bar(), *printer, "stopping after this round")?;
    if kind == Resume::No {
        progress.bar().set_message("pre-training on the labelled images");
    }
    let workers = training.workers();
    let options = RunOptions { resume: kind, workers, stop: &stop, ..RunOptions::new(&out) };
    let summary = fedanchor::run(&experiment, options, &mut progress)?;
    progress.finish();
    print_summary(&summary, &out, printer, "");
    interruption(&experiment, &summary, &out, &stop)?.map_or(Ok(()), |stopped| Err(stopped.into()))
}

/// Runs every seed; one that fails does not end the others.
fn run_seeds(
    runs: &[(Experiment, PathBuf)],
    training: &TrainingArgs,
    printer: &Printer,
) -> Result<()> {
    let stop = stop_on_interrupt(ProgressBar::hidden(), *printer, "stopping after this round")?;
    let one = |(experiment, out): &(Experiment, PathBuf)| {
        let name = format!("seed {}: ", experiment.seed);
        let mut progress = Progress::new(printer, experiment, out, &name, training);
        let workers = training.workers();
        let options = RunOptions { workers, stop: &stop, ..RunOptions::new(out) };
        let summary = fedanchor::run(experiment, options, &mut progress)?;
        progress.finish();
        print_summary(&summary, out, printer, &name);
        Ok(summary)
    };
    let outcomes: Vec<fedanchor::Result<Summary>> = if side_by_side(&runs[0].0) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = runs.iter().map(|run| scope.spawn(|| one(run))).collect();
            threads.into_iter().map(joined).collect()
        })
    } else {
        // No seed is started after Ctrl-C.
        runs.iter().take_while(|_| !stop.load(Ordering::Relaxed)).map(one).collect()
    };
    let (mut accuracies, mut failed) = (Vec::new(), None);
    let started = outcomes.len();
    for ((experiment, out), outcome) in runs.iter().zip(outcomes) {
        let seed = experiment.seed;
        match outcome {
            Ok(summary) => match interruption(experiment, &summary, out, &stop)? {
                Some(Interrupted { done, advice }) => {
                    printer.failure(format!("seed {seed}: {done}; {advice}"));
                }
                None => accuracies.push(summary.final_accuracy),
            },
            Err(error) => {
                printer.failure(format!("seed {seed}: error: {error}"));
                failed = Some(error);
            }
        }
    }
    if accuracies.len() < runs.len() && failed.is_none() {
        let mut advice = Vec::new();
        if accuracies.len() < started {
            advice.push("resume as stated above".to_owned());
        }
        if started < runs.len() {
            let seeds: Vec<String> =
                runs[started..].iter().map(|(experiment, _)| experiment.seed.to_string()).collect();
            let seeds = seeds.join(",");
            advice.push(format!("start the others with the same command and `--seeds {seeds}`"));
        }
        let done = format!("{} of {} seeds finished", accuracies.len(), runs.len());
        return Err(Interrupted { done, advice: advice.join(", and ") }.into());
    }
    let Average { mean, std } = Average::of(accuracies.iter().copied());
    if let Some(deviation) = std {
        let count = accuracies.len();
        printer
            .line(format!("mean of {count} seeds: {mean:.2} %, standard deviation {deviation:.2}"));
    }
    match failed {
        Some(error) => Err(error).context("not all seeds finished"),
        None => Ok(()),
    }
}

/// Whether runs share a device well. One run uses all cores of a CPU. In single precision on a GPU, concurrent runs were
/// seen to fail: cuDNN searches for its algorithms there, perhaps while the other run captures its steps.
pub(super) fn side_by_side(experiment: &Experiment) -> bool {
    experiment.device != "cpu" && experiment.precision == Precision::Bf16
}

/// `runs/NAME-METHOD-seedN`, with a number appended if that exists.
pub fn new_folder(file: Option<&Path>, experiment: &Experiment) -> PathBuf {
    let name = file.and_then(Path::file_stem).map_or("quick".into(), |stem| stem.to_string_lossy());
    let base = format!("{name}-{}-seed{}", experiment.method.name, experiment.seed);
    let runs = Path::new("runs");
    let numbered = (2..).map(|number| runs.join(format!("{base}-{number}")));
    let mut names = std::iter::once(runs.join(&base)).chain(numbered);
    names.find(|path| !path.exists()).expect("the numbers do not end")
}

/// OpenMP's threads spin while they wait for one another. If the machine does anything else at the same time, they keep
/// each other from running, and a round takes ten times as long. OpenMP reads the policy before `main`, so the program
/// restarts itself with it, unless the user has chosen a policy.
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

/// What a run achieved and what it cost.
pub(super) fn print_summary(summary: &Summary, out: &Path, printer: &Printer, name: &str) {
    let memory = |peak: Option<u64>, before, after| {
        peak.map_or(String::new(), |peak| format!(", {before}{}{after}", bytes(peak)))
    };
    // Private records do not have it.
    let traffic = match (summary.bytes_down, summary.bytes_up) {
        (0, 0) => String::new(),
        (down, up) => format!("; {} down, {} up", bytes(down), bytes(up)),
    };
    printer.status(format!(
        "{name}{} of {} rounds in {:.0} s{}{}{traffic}; wrote {}",
        summary.rounds,
        summary.rounds_planned,
        summary.seconds,
        memory(summary.peak_memory, "peak memory ", ""),
        memory(summary.peak_gpu_memory, "", " on the GPU"),
        out.display(),
    ));
    let alone = summary.best_server_only().map_or(String::new(), |best| {
        let &ServerOnlyTrial { pretrain_epochs, rounds, test_accuracy } = best;
        let rounds = match rounds {
            0 => String::new(),
            rounds => format!(" and {}", counted(rounds, "round", "rounds")),
        };
        let epochs = counted(pretrain_epochs, "epoch", "epochs");
        let count = summary.server_only.len();
        format!("anchors alone {test_accuracy:.2} % ({epochs}{rounds}, the best of {count}), ")
    });
    printer.line(format!(
        "{name}test accuracy: {alone}{} {:.2} %",
        summary.method, summary.final_accuracy
    ));
}
