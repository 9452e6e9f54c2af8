//! What a node's clients keep between their rounds, on disk.
//!
//! One file per client and round; the last two are kept. A client that is asked for a round again, because its answer
//! was lost, starts from what it had kept before that round, and gives the same answer.

use fedanchor::engine::tensors::Bundle;
use fedanchor::{Error, Result};
use fedanchor_disk as disk;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The largest state that is read, in bytes.
const LARGEST: u64 = 1 << 34;
const SUFFIX: &str = "state";
/// Files per client.
const KEPT: usize = 2;

/// The folder of a node's state.
#[derive(Debug)]
pub(super) struct StateFolder(PathBuf);

/// Whose state a file holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    run: String,
    client: String,
    round: u32,
}

impl StateFolder {
    pub(super) fn open(path: &Path) -> Result<Self> {
        disk::create_folder(path).map_err(|error| Error::file(path, error))?;
        Ok(Self(path.to_owned()))
    }

    /// Names may hold anything: their digest names the files.
    fn prefix(run: &str, client: &str) -> String {
        let digest = blake3::Hasher::new()
            .update(run.as_bytes())
            .update(b"\0")
            .update(client.as_bytes())
            .finalize();
        digest.to_hex()[..24].to_owned()
    }

    /// The rounds whose state there is, the newest first.
    fn rounds(&self, prefix: &str) -> Result<Vec<(u32, PathBuf)>> {
        let files = disk::list(&self.0).map_err(|error| Error::file(&self.0, error))?;
        let mut found: Vec<(u32, PathBuf)> = files
            .into_iter()
            .filter_map(|path| {
                let name = path.file_name()?.to_str()?;
                let round = name.strip_prefix(prefix)?.strip_prefix('-')?;
                let round = round.strip_suffix(SUFFIX)?.strip_suffix('.')?.parse().ok()?;
                Some((round, path))
            })
            .collect();
        found.sort_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// What a client kept when it last trained before this round.
    pub(super) fn load(
        &self,
        run: &str,
        client: &str,
        round: u32,
    ) -> Result<Option<(u32, Bundle)>> {
        let files = self.rounds(&Self::prefix(run, client))?;
        let Some((trained, path)) = files.into_iter().find(|(trained, _)| *trained < round) else {
            return Ok(None);
        };
        let sealed = disk::read(&path, LARGEST).map_err(|error| Error::file(&path, error))?;
        let damaged =
            || Error::file(&path, "is damaged: remove it, and the client starts without it");
        let (digest, bytes) = sealed.split_first_chunk::<32>().ok_or_else(damaged)?;
        if blake3::hash(bytes) != *digest {
            return Err(damaged());
        }
        let (bundle, about) = Bundle::decode(bytes)?;
        let expected = About { run: run.to_owned(), client: client.to_owned(), round: trained };
        match serde_json::from_str::<About>(&about) {
            Ok(about) if about == expected => Ok(Some((trained, bundle))),
            _ => Err(damaged()),
        }
    }

    /// Keeps what a client needs in its next round.
    pub(super) fn save(&self, run: &str, client: &str, round: u32, kept: &Bundle) -> Result<()> {
        let about = About { run: run.to_owned(), client: client.to_owned(), round };
        let about =
            serde_json::to_string(&about).map_err(|error| Error::Fleet(error.to_string()))?;
        let bytes = kept.encode(&about)?;
        let prefix = Self::prefix(run, client);
        let path = self.0.join(format!("{prefix}-{round}.{SUFFIX}"));
        let digest = blake3::hash(&bytes);
        disk::write(&path, &[digest.as_bytes(), &bytes])
            .map_err(|error| Error::file(&path, error))?;
        for (_, old) in self.rounds(&prefix)?.into_iter().skip(KEPT) {
            disk::remove(&old).map_err(|error| Error::file(&old, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Tensor;

    fn bundle(value: f32) -> Bundle {
        let mut bundle = Bundle::default();
        bundle.put("a/b".to_owned(), &Tensor::from_slice(&[value])).unwrap();
        bundle
    }

    fn value(found: Option<(u32, Bundle)>) -> Option<(u32, f64)> {
        found.map(|(round, bundle)| (round, bundle.group("a")["b"].double_value(&[0])))
    }

    #[test]
    fn a_round_that_is_asked_for_again_starts_from_the_one_before() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        assert!(folder.load("run", "a/../b", 1).unwrap().is_none());
        for round in [2, 9, 10] {
            folder.save("run", "a/../b", round, &bundle(round as f32)).unwrap();
        }
        let at = |round| value(folder.load("run", "a/../b", round).unwrap());
        assert_eq!((at(11), at(10), at(9)), (Some((10, 10.0)), Some((9, 9.0)), None));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), KEPT);
        // Of another run or client there is nothing.
        assert!(folder.load("other", "a/../b", 11).unwrap().is_none());
        assert!(folder.load("run", "b", 11).unwrap().is_none());
    }

    #[test]
    fn a_damaged_state_is_named() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(place.path()).unwrap();
        folder.save("run", "a", 1, &bundle(1.0)).unwrap();
        let path = std::fs::read_dir(place.path()).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            let error = folder.load("run", "a", 2).unwrap_err().to_string();
            assert!(error.contains("is damaged"), "{error}");
        }
    }
}
