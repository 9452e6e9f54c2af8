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
        let problem = |problem: &dyn ToString| Error::file(&file, problem.to_string());
        let kept = disk::read_if_exists(&file, LONGEST).map_err(|error| problem(&error))?;
        let keys = match kept {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| problem(&error))?,
            None => BTreeMap::new(),
        };
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

    /// Frees a name, for a node that has a new key.
    pub(crate) fn release(&mut self, name: &str) -> Result<()> {
        let mut keys = self.keys.clone();
        if keys.remove(name).is_none() {
            let names: Vec<&str> = self.keys.keys().map(String::as_str).collect();
            let problem = match names[..] {
                [] => format!("`{name}` is bound to no key, and no other name is"),
                _ => format!("`{name}` is bound to no key; bound are {}", names.join(", ")),
            };
            return Err(Error::config("--release", problem));
        }
        self.keep(keys)
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
