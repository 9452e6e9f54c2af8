//! What a run needs to resume: written after every round.
//!
//! Random draws are keyed by round and client and have no state, so a checkpoint is the coordinator's
//! state, the round, and which experiment and data it belongs to. The states of simulated clients are in
//! files of their own, one per client and round: a checkpoint names the round of each, and only clients
//! that trained are written again. A file is complete or absent: written aside, synced, renamed, and
//! sealed by a hash that is verified before anything is read. A round is finished when its checkpoint is
//! complete: its lines are in there first, and only then in the records. One file for everything,
//! rewritten in place, was rejected: a kill in the middle would lose the run.
//!
//! Later checkpoints share the file of a client that has not trained since. If it is damaged, that client loses
//! its state and the run goes on, with a note: all checkpoints together must not depend on one old file. A file
//! that cannot be read is another matter: it may be intact, so the error of the disk ends the command, and nothing
//! is removed unless it was read and found to be superseded.

mod saver;
mod sealed;

pub(crate) use saver::Saver;

use super::folder::{CHECKPOINTS as FOLDER, Lines, RoundFile};
use crate::disk;
use crate::error::{Error, Result};
use crate::federation::{ClientStates, CoordinatorState};
use crate::simulation::Picked;
use fedanchor_engine::tensors::Bundle;
use fedanchor_record::{Build, Manifest};
use sealed::{Sealed, read_sealed};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const CLIENTS: &str = "clients";

/// What a checkpoint belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CheckpointMeta {
    /// The last complete round.
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) build: Build,
    pub(crate) data: String,
    /// Fingerprint of the settings, but for those that may change.
    pub(crate) config: String,
    /// The round in which each client that keeps a state last trained.
    pub(crate) clients: BTreeMap<u32, u32>,
    /// Whether it is kept when there are later ones.
    pub(crate) lasting: bool,
    /// Whether it was the best so far; the next best replaces it.
    pub(crate) best: bool,
    /// What the coordinator remembers beside tensors.
    pub(crate) coordinator: CoordinatorState,
    pub(crate) lines: Lines,
    /// The samples picked in the last round in which clients labelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) picked: Option<Picked>,
    /// Checksums of the further files of all rounds until then.
    #[serde(default)]
    pub(crate) files: Manifest,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) meta: CheckpointMeta,
    pub(crate) server: Bundle,
    /// The states of the clients that trained in this round.
    pub(crate) clients: Vec<(u32, Bundle)>,
    /// Further files of the round, which the run could write again from the checkpoint.
    pub(crate) files: Vec<RoundFile>,
}

pub(crate) fn name(round: u32) -> String {
    format!("{FOLDER}/round-{round:06}.checkpoint")
}

fn round_file(folder: &Path, round: u32) -> PathBuf {
    folder.join(name(round))
}

fn client_file(folder: &Path, client: u32, round: u32) -> PathBuf {
    let name = format!("{}.checkpoint", client_name(client, round));
    folder.join(FOLDER).join(CLIENTS).join(name)
}

fn client_name(client: u32, round: u32) -> String {
    format!("{client}-{round:06}")
}

/// The rounds that have a checkpoint, rising.
pub(crate) fn rounds(folder: &Path) -> Result<Vec<u32>> {
    let place = folder.join(FOLDER);
    if !place.try_exists().map_err(|error| Error::file(&place, error))? {
        return Ok(Vec::new());
    }
    let paths = disk::list(&place)?;
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    let round = |name: &str| name.strip_prefix("round-")?.strip_suffix(".checkpoint")?.parse().ok();
    let mut rounds: Vec<u32> = names.filter_map(round).collect();
    rounds.sort_unstable();
    Ok(rounds)
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) meta: CheckpointMeta,
    pub(crate) server: Bundle,
    pub(crate) clients: ClientStates,
    /// Clients whose state is lost, each with its damaged or missing file.
    pub(crate) lost: Vec<(u32, PathBuf)>,
}

/// The last complete checkpoint up to round `most`, and the rounds whose checkpoints are damaged.
pub(crate) fn last(folder: &Path, most: u32) -> Result<(Option<Found>, Vec<u32>)> {
    let mut broken = Vec::new();
    for round in rounds(folder)?.into_iter().rev().filter(|round| *round <= most) {
        match read(folder, round)? {
            Some(found) => return Ok((Some(found), broken)),
            None => broken.push(round),
        }
    }
    Ok((None, broken))
}

