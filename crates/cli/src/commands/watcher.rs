//! What a person sees of a run while it goes on.

use super::grouped;
use crate::printer::Printer;
use fedanchor::config::MethodConfig;
use fedanchor::simulation::Simulation;
use fedanchor::{Experiment, Observer};
use fedanchor_record::{Outcome, RoundRecord, Timing};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Shows a bar on a terminal, and a line a round elsewhere or where several runs share the terminal.
pub(super) struct Watcher<'a> {
    printer: &'a Printer,
    bar: ProgressBar,
    out: PathBuf,
    rounds: u32,
    start: Instant,
    /// Before every line.
    name: String,
}

impl<'a> Watcher<'a> {
    /// Of the only run.
    pub(super) fn new(printer: &'a Printer, experiment: &Experiment, out: &Path) -> Self {
        let bar = printer.bar(experiment.rounds.into(), "round {pos}/{len} [{bar:12}] {msg}");
        let (rounds, name) = (experiment.rounds, String::new());
        Self { printer, bar, out: out.to_owned(), rounds, start: Instant::now(), name }
    }

    /// Of one run among several.
    pub(super) fn of_seed(printer: &'a Printer, experiment: &Experiment, out: &Path) -> Self {
        let (bar, name) = (ProgressBar::hidden(), format!("seed {}: ", experiment.seed));
        Self { bar, name, ..Self::new(printer, experiment, out) }
    }

    /// The bar, for others who talk.
    pub(super) fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// A line, whether or not a bar is shown.
    fn talk(&self, text: impl AsRef<str>) {
        self.bar.suspend(|| self.printer.talk(format!("{}{}", self.name, text.as_ref())));
    }

    /// Whatever in a round was not as it should be.
    fn warn(&self, record: &RoundRecord) {
        const NAMED: usize = 3;
        let RoundRecord { round, dropped, set_aside, .. } = record;
        let mut said = Vec::new();
        if !dropped.is_empty() {
            let named = dropped.iter().take(NAMED);
            let mut named: Vec<String> =
                named.map(|update| format!("client {} {}", update.client, update.reason)).collect();
            named.extend(
                dropped.len().checked_sub(NAMED + 1).map(|more| format!("{} more", more + 1)),
            );
            let updates = if dropped.len() == 1 { "update" } else { "updates" };
            said.push(format!("{} {updates} dropped: {}", dropped.len(), named.join("; ")));
        }
        if !set_aside.is_empty() {
            let clients: Vec<String> = set_aside.iter().map(u32::to_string).collect();
            said.push(format!("not asked again: client {}", clients.join(", ")));
        }
        match record.outcome {
            Outcome::Taken => {}
            Outcome::NoQuorum => said.push(
                "skipped: fewer good answers than checks.quorum asks for; the model stays as it was"
                    .to_owned(),
            ),
            Outcome::RolledBack => said.push(format!(
                "rolled back: with the clients' updates {:.1} % of the anchors are right, too few \
                 against the rounds before; the model stays as it was",
                record.anchor_accuracy.unwrap_or_default()
            )),
        }
        for text in said {
            self.talk(format!("note: round {round}: {text}"));
        }
    }

    fn has_bar(&self) -> bool {
        self.printer.is_terminal() && self.name.is_empty()
    }

    /// Time left, from the rounds done so far.
    fn left(&self, round: u32) -> String {
        if round == 0 {
            return "?".to_owned();
        }
        let each = self.start.elapsed() / round;
        let left = each * self.rounds.saturating_sub(round);
        let seconds = left.as_secs();
        if seconds >= 3600 {
            format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
        } else {
            format!("{}:{:02}", seconds / 60, seconds % 60)
        }
    }
}

impl Observer for Watcher<'_> {
    fn started(&mut self, simulation: &Simulation) {
        let setting = &simulation.setting;
        let experiment = &setting.experiment;
        let (parameters, _) = setting.network.parameter_counts();
        let clients = match experiment.method {
            MethodConfig::ServerOnly(_) => "no clients".to_owned(),
            _ => format!(
                "{} {} images on {} clients, {} a round",
                grouped(simulation.split.pool.len()),
                if experiment.method.sees_labels() { "labelled" } else { "unlabelled" },
                grouped(experiment.data.clients),
                experiment.client.per_round,
            ),
        };
        let announcement = format!(
            "{} on {}: {} anchors, {clients}; {} with {} parameters on {}; {}",
            experiment.method.name(),
            experiment.data.name,
            grouped(simulation.split.anchors.len()),
            experiment.model.name,
            grouped(parameters),
            experiment.device,
            self.out.display(),
        );
        self.talk(announcement);
        self.bar.enable_steady_tick(Duration::from_millis(500));
        self.start = Instant::now();
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        let RoundRecord { round, test_accuracy, kept, seen, .. } = record;
        if *round == 0 {
            self.start = Instant::now();
        }
        let left = self.left(*round);
        self.bar.set_position((*round).into());
        self.bar.set_message(format!(
            "accuracy {test_accuracy:.2} %, kept {kept} of {seen}, {left} left"
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
                ", kept {kept} of {seen}, labels right {} of all and {} of the kept",
                right(labels.all),
                right(labels.kept)
            ),
            None => String::new(), // true labels, or no clients
        };
        self.talk(if *round == 0 {
            format!("pre-trained: accuracy {test_accuracy:.2} %, {:.1} s", timing.total)
        } else {
            format!(
                "round {round}/{}: accuracy {test_accuracy:.2} %{labels}, {:.1} s, {left} left",
                self.rounds, timing.total,
            )
        });
    }

    fn comparing(&mut self) {
        self.bar.set_message("training on the anchors alone, to compare");
        if !self.has_bar() {
            self.talk("training on the anchors alone, to compare");
        }
    }

    fn notice(&mut self, text: &str) {
        self.talk(format!("note: {text}"));
    }
}
