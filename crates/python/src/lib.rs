//! The extension module below the Python package `fedanchor`.
//!
//! Nested values cross the border as JSON, arrays as bytes with their shape: the package makes dictionaries, data frames
//! and arrays of them. Whatever takes long runs without the interpreter's lock.

mod arrays;
mod errors;
mod model;
mod results;
mod running;
mod work;

use pyo3::prelude::*;
use std::path::PathBuf;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::errors::Error;
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::results::{compare, figures, find_runs, read_run, report, table, verify};
    #[pymodule_export]
    use super::running::{differences, program, resolve, run, unused_folder};
    #[pymodule_export]
    use super::work::finish;
    #[pymodule_export]
    use super::{load_kernels, set_kernels};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::init(module)
    }
}

/// Sets the file of the CUDA kernels, which are loaded when a run asks for a GPU.
#[pyfunction]
fn set_kernels(file: PathBuf) {
    fedanchor_cuda::set_library(file);
}

/// Loads the CUDA kernels; returns why that fails.
#[pyfunction]
fn load_kernels() -> Option<String> {
    fedanchor_cuda::unavailable()
}

fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let build = fedanchor_cli::build();
    module.add("version", &build.version)?;
    module.add("build", build.to_string())?;
    build.declare();
    fedanchor_cli::quiet_torch_panics();
    arrays::register().map_err(errors::other)?;
    errors::init(module.py())
}