/// The checkpoint of a round; `None` if it is damaged.
fn read(folder: &Path, round: u32) -> Result<Option<Found>> {
    let Some((mut meta, server)) = read_round(folder, round)? else { return Ok(None) };
    let (mut bundles, mut lost) = (Vec::new(), Vec::new());
    for (&client, &round) in &meta.clients {
        let path = client_file(folder, client, round);
        match read_client(&path, &client_name(client, round))? {
            Some(bundle) => bundles.push((client, bundle)),
            None => lost.push((client, path)),
        }
    }
    meta.clients.retain(|client, _| lost.iter().all(|(other, _)| other != client));
    let clients = ClientStates { trained_in: meta.clients.clone(), bundles };
    Ok(Some(Found { meta, server, clients, lost }))
}

/// The same without the clients' states.
fn read_round(folder: &Path, round: u32) -> Result<Option<(CheckpointMeta, Bundle)>> {
    let path = round_file(folder, round);
    let payload = match read_sealed(&path)? {
        Sealed::Whole(payload) => payload,
        Sealed::Damaged => return Ok(None),
        Sealed::Earlier => {
            let problem = "was written by an earlier version of fedanchor, and cannot be resumed with \
                           this one: finish the run with that version, or start it again";
            return Err(Error::file(path, problem));
        }
    };
    let Ok((server, meta)) = Bundle::decode(&payload) else { return Ok(None) };
    let meta: Option<CheckpointMeta> = serde_json::from_str(&meta).ok();
    Ok(meta.filter(|meta| meta.round == round).map(|meta| (meta, server)))
}

/// A client's state; `None` if its file is damaged, missing or another's.
fn read_client(path: &Path, name: &str) -> Result<Option<Bundle>> {
    let Sealed::Whole(payload) = read_sealed(path)? else { return Ok(None) };
    let state = Bundle::decode(&payload).ok().filter(|(_, whose)| whose == name);
    Ok(state.map(|(bundle, _)| bundle))
}

