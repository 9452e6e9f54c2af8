//! Follows all runs in a folder: a run folder, or one that contains run folders, as a sweep writes it.

use super::{Follower, Status};
use crate::error::ReportError;
use crate::history::Histories;
use crate::runs::{Folders, find_folders};
use crate::setup::Complete;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Looks at the runs in progress between two searches for new ones, which cost more.
const LOOKS: u32 = 4;

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
