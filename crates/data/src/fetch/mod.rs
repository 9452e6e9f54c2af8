//! Fetching a data set into a folder: by download, or from local files.
//!
//! A folder `<name>` is always complete. Unfinished work is kept next to it in `<name>.incomplete`:
//! downloads as `<file>.part`, verified files under their names, and the content of the data
//! set, which is renamed to `<name>` as the last step. So an interrupted command leaves nothing
//! that could be mistaken for data, and running it again resumes the work. A marker file in the
//! folder was rejected: a reader that does not know about it would see half a data set.
//!
//! The library prints nothing; progress is reported to a closure.

mod transfer;
mod unpack;

use crate::catalog::{File, Published};
use crate::error::{malformed, unusable};
use crate::{DataError, Result};
use fedanchor_disk::Appended;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
pub use unpack::unpack;

/// The source of a data set's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The official address.
    Official,
    /// The same files at another address, without `/<file name>`.
    Mirror(String),
    /// Local files, recognised by content, or folders that contain them under their official names.
    Local(Vec<PathBuf>),
}

/// The current step of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is being downloaded.
    Downloading,
    /// Its checksum is being computed.
    Verifying,
    /// It is being unpacked; progress counts bytes of the archive.
    Unpacking,
}

/// The progress of a step of a file, in bytes; a resumed download starts at the bytes received before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Progress<'a> {
    pub phase: Phase,
    pub file: &'a str,
    pub done: u64,
    pub total: u64,
}

/// Called for every piece of a file.
type Report<'a> = &'a mut dyn FnMut(Progress);

/// Size of the pieces in which files are read and written.
const PIECE: usize = 64 * 1024;

/// Fetches the data set into `<dir>/<name>`, unless that folder exists, and returns the folder.
pub fn get(
    data: &Published,
    dir: &Path,
    source: Source,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf> {
    let complete = dir.join(data.name);
    if complete.is_dir() {
        return Ok(complete);
    }
    let staging = dir.join(format!("{}.incomplete", data.name));
    at(&staging, fs::create_dir_all)?;
    let lock = lock(&staging.join("lock"))?;
    let files = match source {
        Source::Official => download(data, data.base_url, &staging, progress)?,
        Source::Mirror(base) => download(data, &base, &staging, progress)?,
        Source::Local(paths) => recognise(data, &paths, progress).inspect_err(|_| {
            // Another attempt has nothing to resume.
            let _ = fs::remove_file(staging.join("lock")).and_then(|()| fs::remove_dir(&staging));
        })?,
    };

    let content = staging.join("content");
    if content.exists() {
        at(&content, fs::remove_dir_all)?;
    }
    at(&content, fs::create_dir)?;
    for (path, file) in files {
        if file.name.ends_with(".tar.gz") {
            unpack(&path, &content, progress)?;
        } else {
            at(&content.join(file.name), |to| fs::copy(&path, to))?;
        }
    }
    // The content must survive a power failure before it gets its name.
    at(&content, fedanchor_disk::sync_all_below)?;
    at(&complete, |complete| fs::rename(&content, complete))?;
    at(dir, fedanchor_disk::sync_folder)?;
    drop(lock);
    at(&staging, fs::remove_dir_all)?;
    Ok(complete)
}

/// Applies a function to a path, which its error names.
fn at<'a, T>(path: &'a Path, act: impl FnOnce(&'a Path) -> io::Result<T>) -> Result<T> {
    act(path).map_err(|error| DataError::io(path, error))
}

/// Locks the staging folder: two processes writing one `.part` would corrupt it.
fn lock(path: &Path) -> Result<Appended> {
    let lock = at(path, Appended::create)?;
    match lock.file().file().try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => unusable(format!(
            "{}: another process is fetching this data set: wait for it to finish",
            path.display()
        )),
        Err(fs::TryLockError::Error(error)) => Err(DataError::io(path, error)),
    }
}

fn download(
    data: &Published,
    base: &str,
    staging: &Path,
    progress: Report,
) -> Result<Vec<(PathBuf, &'static File)>> {
    let mut files = Vec::new();
    for file in data.files {
        let path = staging.join(file.name);
        let url = format!("{}/{}", base.trim_end_matches('/'), file.name);
        transfer::transfer(&url, file, &path, progress)?;
        files.push((path, file));
    }
    Ok(files)
}

/// Matches local files with those of the data set by size and checksum.
fn recognise(
    data: &Published,
    paths: &[PathBuf],
    progress: Report,
) -> Result<Vec<(PathBuf, &'static File)>> {
    let mut candidates = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => candidates.extend(data.files.iter().map(|file| path.join(file.name))),
            false => candidates.push(path.clone()),
        }
    }
    candidates.retain(|path| paths.contains(path) || path.is_file());
    let mut found = Vec::new();
    for path in candidates {
        let refused = |found: String| {
            let files = data.files.iter();
            let expected = files.map(|file| describe(file.name, file.bytes, file.sha256));
            malformed(&path, "whole file", expected.collect::<Vec<_>>().join(" or "), found)
        };
        let length = at(&path, |path| fedanchor_disk::open(path)?.metadata())?.len();
        // Its length is known at once, while reading it may take hours.
        if !data.files.iter().any(|file| file.bytes == length) {
            return refused(format!("a file of {length} bytes"));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let sum = Checksum::measure(&path, &name, progress)?;
        match data.files.iter().find(|file| sum.matches(file)) {
            Some(file) => found.push((path, file)),
            None => return refused(describe("a file", sum.bytes, &sum.sha256)),
        }
    }
    match data.files.iter().find(|file| found.iter().all(|(_, other)| other != file)) {
        None => Ok(found),
        Some(missing) => unusable(format!(
            "incomplete data set {}: {} is not among the given files",
            data.name, missing.name
        )),
    }
}

fn describe(name: &str, bytes: u64, sha256: &str) -> String {
    format!("{name} of {bytes} bytes with SHA-256 {sha256}")
}

/// Size and checksum of a file.
struct Checksum {
    bytes: u64,
    sha256: String,
}

impl Checksum {
    /// Reads a file, with progress reported under `name`.
    fn measure(path: &Path, name: &str, progress: Report) -> Result<Self> {
        let failed = |error| DataError::io(path, error);
        let mut file = fedanchor_disk::open(path).map_err(failed)?;
        let total = file.metadata().map_err(failed)?.len();
        let mut sha256 = Sha256::new();
        let mut piece = vec![0; PIECE];
        let mut bytes = 0;
        loop {
            let count = file.read(&mut piece).map_err(failed)?;
            if count == 0 {
                break;
            }
            sha256.update(&piece[..count]);
            bytes += count as u64;
            progress(Progress { phase: Phase::Verifying, file: name, done: bytes, total });
        }
        let sha256 = sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { bytes, sha256 })
    }

    fn matches(&self, file: &File) -> bool {
        self.bytes == file.bytes && self.sha256 == file.sha256
    }
}
