//! What a run needs to go on: written after every round, read when it is resumed.
//!
//! Random draws are keyed by round and client and have no state, so a checkpoint is the server's tensors,
//! the round, and which experiment and data it belongs to. What clients keep between their rounds lies
//! in files of their own, one a client and round: a checkpoint names the round of each, and only clients
//! that trained are written again. A file is complete or it is not there: written aside, synced, renamed,
//! and sealed by a hash that is checked before anything is believed. A round is finished when its
//! checkpoint is complete: its lines stand in there, and only then in the records. One file for everything, rewritten in
//! place, was rejected: a kill in the middle would lose the run.

use crate::error::{Error, Result};
use crate::folder::{Lines, Log};
use crate::ledger::Ledger;
use fs_err::File;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use tch::{Device, Kind, Tensor};

/// The folder of checkpoints in a run folder.
pub(crate) const FOLDER: &str = "checkpoints";
const CLIENTS: &str = "clients";
const MAGIC: &[u8; 8] = b"fedanch1";
/// The key of the description in a file's metadata.
const ABOUT: &str = "fedanchor";

/// Named tensors on the host.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    tensors: BTreeMap<String, Tensor>,
}

/// What a checkpoint belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The last complete round.
    pub round: u32,
    /// Version of the program.
    pub version: String,
    /// Fingerprint of the data.
    pub data: String,
    /// The round in which each client that keeps something last trained.
    pub clients: BTreeMap<u32, u32>,
    /// Whether it stays when later ones are there.
    pub lasting: bool,
    /// Whether it was the best so far; the next best takes its place.
    pub best: bool,
    /// What the server remembers of its clients.
    pub ledger: Ledger,
    /// The round's lines in the records and timings.
    pub lines: Lines,
}

/// A checkpoint on its way to the disk.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) about: About,
    pub(crate) server: Bundle,
    /// What the clients of this round keep.
    pub(crate) clients: Vec<(u32, Bundle)>,
}

impl Bundle {
    /// Adds a tensor, as a copy on the host.
    pub(crate) fn put(&mut self, name: String, tensor: &Tensor) -> Result<()> {
        let copy = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?;
        // A copy even on a CPU, where training goes on in the same memory; and in plain order.
        self.tensors.insert(name, copy.f_contiguous()?.f_detach_copy()?);
        Ok(())
    }

    /// The tensors whose names start with `group/`, without it.
    pub(crate) fn group(&self, group: &str) -> BTreeMap<&str, &Tensor> {
        let inside = |name: &'_ str| name.strip_prefix(group)?.strip_prefix('/').map(str::len);
        let found = self.tensors.iter().filter_map(|(name, tensor)| {
            let length = inside(name)?;
            Some((&name[name.len() - length..], tensor))
        });
        found.collect()
    }

    /// The groups whose names start with `prefix.`, by the number behind it.
    pub(crate) fn numbers(&self, prefix: &str) -> Vec<u32> {
        let number = |name: &String| {
            let rest = name.strip_prefix(prefix)?.strip_prefix('.')?;
            rest.split('/').next()?.parse().ok()
        };
        let mut numbers: Vec<u32> = self.tensors.keys().filter_map(number).collect();
        numbers.dedup();
        numbers
    }

