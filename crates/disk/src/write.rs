//! Writing: a file is complete or absent, and so is its name.

use crate::call::{Call, perform};
use fs_err::{File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name, syncs and renames it. A symbolic link of that name is replaced, and its target
/// does not change.
pub fn write(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let temporary = temporary(path);
    let written = write_temporary(&temporary, parts).and_then(|()| {
        perform(Call::Rename(&temporary, path), || fs_err::rename(&temporary, path))?;
        sync_folder(folder_of(path))
    });
    if written.is_err() {
        drop(fs_err::remove_file(&temporary)); // a full disk needs the space
    }
    written
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

fn write_temporary(temporary: &Path, parts: &[&[u8]]) -> Result<()> {
    // Left by a killed process, or a link: neither is written to.
    remove(temporary)?;
    let mut file = perform(Call::Create(temporary), || {
        OpenOptions::new().write(true).create_new(true).open(temporary)
    })?;
    for part in parts {
        perform(Call::Append(temporary, part), || file.write_all(part))?;
    }
    perform(Call::Sync(temporary), || file.sync_all())
}

/// Removes a file, if it exists.
pub fn remove(path: &Path) -> Result<()> {
    match perform(Call::Remove(path), || fs_err::remove_file(path)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Creates a folder and its missing parents.
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

/// Syncs all files and folders below a folder.
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

/// Syncs a folder: names must survive a power failure too.
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
