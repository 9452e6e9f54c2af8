//! The thread that writes checkpoints, so that the next round need not wait for the disk.

use super::{About, CLIENTS, Checkpoint, FOLDER, client_file, read, round_file, rounds};
use crate::checkpoint::sealed::write_sealed;
use crate::error::{Error, Result};
use crate::folder::Log;
use std::collections::HashSet;
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
    /// Saves into a run folder and finishes each round in its log.
    pub(crate) fn start(folder: &Path, mut log: Log) -> Result<Self> {
        let clients = folder.join(FOLDER).join(CLIENTS);
        fs_err::create_dir_all(&clients).map_err(|error| Error::file(&clients, error))?;
        let (sender, receiver) = mpsc::sync_channel::<Checkpoint>(0);
        let folder = folder.to_owned();
        let thread = std::thread::spawn(move || {
            let mut there = Vec::new();
            for round in rounds(&folder)? {
                // One that cannot be read names nobody; it goes in its time.
                let nobody = About { round, ..About::default() };
                there.push(read(&folder, round).map_or(nobody, |found| found.about));
            }
            for checkpoint in receiver {
                // The lines of the rounds before must be as safe as this checkpoint.
                let saved = log.sync().and_then(|()| save(&folder, &checkpoint));
                let saved = saved.and_then(|()| log.append(&checkpoint.about.lines));
                saved.map_err(|error| in_a_run(&folder, &error))?;
                there.retain(|other| other.round != checkpoint.about.round);
                if checkpoint.about.best {
                    there.iter_mut().for_each(|other| other.best = false);
                }
                there.push(checkpoint.about);
                thin(&folder, &mut there)?;
            }
            Ok(())
        });
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Hands a checkpoint over as soon as the one before is complete.
    pub(crate) fn save(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let taken = self.sender.as_ref().is_some_and(|sender| sender.send(checkpoint).is_ok());
        if taken { Ok(()) } else { self.finish() }
    }

    /// Waits until everything is on the disk.
    pub(crate) fn finish(&mut self) -> Result<()> {
        drop(self.sender.take());
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// What to do when the disk fails a run.
fn in_a_run(folder: &Path, error: &Error) -> Error {
    let folder = folder.display();
    Error::file(
        folder.to_string(),
        format!(
            "{error}; what was saved before is intact: see to the disk, then go on with \
             `fedanchor run --resume {folder}`"
        ),
    )
}

fn save(folder: &Path, checkpoint: &Checkpoint) -> Result<()> {
    let About { round, .. } = checkpoint.about;
    let write = |path: PathBuf, payload: Vec<u8>| {
        write_sealed(&path, &payload).map_err(|error| Error::file(path, error))
    };
    for (client, bundle) in &checkpoint.clients {
        write(client_file(folder, *client, round), bundle.encode("")?)?;
    }
    let about =
        serde_json::to_string(&checkpoint.about).map_err(|error| Error::file(folder, error))?;
    write(round_file(folder, round), checkpoint.server.encode(&about)?)
}

/// Removes all checkpoints but the last two and those that are to last, and clients' files that none
/// of the remaining ones names.
fn thin(folder: &Path, there: &mut Vec<About>) -> Result<()> {
    let remove = |path: PathBuf| match fs_err::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file(path, error)),
        _ => Ok(()),
    };
    let newest = there.len().saturating_sub(2);
    let (mut left, mut gone) = (Vec::new(), Vec::new());
    for (place, checkpoint) in there.drain(..).enumerate() {
        let keep = place >= newest || checkpoint.lasting || checkpoint.best;
        if keep { &mut left } else { &mut gone }.push(checkpoint);
    }
    *there = left;
    let named: HashSet<(u32, u32)> =
        there.iter().flat_map(|c| c.clients.iter().map(|(&id, &round)| (id, round))).collect();
    for checkpoint in gone {
        remove(round_file(folder, checkpoint.round))?;
        for (client, round) in checkpoint.clients {
            if !named.contains(&(client, round)) {
                remove(client_file(folder, client, round))?;
            }
        }
    }
    Ok(())
}
