//! A decoder under test and its memory limit. Shared by the lists of decoders, here and in
//! `crates/core/fuzz`, and by the tests of mutated files.

use peak_alloc::PeakAlloc;
use std::path::Path;
use tempfile::TempDir;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// A decoder and its memory limit.
pub struct Decoder {
    /// Its name in reports.
    pub name: &'static str,
    /// The folder of its seeds, and its fuzz target.
    pub family: &'static str,
    /// Suffixes of the names of its seeds.
    pub seeds: &'static [&'static str],
    /// Wraps damaged bytes so that they pass checksums and decompression.
    pub wrap: fn(Vec<u8>) -> Vec<u8>,
    /// Decodes a file with this content in this folder; returns whether it was accepted.
    pub decode: fn(&Path, &[u8]) -> bool,
    /// The memory limit in bytes for a file of this many bytes.
    pub most: fn(usize) -> usize,
}

/// The result of decoding one file.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Whether the file was accepted.
    pub accepted: bool,
    /// Peak memory in bytes, beyond what was in use before.
    pub memory: usize,
}

impl Decoder {
    /// Decodes a file with this content. Panics if that takes more memory than the limit.
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

/// A folder for the files to decode: in memory if possible, because a disk is slower than decoding.
pub fn scratch() -> std::io::Result<TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Bytes that need no wrapping.
pub fn as_it_is(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}
