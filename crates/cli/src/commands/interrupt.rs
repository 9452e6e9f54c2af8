//! Ctrl-C and SIGTERM: they stop a run after its current round, and the message says how to resume it.

use crate::printer::Printer;
use anyhow::{Context, Result};
use fedanchor::{Experiment, methods, resume_command};
use fedanchor_record::Summary;
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A command that was stopped by a signal: what is done, and how to resume.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: {done}; {advice}")]
pub struct Interrupted {
    pub(super) done: String,
    pub(super) advice: String,
}

/// The first Ctrl-C (or SIGTERM) sets the flag and prints `stopping`, for example `stopping after this round`; the second
/// ends the process.
pub(super) fn stop_on_interrupt(
    bar: ProgressBar,
    printer: Printer,
    stopping: &'static str,
) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for Ctrl-C")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                // Not `std::process::exit`, which would tear libtorch down under a thread that computes.
                signal_hook::low_level::exit(130);
            }
            bar.suspend(|| printer.status(format!("{stopping}; press Ctrl-C again to stop now")));
        }
    });
    Ok(stop)
}

/// The interruption of a run that was stopped before its end.
pub(super) fn interruption(
    experiment: &Experiment,
    summary: &Summary,
    out: &Path,
    stop: &AtomicBool,
) -> Result<Option<Interrupted>> {
    let Summary { rounds, rounds_planned, .. } = summary;
    let done = match rounds < rounds_planned {
        _ if !stop.load(Ordering::Relaxed) => return Ok(None),
        true => format!("{rounds} of {rounds_planned} rounds are done"),
        false if lacks_comparison(experiment, summary)? => {
            "all rounds are done, the comparison with the anchors alone is not".to_owned()
        }
        false => return Ok(None),
    };
    let resume = resume_command(out);
    // Pre-training is repeated anyway.
    let advice = match experiment.checkpoint.write || *rounds == 0 {
        true => format!("resume with `{resume}`"),
        false => format!(
            "without checkpoints (checkpoint.write) it can only be started over: `{resume} --force`"
        ),
    };
    Ok(Some(Interrupted { done, advice }))
}

/// Whether a run with all its rounds lacks the comparison it should have.
pub(super) fn lacks_comparison(experiment: &Experiment, summary: &Summary) -> Result<bool> {
    let wanted = experiment.compare && methods::build(&experiment.method)?.properties().clients;
    Ok(wanted && summary.server_only_accuracy.is_none())
}

/// The command line of this process, quoted for a shell.
pub(super) fn this_command() -> String {
    let arguments = std::env::args_os().skip(1);
    let arguments: Vec<String> = arguments.map(|a| a.to_string_lossy().into_owned()).collect();
    let words = std::iter::once("fedanchor").chain(arguments.iter().map(String::as_str));
    // Arguments of a process contain no NUL, the one thing that cannot be quoted.
    shlex::try_join(words).unwrap_or_default()
}
