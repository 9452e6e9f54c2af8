//! The run folder: everything a later table or figure needs, without the data or the model.

use crate::config::Experiment;
use crate::disk;
use crate::error::{Error, Result};
use crate::params::Params;
use fedanchor_data::picture::{histogram_csv, quoted};
use fedanchor_record::{Assignment, RoundRecord, Summary, Timing, files};
use fs_err::{File, OpenOptions};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A run folder being written.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    log: Log,
}

/// The two files that get a line a round.
#[derive(Debug)]
pub(crate) struct Log {
    rounds: File,
    timings: File,
}

/// A round's line in each of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// The [`RoundRecord`].
    pub record: String,
    /// The [`Timing`].
    pub timing: String,
}

impl Lines {
    /// Of a round.
    pub fn new(record: &RoundRecord, timing: &Timing) -> Result<Self> {
        Ok(Self { record: json(record)?, timing: json(timing)? })
    }
}

impl Log {
    /// Adds a round's lines.
    pub(crate) fn append(&mut self, lines: &Lines) -> Result<()> {
        for (file, line) in [(&mut self.rounds, &lines.record), (&mut self.timings, &lines.timing)]
        {
            let path = file.path().to_owned();
            // In one piece: another process that reads sees whole lines.
            let written = file.write_all(format!("{line}\n").as_bytes());
            written.map_err(|error| Error::file(path, error))?;
        }
        Ok(())
    }

    /// Has everything on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        for file in [&self.rounds, &self.timings] {
            file.sync_data().map_err(|error| Error::file(file.path(), error))?;
        }
        Ok(())
    }
}

