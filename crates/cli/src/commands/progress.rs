//! What a person sees of a run in progress.

use super::pace::Pace;
use super::{counted, grouped, round_text};
use crate::printer::Printer;
use fedanchor::{Experiment, Federation, Observer};
use fedanchor_data::Partition;
use fedanchor_record::ClientLabels;
use fedanchor_record::{RoundRecord, Timing};
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
}

impl<'a> Progress<'a> {
    /// Of a single run.
    pub(super) fn new(printer: &'a Printer, experiment: &Experiment, out: &Path) -> Self {
        let bar = printer.bar(experiment.rounds.into(), "round {pos}/{len} [{bar:12}] {msg}");
        let (rounds, name) = (experiment.rounds, String::new());
        Self { printer, bar, out: out.to_owned(), rounds, pace: Pace::start(), name }
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

    fn has_bar(&self) -> bool {
        self.printer.is_terminal() && self.name.is_empty()
    }
}

impl Observer for Progress<'_> {
    fn started(&mut self, federation: &Federation, simulated: Option<&Partition>) {
        let Federation { experiment, context, method, split, .. } = federation;
        let properties = method.properties();
        let (parameters, _) = context.network.parameter_counts();
        let images = split.pool.len();
        let clients = match properties.clients {
            false => "no clients".to_owned(),
            // Those of a fleet, of which nothing is known yet.
            true if simulated.is_none() => format!(
                "{} of a fleet, {} per round",
                counted(experiment.data.clients, "client", "clients"),
                experiment.client.per_round
            ),
            true => format!(
                "{} on {}, {} per round",
                match properties.labels == ClientLabels::True {
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
            counted(split.anchors.len(), "anchor", "anchors"),
            experiment.model.name,
            grouped(parameters),
            experiment.device,
            self.out.display(),
        );
        self.status(announcement);
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.pace = Pace::start();
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        let RoundRecord { round, test_accuracy, kept, seen, .. } = record;
        let left = self.pace.after(*round, self.rounds).map_or("?".to_owned(), round_text::clock);
        let validation = round_text::validation(record);
        self.bar.set_position((*round).into());
        self.bar.set_message(format!(
            "accuracy {test_accuracy:.2} %{validation}, kept {kept} of {seen}, {left} left"
        ));
        for note in round_text::notes(record) {
            self.status(format!("note: round {round}: {note}"));
        }
        if self.has_bar() {
            return;
        }
        let line = round_text::line(record, Some(timing), Some(self.rounds));
        self.status(if *round == 0 { line } else { format!("{line}, {left} left") });
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
