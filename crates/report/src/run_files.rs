//! The files of a run folder, checked against its checksums as they are read.

use crate::error::{ReportError, Result};
use fedanchor_disk::limit;
use fedanchor_record::{Manifest, files};
use std::path::{Path, PathBuf};

/// A run folder and the checksums in it.
#[derive(Debug)]
pub(crate) struct RunFiles {
    pub(crate) folder: PathBuf,
    /// None for a run of an earlier version.
    manifest: Option<Manifest>,
}

impl RunFiles {
    /// Opens a run folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let (folder, path) = (folder.to_owned(), folder.join(files::CHECKSUMS));
        let bytes = fedanchor_disk::read_if_exists(&path, limit(&path));
        let Some(bytes) = bytes.map_err(|error| ReportError::about(&path, error))? else {
            return Ok(Self { folder, manifest: None });
        };
        let manifest = Manifest::parse(&String::from_utf8_lossy(&bytes));
        let manifest = manifest.map_err(|error| ReportError::malformed(path, error))?;
        Ok(Self { folder, manifest: Some(manifest) })
    }

    /// The same without checksums, for a run whose checksums are damaged.
    pub(crate) fn unchecked(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), manifest: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether a file is there, or has to be: one that is listed and missing is an error when it is read.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists() || self.lists(name)
    }

    /// Whether a file has a checksum.
    pub(crate) fn lists(&self, name: &str) -> bool {
        self.manifest.as_ref().is_some_and(|manifest| manifest.lists(name))
    }

    /// Reads a file. It is an error if it is not what was written.
    pub(crate) fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        let bytes = fedanchor_disk::read(&path, limit(&path))
            .map_err(|error| ReportError::about(&path, error))?;
        if let Some(manifest) = &self.manifest {
            let checked = manifest.check(name, &bytes);
            checked.map_err(|mismatch| ReportError::malformed(self.path(name), mismatch))?;
        }
        Ok(bytes)
    }

    /// The same for a text.
    pub(crate) fn text(&self, name: &str) -> Result<String> {
        String::from_utf8(self.bytes(name)?)
            .map_err(|error| ReportError::malformed(self.path(name), error))
    }

    /// It is an error if a finished run has checksums, but not of one of these files.
    pub(crate) fn check_listed(&self, names: &[&str]) -> Result<()> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let unlisted = names.iter().find(|name| !manifest.lists(name));
        let problem = |name: &&str| ReportError::malformed(self.path(name), "has no checksum");
        unlisted.map_or(Ok(()), |name| Err(problem(name)))
    }
}
