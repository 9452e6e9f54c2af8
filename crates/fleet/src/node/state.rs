//! The states that a node's clients keep between their rounds, on disk.
//!
//! One file per client and round, of which the last two are kept. A client that repeats a round, because its answer was
//! lost, starts from the state before that round and gives the same answer.

use fedanchor::engine::tensors::Bundle;
use fedanchor::{Error, Result};
use fedanchor_disk as disk;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SUFFIX: &str = "state";
/// Digits of the digest in a file's name.
const DIGITS: usize = 24;
/// Files per client.
const FILES: usize = 2;
/// The age after which the states of other runs are removed.
const EXPIRES_AFTER: Duration = Duration::from_hours(90 * 24);

/// The folder with the states of a node's clients.
#[derive(Debug)]
pub(super) struct StateFolder(PathBuf);

/// The state of a client.
#[derive(Debug)]
pub(super) enum Kept {
    Nothing,
    /// The state, and the round in which the client trained.
    State(u32, Bundle),
    Damaged,
}

/// The metadata of a file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StateMeta {
    run: String,
    client: String,
    round: u32,
}

impl StateFolder {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let problem = |error| Error::file(path, error);
        let is_new = !path.exists();
        disk::create_folder(path).map_err(problem)?;
        // States derive from private images. Whoever created the folder has chosen its permissions.
        if is_new {
            std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(problem)?;
        }
        Ok(Self(path.to_owned()))
    }

    /// Removes expired states of other runs, and files that a killed process has left incomplete. Errors are ignored,
    /// as remaining files do no harm.
    pub(super) fn remove_expired<'a>(&self, run: &str, clients: impl Iterator<Item = &'a str>) {
        let current: BTreeSet<String> = clients.map(|client| Self::prefix(run, client)).collect();
        let is_expired = |path: &Path| {
            let written = path.metadata().and_then(|metadata| metadata.modified());
            written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > EXPIRES_AFTER))
        };
        for path in disk::list(&self.0).unwrap_or_default() {
            let name = path.file_name().and_then(OsStr::to_str).and_then(parse);
            if name.is_some_and(|(prefix, _)| !current.contains(prefix)) && is_expired(&path) {
                let _ = disk::remove(&path);
            }
        }
    }

    /// The beginning of file names: a digest, since names of clients may contain any character.
    fn prefix(run: &str, client: &str) -> String {
        let digest = blake3::hash(format!("{run}\0{client}").as_bytes());
        digest.to_hex()[..DIGITS].to_owned()
    }

    /// The rounds with a state, the newest first.
    fn rounds(&self, prefix: &str) -> Result<Vec<(u32, PathBuf)>> {
        let files = disk::list(&self.0).map_err(|error| Error::file(&self.0, error))?;
        let mut found: Vec<(u32, PathBuf)> = files
            .into_iter()
            .filter_map(|path| {
                let (of, round) = parse(path.file_name()?.to_str()?)?;
                (of == prefix && path.extension()? == SUFFIX).then_some((round, path))
            })
            .collect();
        found.sort_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Loads the state of a client before this round. Only errors of the disk are errors.
    pub(super) fn load(&self, run: &str, client: &str, round: u32) -> Result<Kept> {
        let files = self.rounds(&Self::prefix(run, client))?;
        let Some((trained, path)) = files.into_iter().find(|(trained, _)| *trained < round) else {
            return Ok(Kept::Nothing);
        };
        let file = disk::read(&path, disk::MAX_FILE).map_err(|error| Error::file(&path, error))?;
        let expected = StateMeta { run: run.to_owned(), client: client.to_owned(), round: trained };
        let intact = file.split_first_chunk().filter(|(hash, bytes)| blake3::hash(bytes) == **hash);
        let decoded = intact.and_then(|(_, bytes)| Bundle::decode(bytes).ok());
        Ok(match decoded {
            Some((bundle, meta)) if serde_json::from_str(&meta).ok() == Some(expected) => {
                Kept::State(trained, bundle)
            }
            _ => Kept::Damaged,
        })
    }

    /// Saves the state of a client after this round. Those of later rounds belong to a part of the run that is repeated,
    /// and are removed.
    pub(super) fn save(&self, run: &str, client: &str, round: u32, state: &Bundle) -> Result<()> {
        let meta = StateMeta { run: run.to_owned(), client: client.to_owned(), round };
        let meta = serde_json::to_string(&meta).map_err(|error| Error::Fleet(error.to_string()))?;
        let bytes = state.encode(&meta)?;
        let prefix = Self::prefix(run, client);
        let remove = |path: &Path| disk::remove(path).map_err(|error| Error::file(path, error));
        for (_, later) in self.rounds(&prefix)?.iter().filter(|(other, _)| *other > round) {
            remove(later)?;
        }
        let path = self.0.join(format!("{prefix}-{round}.{SUFFIX}"));
        disk::write(&path, &[blake3::hash(&bytes).as_bytes(), &bytes])
            .map_err(|error| Error::file(&path, error))?;
        self.rounds(&prefix)?.iter().skip(FILES).try_for_each(|(_, old)| remove(old))
    }
}

