//! What is counted during a round: labels, losses, bytes, seconds, memory.

use crate::method::{Kept, Update};
use fedanchor_record::{Dropped, LabelAccuracy, Losses};
use std::time::Instant;

/// The figures of a round while its clients report.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) trained: usize,
    pub(crate) seen: usize,
    pub(crate) kept: usize,
    pub(crate) anchor: Right,
    pub(crate) classifier: Right,
    pub(crate) fix: Average,
    pub(crate) mix: Average,
    /// Taken over when the round's clients are done, so that they can be trained once more.
    pub(crate) kept_by_clients: Vec<(u32, Kept)>,
    /// Updates that the method wants to see one by one.
    pub(crate) heard: Vec<Update>,
    pub(crate) dropped: Vec<Dropped>,
    /// Good updates, and clients that had nothing to send.
    pub(crate) answers: usize,
    pub(crate) bytes_down: u64,
    pub(crate) bytes_up: u64,
}

impl Tally {
    pub(crate) fn add_losses(&mut self, losses: &Losses) {
        self.fix.add(losses.client_fix);
        self.mix.add(losses.client_mix);
    }
}

/// How often one head's labels were right; nothing for a head that was not asked.
#[derive(Debug, Default)]
pub(crate) struct Right {
    all: Average,
    kept: Average,
}

impl Right {
    pub(crate) fn add(&mut self, right: bool, kept: bool) {
        let right = if right { 100.0 } else { 0.0 };
        self.all.add(Some(right));
        self.kept.add(kept.then_some(right));
    }

    pub(crate) fn accuracy(&self) -> LabelAccuracy {
        LabelAccuracy { all: self.all.mean(), kept: self.kept.mean() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Average {
    sum: f64,
    count: u32,
}

impl Average {
    pub(crate) fn add(&mut self, value: Option<f64>) {
        self.sum += value.unwrap_or_default();
        self.count += u32::from(value.is_some());
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Seconds since the last look.
pub(crate) struct Watch {
    pub(crate) start: Instant,
    last: Instant,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self { start: now, last: now }
    }

    pub(crate) fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = now.duration_since(self.last).as_secs_f64();
        self.last = now;
        seconds
    }
}

/// Largest resident memory of this process in bytes, where the system tells it.
pub fn peak_memory() -> Option<u64> {
    let status = fs_err::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
