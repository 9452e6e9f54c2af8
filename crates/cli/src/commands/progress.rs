//! The progress of runs: a bar in a terminal, lines elsewhere; and rounds in words, for `run`, `sweep` and `watch`.

use super::{counted, grouped};
use crate::cli::TrainingArgs;
use crate::printer::Printer;
use fedanchor::{Experiment, Federation, Observer};
use fedanchor_data::Partition;
use fedanchor_record::{ClientLabels, ClientNote, Incidents, Outcome, RoundRecord, Timing};
use fedanchor_report::EventFile;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Clients that a note names.
const NAMED: usize = 3;

/// Shows a bar in a terminal, and one line per round elsewhere or where several runs share the terminal.
pub(super) struct Progress<'a> {
    printer: &'a Printer,
    bar: ProgressBar,
    out: PathBuf,
    rounds: u32,
    pace: Pace,
    /// Before every line.
    name: String,
    /// Prints only a line per tenth of the rounds.
    brief: bool,
    incidents: Incidents,
    /// The event file for TensorBoard.
    events: Option<EventFile>,
}

impl<'a> Progress<'a> {
    /// Of a run into the folder `out`; `name` is empty, or tells it from other runs in the same terminal.
    pub(super) fn new(
        printer: &'a Printer,
        experiment: &Experiment,
        out: &Path,
        name: &str,
        training: &TrainingArgs,
    ) -> Self {
        let (rounds, out, name) = (experiment.rounds, out.to_owned(), name.to_owned());
        let bar = if name.is_empty() { printer.round_bar(rounds) } else { ProgressBar::hidden() };
        // A run that has events keeps them up to date: the command that resumes it need not repeat the option.
        let has_events = training.tensorboard || EventFile::exists(&out);
        let events = has_events.then(|| EventFile::new(&out));
        let (pace, incidents) = (Pace::default(), Incidents::default());
        Self { printer, bar, out, rounds, pace, name, brief: false, incidents, events }
    }

    /// For one of many runs: one line per tenth of the rounds, and the sum of all incidents.
    pub(super) fn brief(self) -> Self {
        Self { brief: true, ..self }
    }

    /// The bar, for other messages to suspend.
    pub(super) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// After the run.
    pub(super) fn finish(mut self) {
        let finished = self.events.take().map(EventFile::finish);
        self.check(finished);
        self.bar.finish_and_clear();
        if self.brief && !self.incidents.is_empty() {
            self.notice(&self.incidents.to_string());
        }
    }

    /// The records are complete without the event file: a failure to write it must not end the run.
    fn check(&mut self, written: Option<fedanchor_report::Result<()>>) {
        if let Some(Err(error)) = written {
            self.events = None;
            self.status(format!(
                "note: no more events for TensorBoard: {error}; `fedanchor run --resume` with `--tensorboard` writes \
                 all of them"
            ));
        }
    }

    /// A line, whether or not a bar is shown.
    fn status(&self, text: impl AsRef<str>) {
        self.bar.suspend(|| self.printer.status(format!("{}{}", self.name, text.as_ref())));
    }
}

impl Observer for Progress<'_> {
    fn started(&mut self, federation: &Federation, simulated: Option<&Partition>) {
        if self.brief {
            return;
        }
        let Federation { experiment, context, method, split, .. } = federation;
        let properties = method.properties();
        let (parameters, _) = context.network.parameter_counts();
        let is_labelled = properties.labels == ClientLabels::True;
        let kind = if is_labelled { "labelled" } else { "unlabelled" };
        let images = counted(split.pool.len(), &format!("{kind} image"), &format!("{kind} images"));
        let clients = counted(experiment.data.clients, "client", "clients");
        let per_round = experiment.client.per_round;
        let clients = match (properties.clients, simulated) {
            (false, _) => "no clients".to_owned(),
            // Nothing is known of their images yet.
            (true, None) => format!("{clients} of a fleet, {per_round} per round"),
            (true, Some(_)) => format!("{images} on {clients}, {per_round} per round"),
        };
        self.status(format!(
            "{} on {}: {}, {clients}; {} with {} parameters on {}; {}",
            experiment.method.name,
            experiment.data.name,
            counted(split.anchors.len(), "anchor", "anchors"),
            experiment.model.name,
            grouped(parameters),
            experiment.device,
            self.out.display(),
        ));
        self.bar.enable_steady_tick(Duration::from_millis(500));
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        let left = self.pace.add(timing, self.rounds);
        self.incidents.add(record);
        let written = self.events.as_mut().map(|events| events.add(record, timing));
        self.check(written);
        if self.brief {
            // Neither pre-training nor the last round.
            if left.is_some() && record.round.is_multiple_of((self.rounds / 10).max(1)) {
                self.status(line(record, Some(timing), Some(self.rounds), left));
            }
            return;
        }
        self.bar.set_position(record.round.into());
        self.bar.set_message(after_bar(record, Some(timing), left));
        notes(record).iter().for_each(|note| self.status(format!("note: {note}")));
        if self.bar.is_hidden() {
            self.status(line(record, Some(timing), Some(self.rounds), left));
        }
    }

    fn comparing(&mut self) {
        let text = "training on the anchors alone for comparison";
        self.bar.set_message(text);
        if self.bar.is_hidden() && !self.brief {
            self.status(text);
        }
    }

    fn notice(&mut self, text: &str) {
        self.status(format!("note: {text}"));
    }
}

/// The mean time per round, which tells how long the others will take. Rounds that an earlier process did are not
/// included: it may have had another device.
#[derive(Default)]
struct Pace {
    rounds: u32,
    seconds: f64,
}

