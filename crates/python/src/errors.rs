//! Errors as exceptions, with the key that they name.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::fmt::Display;

create_exception!(fedanchor, Error, PyException, "What cannot be done, and what to change.");

/// Errors that name no key have none.
pub(crate) fn init(py: Python) -> PyResult<()> {
    py.get_type::<Error>().setattr("key", py.None())
}

/// An exception that names the key of a setting, where the error does.
pub(crate) fn of(error: fedanchor::Error) -> PyErr {
    of_any(error)
}

/// The same for an error of the command line.
pub(crate) fn of_any(error: impl Into<anyhow::Error>) -> PyErr {
    let error = error.into();
    let exception = Error::new_err(format!("{error:#}"));
    if let Some(fedanchor::Error::Config { key, .. }) = error.downcast_ref() {
        Python::attach(|py| exception.value(py).setattr("key", key)).ok();
    }
    exception
}

/// An exception with the text of an error.
pub(crate) fn other(error: impl Display) -> PyErr {
    Error::new_err(error.to_string())
}
