//! The server's knowledge of its clients, from round to round.

use super::fleet::ClientKey;
use crate::config::ChecksConfig;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The clients that have been met; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Registry {
    /// Keys of the transport, by number. A fleet that numbers its clients itself has none.
    pub keys: Vec<ClientKey>,
    /// Their numbers; filled when it is first needed.
    #[serde(skip)]
    numbers: HashMap<ClientKey, u32>,
    /// Samples each client reported when it last joined.
    samples: BTreeMap<u32, usize>,
    rejections: BTreeMap<u32, u32>,
}

impl Registry {
    /// The number of a client; a new client gets the next one.
    pub fn join(&mut self, key: &ClientKey) -> u32 {
        if let ClientKey::Number(number) = key {
            return *number;
        }
        if self.numbers.len() < self.keys.len() {
            self.numbers = self.keys.iter().cloned().zip(0..).collect();
        }
        let next = self.keys.len() as u32;
        *self.numbers.entry(key.clone()).or_insert_with(|| {
            self.keys.push(key.clone());
            next
        })
    }

    /// Records the number of a client's samples: as reported when it joined, not as an answer claims.
    pub fn meet(&mut self, client: u32, samples: usize) {
        self.samples.insert(client, samples);
    }

    /// The samples a client reported when it last joined; 0 for one that was never met.
    pub fn samples(&self, client: u32) -> usize {
        self.samples.get(&client).copied().unwrap_or_default()
    }

    /// Counts a rejected update.
    pub fn reject(&mut self, client: u32) {
        *self.rejections.entry(client).or_default() += 1;
    }

    /// Whether a client had too many updates rejected to be drawn again.
    pub fn is_excluded(&self, client: u32, checks: &ChecksConfig) -> bool {
        checks.offences > 0 && self.rejections.get(&client).is_some_and(|n| *n >= checks.offences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;

    #[test]
    fn keys_keep_their_number() {
        let mut registry = Registry::default();
        let (first, second) = (ClientKey::Id(u64::MAX), ClientKey::Name("ward-7".to_owned()));
        assert_eq!((registry.join(&first), registry.join(&second)), (0, 1));
        assert_eq!((registry.join(&first), registry.join(&second)), (0, 1));
        let text = serde_json::to_string(&registry).unwrap();
        let mut read = serde_json::from_str::<Registry>(&text).unwrap();
        assert_eq!(read.keys, registry.keys);
        assert_eq!((read.join(&second), read.join(&ClientKey::Id(5))), (1, 2));
        // A fleet that numbers its clients itself costs no memory.
        assert_eq!(Registry::default().join(&ClientKey::Number(99_999)), 99_999);
    }

    #[test]
    fn a_client_that_joins_again_may_have_other_samples() {
        let mut registry = Registry::default();
        registry.meet(3, 10);
        registry.meet(3, 12);
        assert_eq!((registry.samples(3), registry.samples(4)), (12, 0));
    }

    #[test]
    fn too_many_rejections_exclude_a_client() {
        let checks = resolve("", &["checks.offences=2".to_owned()]).unwrap().checks;
        let never = resolve("", &["checks.offences=0".to_owned()]).unwrap().checks;
        let mut registry = Registry::default();
        registry.reject(5);
        assert!(!registry.is_excluded(5, &checks));
        registry.reject(5);
        assert!(registry.is_excluded(5, &checks) && !registry.is_excluded(6, &checks));
        assert!(!registry.is_excluded(5, &never));
    }
}
