//! Finds run folders and reads them.
//!
//! A folder is a run folder if it contains a `config.toml`. Any other folder is searched for run
//! folders, at any depth, except in hidden folders (a `.cargo/config.toml` is not a run). Symbolic
//! links are followed, since people collect runs by linking to them. A folder that is reached twice
//! counts once: `table runs runs/x` must not turn one run into two seeds.
//!
//! The records of a finished run are checked against their checksums. A run that cannot be read or
//! fails this check is listed as damaged, and the others are still used.

use crate::error::{ReportError, Result};
use crate::heading::Heading;
use fedanchor_record::{Checksums, Summary, files};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// The runs in the given folders, each list sorted by path.
#[derive(Debug, Default)]
pub struct Runs {
    /// Runs that completed all their rounds.
    pub finished: Vec<Run>,
    /// Runs that did not: averaging them with others would compare different rounds.
    pub unfinished: Vec<Unfinished>,
    /// Runs with a file that is missing, damaged or cannot be read.
    pub damaged: Vec<Damaged>,
}

/// A run that completed all its rounds.
#[derive(Debug)]
pub struct Run {
    /// Its folder.
    pub path: PathBuf,
    /// Its `summary.json`.
    pub summary: Summary,
    /// All its settings.
    pub config: Table,
    /// The settings that identify it to a reader.
    pub heading: Heading,
    /// Every setting as text, for example `client.batch` and `32`, in the order of the file.
    pub(crate) settings: Vec<(String, String)>,
}

/// A run that is in progress, failed, or was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Its folder.
    pub path: PathBuf,
    /// Rounds completed and rounds planned, if there is a summary.
    pub rounds: Option<(u32, u32)>,
}

/// A run that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// Its folder.
    pub path: PathBuf,
    /// Which file is wrong, and how.
    pub problem: String,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let path = self.path.display();
        match self.rounds {
            Some((done, planned)) => write!(f, "{path}: stopped after {done} of {planned} rounds"),
            None => {
                write!(f, "{path}: {} is missing: still running, or failed", files::SUMMARY)
            }
        }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

/// Finds all runs in these folders, each a run folder or one that contains run folders.
pub fn find_runs(dirs: &[PathBuf]) -> Result<Runs> {
    let mut search = Search::default();
    for dir in dirs {
        if !search.folder(dir)? {
            return Err(ReportError::NoRun { path: dir.clone() });
        }
    }
    let mut runs = search.runs;
    runs.finished.sort_by(|a, b| a.path.cmp(&b.path));
    runs.unfinished.sort_by(|a, b| a.path.cmp(&b.path));
    runs.damaged.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(runs)
}

impl Runs {
    /// Applies [`Run::completed`] to every finished run.
    pub fn completed(mut self, complete: Complete) -> Self {
        self.finished = self.finished.into_iter().map(|run| run.completed(complete)).collect();
        self
    }
}

/// Resolves a config with this version's defaults and returns it in full; `None` if that fails.
pub type Complete<'a> = &'a dyn Fn(&Table) -> Option<String>;

#[derive(Default)]
struct Search {
    runs: Runs,
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
            return Err(ReportError::Loop { path: path.to_owned(), folder: real });
        }
        if !self.seen.insert(real.clone()) {
            return Ok(true);
        }
        let holds = |name: &str| entries.iter().any(|entry| entry.file_name() == name);
        if holds(files::CONFIG) {
            self.run(path, holds(files::SUMMARY));
            return Ok(true);
        }
        self.above.push(real);
        let mut found = false;
        for entry in &entries {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir() || kind.is_symlink() && fs_err::metadata(&path)?.is_dir() {
                found |= self.folder(&path)?;
            }
        }
        self.above.pop();
        Ok(found)
    }

    fn run(&mut self, path: &Path, has_summary: bool) {
        let path = path.to_owned();
        if !has_summary {
            self.runs.unfinished.push(Unfinished { path, rounds: None });
            return;
        }
        match Run::read(path.clone()) {
            Ok(run) if run.is_finished() => self.runs.finished.push(run),
            Ok(run) => {
                let rounds = Some((run.summary.rounds, run.summary.rounds_planned));
                self.runs.unfinished.push(Unfinished { path, rounds });
            }
            Err(error) => {
                let problem = error.in_run_folder();
                self.runs.damaged.push(Damaged { path, problem });
            }
        }
    }
}

impl Run {
    /// The run in this folder, if there is one and it completed all its rounds. A damaged run is an
    /// error.
    pub fn finished(folder: &Path) -> Result<Option<Self>> {
        if !folder.join(files::CONFIG).exists() || !folder.join(files::SUMMARY).exists() {
            return Ok(None);
        }
        Ok(Some(Self::read(folder.to_owned())?).filter(Self::is_finished))
    }

