//! Files that are complete or absent, whatever happens to the process, the disk or the power meanwhile.

use crate::error::{Error, Result};
use fs_err::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes a file: aside, synced, renamed.
pub(crate) fn write(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let aside = Path::new(&name);
    let write = || {
        let mut file = File::create(aside)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs_err::rename(aside, path)?;
        // The name itself must survive a power failure.
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error: std::io::Error| {
        drop(fs_err::remove_file(aside)); // a full disk needs the space
        Error::file(path, error)
    })
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file(path, error)),
        _ => Ok(()),
    }
}
