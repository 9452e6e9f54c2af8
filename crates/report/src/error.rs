//! Errors in finding, reading and comparing runs; every message names the path.

use fedanchor_record::words::printable;
use std::path::{Path, PathBuf};

/// Why there is no table, figure or comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file of a run folder is missing, damaged, or was not written by a run.
    #[error(
        "{}: {problem}; restore the file from a copy, or run the experiment again",
        shown(path)
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A folder that was given contains no run.
    #[error(
        "{}: contains no run: give a folder written by `fedanchor run`, or one that contains such \
         folders",
        shown(path)
    )]
    NoRun {
        /// The folder as it was given.
        path: PathBuf,
    },
    /// Anything else; the text names the file or folder.
    #[error("{0}")]
    Other(String),
    /// A file or folder that cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A path as it may stand in a message.
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// Shorthand for results of this crate.
pub type Result<T, E = ReportError> = std::result::Result<T, E>;

impl ReportError {
    /// A file whose content cannot be used.
    pub(crate) fn malformed(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        let problem = problem.to_string().trim_end().to_owned();
        Self::Malformed { path: path.into(), problem }
    }

    /// Something else that is wrong with a file or folder.
    pub(crate) fn about(path: &Path, problem: impl std::fmt::Display) -> Self {
        Self::Other(format!("{}: {problem}", shown(path)))
    }

    /// What is wrong in a run folder, in one line and without advice.
    pub(crate) fn in_run_folder(&self) -> String {
        match self {
            Self::Malformed { path, problem } => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                format!("{name}: {problem}")
            }
            other => other.to_string(),
        }
    }
}
