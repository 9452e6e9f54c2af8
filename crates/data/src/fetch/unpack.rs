//! Unpacking an untrusted `.tar.gz`.
//!
//! The archive may contain any path, any kind of entry and any amount of data. Only files and
//! folders below the target are written, by this code rather than the archive library's own
//! extraction (which also restores links, owners and permissions that no data set needs), and the
//! whole decompressed stream, headers included, is limited by the size of the archive.

use super::{PIECE, Phase, Progress, at};
use crate::error::malformed;
use crate::{DataError, Result};
use flate2::bufread::GzDecoder;
use std::fs;
use std::io::{self, BufReader, ErrorKind, Read, Seek, Write};
use std::path::{Component, Path};
use tar::EntryType;

/// An archive may unpack to this many times its size (images hardly compress: the official ones
/// unpack to 1.1 times theirs) ...
const MAX_RATIO: u64 = 16;
/// ... plus this much, for small archives that are mostly padding.
const MAX_EXTRA: u64 = 1 << 20;
/// More entries than any data set here has.
const MAX_ENTRIES: usize = 1000;
/// The longest name of an entry in bytes: the limit of common systems.
const MAX_NAME: usize = 4096;

/// Unpacks a `.tar.gz` into a folder, which must exist and be empty.
pub fn unpack(archive: &Path, into: &Path, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let cannot_read = |error| DataError::io(archive, error);
    let file = fedanchor_disk::open(archive).map_err(cannot_read)?;
    let total = file.metadata().map_err(cannot_read)?.len();
    let max = total.saturating_mul(MAX_RATIO).saturating_add(MAX_EXTRA);
    let mut stream = GzDecoder::new(BufReader::new(&file)).take(max);

    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let mut report = || {
        let done = (&file).stream_position().unwrap_or(0);
        progress(Progress { phase: Phase::Unpacking, file: &name, done, total });
    };
    let outcome = extract(&mut stream, archive, into, &mut report).and_then(|()| {
        // Truncation and damage are detected only at the end of the stream.
        let drained = io::copy(&mut stream, &mut io::sink());
        drained.map(drop).map_err(|error| damaged(archive, "end", &error))
    });
    if stream.limit() == 0 {
        let expected = format!("at most {max} bytes unpacked");
        return malformed(archive, "whole archive", expected, "more");
    }
    outcome
}

fn damaged(archive: &Path, place: &str, error: &io::Error) -> DataError {
    DataError::malformed(archive, place, "an intact tar.gz archive", error)
}

fn extract(stream: impl Read, archive: &Path, into: &Path, report: &mut dyn FnMut()) -> Result<()> {
    let mut tar = tar::Archive::new(stream);
    let entries = tar.entries().map_err(|error| damaged(archive, "start", &error))?;
    for (number, entry) in entries.enumerate() {
        let mut entry =
            entry.map_err(|error| damaged(archive, &format!("entry {number}"), &error))?;
        let length = entry.path_bytes().len();
        if length > MAX_NAME {
            let expected = format!("a name of at most {MAX_NAME} bytes");
            return malformed(archive, format!("entry {number}"), expected, length);
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let place = format!("entry `{name}`");
        if number >= MAX_ENTRIES {
            return malformed(archive, place, format!("at most {MAX_ENTRIES} entries"), "more");
        }
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            continue; // metadata of the archive, not a file
        }
        let path = entry.path().map_err(|error| damaged(archive, &place, &error))?.into_owned();
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !path.components().all(inside) {
            let expected = "a relative path inside the target folder";
            return malformed(archive, place, expected, "a path outside it");
        }
        let path = into.join(path);
        match kind {
            EntryType::Directory => {
                at(&path, fs::create_dir_all)?;
            }
            EntryType::Regular | EntryType::Continuous => {
                write(&mut entry, archive, &place, &path, report)?;
            }
            other => {
                let found = match other {
                    EntryType::Symlink => "a symbolic link".to_owned(),
                    EntryType::Link => "a hard link".to_owned(),
                    EntryType::Block | EntryType::Char => "a device".to_owned(),
                    other => format!("entry type {:#04x}", other.as_byte()),
                };
                return malformed(archive, place, "a file or folder", found);
            }
        }
    }
    Ok(())
}

fn write(
    from: &mut impl Read,
    archive: &Path,
    place: &str,
    path: &Path,
    report: &mut dyn FnMut(),
) -> Result<()> {
    let cannot_write = |error| DataError::io(path, error);
    if let Some(folder) = path.parent() {
        at(folder, fs::create_dir_all)?;
    }
    let mut file = match fs::File::create_new(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return malformed(archive, place, "unique paths", "a duplicate");
        }
        file => file.map_err(cannot_write)?,
    };
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece).map_err(|error| damaged(archive, place, &error))?;
        if count == 0 {
            return Ok(());
        }
        file.write_all(&piece[..count]).map_err(cannot_write)?;
        report();
    }
}
