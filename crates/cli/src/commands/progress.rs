//! The progress of runs: a bar in a terminal, lines elsewhere; and rounds in words, for `run`, `sweep` and `watch`.

use super::pace::{Pace, Steps, clock};
use super::{counted, grouped};
use crate::cli::TrainingArgs;
use crate::printer::Printer;
use fedanchor::experiment::RunLength;
use fedanchor::{Experiment, Federation, Observer, Phase};
use fedanchor_data::{Partition, Progress as Reading};
use fedanchor_record::{
    ClientLabels, ClientNote, Incidents, Outcome, PrivacySpent, RoundRecord, Timing,
};
use fedanchor_report::EventFile;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
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
    steps: Steps,
    /// What the time of a run depends on, until it has been told.
    unknown_length: Option<Load>,
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
        let (steps, unknown_length, brief) = (Steps::start(), None, false);
        Self {
            printer,
            bar,
            out,
            rounds,
            pace,
            steps,
            unknown_length,
            name,
            brief,
            incidents,
            events,
        }
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

/// What the time of a run depends on.
struct Load {
    experiment: Experiment,
    labelled: usize,
    unlabelled: usize,
}

impl Progress<'_> {
    /// Says how long the run will take as soon as a few epochs tell it.
    fn tell_length(&mut self, epochs: u32) {
        const ENOUGH: f64 = 2.0;
        let Some(epoch) = self.steps.each(epochs as usize) else { return };
        if epoch * f64::from(epochs) < ENOUGH {
            return;
        }
        let Some(Load { experiment, labelled, unlabelled }) = self.unknown_length.take() else {
            return;
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let length = RunLength::predict(&experiment, epoch, labelled, unlabelled, cores);
        let minutes = |seconds: f64| match seconds < 100.0 {
            true => format!("{seconds:.0} s"),
            false => format!("{:.0} min", (seconds / 60.0).ceil()),
        };
        let RunLength { pretraining, rounds, comparison } = length;
        self.pace.after = comparison;
        let comparison = match comparison > 0.0 {
            true => format!(", comparison {}", minutes(comparison)),
            false => String::new(),
        };
        self.status(format!(
            "expected: about {} (pre-training at most {}, rounds {}{comparison})",
            minutes(length.total()),
            minutes(pretraining),
            minutes(rounds),
        ));
    }
}

impl Observer for Progress<'_> {
    fn reading(&mut self) -> Reading {
        let (bar, printer, name) = (self.bar.clone(), *self.printer, self.name.clone());
        let (steps, brief) = (Mutex::new(Steps::start()), self.brief);
        Reading::new(move |done, total| {
            let Ok(mut steps) = steps.lock() else { return };
            let text = format!("reading pictures: {}", steps.text(done, "", total));
            if bar.is_hidden() && !brief && steps.is_due() {
                printer.status(format!("{name}{text}"));
            }
            bar.set_message(text);
        })
    }

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
        // On a GPU all clients train at once, and an epoch on the anchors says nothing about it.
        if simulated.is_some() && properties.clients && experiment.device == "cpu" {
            let (labelled, unlabelled) = (split.anchors.len(), split.pool.len());
            let experiment = experiment.clone();
            self.unknown_length = Some(Load { experiment, labelled, unlabelled });
        }
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

    fn epoch(&mut self, phase: Phase, done: u32, planned: u32) {
        let (what, most) = match phase {
            Phase::Pretraining => ("pre-training", "at most "),
            Phase::Comparison => ("training on the anchors alone for comparison", ""),
        };
        if done == 0 {
            self.steps = Steps::start();
        }
        let text = self.steps.text(done as usize, most, planned as usize);
        self.bar.set_message(format!("{what}: epoch {text}"));
        if self.brief {
            return;
        }
        let is_start = done == 0 && phase == Phase::Comparison;
        if self.bar.is_hidden() && (self.steps.is_due() || is_start) {
            self.status(format!("{what}: epoch {text}"));
        }
        if phase == Phase::Pretraining {
            self.tell_length(done);
        }
    }

    fn notice(&mut self, text: &str) {
        self.status(format!("note: {text}"));
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
    if let Some(PrivacySpent { epsilon, left, .. }) = record.privacy {
        let budget = left.map_or(String::new(), |left| format!(" of {:.2}", epsilon + left));
        text += &format!(", epsilon {epsilon:.2}{budget}");
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
