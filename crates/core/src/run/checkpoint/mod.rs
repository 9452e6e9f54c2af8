//! What a run needs to resume: written after every round.
//!
//! Random draws are keyed by round and client and have no state, so a checkpoint is the coordinator's
//! state, the round, and which experiment and data it belongs to. The states of simulated clients are in
//! files of their own, one per client and round: a checkpoint names the round of each, and only clients
//! that trained are written again. A file is complete or absent: written aside, synced, renamed, and
//! sealed by a hash that is verified before anything is read. A round is finished when its checkpoint is
//! complete: its lines are in there first, and only then in the records. One file for everything,
//! rewritten in place, was rejected: a kill in the middle would lose the run.

mod saver;
mod sealed;

pub(crate) use saver::Saver;

use super::folder::{CHECKPOINTS as FOLDER, Lines, RoundFile};
use crate::error::{Error, Result};
use crate::federation::{ClientStates, CoordinatorState, Picked};
use fedanchor_engine::tensors::Bundle;
use sealed::{is_earlier, read_sealed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const CLIENTS: &str = "clients";

/// What a checkpoint belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    /// The last complete round.
    pub(crate) round: u32,
    /// Version of the program.
    pub(crate) version: String,
    /// Fingerprint of the data.
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
    /// The round's lines in the records and timings.
    pub(crate) lines: Lines,
    /// The samples picked in the last round in which clients labelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) picked: Option<Picked>,
}

/// A checkpoint on its way to the disk.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) about: About,
    pub(crate) server: Bundle,
    /// The states of the clients that trained in this round.
    pub(crate) clients: Vec<(u32, Bundle)>,
    /// Further files of the round, which the run could write again from the checkpoint.
    pub(crate) files: Vec<RoundFile>,
}

fn round_file(folder: &Path, round: u32) -> PathBuf {
    folder.join(FOLDER).join(format!("round-{round:06}.checkpoint"))
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
    pub(crate) clients: ClientStates,
}

/// The last complete checkpoint of a run folder up to round `most`, and the rounds whose checkpoints are
/// damaged.
pub(crate) fn last(folder: &Path, most: u32) -> Result<(Option<Found>, Vec<u32>)> {
    let mut broken = Vec::new();
    for round in rounds(folder)?.into_iter().rev().filter(|round| *round <= most) {
        match read(folder, round) {
            Some(found) => return Ok((Some(found), broken)),
            None if is_earlier(&round_file(folder, round)) => {
                let problem = "was written by an earlier version of fedanchor, and cannot be resumed with \
                               this one: finish the run with that version, or start it again";
                return Err(Error::file(round_file(folder, round), problem));
            }
            None => broken.push(round),
        }
    }
    Ok((None, broken))
}

fn read(folder: &Path, round: u32) -> Option<Found> {
    let (server, about) = Bundle::decode(&read_sealed(&round_file(folder, round))?).ok()?;
    let about: About = serde_json::from_str(&about).ok()?;
    if about.round != round {
        return None;
    }
    let clients = about.clients.iter().map(|(&client, &round)| {
        let (bundle, whose) =
            Bundle::decode(&read_sealed(&client_file(folder, client, round))?).ok()?;
        (whose == client_name(client, round)).then_some((client, bundle))
    });
    let bundles = clients.collect::<Option<_>>()?;
    let clients = ClientStates { trained_in: about.clients.clone(), bundles };
    Some(Found { about, server, clients })
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
        let (version, data) = ("1".to_owned(), "d".to_owned());
        let about = About { round, version, data, clients: clients_of, ..About::default() };
        Checkpoint { about, server, clients: mine.collect(), files: Vec::new() }
    }

    #[test]
    fn the_last_complete_one_is_found_and_older_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let log = crate::run::folder::RunFolder::create(folder.path()).unwrap().log().unwrap();
        let mut saver = Saver::start(folder.path(), log, None).unwrap();
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
        assert_eq!((found.about.round, found.clients.bundles.len(), broken.len()), (4, 2, 0));
        let model = found.server.group("model");
        assert_eq!(Vec::<f32>::try_from(model["a.weight"].flatten(0, -1)).unwrap(), [4.0, 2.0]);
        assert_eq!(last(folder.path(), 3).unwrap().0.unwrap().about.round, 3);
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
}
