//! Experiments from Python: their settings, and runs that Python watches.

use crate::arrays::{self, Arrays};
use crate::errors::{of, of_any, other};
use fedanchor::experiment::{Resolved, resolve_file};
use fedanchor::{Experiment, Federation, Observer, Phase, Resume, RunOptions};
use fedanchor_data::Partition;
use fedanchor_record::{RoundRecord, Timing};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the program with these arguments, of which the first is its name; returns its exit status.
#[pyfunction]
pub(crate) fn program(py: Python, arguments: Vec<OsString>) -> u8 {
    py.detach(|| fedanchor_cli::with_arguments(arguments))
}

/// An experiment in full, as JSON, with notes about settings that have no effect: from settings as JSON (`values`), else
/// from a file [default: the quick experiment], and further settings `KEY=VALUE`.
#[pyfunction]
#[pyo3(signature = (file, values, settings))]
pub(crate) fn resolve(
    file: Option<PathBuf>,
    values: Option<&str>,
    settings: Vec<String>,
) -> PyResult<(String, Vec<String>)> {
    let resolved = match values {
        None => fedanchor_cli::read_experiment(file.as_deref(), &settings).map_err(of_any)?,
        Some(values) => {
            let values: Value = serde_json::from_str(values).map_err(other)?;
            let table = toml::Table::try_from(without_null(values)).map_err(other)?;
            resolve_file(&table.to_string(), Path::new(""), &settings).map_err(of)?
        }
    };
    let Resolved { experiment, notes, .. } = resolved;
    Ok((json!(experiment).to_string(), notes))
}

/// The folder of a run that was not given one: below `runs`, by the name of its experiment.
#[pyfunction]
#[pyo3(signature = (file, experiment))]
pub(crate) fn unused_folder(file: Option<PathBuf>, experiment: &str) -> PyResult<PathBuf> {
    Ok(fedanchor_cli::new_folder(file.as_deref(), &read(experiment)?))
}

/// Runs an experiment; returns its summary as JSON. `observer` is called with each event as JSON, and may raise an
/// exception, which ends the run after its round and is raised again then.
#[pyfunction]
#[pyo3(signature = (experiment, out, resume, workers, data, observer))]
pub(crate) fn run(
    py: Python,
    experiment: &str,
    out: PathBuf,
    resume: bool,
    workers: Option<usize>,
    data: Option<Arrays>,
    observer: Py<PyAny>,
) -> PyResult<String> {
    let experiment = read(experiment)?;
    let data = data.map(Arrays::data_set);
    let stop = AtomicBool::new(false);
    let mut watcher = Watcher { observer, stop: &stop, raised: None };
    let summary = py.detach(|| {
        let options = RunOptions {
            resume: if resume { Resume::Yes } else { Resume::No },
            workers,
            stop: &stop,
            ..RunOptions::new(&out)
        };
        arrays::with(data, || fedanchor::run(&experiment, options, &mut watcher))
    });
    match (watcher.raised, summary) {
        (Some(raised), _) => Err(raised),
        (None, Ok(summary)) => Ok(json!(summary).to_string()),
        (None, Err(error)) => Err(of(error)),
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

/// Tells Python what happens, and ends the run if Python raises an exception, for example at Ctrl-C.
struct Watcher<'a> {
    observer: Py<PyAny>,
    stop: &'a AtomicBool,
    raised: Option<PyErr>,
}

impl Watcher<'_> {
    fn tell(&mut self, event: Value) {
        let told = Python::attach(|py| {
            py.check_signals()?;
            if self.raised.is_none() {
                self.observer.call1(py, (event.to_string(),))?;
            }
            Ok(())
        });
        if let Err(raised) = told {
            self.stop.store(true, Ordering::Relaxed);
            self.raised.get_or_insert(raised);
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