    fn encode(&self, about: &str) -> Result<Vec<u8>> {
        let broken = |error: &dyn std::fmt::Display| Error::Engine {
            phase: "writing a checkpoint",
            message: error.to_string(),
        };
        let mut bytes = Vec::with_capacity(self.tensors.len());
        for tensor in self.tensors.values() {
            let mut numbers = vec![0; tensor.numel() * size_of::<f32>()];
            tensor.f_copy_data_u8(&mut numbers, tensor.numel())?;
            bytes.push(numbers);
        }
        let shapes = self
            .tensors
            .values()
            .map(|tensor| tensor.size().iter().map(|&size| size as usize).collect::<Vec<usize>>());
        let views = self.tensors.keys().zip(shapes).zip(&bytes).map(|((name, shape), bytes)| {
            let view = TensorView::new(Dtype::F32, shape, bytes).map_err(|error| broken(&error))?;
            Ok((name.as_str(), view))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let metadata = HashMap::from([(ABOUT.to_owned(), about.to_owned())]);
        safetensors::serialize(views, Some(metadata)).map_err(|error| broken(&error))
    }

    /// Reads what [`Bundle::encode`] wrote; the description comes with it.
    fn decode(bytes: &[u8]) -> Option<(Self, String)> {
        let (_, header) = SafeTensors::read_metadata(bytes).ok()?;
        let about = header.metadata().as_ref()?.get(ABOUT)?.clone();
        let file = SafeTensors::deserialize(bytes).ok()?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            if view.dtype() != Dtype::F32 {
                return None;
            }
            let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
            let tensor = Tensor::f_from_data_size(view.data(), &shape, Kind::Float).ok()?;
            tensors.insert(name, tensor);
        }
        Some((Self { tensors }, about))
    }
}

/// Writes a file so that it is whole or not there: aside, sealed, synced, renamed.
fn write_sealed(path: &Path, payload: &[u8]) -> std::io::Result<()> {
    let aside = path.with_extension("part");
    let write = || {
        let mut file = File::create(&aside)?;
        file.write_all(MAGIC)?;
        file.write_all(blake3::hash(payload).as_bytes())?;
        file.write_all(payload)?;
        file.sync_all()?;
        fs_err::rename(&aside, path)
    };
    write().inspect_err(|_| drop(fs_err::remove_file(&aside)))?; // a full disk needs the room
    // The name itself must survive a power failure.
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The payload of a sealed file; `None` if it is torn, or not one of ours.
fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    unseal(fs_err::read(path).ok()?)
}

fn unseal(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let hash = bytes.strip_prefix(MAGIC)?.get(..32)?;
    let payload = bytes.get(MAGIC.len() + 32..)?;
    if blake3::hash(payload).as_bytes() != hash {
        return None;
    }
    Some(bytes.split_off(MAGIC.len() + 32))
}

fn round_file(folder: &Path, round: u32) -> PathBuf {
    folder.join(FOLDER).join(format!("round-{round:06}.checkpoint"))
}

fn client_file(folder: &Path, client: u32, round: u32) -> PathBuf {
    folder.join(FOLDER).join(CLIENTS).join(format!("{client}-{round:06}.checkpoint"))
}

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

/// The rounds that have a checkpoint, rising.
fn rounds(folder: &Path) -> Result<Vec<u32>> {
    let place = folder.join(FOLDER);
    if !place.exists() {
        return Ok(Vec::new());
    }
    let entries = fs_err::read_dir(&place).map_err(|error| Error::file(&place, error))?;
    let mut rounds = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| Error::file(&place, error))?.file_name();
        let round: Option<u32> = name.to_str().and_then(|name| {
            name.strip_prefix("round-")?.strip_suffix(".checkpoint")?.parse().ok()
        });
        rounds.extend(round);
    }
    rounds.sort_unstable();
    Ok(rounds)
}

/// A checkpoint that was read.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) about: About,
    pub(crate) server: Bundle,
    pub(crate) clients: Vec<(u32, Bundle)>,
}

/// The last complete checkpoint of a run folder up to `most` rounds, and the rounds whose checkpoints
/// were there and could not be used.
pub(crate) fn last(folder: &Path, most: u32) -> Result<(Option<Found>, Vec<u32>)> {
    let mut broken = Vec::new();
    for round in rounds(folder)?.into_iter().rev().filter(|round| *round <= most) {
        match read(folder, round) {
            Some(found) => return Ok((Some(found), broken)),
            None => broken.push(round),
        }
    }
    Ok((None, broken))
}

fn read(folder: &Path, round: u32) -> Option<Found> {
    let (server, about) = Bundle::decode(&read_sealed(&round_file(folder, round))?)?;
    let about: About = serde_json::from_str(&about).ok()?;
    if about.round != round {
        return None;
    }
    let clients = about.clients.iter().map(|(&client, &round)| {
        let (bundle, _) = Bundle::decode(&read_sealed(&client_file(folder, client, round))?)?;
        Some((client, bundle))
    });
    let clients = clients.collect::<Option<_>>()?;
    Some(Found { about, server, clients })
}

