//! The records of a run, as far as they are intact.

use fedanchor_record::{Checksums, RoundRecord, Summary, Timing};
use serde::de::DeserializeOwned;

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
