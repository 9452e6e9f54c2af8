//! Which of the named folders hold runs, and what is in them.
//!
//! A folder is a run if it holds a `config.toml`; any other is searched for runs, at any depth,
//! hidden folders left out (a `.cargo/config.toml` is no run). Symbolic links are followed, since
//! people gather runs by linking to them. A folder that is reached twice counts once: `table runs
//! runs/x` must not turn one run into two seeds.

use crate::error::{ReportError, Result};
use crate::heading::Heading;
use fedanchor_record::{Summary, files};
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// What was found in the named folders, each list by path.
#[derive(Debug, Default)]
pub struct Runs {
    /// Runs that did all their rounds.
    pub finished: Vec<Run>,
    /// Runs that did not: an average with them would compare different rounds.
    pub unfinished: Vec<Unfinished>,
}

/// A run that did all its rounds.
#[derive(Debug)]
pub struct Run {
    /// Its folder.
    pub path: PathBuf,
    /// The run in a few numbers.
    pub summary: Summary,
    /// All its settings.
    pub config: Table,
    /// The settings by which people know it.
    pub heading: Heading,
    /// Every single setting as text, `client.batch` and `32`, in the order of the file.
    pub(crate) settings: Vec<(String, String)>,
}

/// A run that is still going on, failed, or was told to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Its folder.
    pub path: PathBuf,
    /// Rounds done and rounds planned, where a summary says so.
    pub rounds: Option<(u32, u32)>,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let path = self.path.display();
        match self.rounds {
            Some((done, planned)) => write!(f, "{path}: stopped after {done} of {planned} rounds"),
            None => write!(f, "{path}: no {}, still running or failed", files::SUMMARY),
        }
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
    Ok(runs)
}

impl Runs {
    /// Every run with its config as [`Run::completed`] reads it.
    pub fn completed(mut self, complete: Complete) -> Self {
        self.finished = self.finished.into_iter().map(|run| run.completed(complete)).collect();
        self
    }
}

/// Reads a config as the program does today and writes it out in full; `None` where it cannot.
pub type Complete<'a> = &'a dyn Fn(&Table) -> Option<String>;

#[derive(Default)]
struct Search {
    runs: Runs,
    /// Real paths of the folders from the named one down to the present one.
    above: Vec<PathBuf>,
    seen: HashSet<PathBuf>,
}

impl Search {
    /// Whether there is a run in this folder or below.
    fn folder(&mut self, path: &Path) -> Result<bool> {
        let mut entries: Vec<_> = fs_err::read_dir(path)?.collect::<std::io::Result<_>>()?;
        // Of several ways to one folder the same is taken every time.
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
            self.run(path, holds(files::SUMMARY))?;
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

    fn run(&mut self, path: &Path, ended: bool) -> Result<()> {
        let path = path.to_owned();
        if !ended {
            self.runs.unfinished.push(Unfinished { path, rounds: None });
            return Ok(());
        }
        let run = Run::read(path)?;
        let (done, planned) = (run.summary.rounds, run.summary.rounds_planned);
        if done < planned {
            let rounds = Some((done, planned));
            self.runs.unfinished.push(Unfinished { path: run.path, rounds });
        } else {
            self.runs.finished.push(run);
        }
        Ok(())
    }
}

impl Run {
    /// The run in this folder, if there is one and it came to its end.
    pub fn finished(folder: &Path) -> Result<Option<Self>> {
        if !folder.join(files::CONFIG).exists() || !folder.join(files::SUMMARY).exists() {
            return Ok(None);
        }
        let run = Self::read(folder.to_owned())?;
        Ok((run.summary.rounds >= run.summary.rounds_planned).then_some(run))
    }

    /// The run with its config in full: a setting that came with a later version has its default there,
    /// and does not set the run apart.
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

    fn read(path: PathBuf) -> Result<Self> {
        let file = path.join(files::CONFIG);
        let text = fs_err::read_to_string(&file)?;
        let malformed = |problem: &dyn fmt::Display| ReportError::malformed(&file, problem);
        let config: Table = text.parse().map_err(|error| malformed(&error))?;
        let heading = Heading::of(&config).map_err(|problem| malformed(&problem))?;
        let mut settings = settings(&text, &config).map_err(|error| malformed(&error))?;

        let file = path.join(files::SUMMARY);
        let summary: Summary = serde_json::from_str(&fs_err::read_to_string(&file)?)
            .map_err(|error| ReportError::malformed(&file, error))?;
        // The same name may stand for other images elsewhere, and `data.path` cannot tell: a data
        // set that was moved is the same.
        let fingerprint = summary.data_fingerprint.chars().take(12).collect();
        settings.push(("data_fingerprint".to_owned(), fingerprint));
        Ok(Self { path, summary, config, heading, settings })
    }
}

/// Every single setting in the order of the file. `Table` sorts its keys; the feature of `toml`
/// that keeps their order would change the messages of every crate built beside this one, so the
/// places of the values are asked for instead.
fn settings(text: &str, config: &Table) -> Result<Vec<(String, String)>, toml::de::Error> {
    let mut found = Vec::new();
    gather(DeTable::parse(text)?.get_ref(), config, "", &mut found);
    found.sort();
    Ok(found.into_iter().map(|(_, key, value)| (key, value)).collect())
}

fn gather(places: &DeTable, values: &Table, above: &str, found: &mut Vec<(usize, String, String)>) {
    for (key, place) in places {
        let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
        let key = format!("{above}{}", key.get_ref());
        match (place.get_ref(), value) {
            (DeValue::Table(places), Value::Table(values)) => {
                gather(places, values, &format!("{key}."), found);
            }
            (_, Value::String(text)) => found.push((place.span().start, key, text.clone())),
            (_, other) => found.push((place.span().start, key, other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_in_the_order_of_the_file() {
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
