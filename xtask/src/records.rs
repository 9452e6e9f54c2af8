//! The keys of the records in a run folder.

use crate::Part;
use crate::markdown::{code, item};
use crate::schema::{Key, keys_of};
use anyhow::Result;
use fedanchor_record::{Assignment, RoundRecord, Samples, Summary, Timing, files};

pub(crate) fn parts() -> Result<Vec<Part>> {
    Ok(vec![
        (files::ROUNDS, rows(&keys_of::<RoundRecord>()?)),
        (files::TIMINGS, rows(&keys_of::<Timing>()?)),
        (files::SUMMARY, rows(&keys_of::<Summary>()?)),
        (files::ASSIGNMENT, rows(&keys_of::<Assignment>()?)),
        (files::SAMPLES, rows(&keys_of::<Samples>()?)),
    ])
}

fn rows(keys: &[Key]) -> String {
    let row = |key: &Key| {
        let text = format!("{} ({}): {}", code(&key.path), kind(key), key.meaning);
        item(&text, &key.explained_values())
    };
    keys.iter().map(row).collect()
}

fn kind(key: &Key) -> String {
    let kind = key.kind.replace("table", "object"); // in words of JSON
    match (key.optional, key.nullable) {
        (true, _) => format!("{kind}; may be missing"),
        (false, true) => format!("{kind} or `null`"),
        (false, false) => kind,
    }
}
