//! Follows runs while they are written, without disturbing them: one run, or all in a folder, as a sweep writes it.
//!
//! A [`Follower`] looks at a run folder when it is polled. If a file has changed, it reads all records again, which takes
//! milliseconds. Reading only the appended lines was rejected: it needs checks of whether a resumed run has truncated or
//! replaced a file. A follower has neither clock nor thread: lines in a terminal and a page in a browser poll at their
//! own pace.

mod writer;

use crate::error::{ReportError, Result};
use crate::heading::Heading;
use crate::history::Histories;
use crate::run_files::{RunFiles, complete_lines, read_rounds, read_timings};
use crate::runs::{Folders, find_folders};
use crate::setup::{Complete, Setup};
use crate::table::Average;
use fedanchor_record::{RoundRecord, Summary, Timing, files};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use writer::Writer;

/// The files that are read.
const FILES: [&str; 4] = [files::CONFIG, files::ROUNDS, files::TIMINGS, files::SUMMARY];
/// Rounds whose mean time tells how long the others will take.
const PACE: usize = 10;
/// Looks at the runs in progress between two searches for new ones, which cost more.
const LOOKS: u32 = 4;

/// A run as far as it was written when it was last looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveRun {
    /// Its folder.
    pub path: PathBuf,
    /// Whether it is running.
    pub status: Status,
    /// The settings that identify it to a reader, if its config could be read.
    pub heading: Option<Heading>,
    /// Its seed.
    pub seed: Option<u64>,
    /// Rounds planned.
    pub planned: Option<u32>,
    /// When it was started or resumed.
    pub started: Option<SystemTime>,
    /// When its last round was recorded.
    pub recorded: Option<SystemTime>,
    /// Its rounds, from round 0.
    pub rounds: Vec<RoundRecord>,
    /// Seconds by phase, from round 0; may be behind the rounds by one.
    pub timings: Vec<Timing>,
    /// Its summary, written when the rounds end.
    pub summary: Option<Summary>,
    /// What cannot be read, and was skipped.
    pub problems: Vec<String>,
}

/// Whether a run is running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Status {
    /// There is no run in the folder, or not yet.
    #[default]
    Missing,
    /// A process writes to the folder.
    Running,
    /// All rounds are done.
    Finished,
    /// Rounds are left, and no process runs them.
    Stopped,
}

impl LiveRun {
    /// A run of which nothing is known yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// The last round.
    pub fn last(&self) -> Option<&RoundRecord> {
        self.rounds.last()
    }

    /// The timing of a round.
    pub fn timing(&self, round: u32) -> Option<&Timing> {
        self.timings.iter().rev().find(|timing| timing.round == round)
    }

    /// Whether all rounds are done, but not the comparison with the anchors alone.
    pub fn is_comparing(&self) -> bool {
        let done = |summary: &Summary| summary.rounds >= summary.rounds_planned;
        self.status == Status::Running && self.summary.as_ref().is_some_and(done)
    }

    /// Time spent on the rounds until now, without the time between a stop and a resume.
    pub fn elapsed(&self, now: SystemTime) -> Duration {
        let rounds: f64 = self.timings.iter().map(Self::seconds).sum();
        let total = match &self.summary {
            Some(summary) if self.status != Status::Running => summary.seconds,
            _ => rounds,
        };
        let total = Duration::try_from_secs_f64(total).unwrap_or_default();
        total.saturating_add(self.since_last_round(now))
    }

    /// Time that the rounds to come will take; `None` if that cannot be told.
    pub fn remaining(&self, now: SystemTime) -> Option<Duration> {
        let to_do = self.planned?.checked_sub(self.last()?.round).filter(|&rounds| rounds > 0)?;
        if self.status != Status::Running {
            return None;
        }
        // Pre-training says nothing about the rounds.
        let last = self.timings.iter().rev().take(PACE).filter(|timing| timing.round > 0);
        let each = Average::of(last.map(Self::seconds)).mean;
        let all = Duration::try_from_secs_f64(each * f64::from(to_do)).ok()?;
        Some(all.saturating_sub(self.since_last_round(now)))
    }

    fn since_last_round(&self, now: SystemTime) -> Duration {
        let since = self.recorded.max(self.started);
        let since = since.filter(|_| self.status == Status::Running && !self.is_comparing());
        // A clock that was set back, or that of another machine.
        since.and_then(|since| now.duration_since(since).ok()).unwrap_or_default()
    }

    /// The seconds of a round; 0 if the record is absurd.
    fn seconds(timing: &Timing) -> f64 {
        if timing.total > 0.0 { timing.total } else { 0.0 }
    }
}

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
        let (setup, config) = read(config, || Setup::read(&folder, &|_| None));
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
        let summary = read(summary, || folder.json(files::SUMMARY));
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

/// The runs in a folder, which need not exist yet.
#[derive(Debug)]
pub struct Followers {
    /// The folder.
    pub folder: PathBuf,
    /// The runs, the one that was started last first.
    pub runs: Vec<Follower>,
    /// Why the folder could not be searched the last time.
    pub problem: Option<String>,
    looks: u32,
}

impl Followers {
    /// Of a folder; nothing is read yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, runs: Vec::new(), problem: None, looks: 0 }
    }

    /// The runs as they are now, for a report. Runs that have not completed a round yet are left out.
    pub fn histories(&self, complete: Complete) -> Histories {
        let mut all = Histories::default();
        for run in self.runs.iter().map(|follower| &follower.run) {
            let waiting = matches!(run.status, Status::Running | Status::Missing);
            if waiting && run.rounds.is_empty() && run.problems.is_empty() {
                continue;
            }
            all.add(run.path.clone(), run.status == Status::Running, complete);
        }
        all
    }

    /// Looks at the runs; whether anything has changed.
    pub fn poll(&mut self) -> bool {
        let search = self.runs.is_empty() || self.looks >= LOOKS;
        let mut changed = false;
        if search {
            self.looks = 0;
            changed |= self.search();
        }
        self.looks += 1;
        for follower in &mut self.runs {
            // A run that has ended can be resumed, but not often.
            if search || matches!(follower.run.status, Status::Running | Status::Missing) {
                changed |= follower.poll();
            }
        }
        if changed {
            let order =
                |follower: &Follower| (Reverse(follower.run.started), follower.run.path.clone());
            self.runs.sort_by_cached_key(order);
        }
        changed
    }

    /// Finds new runs, and forgets those that are gone.
    fn search(&mut self) -> bool {
        let (found, problem) = match find_folders(std::slice::from_ref(&self.folder)) {
            Ok(Folders { folders, damaged }) => (folders, damaged.first().map(ToString::to_string)),
            // There is nothing yet, or not any more.
            Err(ReportError::NoRun { .. }) => (Vec::new(), None),
            Err(_) if !self.folder.exists() => (Vec::new(), None),
            // A folder may disappear during the search: what was known stays until the next one.
            Err(error) => {
                let problem = Some(error.to_string());
                let changed = problem != self.problem;
                self.problem = problem;
                return changed;
            }
        };
        let mut found = BTreeSet::from_iter(found);
        let before = self.runs.len();
        self.runs.retain(|follower| found.remove(&follower.run.path));
        let gone = self.runs.len() < before;
        let changed = gone || !found.is_empty() || problem != self.problem;
        self.runs.extend(found.into_iter().map(Follower::new));
        self.problem = problem;
        changed
    }
}
