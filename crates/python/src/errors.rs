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
    let exception = Error::new_err(in_python(&format!("{error:#}")));
    if let Some(fedanchor::Error::Config { key, .. }) = error.downcast_ref() {
        let key = key.trim_start_matches("--");
        Python::attach(|py| exception.value(py).setattr("key", key)).ok();
    }
    exception
}

/// An exception with the text of an error.
pub(crate) fn other(error: impl Display) -> PyErr {
    Error::new_err(error.to_string())
}

/// A message of the command line in words of Python: its options are arguments of the same name. Commands in it, other than
/// the one that resumes a run, stay commands.
fn in_python(text: &str) -> String {
    let segments = text.split('`').enumerate().map(|(at, segment)| match at % 2 {
        0 => arguments(segment),
        _ if segment.starts_with("fedanchor run --resume ") => "resume=True".to_owned(),
        _ => segment.trim_start_matches("--").to_owned(),
    });
    segments.collect::<Vec<_>>().join("`")
}

fn arguments(text: &str) -> String {
    let mut parts = text.split("--");
    let mut found = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let length = part.bytes().take_while(u8::is_ascii_lowercase).count();
        let (name, rest) = part.split_at(length);
        found += &match name {
            "" => format!("--{rest}"),
            "force" => format!("`resume=\"force\"`{rest}"),
            name => format!("`{name}`{rest}"),
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::in_python;

    #[test]
    fn options_are_arguments_in_python() {
        for (text, expected) in [
            ("use another folder with --out", "use another folder with `out`"),
            ("name another folder with `--out`", "name another folder with `out`"),
            ("differs; --force resumes it", "differs; `resume=\"force\"` resumes it"),
            (
                "resume it with `fedanchor run --resume runs/a`, or",
                "resume it with `resume=True`, or",
            ),
            ("use `make libtorch CUDA=1` -- or not", "use `make libtorch CUDA=1` -- or not"),
            ("`fedanchor data get --all`", "`fedanchor data get --all`"),
        ] {
            assert_eq!(in_python(text), expected);
        }
    }
}
