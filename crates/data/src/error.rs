//! One error type for everything that can be wrong with data: it names the file, the place in it,
//! what was expected there and what was found, so that the person reading it can act.

use std::path::{Path, PathBuf};

/// What went wrong with a data set, a download or a partition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused to open, read or write a file.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file in question.
        path: PathBuf,
        /// What the operating system said. Not a `source`: it is part of the text already.
        reason: std::io::Error,
    },
    /// A file's content is not what its format promises.
    #[error("{}: {place}: expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file in question.
        path: PathBuf,
        /// Where in the file: a byte offset, an image number, a field name.
        place: String,
        /// What should have been there.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A setting does not fit the data: too many anchors, no clients, an unknown data set.
    #[error("{0}")]
    Unusable(String),
    /// A transfer failed; what has arrived so far is kept and the next attempt goes on from there.
    #[error("{url}: {reason}")]
    Download {
        /// What was being fetched.
        url: String,
        /// Why it ended.
        reason: String,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

impl DataError {
    /// Wraps an operating-system error with the path it concerns.
    pub fn io(path: impl AsRef<Path>, reason: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), reason }
    }

    /// A content error: which file, where in it, what was expected, what was found.
    pub fn malformed(
        path: impl AsRef<Path>,
        place: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Malformed {
            path: path.as_ref().to_owned(),
            place: place.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}
