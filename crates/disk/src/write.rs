//! Writing: a file is complete or absent, and so is its name.

use crate::call::{Call, perform};
use fs_err::{File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// Writes a file: aside, synced, renamed. A symbolic link of that name is replaced, and what it points to is left
/// alone.
pub fn write(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let aside = aside(path);
    let written = write_aside(&aside, parts).and_then(|()| {
        perform(Call::Rename(&aside, path), || fs_err::rename(&aside, path))?;
        sync_folder(folder_of(path))
    });
    if written.is_err() {
        drop(fs_err::remove_file(&aside)); // a full disk needs the space
    }
    written
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

fn write_aside(aside: &Path, parts: &[&[u8]]) -> Result<()> {
    // What a killed process left, or a link that someone put there: neither is written to.
    remove(aside)?;
    let mut file = perform(Call::Create(aside), || {
        OpenOptions::new().write(true).create_new(true).open(aside)
    })?;
    for part in parts {
        perform(Call::Append(aside, part), || file.write_all(part))?;
    }
    perform(Call::Sync(aside), || file.sync_all())
}

/// Removes a file, if it exists.
pub fn remove(path: &Path) -> Result<()> {
    match perform(Call::Remove(path), || fs_err::remove_file(path)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Creates a folder and those above it, where they do not exist yet.
pub fn create_folder(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let above = folder_of(path);
    create_folder(above)?;
    match perform(Call::CreateFolder(path), || fs_err::create_dir(path)) {
        // Another process was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }?;
    sync_folder(above)
}

/// Has everything in a folder on the disk: all files below it, and the names of all of them.
pub fn sync_all_below(folder: &Path) -> Result<()> {
    for path in crate::list(folder)? {
        if fs_err::symlink_metadata(&path)?.is_dir() {
            sync_all_below(&path)?;
        } else {
            perform(Call::Sync(&path), || File::open(&path)?.sync_all())?;
        }
    }
    sync_folder(folder)
}

/// Has the names in a folder on the disk: they must survive a power failure, too.
pub fn sync_folder(path: &Path) -> Result<()> {
    perform(Call::SyncFolder(path), || File::open(path)?.sync_all())
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs_err::write(at("precious"), "precious").unwrap();
        symlink(at("precious"), at("file")).unwrap();
        symlink(at("precious"), at("file.part")).unwrap();
        write(&at("file"), &[b"new ", b"content"]).unwrap();
        assert_eq!(fs_err::read_to_string(at("file")).unwrap(), "new content");
        assert!(fs_err::symlink_metadata(at("file")).unwrap().is_file());
        assert_eq!(fs_err::read_to_string(at("precious")).unwrap(), "precious");
        assert!(!at("file.part").exists());
    }

    #[test]
    fn folders_are_made_as_deep_as_needed() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).unwrap();
        create_folder(&deep).unwrap();
        assert!(deep.is_dir());
        let file = folder.path().join("file");
        write(&file, &[]).unwrap();
        assert!(create_folder(&file.join("below")).is_err());
        remove(&file).unwrap();
        remove(&file).unwrap();
        assert!(!file.exists());
    }
}
