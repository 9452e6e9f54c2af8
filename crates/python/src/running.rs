//! Experiments from Python: their settings, and runs that Python watches.

use crate::arrays::{self, Arrays};
use crate::errors::{of, of_any, other};
use crate::work::{self, Work};
use fedanchor::config::Difference;
use fedanchor::experiment::{Resolved, resolve_file};
use fedanchor::{Experiment, Federation, Observer, Phase, Resume, RunOptions};
use fedanchor_data::Partition;
use fedanchor_record::{KeyRole, RoundRecord, Summary, Timing};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Runs the program with these arguments, of which the first is its name; returns its exit status.
#[pyfunction]
pub(crate) fn program(py: Python, arguments: Vec<OsString>) -> u8 {
    py.detach(|| fedanchor_cli::with_arguments(arguments))
}

/// An experiment in full, as JSON, with notes about settings that have no effect: from the text of an experiment file,
/// else from a file [default: the quick experiment], and further settings `KEY=VALUE`.
#[pyfunction]
#[pyo3(signature = (file, text, settings))]
pub(crate) fn resolve(
    file: Option<PathBuf>,
    text: Option<&str>,
    settings: Vec<String>,
) -> PyResult<(String, Vec<String>)> {
    let resolved = match text {
        None => fedanchor_cli::read_experiment(file.as_deref(), &settings).map_err(of_any)?,
        Some(text) => resolve_file(text, Path::new(""), &settings).map_err(of)?,
    };
    let Resolved { experiment, notes, .. } = resolved;
    Ok((json!(experiment).to_string(), notes))
}

/// The settings in which the finished run in a folder differs from an experiment: key, value there and value now. What
/// the experiment leaves open depends on the data.
#[pyfunction]
pub(crate) fn differences(
    folder: PathBuf,
    experiment: &str,
) -> PyResult<Vec<(String, String, String)>> {
    let experiment = read(experiment)?;
    let now = toml::Table::try_from(&experiment).map_err(other)?;
    let run = fedanchor_report::Run::finished(&folder, &fedanchor_cli::complete).map_err(other)?;
    let Some(run) = run else { return Ok(Vec::new()) };
    let found = fedanchor::config::differences(&run.setup.config, &now).into_iter();
    let matters = |one: &Difference| {
        let is_open =
            one.now.is_none() && !one.there.as_ref().is_some_and(|it| it.starts_with('{'));
        KeyRole::of(&one.key) != KeyRole::Machine && !is_open
    };
    let text = |value: Option<String>| value.unwrap_or_else(|| "no such setting".to_owned());
    let mut found: Vec<_> =
        found.filter(matters).map(|one| (one.key, text(one.there), text(one.now))).collect();
    let (there, now) = (run.summary.rounds, experiment.rounds);
    if there != now {
        found.push(("rounds".to_owned(), there.to_string(), now.to_string()));
    }
    Ok(found)
}

/// The folder of a run that was not given one: below `runs`, by the name of its experiment.
#[pyfunction]
#[pyo3(signature = (file, experiment))]
pub(crate) fn unused_folder(file: Option<PathBuf>, experiment: &str) -> PyResult<PathBuf> {
    Ok(fedanchor_cli::new_folder(file.as_deref(), &read(experiment)?))
}

/// Runs an experiment on a thread of its own, and answers signals meanwhile; returns its summary as JSON. `observer` is
/// called with each event as JSON, and may raise an exception, which ends the run after its round and is raised again
/// then, like that of a signal. A second signal does not wait for the end of the run. `resume` is whether a run that is
/// there is resumed by force, or none for a new one.
#[pyfunction]
#[pyo3(signature = (experiment, out, resume, workers, data, observer))]
pub(crate) fn run(
    py: Python,
    experiment: &str,
    out: PathBuf,
    resume: Option<bool>,
    workers: Option<usize>,
    data: Option<Arrays>,
    observer: Py<PyAny>,
) -> PyResult<String> {
    let experiment = read(experiment)?;
    let data = data.map(Arrays::data_set);
    let (messages, received) = sync_channel(1);
    let (answers, answered) = sync_channel(1);
    let stop = Arc::new(AtomicBool::new(false));
    let work = Work::begin()?;
    let shared = stop.clone();
    std::thread::spawn(move || {
        let mut watcher = Watcher { messages, answered, stop: &shared };
        let options = RunOptions {
            resume: match resume {
                None => Resume::No,
                Some(false) => Resume::Yes,
                Some(true) => Resume::Force,
            },
            workers,
            stop: &shared,
            ..RunOptions::new(&out)
        };
        let summary = arrays::with(data, || fedanchor::run(&experiment, options, &mut watcher));
        let Watcher { messages, .. } = watcher;
        // Nobody receives it after a second signal.
        let _ = messages.send(Message::Ended(Box::new(summary)));
        drop(work);
    });
    let received = Mutex::new(received);
    let mut raised: Option<PyErr> = None;
    loop {
        let message = py.detach(|| {
            let received = received.lock().unwrap_or_else(PoisonError::into_inner);
            received.recv_timeout(Duration::from_millis(50))
        });
        match message {
            Ok(Message::Event(event)) => {
                let told = match raised {
                    None => observer.call1(py, (event.to_string(),)).err(),
                    Some(_) => None,
                };
                raised = raised.or(told);
                // Before the run goes on, so that no further round begins.
                if raised.is_some() {
                    stop.store(true, Ordering::Relaxed);
                }
                let _ = answers.send(());
            }
            Ok(Message::Ended(summary)) => {
                return match (raised, *summary) {
                    (Some(raised), _) => Err(raised),
                    (None, Ok(summary)) => Ok(json!(summary).to_string()),
                    (None, Err(error)) => Err(of(error)),
                };
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(other("the run ended without a result: please report this"));
            }
        }
        if let Err(signal) = py.check_signals() {
            if raised.is_some() {
                stop.store(true, Ordering::Relaxed);
                return Err(signal);
            }
            raised = Some(signal);
        }
        if raised.is_some() || work::is_ending() {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

fn read(experiment: &str) -> PyResult<Experiment> {
    let values: Value = serde_json::from_str(experiment).map_err(other)?;
    Experiment::from_values(without_null(values)).map_err(of)
}

/// A setting without a value is left out.
fn without_null(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let set = entries.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(set.map(|(key, value)| (key, without_null(value))).collect())
        }
        other => other,
    }
}

/// What the thread of a run sends.
enum Message {
    Event(Value),
    Ended(Box<fedanchor::Result<Summary>>),
}

/// Tells Python what happens, and waits until it has heard it.
struct Watcher<'a> {
    messages: SyncSender<Message>,
    answered: Receiver<()>,
    stop: &'a AtomicBool,
}

impl Watcher<'_> {
    fn tell(&mut self, event: Value) {
        let told = self.messages.send(Message::Event(event)).is_ok();
        if !told || self.answered.recv().is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Observer for Watcher<'_> {
    fn started(&mut self, _federation: &Federation, clients: Option<&Partition>) {
        let clients = clients.map(|clients| clients.clients.len());
        self.tell(json!({ "event": "started", "clients": clients }));
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        self.tell(json!({ "event": "round", "record": record, "timing": timing }));
    }

    fn epoch(&mut self, phase: Phase, done: u32, planned: u32) {
        let phase = match phase {
            Phase::Pretraining => "pre-training",
            Phase::Comparison => "comparison",
        };
        self.tell(json!({ "event": "epoch", "phase": phase, "done": done, "planned": planned }));
    }

    fn notice(&mut self, text: &str) {
        self.tell(json!({ "event": "notice", "text": text }));
    }
}
