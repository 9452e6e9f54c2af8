//! Errors in finding and reading runs; every message names the path.

use fedanchor_record::words::printable;
use std::path::{Path, PathBuf};

/// Why no table could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file or folder cannot be read; the text names it. Not a `source`: it is the whole text
    /// already.
    #[error("{0}")]
    Io(std::io::Error),
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
    /// A symbolic link points to a folder that contains it.
    #[error("{}: links to {}, which contains it: remove the link", shown(path), shown(folder))]
    Loop {
        /// The link.
        path: PathBuf,
        /// Its target.
        folder: PathBuf,
    },
    /// A figure cannot be drawn.
    #[error("{}: {problem}", shown(path))]
    Draw {
        /// The file that was to be written.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The folder for a report contains something else.
    #[error(
        "{}: contains something that is not a report: name another folder with `--out`",
        shown(path)
    )]
    NotAReport {
        /// The folder.
        path: PathBuf,
    },
    /// A round was chosen at which no run has pseudo-labels.
    #[error("no run has pseudo-labels at round {round}: {}", rounds_with_labels(*known))]
    NoSuchRound {
        /// The round.
        round: u32,
        /// The first and the last round with pseudo-labels, if there is any.
        known: Option<(u32, u32)>,
    },
    /// No run of the given folders can be read.
    #[error("there is no run to show{}", listed(problems))]
    NothingToShow {
        /// The runs, and what is wrong with each.
        problems: Vec<String>,
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
}

/// A path as it may stand in a message.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// Every problem on a line of its own.
fn listed(problems: &[String]) -> String {
    problems.iter().map(|problem| format!("\n{}", printable(problem))).collect()
}

fn rounds_with_labels(known: Option<(u32, u32)>) -> String {
    match known {
        Some((first, last)) => format!("`--round` can be {first} to {last}"),
        None => "leave out `--round`, since no round has any".to_owned(),
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = ReportError> = std::result::Result<T, E>;

impl ReportError {
    /// A file whose content cannot be used.
    pub(crate) fn malformed(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        let problem = problem.to_string().trim_end().to_owned();
        Self::Malformed { path: path.into(), problem }
    }

    /// A file that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self::Io(std::io::Error::new(error.kind(), format!("{}: {error}", shown(path))))
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

impl From<std::io::Error> for ReportError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}
