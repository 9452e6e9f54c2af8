//! The tables of numbers in a run folder: partition, confusion and similarity.

use crate::error::{ReportError, Result};
use crate::run_files::RunFiles;

/// A table with names for its rows and columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub rows: Vec<String>,
    pub columns: Vec<String>,
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
