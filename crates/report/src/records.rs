//! The records of a run, as far as they are intact.

use fedanchor_record::{Checksums, RoundRecord, Timing};
use serde::de::DeserializeOwned;

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
