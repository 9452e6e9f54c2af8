//! What a person sees of a run in progress.

use super::pace::Pace;
use super::{counted, grouped};
use crate::printer::Printer;
use fedanchor::{Experiment, Observer, Simulation};
use fedanchor_record::{ClientNote, Outcome, RoundRecord, Timing};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shows a bar on a terminal, and one line per round elsewhere or where several runs share the terminal.
pub(super) struct Progress<'a> {
    printer: &'a Printer,
    bar: ProgressBar,
    out: PathBuf,
    rounds: u32,
    pace: Pace,
    /// Before every line.
    name: String,
    /// Whether clients know the true labels.
    sees_labels: bool,
}

impl<'a> Progress<'a> {
    /// Of a single run.
    pub(super) fn new(printer: &'a Printer, experiment: &Experiment, out: &Path) -> Self {
        let bar = printer.bar(experiment.rounds.into(), "round {pos}/{len} [{bar:12}] {msg}");
        let (rounds, name) = (experiment.rounds, String::new());
        let (out, pace) = (out.to_owned(), Pace::start());
        Self { printer, bar, out, rounds, pace, name, sees_labels: false }
    }

    /// Of one run among several.
    pub(super) fn of_seed(printer: &'a Printer, experiment: &Experiment, out: &Path) -> Self {
        let (bar, name) = (ProgressBar::hidden(), format!("seed {}: ", experiment.seed));
        Self { bar, name, ..Self::new(printer, experiment, out) }
    }

    /// The bar, for other messages to suspend.
    pub(super) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// A line, whether or not a bar is shown.
    fn status(&self, text: impl AsRef<str>) {
        self.bar.suspend(|| self.printer.status(format!("{}{}", self.name, text.as_ref())));
    }

    /// Whatever went wrong in a round.
    fn warn(&self, record: &RoundRecord) {
        let RoundRecord { round, rejected, failed, excluded, .. } = record;
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
        for note in notes {
            self.status(format!("note: round {round}: {note}"));
        }
    }

    fn has_bar(&self) -> bool {
        self.printer.is_terminal() && self.name.is_empty()
    }
}

impl Observer for Progress<'_> {
    fn started(&mut self, simulation: &Simulation) {
        let Simulation { experiment, context, method, .. } = simulation;
        let (parameters, _) = context.network.parameter_counts();
        let images = simulation.split.pool.len();
        let clients = match method.has_clients() {
            false => "no clients".to_owned(),
            true => format!(
                "{} on {}, {} per round",
                match method.sees_labels() {
                    true => counted(images, "labelled image", "labelled images"),
                    false => counted(images, "unlabelled image", "unlabelled images"),
                },
                counted(experiment.data.clients, "client", "clients"),
                experiment.client.per_round,
            ),
        };
        let announcement = format!(
            "{} on {}: {}, {clients}; {} with {} parameters on {}; {}",
            experiment.method.name,
            experiment.data.name,
            counted(simulation.split.anchors.len(), "anchor", "anchors"),
            experiment.model.name,
            grouped(parameters),
            experiment.device,
            self.out.display(),
        );
        self.status(announcement);
        self.sees_labels = method.sees_labels();
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.pace = Pace::start();
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        let RoundRecord { round, test_accuracy, kept, seen, .. } = record;
        let validation = record.validation_accuracy;
        let validation =
            validation.map_or(String::new(), |accuracy| format!(" (validation: {accuracy:.2} %)"));
        let left = self.pace.after(*round, self.rounds).map_or("?".to_owned(), clock);
        self.bar.set_position((*round).into());
        self.bar.set_message(format!(
            "accuracy {test_accuracy:.2} %{validation}, kept {kept} of {seen}, {left} left"
        ));
        self.warn(record);
        if self.has_bar() {
            return;
        }
        // The head that labels: the anchor head where there is one.
        let labels = match record.anchor_head.all {
            Some(_) => record.anchor_head,
            None => record.classifier_head,
        };
        let right = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1} %"));
        let labels = match labels.all {
            Some(_) => format!(
                ", kept {kept} of {seen}, pseudo-label accuracy {} (kept: {})",
                right(labels.all),
                right(labels.kept)
            ),
            // Nobody knows how many are right.
            None if *seen > 0 && !self.sees_labels => format!(", kept {kept} of {seen}"),
            None => String::new(),
        };
        self.status(if *round == 0 {
            let epochs = record.pretrain_epochs;
            let epochs = epochs.map_or(String::new(), |epochs| {
                format!(" for {}", counted(epochs, "epoch", "epochs"))
            });
            format!(
                "pre-trained{epochs}: accuracy {test_accuracy:.2} %{validation}, {:.1} s",
                timing.total
            )
        } else {
            format!(
                "round {round}/{}: accuracy {test_accuracy:.2} %{validation}{labels}, {:.1} s, {left} left",
                self.rounds, timing.total,
            )
        });
    }

    fn comparing(&mut self) {
        self.bar.set_message("training on the anchors alone for comparison");
        if !self.has_bar() {
            self.status("training on the anchors alone for comparison");
        }
    }

    fn notice(&mut self, text: &str) {
        self.status(format!("note: {text}"));
    }
}

/// `4:05`, `1:00:00`.
fn clock(time: Duration) -> String {
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
