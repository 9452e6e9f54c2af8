//! Checksums of the files in a run folder.
//!
//! `checksums.txt` has a line per file: its BLAKE3 hash, two spaces, its path, as `b3sum` writes and checks them. It
//! is written after what it covers, and shortened before that changes, so that a run that is killed in between has
//! files without a checksum rather than wrong ones. Runs of earlier versions have no such file.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The checksums of a run's files, by path in the run folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Manifest {
    hashes: BTreeMap<String, String>,
}

/// A file that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "does not match its checksum in checksums.txt: one of the two was changed or damaged after it was written"
)]
pub struct Mismatch;

/// What is wrong with the file itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// A run lists files from its start.
    #[error("is empty: expected a line per file")]
    Empty,
    /// A line that is not one of a manifest.
    #[error("line {line} is damaged: expected a hash of 64 digits, two spaces and a path")]
    Line {
        /// Which, from 1.
        line: usize,
    },
    /// A file that is listed a second time.
    #[error("line {line} is damaged: it lists {name}, which an earlier line lists too")]
    Twice {
        /// Which, from 1.
        line: usize,
        /// The file.
        name: String,
    },
}

impl Manifest {
    /// Reads the file.
    pub fn parse(text: &str) -> Result<Self, BadManifest> {
        let mut hashes = BTreeMap::new();
        for (line, content) in (1..).zip(text.split_inclusive('\n')) {
            let parts = content.strip_suffix('\n').and_then(|content| content.split_once("  "));
            let parts = parts.filter(|(hash, name)| is_hash(hash) && !name.is_empty());
            let Some((hash, name)) = parts else { return Err(BadManifest::Line { line }) };
            if hashes.insert(name.to_owned(), hash.to_owned()).is_some() {
                return Err(BadManifest::Twice { line, name: name.to_owned() });
            }
        }
        if hashes.is_empty() { Err(BadManifest::Empty) } else { Ok(Self { hashes }) }
    }

    /// Adds a file or replaces it.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        self.hashes.insert(name.to_owned(), hash(content));
    }

    /// Takes a file out.
    pub fn remove(&mut self, name: &str) {
        self.hashes.remove(name);
    }

    /// Takes over what another one lists.
    pub fn extend(&mut self, other: &Self) {
        self.hashes.extend(other.hashes.clone());
    }

    /// Whether a file is listed.
    pub fn lists(&self, name: &str) -> bool {
        self.hashes.contains_key(name)
    }

    /// The files that are listed, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hashes.keys().map(String::as_str)
    }

    /// Checks a file's content; one that is not listed passes.
    pub fn check(&self, name: &str, content: &[u8]) -> Result<(), Mismatch> {
        match self.hashes.get(name) {
            Some(expected) if *expected != hash(content) => Err(Mismatch),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.hashes.iter().try_for_each(|(name, hash)| writeln!(f, "{hash}  {name}"))
    }
}

fn hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_bit_is_noticed() {
        let contents = [("config.toml", "seed = 1\n"), ("latents/round-000001.safetensors", "x")];
        let mut manifest = Manifest::default();
        contents.iter().for_each(|(name, content)| manifest.add(name, content.as_bytes()));
        let text = manifest.to_string();
        assert_eq!(Manifest::parse(&text).unwrap(), manifest);
        let intact = |manifest: &Manifest| {
            let all = manifest.names().all(|name| contents.iter().any(|(known, _)| *known == name));
            let listed = contents.iter().all(|(name, content)| {
                manifest.lists(name) && manifest.check(name, content.as_bytes()).is_ok()
            });
            all && listed
        };
        assert!(intact(&manifest));
        for bit in 0..8 * text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = String::from_utf8(bytes).ok().and_then(|text| Manifest::parse(&text).ok());
            assert!(!read.as_ref().is_some_and(intact), "bit {bit}");
        }
    }

    #[test]
    fn content_is_checked_where_it_is_listed() {
        let mut manifest = Manifest::default();
        manifest.add("a", b"1");
        assert_eq!(manifest.check("a", b"2"), Err(Mismatch));
        assert_eq!(manifest.check("b", b"2"), Ok(()));
        manifest.add("a", b"2");
        assert_eq!(manifest.check("a", b"2"), Ok(()));
        manifest.remove("a");
        assert_eq!(manifest, Manifest::default());
    }

    #[test]
    fn a_file_that_is_torn_or_empty_or_has_a_line_twice_is_damaged() {
        let line = format!("{}  a\n", hash(b"1"));
        let twice = BadManifest::Twice { line: 2, name: "a".to_owned() };
        for (text, problem) in [
            (line.trim_end().to_owned(), BadManifest::Line { line: 1 }),
            (String::new(), BadManifest::Empty),
            (line.repeat(2), twice.clone()),
            (format!("{line}{}  a\n", hash(b"2")), twice),
        ] {
            assert_eq!(Manifest::parse(&text), Err(problem), "{text}");
        }
    }
}
