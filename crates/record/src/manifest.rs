//! Checksums of the files in a run folder.
//!
//! `checksums.txt` has a line per file: its BLAKE3 hash, two spaces and its path, as `b3sum` writes and checks them. It
//! is written after the files, and entries are removed before their files change, so that a killed run has
//! files without a checksum rather than with a wrong one. Runs of earlier versions have no such file.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The checksums of a run's files, by path in the run folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Manifest {
    hashes: BTreeMap<String, String>,
}

const MISMATCH: &str = "does not match its checksum in checksums.txt: one of the two was changed or damaged after it was written";

impl Manifest {
    /// Reads the file. It is never empty, since a run lists files from its start.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut hashes = BTreeMap::new();
        for (line, content) in (1..).zip(text.split_inclusive('\n')) {
            let damaged = |problem: &str| Err(format!("line {line} is damaged: {problem}"));
            let parts = content.strip_suffix('\n').and_then(|content| content.split_once("  "));
            let parts = parts.filter(|(hash, name)| is_hash(hash) && !name.is_empty());
            let Some((hash, name)) = parts else {
                return damaged("expected a hash of 64 digits, two spaces and a path");
            };
            if hashes.insert(name.to_owned(), hash.to_owned()).is_some() {
                return damaged(&format!("it lists {name}, as an earlier line does"));
            }
        }
        if hashes.is_empty() {
            return Err("is empty: expected one line per file".to_owned());
        }
        Ok(Self { hashes })
    }

    /// Adds or replaces a file.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        self.hashes.insert(name.to_owned(), hash(content));
    }

    /// Removes a file.
    pub fn remove(&mut self, name: &str) {
        self.hashes.remove(name);
    }

    /// Adds the files of another manifest.
    pub fn extend(&mut self, other: &Self) {
        self.hashes.extend(other.hashes.clone());
    }

    /// Whether a file is listed.
    pub fn lists(&self, name: &str) -> bool {
        self.hashes.contains_key(name)
    }

    /// The listed files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hashes.keys().map(String::as_str)
    }

    /// Checks a file's content, unless the file is not listed. The error is a message without the name.
    pub fn check(&self, name: &str, content: &[u8]) -> Result<(), &'static str> {
        match self.hashes.get(name) {
            Some(expected) if *expected != hash(content) => Err(MISMATCH),
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
        assert_eq!(manifest.check("a", b"2"), Err(MISMATCH));
        assert_eq!(manifest.check("b", b"2"), Ok(()));
        manifest.add("a", b"2");
        assert_eq!(manifest.check("a", b"2"), Ok(()));
        manifest.remove("a");
        assert_eq!(manifest, Manifest::default());
    }

    #[test]
    fn a_file_that_is_torn_or_empty_or_has_a_line_twice_is_damaged() {
        let line = format!("{}  a\n", hash(b"1"));
        let twice = "line 2 is damaged: it lists a, as an earlier line does";
        for (text, problem) in [
            (line.trim_end().to_owned(), "line 1 is damaged: expected a hash"),
            (String::new(), "is empty"),
            (line.repeat(2), twice),
            (format!("{line}{}  a\n", hash(b"2")), twice),
        ] {
            let error = Manifest::parse(&text).unwrap_err();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }
}
