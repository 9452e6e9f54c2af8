//! How long a run will still take.

use std::time::{Duration, Instant};

/// The rounds of this process by the clock: those that an earlier process did took none of its time.
pub(super) struct Pace {
    start: Instant,
    /// Rounds that were done when the clock was started; known from the first round on.
    before: Option<u32>,
}

impl Pace {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), before: None }
    }

    /// To be told of every round; the time left after this one. None after round 0, which is pre-training
    /// and says nothing about the rounds.
    pub(super) fn after(&mut self, round: u32, rounds: u32) -> Option<Duration> {
        if round == 0 {
            *self = Self { start: Instant::now(), before: Some(0) };
        }
        let before = *self.before.get_or_insert(round.saturating_sub(1));
        left(self.start.elapsed(), round - before, rounds.saturating_sub(round))
    }
}

fn left(elapsed: Duration, done: u32, to_do: u32) -> Option<Duration> {
    (done > 0).then(|| elapsed / done * to_do)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_per_round_as_the_rounds_so_far() {
        let seconds = Duration::from_secs;
        assert_eq!(left(seconds(0), 0, 10), None);
        assert_eq!(left(seconds(30), 3, 7), Some(seconds(70)));
        assert_eq!(left(seconds(30), 3, 0), Some(seconds(0)));
    }

    #[test]
    fn rounds_of_an_earlier_process_do_not_count() {
        // A whole run counts from pre-training on.
        let mut whole = Pace::start();
        assert_eq!(whole.after(0, 50), None);
        assert!(whole.after(1, 50).is_some());
        assert_eq!(whole.before, Some(0));
        // Resumed after round 41: an hour for round 42 means eight more hours, not ten minutes.
        let mut resumed = Pace::start();
        resumed.start -= Duration::from_secs(3600);
        let left = resumed.after(42, 50).unwrap();
        assert_eq!((resumed.before, left.as_secs() / 3600), (Some(41), 8));
    }
}
