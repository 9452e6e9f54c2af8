//! The records of a run as an event file for TensorBoard.
//!
//! A killed run may have written events of rounds that it repeats when it is resumed. A resumed run therefore writes its
//! event file again, from its records, and renames it into place: no reader finds a round twice or a torn event. That
//! also gives a file to a run that was started without one. Rejected: a second file, since readers would have to drop
//! the rounds that both have, and truncating the file, since that breaks a reader that has read further.
//!
//! The new file has another name, which sorts after the old one: an open TensorBoard moves on to it, and its first event
//! makes TensorBoard forget what it has read. Under the same name it would wait for the old file to grow. The old file
//! is emptied: if it were removed, TensorBoard's reader in Python would never leave it.

mod format;
#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::history::History;
use fedanchor_record::{Build, RoundRecord, Timing};
use fs_err::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The folder of event files in a run folder.
const FOLDER: &str = "tensorboard";
/// What TensorBoard expects in the name of an event file.
const PREFIX: &str = "events.out.tfevents.";

/// The event file of a run, one step per round.
#[derive(Debug)]
pub struct EventFile {
    run: PathBuf,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// When the run would have been where it is, had it never been interrupted, in seconds since 1970.
    time: f64,
    /// The build of the last round.
    build: Option<Build>,
}

impl EventFile {
    /// Of a run folder. Nothing is written before the first round.
    pub fn new(run: &Path) -> Self {
        Self { run: run.to_owned(), open: None }
    }

    /// Whether a run folder has event files.
    pub fn exists(run: &Path) -> bool {
        run.join(FOLDER).is_dir()
    }

    /// Adds a round. The first one to be added begins a new file with the rounds on record before it.
    pub fn add(&mut self, record: &RoundRecord, timing: &Timing) -> Result<()> {
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let before = match record.round {
                    0 => Vec::new(),
                    first => recorded(&self.run, first)?,
                };
                none.insert(Open::create(&self.run.join(FOLDER), &before, timing.total)?)
            }
        };
        // In one piece: a reader sees whole events.
        let event = event(record, Some(timing), &mut open.time, &mut open.build);
        Ok(open.file.write_all(&event)?)
    }

    /// Ends the file. If no round was added, because all were done before, it is written from the records.
    pub fn finish(self) -> Result<()> {
        if self.open.is_none() {
            let all = recorded(&self.run, u32::MAX)?;
            Open::create(&self.run.join(FOLDER), &all, 0.0)?;
        }
        Ok(())
    }
}

/// The rounds on record before this one.
fn recorded(run: &Path, before: u32) -> Result<Vec<(RoundRecord, Option<Timing>)>> {
    let History { rounds, timings, .. } = History::read(run, false, &|_| None)?;
    let rounds = rounds.into_iter().filter(|record| record.round < before);
    Ok(rounds
        .map(|record| {
            let timing = timings.iter().find(|timing| timing.round == record.round);
            (record, timing.cloned())
        })
        .collect())
}

impl Open {
    /// Puts a new file in the place of those that are there; `seconds` passed since the last of these rounds.
    fn create(
        folder: &Path,
        rounds: &[(RoundRecord, Option<Timing>)],
        seconds: f64,
    ) -> Result<Self> {
        fs_err::create_dir_all(folder)?;
        let old = event_files(folder)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let spent: f64 = rounds.iter().filter_map(|(_, timing)| Some(timing.as_ref()?.total)).sum();
        let (mut time, mut build) = (now.as_secs_f64() - spent - seconds, None);
        let mut content = format::beginning(time);
        for (record, timing) in rounds {
            content.extend(event(record, timing.as_ref(), &mut time, &mut build));
        }
        // Readers take files in the order of their names.
        let after = old.iter().filter_map(|path| number(path)).max().map_or(0, |last| last + 1);
        let name = format!("{PREFIX}{:010}.fedanchor", now.as_secs().max(after));
        let aside = folder.join("new.part");
        // What a killed process left, or a link that someone put there: neither is written to.
        fedanchor_disk::remove(&aside)?;
        let mut file = File::create_new(&aside)?;
        file.write_all(&content)?;
        fs_err::rename(&aside, folder.join(name))?;
        old.iter().try_for_each(|path| retire(path))?;
        Ok(Self { file, time, build })
    }
}

/// Empties an old file, and removes it the next time.
fn retire(path: &Path) -> std::io::Result<()> {
    match fs_err::metadata(path)?.len() {
        0 => fs_err::remove_file(path),
        _ => fs_err::write(path, ""),
    }
}

fn event_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        if number(&path).is_some() {
            found.push(path);
        }
    }
    Ok(found)
}

/// The seconds since 1970 in the name of one of our event files.
fn number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    name.strip_suffix(".fedanchor")?.parse().ok()
}

/// A round as an event after those until `time`: its scalars and, where it is not that of the round before, the build
/// that computed it.
fn event(
    record: &RoundRecord,
    timing: Option<&Timing>,
    time: &mut f64,
    last: &mut Option<Build>,
) -> Vec<u8> {
    *time += timing.map_or(0.0, |timing| timing.total);
    let build = timing.map(|timing| timing.build.clone()).unwrap_or_default();
    let new = (last.as_ref() != Some(&build)).then(|| ("build", build.to_string()));
    *last = Some(build);
    format::values(*time, record.round, &scalars(record, timing), new)
}

/// The scalars of a round, without those that it does not have.
fn scalars(record: &RoundRecord, timing: Option<&Timing>) -> Vec<(String, f64)> {
    let RoundRecord { anchor_head, classifier_head, losses, .. } = record;
    let kept = 100.0 * record.kept as f64 / record.seen as f64;
    let seconds = |of: fn(&Timing) -> f64| timing.map(of);
    let tests = [
        ("accuracy/test", Some(record.test_accuracy)),
        ("accuracy/validation", record.validation_accuracy),
        ("loss/test", Some(record.test_loss)),
    ];
    let others = [
        ("pseudo_labels/kept_percent", (record.seen > 0).then_some(kept)),
        ("pseudo_labels/anchor_head_all", anchor_head.all),
        ("pseudo_labels/anchor_head_kept", anchor_head.kept),
        ("pseudo_labels/classifier_head_all", classifier_head.all),
        ("pseudo_labels/classifier_head_kept", classifier_head.kept),
        ("traffic/bytes_down", Some(record.bytes_down as f64)),
        ("traffic/bytes_up", Some(record.bytes_up as f64)),
        ("seconds/broadcast", seconds(|timing| timing.broadcast)),
        ("seconds/clients", seconds(|timing| timing.clients)),
        ("seconds/aggregate", seconds(|timing| timing.aggregate)),
        ("seconds/server", seconds(|timing| timing.server)),
        ("seconds/test", seconds(|timing| timing.test)),
        ("seconds/total", seconds(|timing| timing.total)),
    ];
    let losses = losses.names().map(|name| (format!("loss/{name}"), losses.get(name)));
    let named = |(tag, value): (&str, Option<f64>)| (tag.to_owned(), value);
    let all = tests.into_iter().map(named).chain(losses).chain(others.into_iter().map(named));
    all.filter_map(|(tag, value)| Some((tag, value?))).collect()
}
