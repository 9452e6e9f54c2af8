//! Finds run folders and reads them.
//!
//! A folder is a run folder if it contains a `config.toml`. Any other folder is searched for run
//! folders, at any depth, except in hidden folders (a `.cargo/config.toml` is not a run). Symbolic
//! links are followed, since people collect runs by linking to them. A folder that is reached twice
//! counts once: `table runs runs/x` must not turn one run into two seeds.
//!
//! The records of a finished run are checked against their checksums. A run that cannot be read or
//! fails this check is listed as damaged, and the others are still used.

use crate::error::{ReportError, Result, shown};
use crate::run_files::RunFiles;
use crate::setup::{Complete, Setup};
use fedanchor_record::{Checksums, Summary, files};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The runs in the given folders, each list sorted by path.
#[derive(Debug, Default)]
pub struct Runs {
    /// Runs that completed all their rounds.
    pub finished: Vec<Run>,
    /// Runs that did not: averaging them with others would compare different rounds.
    pub unfinished: Vec<LeftOut>,
    /// Runs with a file that is missing, damaged or cannot be read.
    pub damaged: Vec<LeftOut>,
}

/// A run that completed all its rounds.
#[derive(Debug)]
pub struct Run {
    /// Its settings.
    pub setup: Setup,
    /// Its `summary.json`.
    pub summary: Summary,
}

/// A run that is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct LeftOut {
    /// Its folder.
    pub path: PathBuf,
    /// Why it is not used: the file and its problem, or how far the run came.
    pub problem: String,
}

/// Finds all runs in these folders, each a run folder or one that contains run folders.
pub fn find_runs(dirs: &[PathBuf], complete: Complete) -> Result<Runs> {
    let Folders { folders, damaged } = find_folders(dirs)?;
    let mut runs = Runs { damaged, ..Runs::default() };
    for path in folders {
        match Run::read(&path, complete) {
            Ok(Some(run)) if run.is_finished() => runs.finished.push(run),
            Ok(run) => {
                let problem = match run.map(|run| run.summary) {
                    Some(Summary { rounds, rounds_planned, .. }) => {
                        format!("stopped after {rounds} of {rounds_planned} rounds")
                    }
                    None => format!("{} is missing: still running, or failed", files::SUMMARY),
                };
                runs.unfinished.push(LeftOut { path, problem });
            }
            Err(error) => runs.damaged.push(LeftOut { path, problem: error.in_run_folder() }),
        }
    }
    Ok(runs)
}

/// Run folders, and folders that could not be searched for them.
#[derive(Debug, Default)]
pub struct Folders {
    pub folders: Vec<PathBuf>,
    pub damaged: Vec<LeftOut>,
}

/// Finds all run folders in these folders, and names folders below them that cannot be searched.
pub fn find_folders(dirs: &[PathBuf]) -> Result<Folders> {
    let mut search = Search::default();
    for dir in dirs {
        if !search.folder(dir)? {
            return Err(ReportError::NoRun { path: dir.clone() });
        }
    }
    search.found.folders.sort();
    Ok(search.found)
}

#[derive(Default)]
struct Search {
    found: Folders,
    /// Canonical paths of the folders that contain the current one.
    above: Vec<PathBuf>,
    seen: HashSet<PathBuf>,
}

impl Search {
    /// Searches a folder; returns whether it is or contains a run folder.
    fn folder(&mut self, path: &Path) -> Result<bool> {
        let mut entries: Vec<_> = fs_err::read_dir(path)?.collect::<std::io::Result<_>>()?;
        // If several paths lead to one folder, always the same one is used.
        entries.sort_by_key(|entry| entry.file_name());
        let real = fs_err::canonicalize(path)?;
        if self.above.contains(&real) {
            let above = shown(&real);
            let problem = format!("links to {above}, which contains it: remove the link");
            return Err(ReportError::about(path, problem));
        }
        if !self.seen.insert(real.clone()) {
            return Ok(true);
        }
        if entries.iter().any(|entry| entry.file_name() == files::CONFIG) {
            self.found.folders.push(path.to_owned());
            return Ok(true);
        }
        self.above.push(real);
        let mut found = false;
        for entry in &entries {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let depth = self.above.len();
            let searched = match fs_err::metadata(&path) {
                Ok(kind) if kind.is_dir() => self.folder(&path),
                Ok(_) => Ok(false),
                Err(error) => Err(error.into()),
            };
            found |= searched.unwrap_or_else(|error| {
                self.above.truncate(depth);
                self.found.damaged.push(LeftOut { path, problem: error.to_string() });
                true
            });
        }
        self.above.pop();
        Ok(found)
    }
}

impl Run {
    /// The run in this folder, if there is one with all its rounds. A damaged run is an error.
    pub fn finished(folder: &Path, complete: Complete) -> Result<Option<Self>> {
        let run = folder.join(files::CONFIG).try_exists()?.then(|| Self::read(folder, complete));
        Ok(run.transpose()?.flatten().filter(Self::is_finished))
    }

    fn is_finished(&self) -> bool {
        self.summary.rounds >= self.summary.rounds_planned
    }

    /// Reads the run in a folder, if that has a summary, and checks its records if it is finished.
    fn read(folder: &Path, complete: Complete) -> Result<Option<Self>> {
        if !folder.join(files::SUMMARY).try_exists()? {
            return Ok(None);
        }
        let run_files = RunFiles::open(folder)?;
        let mut setup = Setup::read(&run_files, complete)?;
        let summary: Summary = run_files.json(files::SUMMARY)?;
        setup.add_fingerprint(&summary.data_fingerprint);
        let run = Self { setup, summary };
        if run.is_finished() {
            run_files.check_listed(&files::ALL)?;
            check_records(&run_files, &run.summary)?;
        }
        Ok(Some(run))
    }
}

/// Checks every line of a `rounds.jsonl` against its checksum, if it has one, and the summary against the last.
fn check_records(run: &RunFiles, summary: &Summary) -> Result<()> {
    let file = run.path(files::ROUNDS);
    if !file.try_exists()? {
        return Err(ReportError::malformed(file, "the file is missing"));
    }
    // First line by line, which says more.
    let text = RunFiles::unchecked(&run.folder).text(files::ROUNDS)?;
    let mut checksums = Checksums::default();
    if let Some(index) = text.lines().position(|line| !checksums.accepts(line)) {
        let problem = format!("line {} does not match its checksum", index + 1);
        return Err(ReportError::malformed(file, problem));
    }
    run.bytes(files::ROUNDS)?;
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    match last.and_then(|last| summary.contradiction(&last)) {
        Some(problem) => Err(ReportError::malformed(run.path(files::SUMMARY), problem)),
        None => Ok(()),
    }
}
