//! A run as far as it was written when it was last looked at.

use crate::heading::Heading;
use crate::table::Average;
use fedanchor_record::{RoundRecord, Summary, Timing};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Rounds whose mean time tells how long the others will take.
const PACE: usize = 10;

/// A run, in progress or not.
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
    pub(super) fn seconds(timing: &Timing) -> f64 {
        if timing.total > 0.0 { timing.total } else { 0.0 }
    }
}
