//! What a node's clients keep between their rounds, on disk.
//!
//! One file per client and round; the last two are kept. A client that is asked for a round again, because its answer
//! was lost, starts from what it had kept before that round, and gives the same answer.

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
/// Digits of a digest that name whose state it is.
const DIGITS: usize = 24;
/// Files per client.
const KEPT: usize = 2;
/// States that have not been written for so long are those of runs that are over.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(90 * 24);

/// The folder of a node's state.
#[derive(Debug)]
pub(super) struct StateFolder(PathBuf);

/// What a client has kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// Nothing.
    Nothing,
    /// What it kept when it last trained, in this round.
    State(u32, Bundle),
    /// Something that cannot be made out.
    Damaged,
}

/// Whose state a file holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    run: String,
    client: String,
    round: u32,
}

impl StateFolder {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let problem = |error| Error::file(path, error);
        let is_new = !path.exists();
        disk::create_folder(path).map_err(problem)?;
        // What was learnt from private images is nobody else's business; who made the folder has seen to that.
        if is_new {
            std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(problem)?;
        }
        Ok(Self(path.to_owned()))
    }

    /// Removes the states of other runs, which are over if nothing was written for so long, and what a killed process
    /// left of writing one. What cannot be removed stays, and does no harm.
    pub(super) fn forget_other_runs<'a>(&self, run: &str, clients: impl Iterator<Item = &'a str>) {
        let current: BTreeSet<String> = clients.map(|client| Self::prefix(run, client)).collect();
        let is_old = |path: &Path| {
            let written = path.metadata().and_then(|metadata| metadata.modified());
            written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > FORGOTTEN_AFTER))
        };
        for path in disk::list(&self.0).unwrap_or_default() {
            let name = path.file_name().and_then(OsStr::to_str).and_then(parse);
            let other = name.is_some_and(|(prefix, _)| !current.contains(prefix));
            if other && is_old(&path) {
                let _ = disk::remove(&path);
            }
        }
    }

    /// Names may hold anything: their digest names the files.
    fn prefix(run: &str, client: &str) -> String {
        let digest = blake3::Hasher::new()
            .update(run.as_bytes())
            .update(b"\0")
            .update(client.as_bytes())
            .finalize();
        digest.to_hex()[..DIGITS].to_owned()
    }

    /// The rounds whose state there is, the newest first.
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

    /// What a client kept when it last trained before this round. Only an error of the disk is one.
    pub(super) fn load(&self, run: &str, client: &str, round: u32) -> Result<Kept> {
        let files = self.rounds(&Self::prefix(run, client))?;
        let Some((trained, path)) = files.into_iter().find(|(trained, _)| *trained < round) else {
            return Ok(Kept::Nothing);
        };
        let sealed =
            disk::read(&path, disk::MAX_FILE).map_err(|error| Error::file(&path, error))?;
        let whole = sealed.split_first_chunk::<32>();
        let whole = whole.filter(|(digest, bytes)| blake3::hash(bytes) == **digest);
        let decoded = whole.and_then(|(_, bytes)| Bundle::decode(bytes).ok());
        let expected = About { run: run.to_owned(), client: client.to_owned(), round: trained };
        let same = |about: &str| serde_json::from_str::<About>(about).is_ok_and(|a| a == expected);
        Ok(match decoded {
            Some((bundle, about)) if same(&about) => Kept::State(trained, bundle),
            _ => Kept::Damaged,
        })
    }

    /// Keeps what a client needs in its next round. A run that went back to an earlier round has no use for what was
    /// kept in later ones.
    pub(super) fn save(&self, run: &str, client: &str, round: u32, kept: &Bundle) -> Result<()> {
        let about = About { run: run.to_owned(), client: client.to_owned(), round };
        let about =
            serde_json::to_string(&about).map_err(|error| Error::Fleet(error.to_string()))?;
        let bytes = kept.encode(&about)?;
        let prefix = Self::prefix(run, client);
        let remove = |path: &Path| disk::remove(path).map_err(|error| Error::file(path, error));
        for (_, later) in self.rounds(&prefix)?.iter().filter(|(there, _)| *there > round) {
            remove(later)?;
        }
        let path = self.0.join(format!("{prefix}-{round}.{SUFFIX}"));
        let digest = blake3::hash(&bytes);
        disk::write(&path, &[digest.as_bytes(), &bytes])
            .map_err(|error| Error::file(&path, error))?;
        for (_, old) in self.rounds(&prefix)?.into_iter().skip(KEPT) {
            remove(&old)?;
        }
        Ok(())
    }
}

/// Whose state a file has by its name, and the round; also for one that was not written to its end.
fn parse(name: &str) -> Option<(&str, u32)> {
    let name = name.strip_suffix(".part").unwrap_or(name);
    let (prefix, round) = name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split_once('-')?;
    let digest = prefix.len() == DIGITS && prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((prefix, round.parse().ok()?)).filter(|_| digest)
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
    fn a_round_that_is_asked_for_again_starts_from_the_one_before() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        assert!(value(folder.load("run", "a/../b", 1).unwrap()).is_none());
        for round in [2, 9, 10] {
            folder.save("run", "a/../b", round, &bundle(round as f32)).unwrap();
        }
        let at = |round| value(folder.load("run", "a/../b", round).unwrap());
        assert_eq!((at(11), at(10), at(9)), (Some((10, 10.0)), Some((9, 9.0)), None));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), KEPT);
        // Of another run or client there is nothing.
        assert!(value(folder.load("other", "a/../b", 11).unwrap()).is_none());
        assert!(value(folder.load("run", "b", 11).unwrap()).is_none());
        // Back to an earlier round: later ones do not take the place of what is kept now.
        folder.save("run", "a/../b", 9, &bundle(90.0)).unwrap();
        assert_eq!(at(11), Some((9, 90.0)));
    }

    #[test]
    fn states_of_runs_that_are_over_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        for run in ["over", "paused"] {
            folder.save(run, "a", 7, &bundle(1.0)).unwrap();
        }
        let torn = format!("{}-8.state.part", StateFolder::prefix("over", "a"));
        let kept = ["notes.txt", "not-7.state"];
        for name in kept.into_iter().chain([torn.as_str()]) {
            std::fs::write(place.path().join(name), "").unwrap();
        }
        for file in std::fs::read_dir(place.path()).unwrap() {
            let file = std::fs::File::options().write(true).open(file.unwrap().path()).unwrap();
            let long_ago = SystemTime::now() - FORGOTTEN_AFTER - Duration::from_hours(1);
            file.set_modified(long_ago).unwrap();
        }
        folder.save("current", "a", 1, &bundle(2.0)).unwrap();
        folder.forget_other_runs("paused", ["a"].into_iter());
        assert!(value(folder.load("over", "a", 8).unwrap()).is_none());
        assert_eq!(value(folder.load("current", "a", 2).unwrap()), Some((1, 2.0)));
        assert_eq!(value(folder.load("paused", "a", 8).unwrap()), Some((7, 1.0)));
        assert!(!place.path().join(torn).exists());
        assert!(kept.iter().all(|name| place.path().join(name).exists()));
        let new = place.path().join("new");
        StateFolder::open(&new).unwrap();
        assert_eq!(new.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_damaged_state_is_found_out() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        folder.save("run", "a", 1, &bundle(1.0)).unwrap();
        let path = std::fs::read_dir(place.path()).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert!(matches!(folder.load("run", "a", 2).unwrap(), Kept::Damaged), "{at}");
        }
    }
}
