//! Follows a run while it is written, without disturbing it.
//!
//! A [`Follower`] looks at a run folder when it is polled. If a file has changed, it reads all records again, which takes
//! milliseconds. Reading only the appended lines was rejected: it needs checks of whether a resumed run has truncated or
//! replaced a file. A follower has neither clock nor thread: lines in a terminal and a page in a browser poll at their
//! own pace.

mod folder;
mod live_run;
mod writer;

pub use folder::Followers;
pub use live_run::{LiveRun, Status};

use crate::error::Result;
use crate::records::{complete_lines, read_rounds, read_timings};
use crate::run_files::RunFiles;
use crate::runs::read_summary;
use crate::setup::Setup;
use fedanchor_record::files;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use writer::Writer;

/// The files that are read.
const FILES: [&str; 4] = [files::CONFIG, files::ROUNDS, files::TIMINGS, files::SUMMARY];

/// Follows the run in one folder, which need not exist yet.
#[derive(Debug)]
pub struct Follower {
    /// The run as it was at the last look.
    pub run: LiveRun,
    stamps: [Found; 4],
    /// What is wrong with each file.
    problems: [Option<String>; 4],
    /// Whether the records end within a line.
    is_torn: bool,
    writer: Writer,
}

/// What a file looks like from outside; `None` if there is no file, or why that cannot be told.
type Found = Result<Option<Stamp>, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    inode: u64,
    modified: SystemTime,
}

impl Follower {
    /// Of a run folder; nothing is read yet.
    pub fn new(folder: PathBuf) -> Self {
        Self {
            run: LiveRun::new(folder),
            stamps: FILES.map(|_| Ok(None)),
            problems: FILES.map(|_| None),
            is_torn: false,
            writer: Writer::default(),
        }
    }

    /// Looks at the folder; whether anything has changed.
    pub fn poll(&mut self) -> bool {
        let now = SystemTime::now();
        let stamps = FILES.map(|name| stamp(&self.run.path.join(name)));
        let before = (stamps != self.stamps).then(|| {
            self.stamps = stamps;
            let fresh = self.read();
            std::mem::replace(&mut self.run, fresh)
        });
        let grew = before.as_ref().is_some_and(|run| run.rounds.len() < self.run.rounds.len());
        let status = self.status(grew, now);
        let changed = std::mem::replace(&mut self.run.status, status) != status;
        if changed || before.is_some() {
            self.run.problems = self.list_problems();
        }
        // The beginning of a line changes nothing but the time.
        before.map_or(changed, |run| LiveRun { recorded: self.run.recorded, ..run } != self.run)
    }

    /// Reads the files as they are now.
    fn read(&mut self) -> LiveRun {
        let folder = RunFiles::unchecked(&self.run.path);
        let [config, rounds, timings, summary] = &self.stamps;
        let mut run = LiveRun::new(self.run.path.clone());
        run.started = modified(config);
        run.recorded = modified(rounds);
        let (setup, config) = read(config, || Setup::read(&folder));
        if let Some(setup) = setup {
            run.seed = setup.number("seed");
            run.planned = setup.number("rounds").and_then(|rounds| rounds.try_into().ok());
            run.heading = Some(setup.heading);
        }
        let (bytes, rounds) = read(rounds, || folder.bytes(files::ROUNDS));
        let (lines, is_torn) = complete_lines(&bytes.unwrap_or_default());
        let (records, damage) = read_rounds(&lines);
        let rounds = rounds.or(damage.map(|damage| {
            let last = records.last();
            let shown = last.map_or(String::new(), |r| format!(": shown up to round {}", r.round));
            format!("{}: {damage}{shown}", files::ROUNDS)
        }));
        run.rounds = records;
        let (bytes, timings) = read(timings, || folder.bytes(files::TIMINGS));
        let (records, damage) = read_timings(&complete_lines(&bytes.unwrap_or_default()).0);
        let timings = timings.or(damage.map(|damage| format!("{}: {damage}", files::TIMINGS)));
        run.timings = records;
        let summary = read(summary, || read_summary(&folder));
        run.summary = summary.0;
        self.problems = [config, rounds, timings, summary.1];
        self.is_torn = is_torn;
        run
    }

    fn status(&mut self, grew: bool, now: SystemTime) -> Status {
        let longest = self.run.timings.iter().map(LiveRun::seconds).fold(0.0, f64::max);
        let longest = Duration::try_from_secs_f64(longest).unwrap_or(Duration::MAX);
        let records = self.run.path.join(files::ROUNDS);
        let written = self
            .run
            .recorded
            .is_some_and(|recorded| self.writer.is_there(&records, recorded, grew, longest, now));
        match &self.run.summary {
            _ if written => Status::Running,
            _ if self.run.recorded.is_none() && self.run.started.is_none() => Status::Missing,
            Some(summary) if summary.rounds >= summary.rounds_planned => Status::Finished,
            _ => Status::Stopped,
        }
    }

    fn list_problems(&self) -> Vec<String> {
        let [config, rounds, timings, summary] = self.problems.clone();
        // While the run is written, the rest of the line is on its way.
        let torn = self.is_torn && self.run.status != Status::Running;
        let torn = torn.then(|| format!("{}: the last line is incomplete", files::ROUNDS));
        [config, rounds.or(torn), timings, summary].into_iter().flatten().collect()
    }
}

/// What a file looks like. Opening anything but a regular file, a pipe for example, might wait forever.
fn stamp(path: &Path) -> Found {
    match fs_err::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(format!("{}: not a file", path.display())),
        Ok(metadata) => Ok(Some(Stamp {
            length: metadata.len(),
            inode: metadata.ino(),
            modified: metadata.modified().map_err(|error| error.to_string())?,
        })),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}

fn modified(found: &Found) -> Option<SystemTime> {
    found.as_ref().ok()?.map(|stamp| stamp.modified)
}

/// Reads a file if it exists, and says what is wrong with it.
fn read<T>(found: &Found, read: impl FnOnce() -> Result<T>) -> (Option<T>, Option<String>) {
    match found {
        Ok(None) => (None, None),
        Ok(Some(_)) => match read() {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error.in_run_folder())),
        },
        Err(problem) => (None, Some(problem.clone())),
    }
}