impl RunFolder {
    /// Makes the folder; one that holds a run already is left alone.
    pub fn create(path: &Path) -> Result<Self> {
        let advice = "name another folder with --out, or remove this one";
        let taken = |problem: String| Err(Error::file(path, format!("{problem}: {advice}")));
        // A run that failed before its first record may be tried again in its folder.
        let before = path.join(files::ROUNDS).exists();
        if !before && let Some(name) = files::ALL.iter().find(|name| path.join(name).exists()) {
            return taken(format!("holds a {name} already, which a run would overwrite"));
        }
        let recorded = fs_err::metadata(path.join(files::ROUNDS)).is_ok_and(|file| file.len() > 0);
        if !recorded && !crate::checkpoint::rounds(path)?.is_empty() {
            let problem = "holds checkpoints of a run: go on with it by --resume".to_owned();
            return Err(Error::file(path, format!("{problem}, or {advice}")));
        }
        fs_err::create_dir_all(path).map_err(|error| Error::file(path, error))?;
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.create(true).append(true);
            options.open(path.join(name)).map_err(|error| Error::file(path.join(name), error))
        };
        let rounds = open(files::ROUNDS)?;
        // Held until the run ends, however it ends: the system takes it back from a process that dies.
        if rounds.file().try_lock().is_err() {
            return taken("another run is writing here".to_owned());
        }
        let length = rounds.metadata().map_err(|error| Error::file(path, error))?.len();
        if length > 0 {
            return taken("holds a run already".to_owned());
        }
        let timings = open(files::TIMINGS)?;
        timings.set_len(0).map_err(|error| Error::file(path, error))?;
        Ok(Self { path: path.to_owned(), log: Log { rounds, timings } })
    }

    /// Opens the folder of a run that did not come to its end, to go on with it; only with `force` where
    /// the records are missing.
    pub fn reopen(path: &Path, force: bool) -> Result<Self> {
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).create(force).append(true);
            options.open(path.join(name)).map_err(|error| {
                let missing = error.kind() == std::io::ErrorKind::NotFound;
                let advice = if missing { "; --force starts without it" } else { "" };
                Error::file(path.join(name), format!("{error}{advice}"))
            })
        };
        let rounds = open(files::ROUNDS)?;
        if rounds.file().try_lock().is_err() {
            return Err(Error::file(path, "another run is writing here"));
        }
        let log = Log { rounds, timings: open(files::TIMINGS)? };
        Ok(Self { path: path.to_owned(), log })
    }

    /// The records that are whole, from round 0 on without a gap.
    pub fn records(&self) -> Result<Vec<RoundRecord>> {
        let text = self.text(files::ROUNDS)?;
        let parsed = text
            .split_inclusive('\n')
            .map_while(|line| serde_json::from_str::<RoundRecord>(line.strip_suffix('\n')?).ok());
        let numbered = (0..).zip(parsed).take_while(|(number, record)| record.round == *number);
        Ok(numbered.map(|(_, record)| record).collect())
    }

    /// Seconds that the timings add up to.
    pub fn seconds(&self) -> Result<f64> {
        let text = self.text(files::TIMINGS)?;
        Ok(text
            .lines()
            .filter_map(|l| serde_json::from_str::<Timing>(l).ok())
            .map(|t| t.total)
            .sum())
    }

    fn text(&self, name: &str) -> Result<String> {
        let path = self.path.join(name);
        // What a torn write left need not be text.
        let bytes = fs_err::read(&path).map_err(|error| Error::file(path, error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Cuts both files off behind this many lines, whatever follows.
    pub fn keep_lines(&self, lines: usize) -> Result<()> {
        for file in [&self.log.rounds, &self.log.timings] {
            let path = file.path();
            let bytes = fs_err::read(path).map_err(|error| Error::file(path, error))?;
            let length: usize =
                bytes.split_inclusive(|b| *b == b'\n').take(lines).map(<[u8]>::len).sum();
            file.set_len(length as u64).map_err(|error| Error::file(path, error))?;
        }
        Ok(())
    }

    /// A run that goes on is not at its end any more.
    pub(crate) fn remove_summary(&self) -> Result<()> {
        disk::remove(&self.path.join(files::SUMMARY))
    }

    /// The log, for whoever finishes rounds.
    pub(crate) fn log(&self) -> Result<Log> {
        let clone = |file: &File| file.try_clone().map_err(|error| Error::file(&self.path, error));
        Ok(Log { rounds: clone(&self.log.rounds)?, timings: clone(&self.log.timings)? })
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        disk::write(&self.path.join(name), &[content.as_ref()])
    }

    /// The resolved config.
    pub fn write_config(&self, experiment: &Experiment) -> Result<()> {
        let path = self.path.join(files::CONFIG);
        self.write(
            files::CONFIG,
            toml::to_string(experiment).map_err(|error| Error::file(path, error))?,
        )
    }

    /// Which image is where, and the class histogram of every client.
    pub fn write_assignment(
        &self,
        all: &Assignment,
        histogram: &[Vec<u32>],
        classes: &[String],
    ) -> Result<()> {
        self.write(files::ASSIGNMENT, json(all)? + "\n")?;
        Ok(histogram_csv(histogram, classes, &self.path.join(files::PARTITION))?)
    }

    /// Adds a round's lines.
    pub(crate) fn append(&mut self, lines: &Lines) -> Result<()> {
        self.log.append(lines)
    }

    /// A matrix over the classes.
    pub fn write_matrix<T: Display>(
        &self,
        name: &str,
        classes: &[String],
        rows: &[Vec<T>],
    ) -> Result<()> {
        let head: Vec<String> = classes.iter().map(|class| quoted(class)).collect();
        let mut text = format!("class,{}\n", head.join(","));
        for (class, row) in head.iter().zip(rows) {
            let row: Vec<String> = row.iter().map(T::to_string).collect();
            text += &format!("{class},{}\n", row.join(","));
        }
        self.write(name, text)
    }

    /// The final model, with what is needed to build its network again.
    pub fn write_model(
        &self,
        params: &Params,
        experiment: &Experiment,
        classes: &[String],
    ) -> Result<()> {
        // One key: the order of several would differ from run to run.
        let about = serde_json::json!({ "model": experiment.model, "classes": classes });
        let metadata = HashMap::from([("fedanchor".to_owned(), json(&about)?)]);
        self.write(files::MODEL, params.encode(Some(metadata))?)
    }

    /// The run in a few numbers.
    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        let text = serde_json::to_string_pretty(summary)
            .map_err(|error| Error::file(&self.path, error))?;
        self.write(files::SUMMARY, text + "\n")
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::file("record", error))
}
