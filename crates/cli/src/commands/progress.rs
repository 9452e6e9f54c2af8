//! The progress of runs: a bar in a terminal, lines elsewhere.

use super::rounds::{self, Pace};
use super::{counted, grouped};
use crate::cli::TrainingArgs;
use crate::printer::Printer;
use fedanchor::{Experiment, Federation, Observer};
use fedanchor_data::Partition;
use fedanchor_record::{ClientLabels, Incidents, RoundRecord, Timing};
use fedanchor_report::EventFile;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
                self.status(rounds::line(record, Some(timing), Some(self.rounds), left));
            }
            return;
        }
        self.bar.set_position(record.round.into());
        self.bar.set_message(rounds::after_bar(record, Some(timing), left));
        rounds::notes(record).iter().for_each(|note| self.status(format!("note: {note}")));
        if self.bar.is_hidden() {
            self.status(rounds::line(record, Some(timing), Some(self.rounds), left));
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
