//! Files that grow by a line at a time.

use crate::call::{Call, perform};
use crate::read::not_regular;
use crate::write::{folder_of, sync_folder};
use fs_err::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::Path;

/// A file that is open for reading and appending.
#[derive(Debug)]
pub struct Appended {
    file: File,
}

impl Appended {
    /// Opens a file, which is created if it does not exist.
    pub fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            return Self::open(path);
        }
        let file = perform(Call::Create(path), || options().create_new(true).open(path))?;
        sync_folder(folder_of(path))?;
        Ok(Self { file })
    }

    /// Opens a file that exists.
    pub fn open(path: &Path) -> Result<Self> {
        let file = perform(Call::Read(path), || options().open(path))?;
        let kind = file.metadata()?.file_type();
        if kind.is_file() { Ok(Self { file }) } else { Err(not_regular(kind)) }
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

    /// Adds bytes at the end in one piece: another process that reads sees whole lines.
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        perform(Call::Append(self.path(), bytes), || (&self.file).write_all(bytes))
    }

    /// Cuts it to this length.
    pub fn truncate(&self, length: u64) -> Result<()> {
        perform(Call::Truncate(self.path(), length), || self.file.set_len(length))
    }

    /// Has everything on the disk.
    pub fn sync(&self) -> Result<()> {
        perform(Call::Sync(self.path()), || self.file.sync_data())
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    options
}
