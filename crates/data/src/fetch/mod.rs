//! Getting a data set into a folder: downloaded, or from files the user already has.
//!
//! A folder called `<name>` is always complete. Everything unfinished lives next to it in
//! `<name>.incomplete`: transfers as `<file>.part`, verified files under their own names, and the
//! content being put together, which is renamed to `<name>` as the last step. So an interrupted
//! command leaves nothing that could be mistaken for data, and running it again goes on where it
//! stopped. A marker file inside a folder was rejected: a reader that does not know it sees half
//! a data set.
//!
//! The library prints nothing; whoever wants to show progress passes a closure.

mod transfer;
mod unpack;

use crate::catalog::{Entry, File};
use crate::{DataError, Result};
use md5::{Digest, Md5};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
pub use unpack::unpack;

/// Where the files of a data set come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The official address in the catalogue.
    Official,
    /// The same files at another address: its part before `/<file name>`.
    Mirror(String),
    /// Files on this machine, recognised by content whatever their names, or folders that hold
    /// them under their official names.
    Local(Vec<PathBuf>),
}

/// What is being done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Bytes are arriving.
    Downloading,
    /// The checksum is being computed.
    Verifying,
    /// The archive is being unpacked; counted in bytes of the archive.
    Unpacking,
}

/// How far the work has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What is being done.
    pub phase: Phase,
    /// The file it is done with.
    pub file: &'a str,
    /// Bytes dealt with; when a transfer is resumed this begins at what was there already.
    pub done: u64,
    /// Bytes there are.
    pub total: u64,
}

/// What is told about progress, often: once for every piece of a file.
type Report<'a> = &'a mut dyn FnMut(Progress);

/// Size of the pieces in which files are read and written.
const PIECE: usize = 64 * 1024;

/// Makes sure that `<dir>/<name>` holds the data set, and returns that folder. Returns at once if
/// it is there.
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
            // Nothing was begun that a next attempt could go on with.
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
    fs::rename(&content, &complete).map_err(|error| DataError::io(&complete, error))?;
    drop(lock);
    fs::remove_dir_all(&staging).map_err(|error| DataError::io(&staging, error))?;
    Ok(complete)
}

/// Two processes writing one `.part` would spoil it; the second is told so instead.
fn lock(path: &Path) -> Result<fs::File> {
    let file = fs::File::create(path).map_err(|error| DataError::io(path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(DataError::Unusable(format!(
            "{}: another process is fetching this data set: wait for it to end",
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

/// Matches local files with those of the entry by length and checksum.
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
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let (bytes, md5) = digest(&path, &name, progress)?;
            match known().find(|file| file.bytes == bytes && file.md5 == md5) {
                Some(file) => found.push((path, file)),
                None => {
                    let expected: Vec<String> =
                        known().map(|file| describe(file.name, file.bytes, file.md5)).collect();
                    return Err(DataError::malformed(
                        path,
                        "whole file",
                        expected.join(" or "),
                        describe("a file", bytes, &md5),
                    ));
                }
            }
        }
    }
    let among = |wanted: &File| found.iter().find(|(_, file)| *file == wanted).cloned();
    let downloaded: Result<Vec<_>, &str> =
        entry.files.iter().map(|file| among(file).ok_or(file.name)).collect();
    downloaded.or_else(|missing| match entry.also.iter().find_map(among) {
        Some(alone) => Ok(vec![alone]),
        None => Err(DataError::Unusable(format!(
            "{} is not complete: {missing} is not among the files given",
            entry.name
        ))),
    })
}

fn describe(name: &str, bytes: u64, md5: &str) -> String {
    format!("{name} of {bytes} bytes with MD5 {md5}")
}

/// Length and MD5 sum of a file, which is called `name` in reports.
fn digest(path: &Path, name: &str, progress: Report) -> Result<(u64, String)> {
    let failed = |error| DataError::io(path, error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let total = file.metadata().map_err(failed)?.len();
    let mut md5 = Md5::new();
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    loop {
        let count = file.read(&mut piece).map_err(failed)?;
        if count == 0 {
            break;
        }
        md5.update(&piece[..count]);
        done += count as u64;
        progress(Progress { phase: Phase::Verifying, file: name, done, total });
    }
    let sum = md5.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((done, sum))
}
