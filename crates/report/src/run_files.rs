//! The files of a run folder, checked against its checksums as they are read: its records, as far as they are intact,
//! and its tables of numbers.

use crate::error::{ReportError, Result};
use fedanchor_disk::limit;
use fedanchor_record::{Checksums, Manifest, RoundRecord, Timing, files};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// A run folder and the checksums in it.
#[derive(Debug)]
pub(crate) struct RunFiles {
    pub(crate) folder: PathBuf,
    /// None for a run of an earlier version.
    manifest: Option<Manifest>,
}

impl RunFiles {
    /// Opens a run folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let (folder, path) = (folder.to_owned(), folder.join(files::CHECKSUMS));
        let bytes = fedanchor_disk::read_if_exists(&path, limit(&path));
        let Some(bytes) = bytes.map_err(|error| ReportError::about(&path, error))? else {
            return Ok(Self { folder, manifest: None });
        };
        let manifest = Manifest::parse(&String::from_utf8_lossy(&bytes));
        let manifest = manifest.map_err(|error| ReportError::malformed(path, error))?;
        Ok(Self { folder, manifest: Some(manifest) })
    }

    /// The same without checksums, for a run whose checksums are damaged.
    pub(crate) fn unchecked(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), manifest: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether a file is there, or has to be: one that is listed and missing is an error when it is read.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists() || self.lists(name)
    }

    /// Whether a file has a checksum.
    pub(crate) fn lists(&self, name: &str) -> bool {
        self.manifest.as_ref().is_some_and(|manifest| manifest.lists(name))
    }

    /// Reads a file. It is an error if it is not what was written.
    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        let bytes = fedanchor_disk::read(&path, limit(&path))
            .map_err(|error| ReportError::about(&path, error))?;
        if let Some(manifest) = &self.manifest {
            let checked = manifest.check(name, &bytes);
            checked.map_err(|mismatch| ReportError::malformed(self.path(name), mismatch))?;
        }
        Ok(bytes)
    }

    /// The same for a text.
    pub(crate) fn text(&self, name: &str) -> Result<String> {
        String::from_utf8(self.bytes(name)?)
            .map_err(|error| ReportError::malformed(self.path(name), error))
    }

    /// Reads a JSON file.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let text = self.text(name)?;
        serde_json::from_str(&text).map_err(|error| ReportError::malformed(self.path(name), error))
    }

    /// It is an error if a finished run has checksums, but not of one of these files.
    pub(crate) fn check_listed(&self, names: &[&str]) -> Result<()> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let unlisted = names.iter().find(|name| !manifest.lists(name));
        let problem = |name: &&str| ReportError::malformed(self.path(name), "has no checksum");
        unlisted.map_or(Ok(()), |name| Err(problem(name)))
    }
}

/// A table with names for its rows and columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Names of the rows.
    pub rows: Vec<String>,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The numbers of each row.
    pub values: Vec<Vec<f64>>,
}

impl Matrix {
    /// Reads a CSV file whose first line and first column are names.
    pub(crate) fn read(run: &RunFiles, name: &str) -> Result<Self> {
        let malformed = |problem: String| ReportError::malformed(run.path(name), problem);
        let bytes = run.bytes(name)?;
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        let invalid = |error: csv::Error| malformed(error.to_string());
        let columns: Vec<String> =
            reader.headers().map_err(invalid)?.iter().skip(1).map(str::to_owned).collect();
        let mut matrix = Self { rows: Vec::new(), columns, values: Vec::new() };
        for (index, record) in reader.records().enumerate() {
            let record = record.map_err(invalid)?;
            matrix.rows.push(record.get(0).unwrap_or_default().to_owned());
            let values = record.iter().skip(1).map(|cell| match cell.parse() {
                Ok(value) if f64::is_finite(value) => Ok(value),
                _ => Err(malformed(format!("line {}: `{cell}` is not a number", index + 2))),
            });
            matrix.values.push(values.collect::<Result<_>>()?);
        }
        if matrix.rows.is_empty() || matrix.columns.is_empty() {
            return Err(malformed("the table is empty".to_owned()));
        }
        Ok(matrix)
    }
}

/// The lines that are complete, and whether there is the beginning of another. Damaged bytes need not be text: the check
/// of each record finds them.
pub(crate) fn complete_lines(bytes: &[u8]) -> (String, bool) {
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    (String::from_utf8_lossy(&bytes[..end]).into_owned(), end < bytes.len())
}

/// The records in the lines of a `rounds.jsonl`, up to the first line that is damaged, and what is wrong with that.
pub(crate) fn read_rounds(text: &str) -> (Vec<RoundRecord>, Option<String>) {
    read_lines(text, |last: &RoundRecord, next| next.round > last.round)
}

/// The same of a `timings.jsonl`.
pub(crate) fn read_timings(text: &str) -> (Vec<Timing>, Option<String>) {
    read_lines(text, |_, _| true)
}

fn read_lines<T: DeserializeOwned>(
    text: &str,
    follows: impl Fn(&T, &T) -> bool,
) -> (Vec<T>, Option<String>) {
    let (mut records, mut checksums) = (Vec::new(), Checksums::default());
    for (number, line) in (1..).zip(text.lines()) {
        let problem = match serde_json::from_str::<T>(line) {
            Ok(record)
                if records.last().is_none_or(|last| follows(last, &record))
                    && checksums.accepts(line) =>
            {
                records.push(record);
                continue;
            }
            Ok(_) => format!("line {number} does not match its checksum"),
            Err(error) if error.is_eof() => format!("line {number} is incomplete"),
            Err(error) => {
                // The parser counts from the start of the line.
                let text = error.to_string();
                let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
                format!("line {number}: {what}")
            }
        };
        return (records, Some(problem));
    }
    (records, None)
}
