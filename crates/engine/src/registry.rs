//! What a config can name: models, methods and rules, the built-in ones and those that a program registers.

use crate::error::{Error, Result};
use std::sync::{PoisonError, RwLock};

/// All things of a kind, by name.
#[derive(Debug)]
pub struct Registry<T: 'static> {
    /// What messages call one.
    kind: &'static str,
    /// The config key that names one.
    key: &'static str,
    built_in: &'static [T],
    name: fn(&T) -> &'static str,
    added: RwLock<Vec<T>>,
}

impl<T: Copy> Registry<T> {
    /// A registry of the built-in ones.
    pub const fn new(
        kind: &'static str,
        key: &'static str,
        built_in: &'static [T],
        name: fn(&T) -> &'static str,
    ) -> Self {
        Self { kind, key, built_in, name, added: RwLock::new(Vec::new()) }
    }

    /// All of them, the built-in ones first.
    pub fn all(&self) -> Vec<T> {
        let added = self.added.read().unwrap_or_else(PoisonError::into_inner);
        self.built_in.iter().chain(added.iter()).copied().collect()
    }

    /// The names of all.
    pub fn names(&self) -> Vec<&'static str> {
        self.all().iter().map(self.name).collect()
    }

    /// The one of this name.
    pub fn find(&self, name: &str) -> Result<T> {
        self.all().into_iter().find(|one| (self.name)(one) == name).ok_or_else(|| {
            let (kind, known) = (self.kind, self.names().join(", "));
            Error::config(self.key, format!("unknown {kind} `{name}`; expected one of {known}"))
        })
    }

    /// Adds one for the whole process. A name can be used once.
    pub fn add(&self, new: T) -> Result<()> {
        let mut added = self.added.write().unwrap_or_else(PoisonError::into_inner);
        let name = (self.name)(&new);
        if self.built_in.iter().chain(added.iter()).any(|known| (self.name)(known) == name) {
            let problem = format!("a {} called `{name}` already exists", self.kind);
            return Err(Error::config(self.key, problem));
        }
        added.push(new);
        Ok(())
    }
}
