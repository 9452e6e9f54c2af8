//! The run folder: everything a later table or figure needs, without the data or the model.

use super::fleet_file::resume_command;
use super::lock::lock;
use crate::disk::{self, Appended};
use crate::error::{Error, Result};
use fedanchor_data::tables::csv;
use fedanchor_record::{
    Checksums, Manifest, RoundRecord, Summary, Timing, files, rounds_with_latents,
};
use fs_err::File;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The folder of checkpoints in a run folder.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// A run folder being written.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) path: PathBuf,
    /// The files that get a line per round.
    pub(crate) log: Log,
    written: RefCell<Manifest>,
}

/// The two files that get one line per round.
#[derive(Debug)]
pub(crate) struct Log {
    rounds: Appended,
    timings: Appended,
}

#[derive(Debug, Default)]
pub(crate) struct LineChecksums {
    pub(crate) rounds: Checksums,
    pub(crate) timings: Checksums,
}

/// A round's line in each of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lines {
    pub(crate) record: String,
    pub(crate) timing: String,
}

impl LineChecksums {
    /// The lines of a round, after those that were sealed before.
    pub(crate) fn seal(&mut self, record: &RoundRecord, timing: &Timing) -> Result<Lines> {
        let record = self.rounds.seal(&json(record)?);
        Ok(Lines { record, timing: self.timings.seal(&json(timing)?) })
    }
}

/// A file of a round that only some rounds have.
#[derive(Debug)]
pub(crate) struct RoundFile {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl RoundFile {
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(&self.name);
        if let Some(parent) = path.parent() {
            disk::create_folder(parent)?;
        }
        disk::write(&path, &[&self.bytes])
    }
}

impl Log {
    pub(crate) fn append(&self, lines: &Lines) -> Result<()> {
        for (file, line) in [(&self.rounds, &lines.record), (&self.timings, &lines.timing)] {
            let written = file.append(format!("{line}\n").as_bytes());
            written.map_err(|error| Error::file(file.path(), error))?;
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        for file in [&self.rounds, &self.timings] {
            file.sync().map_err(|error| Error::file(file.path(), error))?;
        }
        Ok(())
    }
}

impl RunFolder {
    /// Creates the folder; one that holds anything else is refused.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        check_free(path)?;
        disk::create_folder(path)?;
        let rounds = open(path, files::ROUNDS, true)?;
        lock(path, rounds.file())?;
        // Another process may have been here since.
        check_records(path)?;
        let timings = open(path, files::TIMINGS, true)?;
        timings.truncate(0).map_err(|error| Error::file(timings.path(), error))?;
        let log = Log { rounds, timings };
        Ok(Self { path: path.to_owned(), log, written: RefCell::default() })
    }

    /// Opens the folder of an unfinished run to resume it; records may be missing only with `force`.
    pub(crate) fn reopen(path: &Path, force: bool) -> Result<Self> {
        let rounds = open(path, files::ROUNDS, force)?;
        lock(path, rounds.file())?;
        let log = Log { rounds, timings: open(path, files::TIMINGS, force)? };
        Ok(Self { path: path.to_owned(), log, written: RefCell::default() })
    }

    /// The records that are whole, at most this many from round 0 on without a gap, and their checksums.
    pub(crate) fn records(&self, most: usize) -> Result<(Vec<RoundRecord>, Checksums)> {
        let text = self.text(files::ROUNDS)?;
        let (mut records, mut checksums) = (Vec::new(), Checksums::default());
        let lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
        for line in lines.take(most) {
            let mut after = checksums.clone();
            let Ok(record) = serde_json::from_str::<RoundRecord>(line) else { break };
            if record.round as usize != records.len() || !after.accepts(line) {
                break;
            }
            records.push(record);
            checksums = after;
        }
        Ok((records, checksums))
    }

    /// The whole lines of the records, damaged ones included.
    pub(crate) fn lines(&self) -> Result<usize> {
        Ok(self.text(files::ROUNDS)?.matches('\n').count())
    }

