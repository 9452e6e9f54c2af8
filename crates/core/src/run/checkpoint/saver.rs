//! The thread that writes checkpoints, so that the next round need not wait for the disk.

use super::super::folder::Log;
use super::sealed::write_sealed;
use super::{CLIENTS, Checkpoint, CheckpointMeta, FOLDER};
use super::{client_file, client_name, read_client, read_round, round_file, rounds};
use crate::disk::{self, remove};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Writes checkpoints in a thread of its own, so that the next round need not wait for the disk.
#[derive(Debug)]
pub(crate) struct Saver {
    sender: Option<mpsc::SyncSender<Checkpoint>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Saver {
    /// Saves into a run folder and finishes each round in its log. The run continues after round `from`, or
    /// starts: later checkpoints are removed.
    pub(crate) fn start(folder: &Path, log: Log, from: Option<u32>) -> Result<Self> {
        let clients = folder.join(FOLDER).join(CLIENTS);
        disk::create_folder(&clients)?;
        let (sender, receiver) = mpsc::sync_channel::<Checkpoint>(0);
        let folder = folder.to_owned();
        let thread = std::thread::spawn(move || {
            let mut there = tidy(&folder, from)?;
            for checkpoint in receiver {
                // The lines of the rounds before must be as safe as this checkpoint.
                log.sync()?;
                save(&folder, &checkpoint)?;
                checkpoint.files.iter().try_for_each(|file| file.write(&folder))?;
                log.append(&checkpoint.meta.lines)?;
                there.retain(|other| other.round != checkpoint.meta.round);
                if checkpoint.meta.best {
                    there.iter_mut().for_each(|other| other.best = false);
                }
                there.push(checkpoint.meta);
                thin(&folder, &mut there)?;
            }
            log.sync()
        });
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Saves a checkpoint as soon as the one before is complete.
    pub(crate) fn save(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let taken = self.sender.as_ref().is_some_and(|sender| sender.send(checkpoint).is_ok());
        if taken { Ok(()) } else { self.finish() }
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        drop(self.sender.take());
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// Removes what a run that continues after `from` has superseded, and returns what stays. What is damaged stays
/// too, and so do then all files of clients: it may name any of them.
fn tidy(folder: &Path, from: Option<u32>) -> Result<Vec<CheckpointMeta>> {
    let mut there: Vec<CheckpointMeta> = Vec::new();
    let mut damaged = false;
    for round in rounds(folder)? {
        match read_round(folder, round)? {
            Some((meta, _)) if from.is_some_and(|from| round <= from) => there.push(meta),
            Some(_) => remove(&round_file(folder, round))?,
            None => damaged = true,
        }
    }
    // In the files, every checkpoint that was the best in its time says so.
    let best = there.iter().rposition(|meta| meta.best);
    for (place, meta) in there.iter_mut().enumerate() {
        meta.best = Some(place) == best;
    }
    thin(folder, &mut there)?;
    if damaged {
        return Ok(there);
    }
    let named: HashSet<PathBuf> = there
        .iter()
        .flat_map(|meta| meta.clients.iter().map(|(&id, &round)| client_file(folder, id, round)))
        .collect();
    for path in disk::list(&folder.join(FOLDER).join(CLIENTS))? {
        // What is no client's state, or is damaged, is left to people.
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if !named.contains(&path) && read_client(&path, name)?.is_some() {
            remove(&path)?;
        }
    }
    Ok(there)
}

fn save(folder: &Path, checkpoint: &Checkpoint) -> Result<()> {
    let CheckpointMeta { round, .. } = checkpoint.meta;
    for (client, bundle) in &checkpoint.clients {
        let name = client_name(*client, round);
        write_sealed(&client_file(folder, *client, round), &bundle.encode(&name)?)?;
    }
    let meta =
        serde_json::to_string(&checkpoint.meta).map_err(|error| Error::file(folder, error))?;
    write_sealed(&round_file(folder, round), &checkpoint.server.encode(&meta)?)
}

/// Removes all checkpoints but the last two and those to be kept, and client files that none of the others names.
fn thin(folder: &Path, there: &mut Vec<CheckpointMeta>) -> Result<()> {
    let newest = there.len().saturating_sub(2);
    let gone: Vec<CheckpointMeta> =
        there.extract_if(..newest, |older| !older.lasting && !older.best).collect();
    let named: HashSet<(u32, u32)> =
        there.iter().flat_map(|c| c.clients.iter().map(|(&id, &round)| (id, round))).collect();
    for checkpoint in gone {
        remove(&round_file(folder, checkpoint.round))?;
        for (client, round) in checkpoint.clients {
            if !named.contains(&(client, round)) {
                remove(&client_file(folder, client, round))?;
            }
        }
    }
    Ok(())
}
