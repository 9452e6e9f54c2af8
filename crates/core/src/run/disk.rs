//! File access of a run, with the path in every error.

use crate::error::{Error, Result};
use fedanchor_disk as disk;
use std::path::Path;

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
pub(crate) fn list(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    disk::list(folder).map_err(|error| Error::file(folder, error))
}
