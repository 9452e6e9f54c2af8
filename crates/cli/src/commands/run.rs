//! `fedanchor run`: an experiment from start to finish.

use super::{bytes, grouped};
use crate::cli::RunArgs;
use crate::printer::Printer;
use anyhow::{Context, Result};
use fedanchor::config::MethodConfig;
use fedanchor::simulation::Simulation;
use fedanchor::{Experiment, Observer};
use fedanchor_record::{RoundRecord, Summary, Timing};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub fn run(args: RunArgs, printer: &Printer) -> Result<()> {
    wait_without_spinning();
    let mut settings = args.settings;
    settings.extend(args.device.map(|device| format!("device={device}")));
    settings.extend(args.precision.map(|precision| format!("precision={precision}")));
    let experiment = super::experiment(args.experiment.as_deref(), &settings)?;
    let out = args.out.unwrap_or_else(|| new_folder(args.experiment.as_deref(), &experiment));
    let mut watcher = Watcher::new(printer, &experiment, &out);
    let stop = stop_on_interrupt(watcher.bar.clone())?;
    let workers = args.workers.map(usize::from);
    let summary = fedanchor::run(&experiment, &out, workers, &stop, &mut watcher)?;
    watcher.bar.finish_and_clear();
    report(&summary, &out, printer);
    Ok(())
}

/// `runs/NAME-METHOD-seedN`, with a number behind it if that is taken.
fn new_folder(file: Option<&Path>, experiment: &Experiment) -> PathBuf {
    let name = file.and_then(Path::file_stem).map_or("quick".into(), |stem| stem.to_string_lossy());
    let base = format!("{name}-{}-seed{}", experiment.method.name(), experiment.seed);
    let runs = Path::new("runs");
    let numbered = (2..).map(|number| runs.join(format!("{base}-{number}")));
    std::iter::once(runs.join(&base))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| runs.join(&base))
}

/// OpenMP's threads spin while they wait for one another. On a machine that does anything else
/// beside, they then keep each other from running, and a round takes ten times as long. The policy is
/// read before `main`, so the program starts itself once more with it; a policy of the user's stays.
fn wait_without_spinning() {
    const POLICY: &str = "OMP_WAIT_POLICY";
    if std::env::var_os(POLICY).is_none()
        && let Ok(program) = std::env::current_exe()
    {
        let mut again = std::process::Command::new(program);
        // Returns only if it fails; then this process does the work.
        let _ = again.args(std::env::args_os().skip(1)).env(POLICY, "PASSIVE").exec();
    }
}

/// Ctrl-C (or a polite kill) ends the run after the current round; a second one ends it at once.
fn stop_on_interrupt(bar: ProgressBar) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for Ctrl-C")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                // At once: an orderly exit would tear libtorch down under a thread that computes.
                signal_hook::low_level::exit(130);
            }
            bar.suspend(|| {
                Printer::new().talk("ending after this round; once more to end at once")
            });
        }
    });
    Ok(stop)
}

/// Shows a bar on a terminal, and a line a round elsewhere.
struct Watcher<'a> {
    printer: &'a Printer,
    bar: ProgressBar,
    out: PathBuf,
    rounds: u32,
    start: Instant,
}

impl<'a> Watcher<'a> {
    fn new(printer: &'a Printer, experiment: &Experiment, out: &Path) -> Self {
        let bar = printer.bar(experiment.rounds.into(), "round {pos}/{len} [{bar:12}] {msg}");
        Self { printer, bar, out: out.to_owned(), rounds: experiment.rounds, start: Instant::now() }
    }

    /// Time left, from the rounds done so far.
    fn left(&self, round: u32) -> String {
        if round == 0 {
            return "?".to_owned();
        }
        let each = self.start.elapsed() / round;
        let left = each * self.rounds.saturating_sub(round);
        let seconds = left.as_secs();
        if seconds >= 3600 {
            format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
        } else {
            format!("{}:{:02}", seconds / 60, seconds % 60)
        }
    }
}

impl Observer for Watcher<'_> {
    fn started(&mut self, simulation: &Simulation) {
        let setting = &simulation.setting;
        let experiment = &setting.experiment;
        let (parameters, _) = setting.network.parameter_counts();
        let clients = match experiment.method {
            MethodConfig::ServerOnly(_) => "no clients".to_owned(),
            MethodConfig::Fedanchor(_) => format!(
                "{} unlabelled images on {} clients, {} a round",
                grouped(simulation.split.pool.len()),
                grouped(experiment.data.clients),
                experiment.client.per_round,
            ),
        };
        let announcement = format!(
            "{} on {}: {} anchors, {clients}; {} with {} parameters on {}; {}",
            experiment.method.name(),
            experiment.data.name,
            grouped(simulation.split.anchors.len()),
            experiment.model.name,
            grouped(parameters),
            experiment.device,
            self.out.display(),
        );
        self.bar.suspend(|| self.printer.talk(announcement));
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.start = Instant::now();
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        let RoundRecord { round, test_accuracy, kept, seen, .. } = record;
        if *round == 0 {
            self.start = Instant::now();
        }
        let left = self.left(*round);
        self.bar.set_position((*round).into());
        self.bar.set_message(format!(
            "accuracy {test_accuracy:.2} %, kept {kept} of {seen}, {left} left"
        ));
        if self.printer.is_terminal() {
            return;
        }
        let right =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1} %"));
        self.printer.talk(if *round == 0 {
            format!("pre-trained: accuracy {test_accuracy:.2} %, {:.1} s", timing.total)
        } else {
            format!(
                "round {round}/{}: accuracy {test_accuracy:.2} %, kept {kept} of {seen}, labels right {} of all and {} of \
                 the kept, {:.1} s, {left} left",
                self.rounds,
                right(record.anchor_head.all),
                right(record.anchor_head.kept),
                timing.total,
            )
        });
    }

    fn comparing(&mut self) {
        self.bar.set_message("training on the anchors alone, to compare");
        if !self.printer.is_terminal() {
            self.printer.talk("training on the anchors alone, to compare");
        }
    }

    fn notice(&mut self, text: &str) {
        self.bar.suspend(|| self.printer.talk(format!("note: {text}")));
    }
}

fn report(summary: &Summary, out: &Path, printer: &Printer) {
    let memory = summary
        .peak_memory
        .map_or(String::new(), |peak| format!(", {} of memory at most", bytes(peak)));
    let gpu = summary
        .peak_gpu_memory
        .map_or(String::new(), |peak| format!(" and {} on the GPU", bytes(peak)));
    printer.talk(format!(
        "{} of {} rounds in {:.0} s{memory}{gpu}; {} down, {} up; best round {} with {:.2} %; wrote {}",
        summary.rounds,
        summary.rounds_planned,
        summary.seconds,
        bytes(summary.bytes_down),
        bytes(summary.bytes_up),
        summary.best_round,
        summary.best_accuracy,
        out.display(),
    ));
    printer.line(match summary.server_only_accuracy {
        Some(alone) => format!(
            "test accuracy: anchors alone {alone:.2} %, {} {:.2} %",
            summary.method, summary.final_accuracy
        ),
        None => format!("test accuracy: {} {:.2} %", summary.method, summary.final_accuracy),
    });
}
