//! Reading: regular files only, and never without a limit.

use crate::call::{Call, perform};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The largest file that is read whole without another limit, in bytes: a model of four billion parameters.
pub const MAX_FILE: u64 = 1 << 34;

/// The size limit of a file of a run: models and checkpoints grow with the network, and the limit of other files
/// exceeds the records of a hundred thousand rounds.
pub fn limit(path: &Path) -> u64 {
    match path.extension().and_then(OsStr::to_str) {
        Some("safetensors" | "checkpoint") => MAX_FILE,
        _ => 1 << 28,
    }
}

/// Opens a regular file for reading. Other files, such as named pipes, could block or never end.
pub fn open(path: &Path) -> Result<File> {
    perform(Call::Read(path), || {
        let found = std::fs::metadata(path)?;
        match found.is_file() {
            true => File::open(path),
            false => Err(not_regular(found.file_type())),
        }
    })
}

/// Reads a regular file of at most `max` bytes. Errors do not name the path: callers do.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    // The length of some files, such as those in /proc, is only known by reading them.
    if length <= max {
        let reserved = bytes.try_reserve_exact(length as usize);
        reserved.map_err(|_| {
            let problem = format!("not enough memory for its {length} bytes");
            Error::new(ErrorKind::OutOfMemory, problem)
        })?;
        file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    if length > max || bytes.len() as u64 > max {
        let problem = format!("expected at most {max} bytes, found more");
        return Err(Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// [`read`] for UTF-8 text.
pub fn read_text(path: &Path, max: u64) -> Result<String> {
    String::from_utf8(read(path, max)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("expected UTF-8 text: see byte {}", at + 1))
    })
}

/// [`read`] for a file that need not exist.
pub fn read_if_exists(path: &Path, max: u64) -> Result<Option<Vec<u8>>> {
    match read(path, max) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The paths of all files and folders in a folder, sorted.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    perform(Call::List(folder), || {
        let entries = fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let mut paths = entries.collect::<Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    })
}

pub(crate) fn not_regular(found: std::fs::FileType) -> Error {
    let kind = match found {
        _ if found.is_dir() => "a folder",
        _ if found.is_fifo() => "a named pipe",
        _ if found.is_socket() => "a socket",
        _ => "a device",
    };
    Error::new(ErrorKind::InvalidInput, format!("expected a regular file, found {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_has_no_end_is_refused_before_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let refused = |path: &Path| read(path, 10).unwrap_err().to_string();
        assert_eq!(refused(&pipe), "expected a regular file, found a named pipe");
        assert_eq!(refused(Path::new("/dev/zero")), "expected a regular file, found a device");
        assert_eq!(refused(folder.path()), "expected a regular file, found a folder");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(refused(&link).contains("named pipe"));
    }

    #[test]
    fn the_limit_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs_err::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let error = read(&path, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "expected at most 4 bytes, found more");
        // Its length is said to be 0.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
        assert!(read(Path::new("/proc/self/status"), 4).is_err());
    }

    #[test]
    fn missing_is_not_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_if_exists(&folder.path().join("none"), 10).unwrap(), None);
        assert!(read_if_exists(folder.path(), 10).is_err());
        let path = folder.path().join("text");
        fs_err::write(&path, b"ab\xff").unwrap();
        let error = read_text(&path, 10).unwrap_err().to_string();
        assert_eq!(error, "expected UTF-8 text: see byte 3");
    }
}
