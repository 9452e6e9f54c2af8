//! File access with the path in every error.

use crate::error::{Error, Result};
use fedanchor_disk as disk;
use fedanchor_record::{Manifest, files};
use std::path::{Path, PathBuf};

pub(crate) use disk::Appended;

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    disk::read(path, disk::limit(path)).map_err(|error| Error::file(path, error))
}

pub(crate) fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    disk::read_if_exists(path, disk::limit(path)).map_err(|error| Error::file(path, error))
}

/// Writes a file: aside, synced, renamed.
pub(crate) fn write(path: &Path, parts: &[&[u8]]) -> Result<()> {
    disk::write(path, parts).map_err(|error| Error::file(path, error))
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    disk::remove(path).map_err(|error| Error::file(path, error))
}

pub(crate) fn create_folder(path: &Path) -> Result<()> {
    disk::create_folder(path).map_err(|error| Error::file(path, error))
}

/// The paths of everything in a folder, sorted.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    disk::list(folder).map_err(|error| Error::file(folder, error))
}

/// The checksums of the files in a run folder; `None` for a run of an earlier version.
pub(crate) fn read_manifest(folder: &Path) -> Result<Option<Manifest>> {
    let path = folder.join(files::CHECKSUMS);
    let Some(bytes) = read_if_exists(&path)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    Manifest::parse(&text).map(Some).map_err(|error| Error::file(path, error))
}
