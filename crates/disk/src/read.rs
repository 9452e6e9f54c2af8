//! Reading: regular files only, and never without a limit.

use crate::call::{Call, perform};
use fs_err::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Reads a regular file of at most this many bytes. Anything else, such as a named pipe, could block or never end.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    perform(Call::Read(path), || {
        let found = fs_err::metadata(path)?;
        if !found.is_file() {
            let kind = kind(found.file_type());
            let problem = format!("`{}` is {kind}, not a regular file", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, problem));
        }
        let mut bytes = Vec::new();
        // The length of some files, such as those in /proc, is only known by reading them.
        if found.len() <= most {
            bytes.reserve_exact(found.len() as usize);
            File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        }
        if found.len() > most || bytes.len() as u64 > most {
            let problem = format!("`{}` has more than {most} bytes", path.display());
            return Err(Error::new(ErrorKind::FileTooLarge, problem));
        }
        Ok(bytes)
    })
}

/// The same for a text.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let problem = format!("`{}` is not UTF-8 text: see byte {}", path.display(), at + 1);
        Error::new(ErrorKind::InvalidData, problem)
    })
}

/// The same for a file that need not exist.
pub fn read_if_exists(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    match read(path, most) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The paths of everything in a folder, sorted.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    perform(Call::List(folder), || {
        let entries = fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let mut paths = entries.collect::<Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    })
}

fn kind(of: std::fs::FileType) -> &'static str {
    match of {
        _ if of.is_dir() => "a folder",
        _ if of.is_fifo() => "a named pipe",
        _ if of.is_socket() => "a socket",
        _ => "a device",
    }
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
        assert!(refused(&pipe).ends_with("pipe` is a named pipe, not a regular file"));
        assert_eq!(refused(Path::new("/dev/zero")), "`/dev/zero` is a device, not a regular file");
        assert!(refused(folder.path()).ends_with("` is a folder, not a regular file"));
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
        assert!(error.to_string().ends_with("has more than 4 bytes"), "{error}");
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
        assert!(error.ends_with("is not UTF-8 text: see byte 3"), "{error}");
    }
}