    fn is_finished(&self) -> bool {
        self.summary.rounds >= self.summary.rounds_planned
    }

    /// The run with its config in full: a setting added by a later version has its default there
    /// and does not make it another experiment.
    pub fn completed(mut self, complete: Complete) -> Self {
        let read = || {
            let text = complete(&self.config)?;
            let config: Table = text.parse().ok()?;
            Some((settings(&text, &config).ok()?, config))
        };
        if let Some((mut all, config)) = read() {
            all.extend(self.settings.pop()); // the fingerprint
            (self.settings, self.config) = (all, config);
        }
        self
    }

    /// Reads the run in a folder that has a summary, and checks its records if it is finished.
    fn read(path: PathBuf) -> Result<Self> {
        let file = path.join(files::CONFIG);
        let text = fs_err::read_to_string(&file)?;
        let malformed = |problem: String| ReportError::malformed(&file, problem);
        let invalid = |error| malformed(invalid_toml(&text, &error));
        let config: Table = text.parse().map_err(invalid)?;
        let heading = Heading::of(&config).map_err(malformed)?;
        let mut settings = settings(&text, &config).map_err(invalid)?;

        let file = path.join(files::SUMMARY);
        let summary: Summary = serde_json::from_str(&fs_err::read_to_string(&file)?)
            .map_err(|error| ReportError::malformed(&file, error))?;
        // Another machine may have other images under the same name, and `data.path` cannot tell: a
        // data set that was moved is the same.
        let fingerprint = summary.data_fingerprint.chars().take(12).collect();
        settings.push(("data_fingerprint".to_owned(), fingerprint));
        let run = Self { path, summary, config, heading, settings };
        if run.is_finished() {
            check_records(&run.path.join(files::ROUNDS))?;
        }
        Ok(run)
    }
}

/// Checks every line of a `rounds.jsonl` against its checksum. Lines of older versions have none.
fn check_records(file: &Path) -> Result<()> {
    if !file.exists() {
        return Err(ReportError::malformed(file, "the file is missing"));
    }
    let text = fs_err::read_to_string(file)?;
    let mut checksums = Checksums::default();
    match text.lines().position(|line| !checksums.accepts(line)) {
        None => Ok(()),
        Some(index) => {
            let problem = format!("line {} does not match its checksum", index + 1);
            Err(ReportError::malformed(file, problem))
        }
    }
}

/// A TOML error in one line, without the excerpt that `Display` adds.
fn invalid_toml(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', ", ");
    let Some(span) = error.span() else { return message };
    let before = text.bytes().take(span.start);
    format!("line {}: {message}", before.filter(|&byte| byte == b'\n').count() + 1)
}

/// Every setting in the order of the file. `Table` sorts its keys, and the feature of `toml` that
/// preserves their order would change the messages of every crate in the same build, so they are
/// sorted by their positions in the text.
fn settings(text: &str, config: &Table) -> Result<Vec<(String, String)>, toml::de::Error> {
    let mut found = Vec::new();
    gather(DeTable::parse(text)?.get_ref(), config, "", &mut found);
    found.sort();
    Ok(found.into_iter().map(|(_, key, value)| (key, value)).collect())
}

/// Collects the position, dotted key and value of every setting in a table.
fn gather(spans: &DeTable, values: &Table, above: &str, found: &mut Vec<(usize, String, String)>) {
    for (key, spanned) in spans {
        let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
        let key = format!("{above}{}", key.get_ref());
        match (spanned.get_ref(), value) {
            (DeValue::Table(spans), Value::Table(values)) => {
                gather(spans, values, &format!("{key}."), found);
            }
            (_, Value::String(text)) => found.push((spanned.span().start, key, text.clone())),
            (_, other) => found.push((spanned.span().start, key, other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_in_the_order_of_the_file() {
        let text = "seed = 3\nrounds = 5\n[model]\nname = \"small\"\n[client]\nepochs = 2\n\
                    batch = 10\n[method]\nthreshold = { rule = \"quantile\", to = 0.8 }\n\
                    name = \"x\"\n[method.mixup]\nalpha = 1.0";
        let found = settings(text, &text.parse().unwrap()).unwrap();
        let found: Vec<String> =
            found.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let wanted = [
            "seed=3",
            "rounds=5",
            "model.name=small",
            "client.epochs=2",
            "client.batch=10",
            "method.threshold.rule=quantile",
            "method.threshold.to=0.8",
            "method.name=x",
            "method.mixup.alpha=1.0",
        ];
        assert_eq!(found, wanted);
    }
}
