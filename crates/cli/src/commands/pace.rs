//! How fast a run goes and how long it will take.

use fedanchor_record::Timing;
use std::time::{Duration, Instant};

/// Steps that are alike: the pictures that are read, or epochs.
pub(super) struct Steps {
    /// The first step is slower than the others.
    after_first: Option<(usize, Instant)>,
    /// When a line was printed.
    told: Instant,
}

impl Steps {
    /// Lines come at most this often where no bar is shown.
    const PAUSE: Duration = Duration::from_secs(20);

    pub(super) fn start() -> Self {
        Self { after_first: None, told: Instant::now() }
    }

    /// Seconds per step; `None` before the second one is done.
    pub(super) fn each(&mut self, done: usize) -> Option<f64> {
        if done == 0 {
            return None;
        }
        let (first, since) = *self.after_first.get_or_insert_with(|| (done, Instant::now()));
        let steps = done.checked_sub(first).filter(|&steps| steps > 0)?;
        Some(since.elapsed().as_secs_f64() / steps as f64)
    }

    /// `120 of at most 400, 0:40 left`, where `most` is `at most `.
    pub(super) fn text(&mut self, done: usize, most: &str, planned: usize) -> String {
        let left = self.each(done).map(|each| each * planned.saturating_sub(done) as f64);
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let left = left.map_or(String::new(), |left| format!(", {} left", clock(left)));
        format!("{done} of {most}{planned}{left}")
    }

    /// Whether it is time for a line.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.told.elapsed() >= Self::PAUSE;
        if due {
            self.told = Instant::now();
        }
        due
    }
}

/// The mean time per round, which tells how long the others will take. Rounds that an earlier process did are not
/// included: it may have had another device.
#[derive(Default)]
pub(super) struct Pace {
    rounds: u32,
    seconds: f64,
    /// Seconds of what comes after the rounds.
    pub(super) after: f64,
}

impl Pace {
    /// Adds a round. Returns the time left after it; `None` after pre-training, which says nothing about the rounds, and
    /// after the last round.
    pub(super) fn add(&mut self, timing: &Timing, planned: u32) -> Option<Duration> {
        if timing.round == 0 {
            return None;
        }
        self.rounds += 1;
        self.seconds += timing.total;
        let to_do = planned.checked_sub(timing.round).filter(|&rounds| rounds > 0)?;
        let each = self.seconds / f64::from(self.rounds);
        Duration::try_from_secs_f64(each * f64::from(to_do) + self.after).ok()
    }
}

/// `4:05`, `1:00:00`.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_per_round_as_the_rounds_so_far() {
        let timing = |round, total| Timing { round, total, ..Timing::default() };
        let mut pace = Pace::default();
        assert_eq!(pace.add(&timing(0, 1000.0), 10), None);
        assert_eq!(pace.add(&timing(1, 8.0), 10), Some(Duration::from_secs(9 * 8)));
        assert_eq!(pace.add(&timing(2, 12.0), 10), Some(Duration::from_secs(8 * 10)));
        assert_eq!(pace.add(&timing(10, 10.0), 10), None);
        // Resumed after round 41: an hour for round 42 means eight more hours.
        let resumed = Pace::default().add(&timing(42, 3600.0), 50);
        assert_eq!(clock(resumed.unwrap()), "8:00:00");
    }
}
