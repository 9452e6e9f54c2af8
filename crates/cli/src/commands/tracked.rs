//! A run with an event file for TensorBoard, beside whatever else shows it.

use fedanchor::{Federation, Observer};
use fedanchor_data::Partition;
use fedanchor_record::{RoundRecord, Timing};
use fedanchor_report::EventFile;
use std::path::Path;

/// Passes on what happens in a run, and adds its rounds to its event file.
pub(super) struct Tracked<'a> {
    shown: &'a mut dyn Observer,
    events: Option<EventFile>,
}

impl<'a> Tracked<'a> {
    /// Of a run into this folder, with an event file if it is asked for. A run that has one already keeps
    /// it up to date: the command that resumes it need not repeat the option.
    pub(super) fn new(shown: &'a mut dyn Observer, tensorboard: bool, out: &Path) -> Self {
        let events = (tensorboard || EventFile::exists(out)).then(|| EventFile::new(out));
        Self { shown, events }
    }

    /// After the run.
    pub(super) fn finish(mut self) {
        let finished = self.events.take().map(EventFile::finish);
        self.report(finished);
    }

    /// The records are complete without the event file: a failure to write it must not end the run.
    fn report(&mut self, written: Option<fedanchor_report::Result<()>>) {
        if let Some(Err(error)) = written {
            self.events = None;
            self.shown.notice(&format!(
                "no more events for TensorBoard: {error}; `fedanchor run --resume` with `--tensorboard` writes \
                 all of them"
            ));
        }
    }
}

impl Observer for Tracked<'_> {
    fn started(&mut self, federation: &Federation, clients: Option<&Partition>) {
        self.shown.started(federation, clients);
    }

    fn round(&mut self, record: &RoundRecord, timing: &Timing) {
        self.shown.round(record, timing);
        let written = self.events.as_mut().map(|events| events.add(record, timing));
        self.report(written);
    }

    fn comparing(&mut self) {
        self.shown.comparing();
    }

    fn notice(&mut self, text: &str) {
        self.shown.notice(text);
    }
}
