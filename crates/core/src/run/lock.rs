//! A run folder belongs to one process: the one that holds the lock of its records. The system releases the
//! lock of a process that dies, which it would not do for a file with a process number in it.

use crate::error::{Error, Result};
use fs_err::File;
use std::fs::TryLockError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Who watches a run shares the lock for an instant: a start in that instant tries again this often.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock, which is held until the file is closed.
pub(super) fn lock(folder: &Path, records: &File) -> Result<()> {
    let mut taken = records.file().try_lock();
    for _ in 1..TRIES {
        if !matches!(taken, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(PAUSE);
        taken = records.file().try_lock();
    }
    match taken {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let number = holder(records).map(|number| format!(" (number {number})"));
            let problem = format!(
                "another process{} is writing to this folder: wait until it has ended, or choose another \
                 folder with --out",
                number.unwrap_or_default()
            );
            Err(Error::file(folder, problem))
        }
        Err(TryLockError::Error(error)) => {
            Err(Error::file(records.path(), format!("cannot be locked: {error}")))
        }
    }
}

/// The process that holds the lock of a file, where the system tells.
fn holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    holder_in(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// Of a list as Linux writes it: `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`. Without the device, which
/// is another one there on layered file systems; two holders of one inode number are no answer.
fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = words[..] else { return None };
        let same = place.rsplit(':').next()?.parse() == Ok(inode);
        process.parse().ok().filter(|process| same && *process > 0)
    });
    let first = holders.next()?;
    holders.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_holder_is_found_among_all_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 12 08:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:01:1234 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 08:01:88 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 14 08:01:99 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 15 00:2a:99 0 EOF\n";
        assert_eq!(holder_in(locks, 1234), Some(4711));
        assert_eq!(holder_in(locks, 77), None); // a lock of another kind
        assert_eq!(holder_in(locks, 88), None); // a process that cannot be seen from here
        assert_eq!(holder_in(locks, 99), None); // two files of that number
        assert_eq!(holder_in(locks, 5), None);
    }

    #[test]
    fn a_second_lock_is_refused_with_the_number_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let first = File::create(&path).unwrap();
        lock(folder.path(), &first).unwrap();
        let problem = lock(folder.path(), &File::open(&path).unwrap()).unwrap_err().to_string();
        assert!(problem.contains("another process") && problem.contains("wait until"), "{problem}");
        assert!(!problem.contains("remove"), "{problem}");
        drop(first);
        lock(folder.path(), &File::open(&path).unwrap()).unwrap();
    }
    #[test]
    fn someone_who_watches_keeps_nobody_from_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        File::create(&path).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(File::open(&path).unwrap().file().try_lock_shared());
                    std::thread::yield_now();
                }
            });
            let taken =
                (0..1000).try_for_each(|_| lock(folder.path(), &File::open(&path).unwrap()));
            done.store(true, Ordering::Relaxed);
            taken.unwrap();
        });
    }
}
