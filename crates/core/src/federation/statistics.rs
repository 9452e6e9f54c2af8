//! What is counted during a round: samples, losses, bytes, seconds, memory.

use fedanchor_engine::training::Context;
use fedanchor_record::{ClientNote, LabelAccuracy, Timing};
use std::time::Instant;

/// The figures of a round while its answers arrive.
#[derive(Debug, Default)]
pub(crate) struct RoundStatistics {
    /// Clients that sent an update.
    pub(crate) trained: usize,
    /// Samples of the clients that answered.
    pub(crate) seen: usize,
    /// Samples kept by them.
    pub(crate) kept: usize,
    /// Samples kept by each of them.
    kept_of: Vec<usize>,
    /// Admitted updates, and clients that had nothing to send.
    pub(crate) answers: usize,
    pub(crate) rejected: Vec<ClientNote>,
    pub(crate) failed: Vec<ClientNote>,
    pub(crate) absent: Vec<u32>,
    pub(crate) lost: Vec<ClientNote>,
    pub(crate) clipped: Vec<u32>,
    /// Those of them that can hardly be honest.
    pub(crate) far_outside: Vec<u32>,
    /// Pseudo-labels by class, of the clients that told.
    pub(crate) labels: Vec<u32>,
    pub(crate) bytes_down: u64,
    pub(crate) bytes_up: u64,
    losses: Vec<Average>,
}

impl RoundStatistics {
    /// Counts the samples that a client kept.
    pub(crate) fn add_kept(&mut self, kept: usize) {
        self.kept = self.kept.saturating_add(kept);
        self.kept_of.push(kept);
    }

    /// Standard deviation of the kept samples over clients, dividing by n - 1.
    pub(crate) fn kept_deviation(&self) -> Option<f64> {
        let count = self.kept_of.len() as f64;
        let mean = self.kept as f64 / count;
        let squares = self.kept_of.iter().map(|&kept| (kept as f64 - mean).powi(2));
        (self.kept_of.len() > 1).then(|| (squares.sum::<f64>() / (count - 1.0)).sqrt())
    }

    /// Counts a client's losses, at most so many.
    pub(crate) fn add_losses(&mut self, losses: &[Option<f64>], most: usize) {
        self.losses.resize_with(most, Average::default);
        for (average, loss) in self.losses.iter_mut().zip(losses) {
            average.add(loss.filter(|loss| loss.is_finite()));
        }
    }

    /// The clients' mean losses.
    pub(crate) fn losses(&self) -> Vec<Option<f64>> {
        self.losses.iter().map(Average::mean).collect()
    }
}

/// How often one head's labels were right; nothing for a head that does not label.
#[derive(Debug, Default)]
pub struct Accuracy {
    all: Average,
    kept: Average,
}

impl Accuracy {
    /// Counts a label.
    pub fn add(&mut self, right: bool, kept: bool) {
        let right = if right { 100.0 } else { 0.0 };
        self.all.add(Some(right));
        self.kept.add(kept.then_some(right));
    }

    /// In percent.
    pub fn percent(&self) -> LabelAccuracy {
        LabelAccuracy { all: self.all.mean(), kept: self.kept.mean() }
    }
}

#[derive(Debug, Default)]
struct Average {
    sum: f64,
    count: u32,
}

impl Average {
    fn add(&mut self, value: Option<f64>) {
        self.sum += value.unwrap_or_default();
        self.count += u32::from(value.is_some());
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Measures the phases of a round.
pub(crate) struct Clock {
    /// Seconds by phase.
    pub(crate) timing: Timing,
    start: Instant,
    last: Instant,
}

impl Clock {
    /// Starts with a round.
    pub(crate) fn start(round: u32) -> Self {
        let now = Instant::now();
        Self { timing: Timing { round, ..Timing::default() }, start: now, last: now }
    }

    /// Seconds since the last lap.
    pub(crate) fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let seconds = now.duration_since(self.last).as_secs_f64();
        self.last = now;
        seconds
    }

    /// The whole round, with the memory that it took.
    pub(crate) fn finish(self, context: &Context) -> Timing {
        Timing {
            total: self.start.elapsed().as_secs_f64(),
            peak_memory: peak_memory(),
            peak_gpu_memory: context.peak_gpu_memory(),
            ..self.timing
        }
    }
}

/// Largest resident memory of this process in bytes, where the system reports it.
pub fn peak_memory() -> Option<u64> {
    let status = fs_err::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_kept_samples_is_over_clients() {
        let mut statistics = RoundStatistics::default();
        assert_eq!(statistics.kept_deviation(), None);
        statistics.add_kept(10);
        assert_eq!(statistics.kept_deviation(), None);
        statistics.add_kept(14);
        statistics.add_kept(18);
        assert_eq!((statistics.kept, statistics.kept_deviation()), (42, Some(4.0)));
    }
}
