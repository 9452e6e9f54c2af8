//! The records of a run, and a reader of the lines of a `rounds.jsonl`, as far as they are intact.

use fedanchor_record::{Checksums, RoundRecord, Summary, Timing};

/// What a run has recorded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Records {
    /// Its summary, written when it ends.
    pub(crate) summary: Option<Summary>,
    /// Its rounds, from round 0.
    pub(crate) rounds: Vec<RoundRecord>,
    /// Seconds by phase, from round 0.
    pub(crate) timings: Vec<Timing>,
    /// What cannot be read, and was skipped.
    pub(crate) problems: Vec<String>,
}

/// What is wrong with a line of JSON, by its number in the file: the parser counts from the line's start.
pub(crate) fn line_problem(line: usize, error: &serde_json::Error) -> String {
    if error.is_eof() {
        return format!("line {line} is incomplete");
    }
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    format!("line {line}: {what}")
}

/// Checks each line against the lines before it. After a damaged line nothing is accepted.
#[derive(Debug, Default)]
pub(crate) struct RecordReader {
    checksums: Checksums,
    last: Option<u32>,
    lines: usize,
    problem: Option<String>,
}

impl RecordReader {
    /// The round in the next line, if the line is intact and no line before it was damaged.
    pub(crate) fn read(&mut self, line: &str) -> Option<RoundRecord> {
        if self.problem.is_some() {
            return None;
        }
        self.lines += 1;
        match serde_json::from_str::<RoundRecord>(line) {
            Ok(round) if self.follows(&round) && self.checksums.accepts(line) => {
                self.last = Some(round.round);
                return Some(round);
            }
            Ok(_) => {
                self.problem = Some(format!("line {} does not match its checksum", self.lines));
            }
            Err(error) => self.problem = Some(line_problem(self.lines, &error)),
        }
        None
    }

    /// What is wrong with the first damaged line.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn follows(&self, round: &RoundRecord) -> bool {
        self.last.is_none_or(|last| round.round > last)
    }
}
