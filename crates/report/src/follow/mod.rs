//! Follows a run while it is written, without disturbing it.
//!
//! A [`Follower`] looks at a run folder whenever it is asked to, reads what was appended since the last time, and holds
//! the run as it is now. It has neither a clock nor a thread: lines in a terminal and a page in a browser each ask at
//! their own pace.

mod folder;
mod live_run;
mod tail;
mod writer;

pub use folder::Followers;
pub use live_run::{LiveRun, Status};

use crate::error::Result;
use crate::records::RecordReader;
use crate::run_files::RunFiles;
use crate::runs::read_summary;
use crate::setup::Setup;
use fedanchor_record::{Timing, files};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tail::{Stamp, Tail};
use writer::Writer;

/// Follows the run in one folder, which need not exist yet.
#[derive(Debug)]
pub struct Follower {
    run: LiveRun,
    config: Whole,
    summary: Whole,
    rounds: Tail,
    records: RecordReader,
    timings: Tail,
    writer: Writer,
    problems: Problems,
}

/// What is wrong with each file.
#[derive(Debug, Default)]
struct Problems {
    config: Option<String>,
    rounds: Option<String>,
    timings: Option<String>,
    summary: Option<String>,
}

impl Follower {
    /// Of a run folder; nothing is read yet.
    pub fn new(folder: PathBuf) -> Self {
        Self {
            config: Whole::new(folder.join(files::CONFIG)),
            summary: Whole::new(folder.join(files::SUMMARY)),
            rounds: Tail::new(folder.join(files::ROUNDS)),
            records: RecordReader::default(),
            timings: Tail::new(folder.join(files::TIMINGS)),
            writer: Writer::default(),
            problems: Problems::default(),
            run: LiveRun::new(folder),
        }
    }

    /// The run as it was at the last look.
    pub fn run(&self) -> &LiveRun {
        &self.run
    }

    /// Looks at the folder; whether anything has changed.
    pub fn poll(&mut self) -> bool {
        self.poll_at(SystemTime::now())
    }

    /// The same at a given time, against which the age of the records is measured if need be.
    pub fn poll_at(&mut self, now: SystemTime) -> bool {
        let rounds_before = self.run.rounds.len();
        let status_before = self.run.status;
        let mut changed = self.read_config();
        changed |= self.read_rounds();
        changed |= self.read_timings();
        changed |= self.read_summary();
        let grew = self.run.rounds.len() > rounds_before;
        self.run.status = self.status(grew, now);
        if changed || self.run.status != status_before {
            self.run.problems = self.list_problems();
            return true;
        }
        false
    }

    fn read_config(&mut self) -> bool {
        if !self.config.has_changed() {
            return false;
        }
        self.run.started = self.config.stamp().map(|stamp| stamp.modified);
        (self.run.heading, self.run.seed, self.run.planned) = (None, None, None);
        let run = RunFiles::unchecked(&self.run.path);
        let (setup, problem) = self.config.read(|| Setup::read(&run));
        self.problems.config = problem;
        if let Some(setup) = setup {
            self.run.seed = setup.number("seed");
            self.run.planned = setup.number("rounds").and_then(|rounds| rounds.try_into().ok());
            self.run.heading = Some(setup.heading);
        }
        true
    }

    fn read_summary(&mut self) -> bool {
        if !self.summary.has_changed() {
            return false;
        }
        let read = self.summary.read(|| read_summary(&RunFiles::unchecked(&self.run.path)));
        (self.run.summary, self.problems.summary) = read;
        true
    }

    fn read_rounds(&mut self) -> bool {
        let new = self.rounds.read();
        if new.restarted {
            self.records = RecordReader::default();
            self.run.rounds.clear();
        }
        let rounds = new.lines.iter().map_while(|line| self.records.read(line));
        self.run.rounds.extend(rounds);
        self.run.recorded = self.rounds.stamp().map(|stamp| stamp.modified);
        let damage = self.records.problem().map(|problem| {
            let last = self.run.rounds.last();
            let shown = last.map_or(String::new(), |r| format!(": shown up to round {}", r.round));
            format!("{}: {problem}{shown}", files::ROUNDS)
        });
        let problem = new.problem.or(damage);
        let changed = new.restarted || !new.lines.is_empty() || problem != self.problems.rounds;
        self.problems.rounds = problem;
        changed
    }

    fn read_timings(&mut self) -> bool {
        let new = self.timings.read();
        if new.restarted {
            self.problems.timings = None;
            self.run.timings.clear();
        }
        for line in &new.lines {
            if self.problems.timings.is_some() {
                break;
            }
            match serde_json::from_str::<Timing>(line) {
                Ok(timing) => self.run.timings.push(timing),
                Err(error) => {
                    let number = self.run.timings.len() + 1;
                    let problem = format!("{}: line {number}: {error}", files::TIMINGS);
                    self.problems.timings = Some(problem);
                }
            }
        }
        let unreadable = new.problem.is_some() && new.problem != self.problems.timings;
        if unreadable {
            self.problems.timings = new.problem;
        }
        new.restarted || !new.lines.is_empty() || unreadable
    }

    fn status(&mut self, grew: bool, now: SystemTime) -> Status {
        let longest = self.run.timings.iter().map(LiveRun::seconds).fold(0.0, f64::max);
        let longest = Duration::try_from_secs_f64(longest).unwrap_or(Duration::MAX);
        let written = self.rounds.stamp().is_some_and(|stamp| {
            self.writer.is_there(self.rounds.path(), stamp, grew, longest, now)
        });
        let nothing = self.rounds.stamp().is_none() && self.config.stamp().is_none();
        match &self.run.summary {
            _ if written => Status::Running,
            _ if nothing => Status::Missing,
            Some(summary) if summary.rounds >= summary.rounds_planned => Status::Finished,
            _ => Status::Stopped,
        }
    }

    fn list_problems(&self) -> Vec<String> {
        let Problems { config, rounds, timings, summary } = &self.problems;
        // While the run is written, the rest of the line is on its way.
        let torn = self.rounds.is_partial() && self.run.status != Status::Running;
        let torn = (torn && rounds.is_none())
            .then(|| format!("{}: the last line is incomplete", files::ROUNDS));
        [config, rounds, &torn, timings, summary].into_iter().flatten().cloned().collect()
    }
}

/// A file that is read as a whole whenever it has changed.
#[derive(Debug)]
struct Whole {
    path: PathBuf,
    /// What it looked like, or why that cannot be told.
    found: Result<Option<Stamp>, String>,
}

impl Whole {
    fn new(path: PathBuf) -> Self {
        Self { path, found: Ok(None) }
    }

    fn stamp(&self) -> Option<Stamp> {
        self.found.as_ref().ok().copied().flatten()
    }

    /// Whether it is another one than at the last call.
    fn has_changed(&mut self) -> bool {
        let found = Stamp::of(&self.path).map_err(|error| error.to_string());
        let changed = found != self.found;
        self.found = found;
        changed
    }

    /// Reads it if it exists.
    fn read<T>(&self, read: impl FnOnce() -> Result<T>) -> (Option<T>, Option<String>) {
        match &self.found {
            Ok(None) => (None, None),
            Ok(Some(_)) => match read() {
                Ok(value) => (Some(value), None),
                Err(error) => (None, Some(error.in_run_folder())),
            },
            Err(problem) => (None, Some(problem.clone())),
        }
    }
}
