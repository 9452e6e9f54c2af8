//! Files that grow line by line.

use crate::call::{Call, perform};
use crate::read::not_regular;
use crate::write::{folder_of, sync_folder};
use fs_err::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file that is open for reading and appending.
#[derive(Debug)]
pub struct Appended {
    file: File,
}

impl Appended {
    /// Opens a file, or creates it.
    pub fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            return Self::open(path);
        }
        let file = perform(Call::Create(path), || options().create_new(true).open(path))?;
        sync_folder(folder_of(path))?;
        Ok(Self { file })
    }

    /// Opens an existing file. A symbolic link is refused, so that its target cannot be changed.
    pub fn open(path: &Path) -> Result<Self> {
        let file = perform(Call::Read(path), || options().open(path))?;
        let opened = file.metadata()?;
        if !opened.is_file() {
            return Err(not_regular(opened.file_type()));
        }
        let named = fs_err::symlink_metadata(path)?;
        if (named.dev(), named.ino()) != (opened.dev(), opened.ino()) {
            let problem =
                "expected a regular file, found a symbolic link: nothing is written through it";
            return Err(Error::new(ErrorKind::InvalidInput, problem));
        }
        Ok(Self { file })
    }

    /// The same file, for another thread.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { file: self.file.try_clone()? })
    }

    /// The file itself, for example to lock it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Adds bytes at the end in one piece, so that other processes read whole lines.
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        perform(Call::Append(self.path(), bytes), || (&self.file).write_all(bytes))
    }

    /// Truncates it to this length.
    pub fn truncate(&self, length: u64) -> Result<()> {
        perform(Call::Truncate(self.path(), length), || self.file.set_len(length))
    }

    /// Syncs the content.
    pub fn sync(&self) -> Result<()> {
        perform(Call::Sync(self.path()), || self.file.sync_data())
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs_err::write(at("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("lines")).unwrap();
        for opened in [Appended::create(&at("lines")), Appended::open(&at("lines"))] {
            let problem = opened.unwrap_err().to_string();
            assert!(problem.contains("found a symbolic link"), "{problem}");
        }
        assert_eq!(fs_err::read_to_string(at("precious")).unwrap(), "precious");
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
        assert!(Appended::create(&at("dangling")).is_err() && !at("nowhere").exists());
    }
}
