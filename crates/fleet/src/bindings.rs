//! Which key may join with which client's name: the first that does. A file of the run keeps it, so that it holds after a
//! restart of both ends.

use fedanchor::{Error, Result};
use fedanchor_disk as disk;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The most bytes of the file: as many clients as a run may have, with the longest names.
const LONGEST: u64 = 64 << 20;

/// The fingerprints of keys by clients' names, and the file that keeps them.
#[derive(Debug)]
pub(crate) struct Bindings {
    file: PathBuf,
    keys: BTreeMap<String, String>,
}

impl Bindings {
    /// Those of a run; none in a new one.
    pub(crate) fn read(file: PathBuf) -> Result<Self> {
        let problem = |problem: &dyn ToString| {
            let (file, problem) = (file.display(), problem.to_string());
            let advice = "restore it from a backup, or delete it to bind the names anew";
            Error::config("fleet.keys", format!("{file}: {problem}: {advice}"))
        };
        let kept = disk::read_if_exists(&file, LONGEST).map_err(|error| problem(&error))?;
        let keys = match kept {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| problem(&error))?,
            None => BTreeMap::new(),
        };
        let is_key = |key: &&String| key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit());
        if let Some(other) = keys.values().find(|key: &&String| !is_key(key)) {
            return Err(problem(&format!(
                "expected fingerprints of 64 hexadecimal digits, got {other:?}"
            )));
        }
        Ok(Self { file, keys })
    }

    /// The key of a client's name.
    pub(crate) fn key(&self, name: &str) -> Option<&str> {
        self.keys.get(name).map(String::as_str)
    }

    /// The names of a key.
    pub(crate) fn names_of<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let own = self.keys.iter().filter(move |(_, of)| *of == key);
        own.map(|(name, _)| name.as_str())
    }

    /// Binds names that are free to a key, once the file says so.
    pub(crate) fn bind<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        key: &str,
    ) -> Result<()> {
        let mut keys = self.keys.clone();
        names.for_each(|name| _ = keys.entry(name.to_owned()).or_insert_with(|| key.to_owned()));
        self.keep(keys)
    }

    /// Frees names from keys that their nodes no longer have: pairs of a name and the beginning of its old key's
    /// fingerprint. A name that has another key by now stays as it is, so that a command that is repeated frees nothing.
    pub(crate) fn release(&mut self, released: &[(String, String)]) -> Result<()> {
        let mut keys = self.keys.clone();
        for (name, old) in released {
            match keys.get(name) {
                Some(key) if key.starts_with(old) => _ = keys.remove(name),
                _ => tracing::warn!(name, key = old, "--release: not bound to this key any more"),
            }
        }
        self.keep(keys)
    }

    /// Whether no name is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn keep(&mut self, keys: BTreeMap<String, String>) -> Result<()> {
        if keys != self.keys {
            let problem = |problem: &dyn ToString| Error::file(&self.file, problem.to_string());
            let text = serde_json::to_vec_pretty(&keys).map_err(|error| problem(&error))?;
            disk::write(&self.file, &[&text]).map_err(|error| problem(&error))?;
            self.keys = keys;
        }
        Ok(())
    }
}