#[cfg(test)]
#[path = "../../data/fuzz/src/damage.rs"]
mod damage;

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_data::{Purpose, Stream};

    fn checkpoint(round: u32, clients: &[(u32, u32)]) -> Checkpoint {
        let mut server = Bundle::default();
        let value = Tensor::from_slice(&[round as f32, 2.0]).view([1, 2]);
        server.put("model/a.weight".to_owned(), &value).unwrap();
        let mine = clients.iter().filter(|(_, at)| *at == round).map(|&(id, _)| {
            let mut bundle = Bundle::default();
            bundle.put("kept/x".to_owned(), &Tensor::from_slice(&[id as f32])).unwrap();
            (id, bundle)
        });
        let clients_of = clients.iter().copied().collect();
        let (version, data) = ("1".to_owned(), "d".to_owned());
        let about = About { round, version, data, clients: clients_of, ..About::default() };
        Checkpoint { about, server, clients: mine.collect() }
    }

    #[test]
    fn the_last_complete_one_is_found_and_older_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let log = crate::folder::RunFolder::create(folder.path()).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log).unwrap();
        saver.save(checkpoint(0, &[])).unwrap();
        let mut lasting = checkpoint(1, &[(7, 1)]);
        lasting.about.lasting = true;
        saver.save(lasting).unwrap();
        saver.save(checkpoint(2, &[(7, 1), (8, 2)])).unwrap();
        saver.save(checkpoint(3, &[(7, 3), (8, 2)])).unwrap();
        saver.save(checkpoint(4, &[(7, 3), (8, 4)])).unwrap();
        saver.finish().unwrap();
        assert_eq!(rounds(folder.path()).unwrap(), [1, 3, 4]); // two, and the lasting one
        let clients = fs_err::read_dir(folder.path().join(FOLDER).join(CLIENTS)).unwrap();
        assert_eq!(clients.count(), 4); // 7-1 for round 1, 7-3 and 8-2 for 3, 8-4 for 4

        let (found, broken) = last(folder.path(), u32::MAX).unwrap();
        let found = found.unwrap();
        assert_eq!((found.about.round, found.clients.len(), broken.len()), (4, 2, 0));
        let model = found.server.group("model");
        assert_eq!(Vec::<f32>::try_from(model["a.weight"].flatten(0, -1)).unwrap(), [4.0, 2.0]);
        assert_eq!(last(folder.path(), 3).unwrap().0.unwrap().about.round, 3);
    }

    #[test]
    fn a_torn_or_changed_file_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let log = crate::folder::RunFolder::create(folder.path()).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log).unwrap();
        saver.save(checkpoint(5, &[(1, 5)])).unwrap();
        saver.save(checkpoint(6, &[(1, 5)])).unwrap();
        saver.finish().unwrap();
        let path = round_file(folder.path(), 6);
        let whole = fs_err::read(&path).unwrap();
        for at in [0, 9, 50, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs_err::write(&path, bytes).unwrap();
            let (found, broken) = last(folder.path(), u32::MAX).unwrap();
            assert_eq!((found.unwrap().about.round, broken), (5, vec![6]), "byte {at}");
        }
        fs_err::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(last(folder.path(), u32::MAX).unwrap().1, [6]);
        // A client's file that is missing makes the checkpoint useless too.
        fs_err::write(&path, &whole).unwrap();
        fs_err::remove_file(client_file(folder.path(), 1, 5)).unwrap();
        let (found, broken) = last(folder.path(), u32::MAX).unwrap();
        assert!(found.is_none());
        assert_eq!(broken, [6, 5]);
    }

    /// As in `crates/core/tests/mutated.rs`, for what that cannot reach: sealed files, and what is behind
    /// the seal.
    #[test]
    fn damaged_bytes_are_no_checkpoint_and_no_panic() {
        let checkpoint = checkpoint(3, &[(1, 3), (2, 1)]);
        let about = serde_json::to_string(&checkpoint.about).unwrap();
        let payload = checkpoint.server.encode(&about).unwrap();
        let sealed = [MAGIC, &blake3::hash(&payload).as_bytes()[..], &payload].concat();
        assert_eq!(unseal(sealed.clone()).as_ref(), Some(&payload));
        let stream = Stream::new(2026, Purpose::Shuffle, 1, 0);
        let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(2000, |text| text.parse().unwrap());
        let mut readable = 0;
        for case in 0..count {
            let bytes = damage::damage(&mut stream.at(2 * case), std::slice::from_ref(&sealed));
            assert!(bytes == sealed || unseal(bytes).is_none(), "input {case}");
            let bytes =
                damage::damage(&mut stream.at(2 * case + 1), std::slice::from_ref(&payload));
            if let Some((bundle, about)) = Bundle::decode(&bytes) {
                readable += 1;
                drop((bundle, serde_json::from_str::<About>(&about)));
            }
        }
        assert!(
            readable > 0 && readable < count,
            "{readable}: the damage is too much, or too little"
        );
    }
}