impl Pace {
    /// Adds a round. Returns the time left after it; `None` after pre-training, which says nothing about the rounds, and
    /// after the last round.
    fn add(&mut self, timing: &Timing, planned: u32) -> Option<Duration> {
        if timing.round == 0 {
            return None;
        }
        self.rounds += 1;
        self.seconds += timing.total;
        let to_do = planned.checked_sub(timing.round).filter(|&rounds| rounds > 0)?;
        let each = self.seconds / f64::from(self.rounds);
        Duration::try_from_secs_f64(each * f64::from(to_do)).ok()
    }
}

/// A round in one line: `round 3/40: accuracy 71.20 %, kept 200 of 300, ..., 1.5 s, 1:02 left`.
pub(super) fn line(
    record: &RoundRecord,
    timing: Option<&Timing>,
    planned: Option<u32>,
    left: Option<Duration>,
) -> String {
    let name = match (record.round, planned, record.pretrain_epochs) {
        (0, _, None) => "pre-trained".to_owned(),
        (0, _, Some(epochs)) => format!("pre-trained for {}", counted(epochs, "epoch", "epochs")),
        (round, None, _) => format!("round {round}"),
        (round, Some(planned), _) => format!("round {round}/{planned}"),
    };
    let left = left.map_or(String::new(), |left| format!(", {} left", clock(left)));
    format!("{name}: {}{left}", values(record, timing))
}

/// The same after a bar with the number of the round. The time left comes first: a narrow terminal cuts the end.
pub(super) fn after_bar(
    record: &RoundRecord,
    timing: Option<&Timing>,
    left: Option<Duration>,
) -> String {
    let left = left.map_or(String::new(), |left| format!("{} left, ", clock(left)));
    format!("{left}{}", values(record, timing))
}

fn values(record: &RoundRecord, timing: Option<&Timing>) -> String {
    let RoundRecord { round, kept, seen, anchor_head, classifier_head, .. } = record;
    let mut text = accuracy(record);
    if *round > 0 && *seen > 0 {
        text += &format!(", kept {kept} of {seen}");
        // The anchor head labels where there is one.
        let labels = if anchor_head.all.is_some() { anchor_head } else { classifier_head };
        // Without true labels, nobody knows how many are right.
        if let Some(all) = labels.all {
            let kept = labels.kept.map_or("-".to_owned(), |kept| format!("{kept:.1} %"));
            text += &format!(", pseudo-label accuracy {all:.1} % (kept: {kept})");
        }
    }
    if let Some(timing) = timing {
        text += &format!(", {:.1} s", timing.total);
    }
    text
}

/// The test accuracy, and that on validation images where there are any.
pub(super) fn accuracy(record: &RoundRecord) -> String {
    let validation = record.validation_accuracy;
    let validation =
        validation.map_or(String::new(), |accuracy| format!(" (validation: {accuracy:.2} %)"));
    format!("accuracy {:.2} %{validation}", record.test_accuracy)
}

/// Everything that went wrong in a round.
pub(super) fn notes(record: &RoundRecord) -> Vec<String> {
    let RoundRecord { round, rejected, failed, excluded, .. } = record;
    let mut notes = Vec::new();
    notes.extend(clients(rejected, "update rejected", "updates rejected"));
    notes.extend(clients(failed, "client failed", "clients failed"));
    if !excluded.is_empty() {
        let clients: Vec<String> = excluded.iter().map(u32::to_string).collect();
        let noun = if clients.len() == 1 { "client" } else { "clients" };
        notes.push(format!("excluded from further rounds: {noun} {}", clients.join(", ")));
    }
    match record.outcome {
        Outcome::Applied => {}
        Outcome::NoQuorum => {
            notes.push("skipped: fewer valid answers than checks.quorum; model unchanged".to_owned());
        }
        Outcome::RolledBack => notes.push(format!(
            "rolled back: with the clients' updates, accuracy on the anchors is {:.1} %, far below earlier rounds; \
             model unchanged",
            record.anchor_accuracy.unwrap_or_default()
        )),
    }
    notes.into_iter().map(|note| format!("round {round}: {note}")).collect()
}

/// `2 clients failed: client 3: out of memory; client 7: out of memory`.
fn clients(all: &[ClientNote], one: &str, many: &str) -> Option<String> {
    let first = all.iter().take(NAMED);
    let mut named: Vec<_> =
        first.map(|note| format!("client {}: {}", note.client, note.reason)).collect();
    if all.len() > NAMED {
        named.push(format!("and {} more", all.len() - NAMED));
    }
    (!all.is_empty()).then(|| format!("{}: {}", counted(all.len(), one, many), named.join("; ")))
}

/// `4:05`, `1:00:00`.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_per_round_as_the_rounds_so_far() {
        let timing = |round, total| Timing { round, total, ..Timing::default() };
        let mut pace = Pace::default();
        assert_eq!(pace.add(&timing(0, 1000.0), 10), None);
        assert_eq!(pace.add(&timing(1, 8.0), 10), Some(Duration::from_secs(9 * 8)));
        assert_eq!(pace.add(&timing(2, 12.0), 10), Some(Duration::from_secs(8 * 10)));
        assert_eq!(pace.add(&timing(10, 10.0), 10), None);
        // Resumed after round 41: an hour for round 42 means eight more hours.
        let resumed = Pace::default().add(&timing(42, 3600.0), 50);
        assert_eq!(clock(resumed.unwrap()), "8:00:00");
    }
}
