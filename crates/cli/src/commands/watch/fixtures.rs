//! Runs for tests, as a follower would return them.

use fedanchor_record::{RoundRecord, Timing};
use fedanchor_report::{LiveRun, Status};

pub(super) fn record(round: u32) -> RoundRecord {
    RoundRecord { round, test_accuracy: 50.0, ..RoundRecord::default() }
}

/// A run in progress with rounds 0 to `rounds - 1`, of an unknown experiment.
pub(super) fn run(path: &str, rounds: u32) -> LiveRun {
    LiveRun {
        status: Status::Running,
        planned: Some(4),
        rounds: (0..rounds).map(record).collect(),
        timings: (0..rounds)
            .map(|round| Timing { round, total: 2.0, ..Timing::default() })
            .collect(),
        ..LiveRun::new(path.into())
    }
}
