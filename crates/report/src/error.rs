//! What can be wrong with folders that should hold runs; every error names the path.

use std::path::PathBuf;

/// Why no table could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The operating system refused to read a file or folder; the text names it. Not a `source`:
    /// it is the whole text already.
    #[error("{0}")]
    Io(std::io::Error),
    /// A file of a run folder is not what a run writes.
    #[error("{}: {problem}; run it again, or name folders without it", path.display())]
    Malformed {
        /// The file in question.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A symbolic link leads back to a folder that contains it.
    #[error("{}: a link back to {}, which contains it: remove the link", path.display(), folder.display())]
    Loop {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        folder: PathBuf,
    },
    /// A folder was named that has no run in it.
    #[error(
        "{}: no run in it: name a folder that `fedanchor run` wrote, or one that contains such folders",
        path.display()
    )]
    NoRun {
        /// The folder as it was named.
        path: PathBuf,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = ReportError> = std::result::Result<T, E>;

impl ReportError {
    /// A file whose content cannot be used.
    pub(crate) fn malformed(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        let problem = problem.to_string().trim_end().to_owned();
        Self::Malformed { path: path.into(), problem }
    }
}

impl From<std::io::Error> for ReportError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}
