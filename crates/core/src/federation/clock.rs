//! Seconds and memory of a round.

use fedanchor_engine::training::Context;
use fedanchor_record::Timing;
use std::time::Instant;

pub(crate) struct Clock {
    pub(crate) timing: Timing,
    start: Instant,
    last: Instant,
}

impl Clock {
    pub(crate) fn start(round: u32) -> Self {
        let now = Instant::now();
        Self { timing: Timing { round, ..Timing::default() }, start: now, last: now }
    }

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
