//! The error type of this crate. Messages name the file, the place in it, what was expected and
//! what was found.

use crate::paths::{NotUtf8, escaped, in_message};
use crate::skipped::{Reason, Skipped, by_reason};
use std::path::{Path, PathBuf};

/// An error in a data set, a download or a partition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be opened, read or written.
    #[error("{}: {reason}", in_message(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error. Not a `source`: it is part of the text already.
        reason: std::io::Error,
    },
    /// The content of a file does not match its format.
    #[error(
        "{}: {}: expected {}, found {}",
        in_message(path),
        escaped(place),
        escaped(expected),
        escaped(found)
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in the file: a byte offset, an image number, a field name.
        place: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A picture cannot be read.
    #[error("{}: {reason}", in_message(path))]
    Picture {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: Reason,
    },
    /// Pictures of a data set cannot be read.
    #[error("{}", counted(.0))]
    Pictures(Vec<Skipped>),
    /// A path cannot stand in a file of text.
    #[error(transparent)]
    NotUtf8(#[from] NotUtf8),
    /// Several things are wrong with a data set.
    #[error("{} problems:\n  {}", .0.len(), listed(.0))]
    Several(Vec<DataError>),
    /// A setting does not fit the data: too many anchors, no clients, an unknown data set.
    #[error("{0}")]
    Unusable(String),
    /// A download failed; received data is kept, and the next attempt resumes after it.
    #[error("{url}: {reason}")]
    Download {
        /// The address of the file.
        url: String,
        /// Why it failed.
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

    /// A picture that cannot be read.
    pub fn picture(path: impl AsRef<Path>, reason: Reason) -> Self {
        Self::Picture { path: path.as_ref().to_owned(), reason }
    }

    /// One problem as it is, several as one.
    pub(crate) fn all(mut problems: Vec<Self>) -> Result<()> {
        match problems.len() {
            0 => Ok(()),
            1 => Err(problems.remove(0)),
            _ => Err(Self::Several(problems)),
        }
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

/// Things that a message names; the others are counted.
const NAMED: usize = 10;

fn counted(pictures: &[Skipped]) -> String {
    let counts: Vec<String> =
        by_reason(pictures).iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let (what, them) = if pictures.len() == 1 { ("picture", "it") } else { ("pictures", "them") };
    let mut text = format!(
        "{} {what} cannot be read ({}): correct or remove {them}, or leave {them} out (set \
         data.unreadable = \"skip\" or --skip-unreadable)",
        pictures.len(),
        counts.join(", ")
    );
    for Skipped { path, reason } in pictures.iter().take(NAMED) {
        text.push_str(&format!("\n  {}: {reason}", in_message(path)));
    }
    if pictures.len() > NAMED {
        text.push_str(&format!("\n  ... and {} more", pictures.len() - NAMED));
    }
    text
}

fn listed(problems: &[DataError]) -> String {
    let mut lines: Vec<String> = problems
        .iter()
        .take(NAMED)
        .map(|problem| problem.to_string().replace('\n', "\n  "))
        .collect();
    if problems.len() > NAMED {
        lines.push(format!("... and {} more", problems.len() - NAMED));
    }
    lines.join("\n  ")
}
