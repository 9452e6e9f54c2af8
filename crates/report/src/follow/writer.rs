//! Whether a process writes to a run folder.
//!
//! A run holds the lock of its `rounds.jsonl` as long as it lives, whatever ends it. Nothing can ask for the
//! state of such a lock but an attempt to share it, which succeeds where no run holds it and is undone at
//! once; a run that starts in that instant tries again. Where locks do not reach, as on some network file
//! systems, the age of the records decides.

use std::fs::TryLockError;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A run without news for this long has ended, unless its rounds take longer.
const QUIET: Duration = Duration::from_secs(600);
/// Rounds without news after which a run has ended.
const QUIET_ROUNDS: u32 = 3;
/// Looks at which a free lock was found to have been written past, after which it cannot be visible from here.
/// One of them can be a short run that was resumed and ended in between.
const UNSEEN: u32 = 2;

/// What is known about the writer of a run folder.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// The lock was free when it was last looked at.
    was_free: bool,
    /// Looks at which there were more records although the lock had been free, and was again.
    unseen: u32,
}

impl Writer {
    /// Whether a process writes records into this file, which was last written at `recorded`. `grew` says that there are
    /// more than at the last look, and `longest` is the time of the longest round so far.
    pub(super) fn is_there(
        &mut self,
        records: &Path,
        recorded: SystemTime,
        grew: bool,
        longest: Duration,
        now: SystemTime,
    ) -> bool {
        let held = is_held(records);
        if held == Some(true) {
            *self = Self::default();
            return true;
        }
        self.unseen += u32::from(grew && self.was_free);
        self.was_free = held == Some(false);
        let age = now.duration_since(recorded).unwrap_or_default();
        (held.is_none() || self.unseen >= UNSEEN)
            && age < QUIET.max(longest.saturating_mul(QUIET_ROUNDS))
    }
}

/// Whether another process holds the lock of a file; `None` if that cannot be found out.
fn is_held(path: &Path) -> Option<bool> {
    let file = fedanchor_disk::open(path).ok()?;
    match file.try_lock_shared() {
        Ok(()) => Some(false), // closing the file releases it
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_lock_tells_and_otherwise_the_age() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.jsonl");
        let records = File::create(&path).unwrap();
        let recorded = fs_err::metadata(&path).unwrap().modified().unwrap();
        let round = Duration::from_secs(1000);
        let mut writer = Writer::default();
        let mut look = |grew, later| {
            let now = recorded + Duration::from_secs(later);
            writer.is_there(&path, recorded, grew, round, now)
        };
        // A lock is held however long nothing happens, and is free however short ago something did.
        records.lock().unwrap();
        assert!(look(true, 0) && look(false, 1_000_000));
        records.unlock().unwrap();
        assert!(!look(true, 0)); // the last round, and then the end
        assert!(!look(false, 0));
        assert!(!look(true, 0)); // resumed and ended between two looks
        assert!(!look(false, 0));
        // Again more rounds without a lock: from now on the age of the records decides.
        assert!(look(true, 0) && look(false, 2999));
        assert!(!look(false, 3000));
        assert!(look(true, 0));
        // A lock is seen after all.
        records.lock().unwrap();
        assert!(look(false, 0));
        records.unlock().unwrap();
        assert!(!look(false, 0));
        // Nobody else was kept from it.
        assert!(records.try_lock().is_ok());
    }
}