/// The digest and the round in the name of a file, which may be incomplete.
fn parse(name: &str) -> Option<(&str, u32)> {
    let name = name.strip_suffix(".part").unwrap_or(name);
    let (prefix, round) = name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split_once('-')?;
    let is_digest = prefix.len() == DIGITS && prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((prefix, round.parse().ok()?)).filter(|_| is_digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;
    use tch::Tensor;

    fn bundle(value: f32) -> Bundle {
        let mut bundle = Bundle::default();
        bundle.put("a/b".to_owned(), &Tensor::from_slice(&[value])).unwrap();
        bundle
    }

    fn value(found: Kept) -> Option<(u32, f64)> {
        match found {
            Kept::State(round, bundle) => Some((round, bundle.group("a")["b"].double_value(&[0]))),
            Kept::Nothing => None,
            Kept::Damaged => panic!(),
        }
    }

    #[test]
    fn a_repeated_round_starts_from_the_state_before_it() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(temporary.path()).unwrap();
        assert!(value(folder.load("run", "a/../b", 1).unwrap()).is_none());
        for round in [2, 9, 10] {
            folder.save("run", "a/../b", round, &bundle(round as f32)).unwrap();
        }
        let at = |round| value(folder.load("run", "a/../b", round).unwrap());
        assert_eq!((at(11), at(10), at(9)), (Some((10, 10.0)), Some((9, 9.0)), None));
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), FILES);
        // Nothing of another run or client.
        assert!(value(folder.load("other", "a/../b", 11).unwrap()).is_none());
        assert!(value(folder.load("run", "b", 11).unwrap()).is_none());
        // An earlier round is repeated: the states of later ones are removed.
        folder.save("run", "a/../b", 9, &bundle(90.0)).unwrap();
        assert_eq!(at(11), Some((9, 90.0)));
    }

    #[test]
    fn expired_states_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(temporary.path()).unwrap();
        for run in ["over", "paused"] {
            folder.save(run, "a", 7, &bundle(1.0)).unwrap();
        }
        let torn = format!("{}-8.state.part", StateFolder::prefix("over", "a"));
        let kept = ["notes.txt", "not-7.state"];
        for name in kept.into_iter().chain([torn.as_str()]) {
            std::fs::write(temporary.path().join(name), "").unwrap();
        }
        for file in std::fs::read_dir(temporary.path()).unwrap() {
            let file = std::fs::File::options().write(true).open(file.unwrap().path()).unwrap();
            let long_ago = SystemTime::now() - EXPIRES_AFTER - Duration::from_hours(1);
            file.set_modified(long_ago).unwrap();
        }
        folder.save("current", "a", 1, &bundle(2.0)).unwrap();
        folder.remove_expired("paused", ["a"].into_iter());
        assert!(value(folder.load("over", "a", 8).unwrap()).is_none());
        assert_eq!(value(folder.load("current", "a", 2).unwrap()), Some((1, 2.0)));
        assert_eq!(value(folder.load("paused", "a", 8).unwrap()), Some((7, 1.0)));
        assert!(!temporary.path().join(torn).exists());
        assert!(kept.iter().all(|name| temporary.path().join(name).exists()));
        let new = temporary.path().join("new");
        StateFolder::open(&new).unwrap();
        assert_eq!(new.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_damaged_state_is_detected() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(temporary.path()).unwrap();
        folder.save("run", "a", 1, &bundle(1.0)).unwrap();
        let path = std::fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert!(matches!(folder.load("run", "a", 2).unwrap(), Kept::Damaged), "{at}");
        }
    }
}
