//! A decoder under test: how it is called and what it may cost. Shared by the lists of decoders, here and
//! in `crates/core/fuzz`, and by the tests of mutated files.

use peak_alloc::PeakAlloc;
use std::path::Path;
use tempfile::TempDir;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// A decoder and what it may cost.
pub struct Decoder {
    /// What it is called in reports.
    pub name: &'static str,
    /// The folder of its seeds, and its fuzz target.
    pub family: &'static str,
    /// How the names of its seeds end.
    pub seeds: &'static [&'static str],
    /// Wraps damaged bytes so that they get past checksums and compression.
    pub wrap: fn(Vec<u8>) -> Vec<u8>,
    /// Decodes a file with this content in this folder; whether it was accepted.
    pub decode: fn(&Path, &[u8]) -> bool,
    /// The most memory in use while a file of so many bytes is decoded.
    pub most: fn(usize) -> usize,
}

/// What one decoding did.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Whether the file was accepted.
    pub accepted: bool,
    /// The most memory in use at once, in bytes, beyond what was in use before.
    pub memory: usize,
}

impl Decoder {
    /// Decodes a file with this content. Panics if that took more memory than allowed.
    pub fn run(&self, folder: &Path, bytes: &[u8]) -> Outcome {
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let accepted = (self.decode)(folder, bytes);
        let memory = MEMORY.peak_usage().saturating_sub(before);
        let (name, most) = (self.name, (self.most)(bytes.len()));
        let length = bytes.len();
        assert!(memory <= most, "{name}: {memory} bytes of memory for {length}, limit {most}");
        Outcome { accepted, memory }
    }
}

/// A folder for the files to decode: in memory where the system has one there, because decoding takes
/// less time than a disk.
pub fn scratch() -> std::io::Result<TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Bytes that need no wrapping.
pub fn as_it_is(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}
