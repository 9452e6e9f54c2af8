//! A round in words, for those who run it and those who watch it.

use super::counted;
use fedanchor_record::{ClientNote, LabelAccuracy, Outcome, RoundRecord, Timing};
use std::time::Duration;

/// A round in one line: `round 3/40: accuracy 71.20 %, kept 200 of 300, ..., 1.5 s`.
pub(super) fn line(record: &RoundRecord, timing: Option<&Timing>, planned: Option<u32>) -> String {
    let RoundRecord { round, test_accuracy, kept, seen, .. } = record;
    let accuracy = format!("accuracy {test_accuracy:.2} %{}", validation(record));
    let seconds = timing.map_or(String::new(), |timing| format!(", {:.1} s", timing.total));
    if *round == 0 {
        let epochs = record.pretrain_epochs;
        let epochs = epochs
            .map_or(String::new(), |epochs| format!(" for {}", counted(epochs, "epoch", "epochs")));
        return format!("pre-trained{epochs}: {accuracy}{seconds}");
    }
    let labels = pseudo_labels(record);
    let share = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1} %"));
    let labels = match labels.all {
        Some(_) => format!(
            ", kept {kept} of {seen}, pseudo-label accuracy {} (kept: {})",
            share(labels.all),
            share(labels.kept)
        ),
        // Nobody knows how many are right.
        None if *seen > 0 => format!(", kept {kept} of {seen}"),
        None => String::new(),
    };
    let planned = planned.map_or(String::new(), |planned| format!("/{planned}"));
    format!("round {round}{planned}: {accuracy}{labels}{seconds}")
}

/// The accuracy on validation images, where there are any.
pub(super) fn validation(record: &RoundRecord) -> String {
    let accuracy = record.validation_accuracy;
    accuracy.map_or(String::new(), |accuracy| format!(" (validation: {accuracy:.2} %)"))
}

/// The accuracy of the head that labels: the anchor head where there is one.
pub(super) fn pseudo_labels(record: &RoundRecord) -> LabelAccuracy {
    match record.anchor_head.all {
        Some(_) => record.anchor_head,
        None => record.classifier_head,
    }
}

/// Whatever went wrong in a round.
pub(super) fn notes(record: &RoundRecord) -> Vec<String> {
    let RoundRecord { rejected, failed, excluded, .. } = record;
    let mut notes = Vec::new();
    notes.extend(some_of(rejected, "update rejected", "updates rejected", ""));
    notes.extend(some_of(failed, "client failed", "clients failed", ":"));
    if !excluded.is_empty() {
        let clients: Vec<String> = excluded.iter().map(u32::to_string).collect();
        let what = if clients.len() == 1 { "client" } else { "clients" };
        notes.push(format!("excluded from further rounds: {what} {}", clients.join(", ")));
    }
    match record.outcome {
        Outcome::Applied => {}
        Outcome::NoQuorum => notes.push(
            "skipped: fewer valid answers than checks.quorum; the model stays as it was".to_owned(),
        ),
        Outcome::RolledBack => notes.push(format!(
            "rolled back: the clients' updates leave {:.1} % accuracy on the anchors, too little \
             compared with the rounds before; the model stays as it was",
            record.anchor_accuracy.unwrap_or_default()
        )),
    }
    notes
}

/// `4:05`, `1:00:00`.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds >= 3600 {
        format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    } else {
        format!("{}:{:02}", seconds / 60, seconds % 60)
    }
}

/// How many of something happened, with the first few clients.
fn some_of(all: &[ClientNote], one: &str, many: &str, colon: &str) -> Option<String> {
    const NAMED: usize = 3;
    let name = |note: &ClientNote| format!("client {}{colon} {}", note.client, note.reason);
    let mut named: Vec<String> = all.iter().take(NAMED).map(name).collect();
    if all.len() > NAMED {
        named.push(format!("and {} more", all.len() - NAMED));
    }
    let what = if all.len() == 1 { one } else { many };
    (!all.is_empty()).then(|| format!("{} {what}: {}", all.len(), named.join("; ")))
}