    /// The timings that are intact, and the lines that are damaged, from 1.
    pub(crate) fn timings(&self) -> Result<(Vec<Timing>, Vec<usize>)> {
        let text = self.text(files::TIMINGS)?;
        let (mut timings, mut damaged) = (Vec::new(), Vec::new());
        let mut checksums = Checksums::default();
        for (index, line) in text.lines().enumerate() {
            let intact = checksums.accepts(line);
            checksums = Checksums::after(line); // one damaged line does not spoil the next
            match serde_json::from_str::<Timing>(line).ok().filter(|_| intact) {
                Some(timing) => timings.push(timing),
                None => damaged.push(index + 1),
            }
        }
        Ok((timings, damaged))
    }

    /// The checksums that the next lines follow.
    pub(crate) fn checksums(&self) -> Result<LineChecksums> {
        let last = |name| -> Result<Checksums> {
            Ok(self.text(name)?.lines().last().map_or_else(Checksums::default, Checksums::after))
        };
        Ok(LineChecksums { rounds: last(files::ROUNDS)?, timings: last(files::TIMINGS)? })
    }

    fn text(&self, name: &str) -> Result<String> {
        // What a torn write left need not be text.
        Ok(String::from_utf8_lossy(&disk::read(&self.path.join(name))?).into_owned())
    }

    /// Cuts both files off after this many lines.
    pub(crate) fn keep_lines(&self, lines: usize) -> Result<()> {
        for file in [&self.log.rounds, &self.log.timings] {
            let bytes = disk::read(file.path())?;
            let length: usize =
                bytes.split_inclusive(|b| *b == b'\n').take(lines).map(<[u8]>::len).sum();
            file.truncate(length as u64).map_err(|error| Error::file(file.path(), error))?;
        }
        Ok(())
    }

    /// Writes the checksums of what was written since the folder was opened, and of `further` files.
    pub(crate) fn write_manifest(&self, further: &Manifest) -> Result<()> {
        let mut all = self.written.borrow().clone();
        all.extend(further);
        disk::write(&self.path.join(files::CHECKSUMS), &[all.to_string().as_bytes()])
    }

    /// Takes a file out of the checksums before it changes.
    pub(crate) fn forget(&self, name: &str, further: &Manifest) -> Result<()> {
        self.written.borrow_mut().remove(name);
        self.write_manifest(further)
    }

    /// Adds the records to the checksums, when they are complete and all on the disk. Records that are no longer
    /// there, or no longer what was written, are an error: the run would end without them.
    pub(crate) fn seal_records(&self, rounds: u32) -> Result<()> {
        self.log.sync()?;
        let path = self.path.join(files::ROUNDS);
        let there = self.records(usize::MAX)?.0.len() as u32;
        if there != rounds + 1 {
            let problem = format!(
                "was changed while the run went on: {there} of {} lines are left",
                rounds + 1
            );
            return Err(Error::Changed { path, problem });
        }
        let written = self.written.borrow().clone();
        for name in written.names() {
            let path = self.path.join(name);
            let there = disk::read_if_exists(&path)?;
            if there.is_none_or(|bytes| written.check(name, &bytes).is_err()) {
                let problem = "was changed or removed while the run went on".to_owned();
                return Err(Error::Changed { path, problem });
            }
        }
        for name in [files::ROUNDS, files::TIMINGS] {
            self.written.borrow_mut().add(name, &disk::read(&self.path.join(name))?);
        }
        Ok(())
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        disk::remove(&self.path.join(name))
    }

    /// The log, for the thread that finishes rounds.
    pub(crate) fn log(&self) -> Result<Log> {
        let clone =
            |file: &Appended| file.try_clone().map_err(|error| Error::file(file.path(), error));
        Ok(Log { rounds: clone(&self.log.rounds)?, timings: clone(&self.log.timings)? })
    }

