//! Fetching a data set into a folder: by download, or from local files.
//!
//! A folder `<name>` is always complete. Unfinished work is kept next to it in `<name>.incomplete`:
//! downloads as `<file>.part`, verified files under their own names, and the content of the data
//! set, which is renamed to `<name>` as the last step. So an interrupted command leaves nothing
//! that could be mistaken for data, and running it again resumes the work. A marker file in the
//! folder was rejected: a reader that does not know about it would see half a data set.
//!
//! The library prints nothing; progress is reported to a closure.

mod transfer;
mod unpack;

use crate::catalog::{Entry, File};
use crate::{DataError, Result};
use fedanchor_disk::Appended;
use md5::{Digest, Md5};
use sha2::Sha256;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
pub use unpack::unpack;

/// The source of a data set's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The official address in the catalogue.
    Official,
    /// The same files at another address, without `/<file name>`.
    Mirror(String),
    /// Local files, recognised by content whatever their names, or folders that contain them under
    /// their official names.
    Local(Vec<PathBuf>),
}

/// The current step for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is being downloaded.
    Downloading,
    /// Its checksum is being computed.
    Verifying,
    /// It is being unpacked; progress counts bytes of the archive.
    Unpacking,
}

/// The progress of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The step.
    pub phase: Phase,
    /// The name of the file.
    pub file: &'a str,
    /// Bytes processed; a resumed download starts at the bytes received before.
    pub done: u64,
    /// Bytes in total.
    pub total: u64,
}

/// Called often: once per piece of a file.
type Report<'a> = &'a mut dyn FnMut(Progress);

/// Size of the pieces in which files are read and written.
const PIECE: usize = 64 * 1024;

/// Fetches the data set into `<dir>/<name>`, unless that folder exists, and returns the folder.
pub fn get(
    entry: &Entry,
    dir: &Path,
    source: Source,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf> {
    let complete = dir.join(entry.name);
    if complete.is_dir() {
        return Ok(complete);
    }
    let staging = dir.join(format!("{}.incomplete", entry.name));
    fs::create_dir_all(&staging).map_err(|error| DataError::io(&staging, error))?;
    let lock = lock(&staging.join("lock"))?;
    let files = match source {
        Source::Official => download(entry, entry.base_url, &staging, progress)?,
        Source::Mirror(base) => download(entry, &base, &staging, progress)?,
        Source::Local(paths) => recognise(entry, &paths, progress).inspect_err(|_| {
            // There is nothing that another attempt could resume.
            let _ = fs::remove_file(staging.join("lock")).and_then(|()| fs::remove_dir(&staging));
        })?,
    };

    let content = staging.join("content");
    if content.exists() {
        fs::remove_dir_all(&content).map_err(|error| DataError::io(&content, error))?;
    }
    fs::create_dir(&content).map_err(|error| DataError::io(&content, error))?;
    for (path, file) in files {
        if file.name.ends_with(".tar.gz") {
            unpack(&path, &content, progress)?;
        } else {
            let to = content.join(file.name);
            fs::copy(&path, &to).map_err(|error| DataError::io(&to, error))?;
        }
    }
    // What the name promises must survive a power failure.
    fedanchor_disk::sync_all_below(&content).map_err(|error| DataError::io(&content, error))?;
    fs::rename(&content, &complete).map_err(|error| DataError::io(&complete, error))?;
    fedanchor_disk::sync_folder(dir).map_err(|error| DataError::io(dir, error))?;
    drop(lock);
    fs::remove_dir_all(&staging).map_err(|error| DataError::io(&staging, error))?;
    Ok(complete)
}

/// Locks the staging folder: two processes writing one `.part` would corrupt it.
fn lock(path: &Path) -> Result<Appended> {
    let lock = Appended::create(path).map_err(|error| DataError::io(path, error))?;
    match lock.file().file().try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(DataError::Unusable(format!(
            "{}: another process is fetching this data set: wait for it to finish",
            path.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(DataError::io(path, error)),
    }
}

fn download<'e>(
    entry: &'e Entry,
    base: &str,
    staging: &Path,
    progress: Report,
) -> Result<Vec<(PathBuf, &'e File)>> {
    let mut files = Vec::new();
    for file in entry.files {
        let path = staging.join(file.name);
        let url = format!("{}/{}", base.trim_end_matches('/'), file.name);
        transfer::transfer(&url, file, &path, progress)?;
        files.push((path, file));
    }
    Ok(files)
}

/// Matches local files with those of the entry by size and checksum.
fn recognise<'e>(
    entry: &'e Entry,
    paths: &[PathBuf],
    progress: Report,
) -> Result<Vec<(PathBuf, &'e File)>> {
    let known = || entry.files.iter().chain(entry.also);
    let mut found: Vec<(PathBuf, &File)> = Vec::new();
    for path in paths {
        let candidates: Vec<PathBuf> = if path.is_dir() {
            known().map(|file| path.join(file.name)).filter(|path| path.is_file()).collect()
        } else {
            vec![path.clone()]
        };
        for path in candidates {
            let refused = |is: String| {
                let expected: Vec<String> =
                    known().map(|file| describe(file.name, file.bytes, file.sha256)).collect();
                DataError::malformed(&path, "whole file", expected.join(" or "), is)
            };
            let failed = |error| DataError::io(&path, error);
            let length = fedanchor_disk::open(&path).and_then(|file| file.metadata());
            let length = length.map_err(failed)?.len();
            // Its length is known at once, while reading it may take hours.
            if !known().any(|file| file.bytes == length) {
                return Err(refused(format!("a file of {length} bytes")));
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let sums = Sums::of(&path, &name, progress)?;
            match known().find(|file| sums.match_those_of(file)) {
                Some(file) => found.push((path, file)),
                None => return Err(refused(describe("a file", sums.bytes, &sums.sha256))),
            }
        }
    }
    let among = |wanted: &File| found.iter().find(|(_, file)| *file == wanted).cloned();
    let downloaded: Result<Vec<_>, &str> =
        entry.files.iter().map(|file| among(file).ok_or(file.name)).collect();
    downloaded.or_else(|missing| match entry.also.iter().find_map(among) {
        Some(alone) => Ok(vec![alone]),
        None => Err(DataError::Unusable(format!(
            "incomplete data set {}: {missing} is not among the given files",
            entry.name
        ))),
    })
}

fn describe(name: &str, bytes: u64, sha256: &str) -> String {
    format!("{name} of {bytes} bytes with SHA-256 {sha256}")
}

/// Size and checksums of a file.
struct Sums {
    bytes: u64,
    md5: String,
    sha256: String,
}

impl Sums {
    /// Reads a file, with progress reported under `name`.
    fn of(path: &Path, name: &str, progress: Report) -> Result<Self> {
        let failed = |error| DataError::io(path, error);
        let mut file = fedanchor_disk::open(path).map_err(failed)?;
        let total = file.metadata().map_err(failed)?.len();
        let (mut md5, mut sha256) = (Md5::new(), Sha256::new());
        let mut piece = vec![0; PIECE];
        let mut bytes = 0;
        loop {
            let count = file.read(&mut piece).map_err(failed)?;
            if count == 0 {
                break;
            }
            md5.update(&piece[..count]);
            sha256.update(&piece[..count]);
            bytes += count as u64;
            progress(Progress { phase: Phase::Verifying, file: name, done: bytes, total });
        }
        Ok(Self { bytes, md5: hex(&md5.finalize()), sha256: hex(&sha256.finalize()) })
    }

    fn match_those_of(&self, file: &File) -> bool {
        self.bytes == file.bytes && self.md5 == file.md5 && self.sha256 == file.sha256
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
