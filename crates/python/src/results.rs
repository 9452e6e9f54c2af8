//! What run folders contain: records, figures, tables, comparisons.

use crate::errors::{of_any, other};
use fedanchor_cli::complete;
use fedanchor_report::{
    Figure, Histories, Options, PageData, Study, Table, find_folders, read_histories, render,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;
use std::path::PathBuf;

/// A figure as it is shown: name, title, caption, and per frame its name and an SVG file.
type Drawn = (String, String, String, Vec<(String, String)>);

/// Latents of test images after a round: the round, their bytes in single precision, numbers per latent, true and
/// predicted classes.
type RoundLatents = (u32, Py<PyBytes>, usize, Vec<u16>, Vec<u16>);

/// The run folders in these folders.
#[pyfunction]
pub(crate) fn find_runs(folders: Vec<PathBuf>) -> PyResult<Vec<PathBuf>> {
    let found = find_folders(&folders).map_err(other)?;
    match found.damaged.first() {
        Some(damaged) => Err(other(damaged)),
        None => Ok(found.folders),
    }
}

/// The run in a folder as far as it was written, as JSON, and its latents.
#[pyfunction]
pub(crate) fn read_run(py: Python, folder: PathBuf) -> PyResult<(String, Vec<RoundLatents>)> {
    let Histories { mut runs, damaged } =
        py.detach(|| read_histories(&[folder], &complete)).map_err(other)?;
    if let Some(damaged) = damaged.first() {
        return Err(other(damaged));
    }
    let run = match runs.len() {
        1 => runs.remove(0),
        count => return Err(other(format!("expected the folder of one run, found {count} runs"))),
    };
    let matrix = |matrix: &Option<fedanchor_report::Matrix>| {
        matrix.as_ref().map(|matrix| matrix.values.clone())
    };
    let text = json!({
        "path": run.setup.path.to_string_lossy(),
        "config": run.setup.config,
        "rounds": run.rounds,
        "timings": run.timings,
        "summary": run.summary,
        "classes": run.classes(),
        "confusion": matrix(&run.confusion),
        "partition": matrix(&run.partition),
        "problems": run.problems,
        "finished": run.is_finished,
    });
    let latents = run.latents.iter().map(|(round, latents)| {
        let bytes: Vec<u8> = latents.latents.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (labels, predicted) = (latents.labels.clone(), latents.predicted.clone());
        (*round, PyBytes::new(py, &bytes).unbind(), latents.width, labels, predicted)
    });
    Ok((text.to_string(), latents.collect()))
}

fn study(folders: &[PathBuf]) -> fedanchor_report::Result<Study> {
    Ok(Study::new(read_histories(folders, &complete)?))
}

/// The figures of a report on runs.
#[pyfunction]
pub(crate) fn figures(py: Python, folders: Vec<PathBuf>, smooth: usize) -> PyResult<Vec<Drawn>> {
    let drawn = |figure: &Figure| {
        let frame = |frame: &fedanchor_report::Frame| {
            (frame.name.clone(), frame.chart.svg(&figure.title_of(frame)))
        };
        let frames = figure.frames.iter().map(frame).collect();
        (figure.name.clone(), figure.title.clone(), figure.caption.clone(), frames)
    };
    py.detach(|| {
        let options = Options { smooth, cache: fedanchor_data::cache::folder("t-sne") };
        let page = PageData::new(&study(&folders)?, &options);
        Ok(page.figures().map(drawn).collect())
    })
    .map_err(|error: fedanchor_report::ReportError| other(error))
}

/// Writes a report on runs; returns its page.
#[pyfunction]
pub(crate) fn report(
    py: Python,
    folders: Vec<PathBuf>,
    out: PathBuf,
    smooth: usize,
) -> PyResult<PathBuf> {
    py.detach(|| {
        let options = Options { smooth, cache: fedanchor_data::cache::folder("t-sne") };
        fedanchor_report::write_report(&study(&folders)?, &options, &out)
    })
    .map_err(of_any)
}

/// One row per experiment, as JSON.
#[pyfunction]
pub(crate) fn table(py: Python, folders: Vec<PathBuf>) -> PyResult<String> {
    let runs = py.detach(|| fedanchor_report::find_runs(&folders, &complete)).map_err(other)?;
    Ok(render::json(&Table::new(&runs)))
}

/// Two groups of runs side by side, as JSON.
#[pyfunction]
pub(crate) fn compare(
    py: Python,
    one: PathBuf,
    other_one: PathBuf,
    accuracy: Option<f64>,
) -> PyResult<String> {
    let comparison = py
        .detach(|| fedanchor_report::compare(&one, &other_one, accuracy, &complete))
        .map_err(other)?;
    serde_json::to_string(&comparison).map_err(other)
}

/// What was found in a run folder, as JSON.
#[pyfunction]
pub(crate) fn verify(py: Python, folder: PathBuf) -> PyResult<String> {
    let found = py.detach(|| fedanchor::verify(&folder)).map_err(crate::errors::of)?;
    serde_json::to_string(&found).map_err(other)
}