    /// Writes a file that gets a checksum.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        disk::write(&self.path.join(name), &[content.as_ref()])?;
        self.written.borrow_mut().add(name, content.as_ref());
        Ok(())
    }

    /// Models that a private fleet has published, as far as the folder knows.
    pub(crate) fn published(&self) -> Result<u32> {
        let path = self.path.join(files::PUBLISHED);
        if !path.exists() {
            return Ok(0);
        }
        let bytes = disk::read(&path)?;
        let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| Error::file(path, "expected the number of models that were published"))
    }

    /// Writes their number down.
    pub(crate) fn publish(&self, releases: u32) -> Result<()> {
        disk::write(&self.path.join(files::PUBLISHED), &[format!("{releases}\n").as_bytes()])
    }

    /// Removes the latents of all rounds after this one; returns the rounds whose latents stay.
    pub(crate) fn keep_latents(&self, last: Option<u32>) -> Result<Vec<u32>> {
        let mut rounds = rounds_with_latents(&self.path)
            .map_err(|error| Error::file(self.path.join(files::LATENTS), error))?;
        let later = rounds.split_off(rounds.partition_point(|&round| Some(round) <= last));
        for round in later {
            self.remove(&files::latents(round))?;
        }
        Ok(rounds)
    }

    pub(crate) fn write_matrix<T: Display>(
        &self,
        name: &str,
        classes: &[String],
        rows: &[Vec<T>],
    ) -> Result<()> {
        let line = |first: &str, others: Vec<String>| [vec![first.to_owned()], others].concat();
        let rows = classes.iter().zip(rows);
        let rows = rows.map(|(class, row)| line(class, row.iter().map(T::to_string).collect()));
        self.write(name, csv([line("class", classes.to_vec())].into_iter().chain(rows)))
    }

    /// The run in a few numbers, and the checksums of all files.
    pub(crate) fn write_summary(&self, summary: &Summary, further: &Manifest) -> Result<()> {
        let text = serde_json::to_string_pretty(summary)
            .map_err(|error| Error::file(&self.path, error))?;
        self.write(files::SUMMARY, text + "\n")?;
        self.write_manifest(further)
    }
}

fn open(folder: &Path, name: &str, create: bool) -> Result<Appended> {
    let path = folder.join(name);
    let opened = if create { Appended::create(&path) } else { Appended::open(&path) };
    opened.map_err(|error| {
        let missing = !create && error.kind() == std::io::ErrorKind::NotFound;
        let advice = if missing { "; --force starts without it" } else { "" };
        Error::file(path, format!("{error}{advice}"))
    })
}

pub(super) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::file("record", error))
}

/// Whether a run may be started in this folder: it does not exist, is empty, or is that of a run that failed
/// before its first record. Nothing is changed.
pub(crate) fn check_free(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        let problem = "is not a folder: choose another name with --out";
        return Err(Error::file(path, problem));
    }
    if path.join(files::ROUNDS).is_file()
        && let Ok(rounds) = File::open(path.join(files::ROUNDS))
    {
        // Before anything is said about what the folder holds: that is about to change.
        lock(path, &rounds)?;
        return check_records(path);
    }
    check_records(path)?;
    let Ok(entries) = fs_err::read_dir(path) else { return Ok(()) };
    let mut found: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    const NAMED: usize = 3;
    found.sort();
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let problem = format!(
        "is not empty and holds no run, but {}{more}: choose a new folder with --out",
        found.join(", ")
    );
    Err(Error::file(path, problem))
}

/// Whether the folder holds nothing of a run that a new one would destroy.
fn check_records(path: &Path) -> Result<()> {
    let refused = |holds: &str| {
        let resume = resume_command(path);
        let advice = format!("resume it with `{resume}`, or use another folder with --out");
        Err(Error::file(path, format!("holds {holds}: {advice}")))
    };
    if fs_err::metadata(path.join(files::ROUNDS)).is_ok_and(|file| file.len() > 0) {
        return refused("a run already");
    }
    let name = |entry: std::io::Result<fs_err::DirEntry>| Some(entry.ok()?.path());
    let is_checkpoint = |path: PathBuf| path.extension() == Some("checkpoint".as_ref());
    if fs_err::read_dir(path.join(CHECKPOINTS))
        .is_ok_and(|entries| entries.filter_map(name).any(is_checkpoint))
    {
        return refused("checkpoints of a run");
    }
    Ok(())
}