/// How many checkpoint files of a run folder are intact, and the paths of those that are damaged or missing.
pub(crate) fn verify(folder: &Path) -> Result<(usize, Vec<PathBuf>)> {
    let (mut intact, mut bad) = (BTreeSet::new(), BTreeSet::new());
    for round in rounds(folder)? {
        match read(folder, round)? {
            Some(found) => {
                intact.insert(round_file(folder, round));
                let clients = found.meta.clients.iter();
                intact.extend(clients.map(|(&client, &at)| client_file(folder, client, at)));
                bad.extend(found.lost.into_iter().map(|(_, path)| path));
            }
            None => drop(bad.insert(round_file(folder, round))),
        }
    }
    Ok((intact.len(), bad.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Tensor;

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
        let data = "d".to_owned();
        let meta = CheckpointMeta { round, data, clients: clients_of, ..CheckpointMeta::default() };
        Checkpoint { meta, server, clients: mine.collect(), files: Vec::new() }
    }

    #[test]
    fn the_last_complete_one_is_found_and_older_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let log = crate::run::folder::RunFolder::create(folder.path()).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log, None).unwrap();
        saver.save(checkpoint(0, &[])).unwrap();
        let mut lasting = checkpoint(1, &[(7, 1)]);
        lasting.meta.lasting = true;
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
        assert_eq!((found.meta.round, found.clients.bundles.len(), broken.len()), (4, 2, 0));
        let model = found.server.group("model");
        assert_eq!(Vec::<f32>::try_from(model["a.weight"].flatten(0, -1)).unwrap(), [4.0, 2.0]);
        assert_eq!(last(folder.path(), 3).unwrap().0.unwrap().meta.round, 3);
    }

    #[test]
    fn one_of_an_earlier_version_names_no_commit() {
        let meta = CheckpointMeta { round: 3, ..CheckpointMeta::default() };
        let mut value = serde_json::to_value(&meta).unwrap();
        for key in ["commit", "changed"] {
            value.as_object_mut().unwrap().remove(key).unwrap();
        }
        assert_eq!(serde_json::from_value::<CheckpointMeta>(value).unwrap(), meta);
    }

    #[test]
    fn a_torn_or_changed_file_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let log = crate::run::folder::RunFolder::create(folder.path()).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log, None).unwrap();
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
            assert_eq!((found.unwrap().meta.round, broken), (5, vec![6]), "byte {at}");
        }
        fs_err::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(last(folder.path(), u32::MAX).unwrap().1, [6]);
    }

    /// Both checkpoints share it: they must not both be lost with it.
    #[test]
    fn a_damaged_client_file_costs_that_clients_state_alone() {
        let folder = tempfile::tempdir().unwrap();
        let log = crate::run::folder::RunFolder::create(folder.path()).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log, None).unwrap();
        saver.save(checkpoint(5, &[(1, 5), (2, 5)])).unwrap();
        saver.save(checkpoint(6, &[(1, 5), (2, 5)])).unwrap();
        saver.finish().unwrap();
        let shared = client_file(folder.path(), 1, 5);
        let whole = fs_err::read(&shared).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 4;
        for damaged in [Some(&flipped[..]), Some(&whole[..9]), None] {
            match damaged {
                Some(bytes) => fs_err::write(&shared, bytes).unwrap(),
                None => fs_err::remove_file(&shared).unwrap(),
            }
            let (found, broken) = last(folder.path(), u32::MAX).unwrap();
            let found = found.unwrap();
            assert_eq!((found.meta.round, broken), (6, vec![]));
            assert_eq!(found.lost, [(1, shared.clone())]);
            let left: Vec<u32> = found.clients.bundles.iter().map(|(client, _)| *client).collect();
            assert_eq!((left, found.clients.trained_in), (vec![2], [(2, 5)].into()));
            assert_eq!(verify(folder.path()).unwrap(), (3, vec![shared.clone()]));
        }
    }

    /// Every call that reads fails once: none of them costs a file, and none counts as damage.
    #[test]
    fn what_cannot_be_read_is_an_error_and_stays() {
        const EIO: i32 = 5;
        let folder = tempfile::tempdir().unwrap();
        let log =
            || crate::run::folder::RunFolder::reopen(folder.path(), true).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log(), None).unwrap();
        for round in 1..5 {
            let mut next = checkpoint(round, &[(1, 1), (2, round)]);
            next.meta.lasting = round == 2;
            saver.save(next).unwrap();
        }
        saver.finish().unwrap();
        let files = || {
            let mut all = disk::list(&folder.path().join(FOLDER)).unwrap();
            all.extend(disk::list(&folder.path().join(FOLDER).join(CLIENTS)).unwrap());
            all
        };
        let before = files();
        let resume = || -> Result<()> {
            let (found, broken) = last(folder.path(), u32::MAX)?;
            assert_eq!((found.unwrap().meta.round, broken), (4, vec![]));
            let log = crate::run::folder::RunFolder::reopen(folder.path(), false)?.log()?;
            Saver::start(folder.path(), log, Some(4))?.finish()
        };
        let injector = fedanchor_disk::inject::Injector::new(folder.path()).unwrap();
        resume().unwrap();
        let calls = injector.calls();
        assert!(calls.len() > 10, "{calls:?}");
        drop(injector);
        for (at, call) in calls.iter().enumerate() {
            let injector = fedanchor_disk::inject::Injector::new(folder.path()).unwrap();
            injector.fail(at, EIO);
            let problem = resume().unwrap_err().to_string();
            assert!(problem.contains("os error 5"), "{call}: {problem}");
            assert_eq!(files(), before, "{call}");
        }
        resume().unwrap();
    }

    /// A lasting checkpoint that is damaged is not removed either: someone may know how to mend it.
    #[test]
    fn what_is_damaged_stays() {
        let folder = tempfile::tempdir().unwrap();
        let log =
            || crate::run::folder::RunFolder::reopen(folder.path(), true).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log(), None).unwrap();
        let mut lasting = checkpoint(1, &[(7, 1)]);
        lasting.meta.lasting = true;
        saver.save(lasting).unwrap();
        saver.save(checkpoint(2, &[(7, 2)])).unwrap();
        saver.finish().unwrap();
        let path = round_file(folder.path(), 1);
        let mut bytes = fs_err::read(&path).unwrap();
        bytes[60] ^= 1;
        fs_err::write(&path, &bytes).unwrap();
        let mut saver = Saver::start(folder.path(), log(), Some(2)).unwrap();
        saver.save(checkpoint(3, &[(7, 2)])).unwrap();
        saver.save(checkpoint(4, &[(7, 2)])).unwrap();
        saver.finish().unwrap();
        assert_eq!(rounds(folder.path()).unwrap(), [1, 3, 4]);
        assert_eq!(fs_err::read(&path).unwrap(), bytes);
        assert!(client_file(folder.path(), 7, 1).exists(), "the damaged one may name it");
    }

    /// Only what is known to be a client's superseded state is removed.
    #[test]
    fn other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let log =
            || crate::run::folder::RunFolder::reopen(folder.path(), true).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log(), None).unwrap();
        saver.save(checkpoint(1, &[(7, 1)])).unwrap();
        saver.save(checkpoint(2, &[(7, 2)])).unwrap();
        saver.finish().unwrap();
        let state = client_file(folder.path(), 7, 2);
        let copy = state.with_file_name("copy.checkpoint");
        let notes = state.with_file_name("notes.txt");
        let orphan = client_file(folder.path(), 8, 1);
        fs_err::copy(&state, &copy).unwrap();
        fs_err::write(&notes, "mine").unwrap();
        fs_err::write(&orphan, "damaged").unwrap();
        Saver::start(folder.path(), log(), Some(1)).unwrap().finish().unwrap();
        assert!(copy.exists() && notes.exists() && orphan.exists());
        assert!(!state.exists(), "of a round that is repeated");
    }
}
