//! The error type of this crate. Messages name the file, the place in it, what was expected and
//! what was found.

use crate::paths::{NotUtf8, escaped, in_message};
use crate::skipped::{Reason, Skipped, by_reason};
use std::path::{Path, PathBuf};

/// An error in a data set, a download or a partition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each comment explains the fields of its error
pub enum DataError {
    /// A file could not be opened, read or written. The system's error is part of the text, hence no `source`.
    #[error("{}: {}", in_message(.0), .1)]
    Io(PathBuf, std::io::Error),
    /// The content of a file does not match its format at a place: a byte offset, an image number, a field name.
    #[error(
        "{}: {}: expected {}, found {}",
        in_message(path),
        escaped(place),
        escaped(expected),
        escaped(found)
    )]
    Malformed { path: PathBuf, place: String, expected: String, found: String },
    /// Pictures of a data set cannot be read.
    #[error("{}", counted(.0))]
    Pictures(Vec<Skipped>),
    /// A path cannot be written to a text file.
    #[error(transparent)]
    NotUtf8(#[from] NotUtf8),
    /// Several things are wrong with a data set.
    #[error("{} problems:{}", .0.len(), listed(.0.iter().map(indented)))]
    Several(Vec<DataError>),
    /// Any other problem, for example a setting that does not fit the data, or a failed download.
    #[error("{0}")]
    Unusable(String),
}

/// Shorthand for results of this crate.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

impl DataError {
    /// Wraps an operating-system error with the path it concerns.
    pub fn io(path: impl AsRef<Path>, reason: std::io::Error) -> Self {
        Self::Io(path.as_ref().to_owned(), reason)
    }

    /// A picture that cannot be read.
    pub fn picture(path: &Path, reason: Reason) -> Self {
        Self::Unusable(format!("{}: {reason}", in_message(path)))
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
        found: impl ToString,
    ) -> Self {
        Self::Malformed {
            path: path.as_ref().to_owned(),
            place: place.into(),
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}

/// A content error as a result: which file, where in it, what was expected, what was found.
pub(crate) fn malformed<T>(
    path: impl AsRef<Path>,
    place: impl Into<String>,
    expected: impl Into<String>,
    found: impl ToString,
) -> Result<T> {
    Err(DataError::malformed(path, place, expected, found))
}

/// Any other problem, as a result.
pub(crate) fn unusable<T>(problem: impl Into<String>) -> Result<T> {
    Err(DataError::Unusable(problem.into()))
}

fn counted(pictures: &[Skipped]) -> String {
    let counts: Vec<String> =
        by_reason(pictures).iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let (what, them) = if pictures.len() == 1 { ("picture", "it") } else { ("pictures", "them") };
    let lines =
        pictures.iter().map(|Skipped { path, reason }| format!("{}: {reason}", in_message(path)));
    format!(
        "{} {what} cannot be read ({}): correct or remove {them}, or leave {them} out (set \
         data.unreadable = \"skip\" or --skip-unreadable){}",
        pictures.len(),
        counts.join(", "),
        listed(lines)
    )
}

fn indented(problem: &DataError) -> String {
    problem.to_string().replace('\n', "\n  ")
}

/// The first lines of a list, indented, and the number of the others.
pub(crate) fn listed(lines: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 10;
    let more = lines.len().saturating_sub(SHOWN);
    let shown = lines.take(SHOWN).map(|line| format!("\n  {line}"));
    let rest = (more > 0).then(|| format!("\n  ... and {more} more"));
    shown.chain(rest).collect()
}
