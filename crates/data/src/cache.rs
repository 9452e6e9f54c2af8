//! The cache on disk: decoded pictures, and features of pictures.
//!
//! It may be deleted at any time, and a problem with it never makes a run fail: that costs the time to make its content
//! again. Of each kind of content it holds at most a limit in bytes; for what is new, the oldest is removed.

use crate::Result;
use crate::error::unusable;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most bytes of each kind, unless the user states another number: features of 400,000 pictures.
const LIMIT: u64 = 10 << 30;

/// Where the cache is, and how large it may become.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Its folder, with a folder per kind of content.
    pub folder: PathBuf,
    /// The most bytes of each kind.
    pub limit: u64,
}

/// The folder of one kind of content: in `FEDANCHOR_CACHE`, else in `fedanchor` of `XDG_CACHE_HOME` or of `~/.cache`.
/// `None` if `FEDANCHOR_CACHE` is empty, or without a home folder.
pub fn folder(kind: &str) -> Option<PathBuf> {
    let given = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = match given("FEDANCHOR_CACHE") {
        Some(folder) if folder.as_os_str().is_empty() => return None,
        Some(folder) => folder,
        // The standard that defines it ignores relative paths.
        None => match given("XDG_CACHE_HOME").filter(|folder| folder.is_absolute()) {
            Some(folder) => folder.join("fedanchor"),
            None => std::env::home_dir()?.join(".cache/fedanchor"),
        },
    };
    Some(folder.join(kind))
}

impl Cache {
    /// In a folder, with the usual limit.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), limit: LIMIT }
    }

    /// The user's, with the limit in `FEDANCHOR_CACHE_LIMIT`; `None` if there is to be none.
    pub fn of_user() -> Result<Option<Self>> {
        let limit = std::env::var_os("FEDANCHOR_CACHE_LIMIT");
        let limit = limit.map_or(Ok(LIMIT), |text| parse(&text.to_string_lossy()))?;
        Ok(folder("").map(|folder| Self { folder, limit }))
    }

    /// Removes entries of a kind but `own`, those unused for longest first, until the rest and `needed` bytes more keep
    /// to the limit. Returns the bytes that are free.
    pub(crate) fn make_room(&self, kind: &str, own: &Path, needed: u64) -> u64 {
        let entries = fs::read_dir(self.folder.join(kind)).into_iter().flatten().flatten();
        let mut entries: Vec<(SystemTime, PathBuf, u64)> = entries
            .filter_map(|entry| {
                let used = entry.metadata().and_then(|metadata| metadata.modified()).ok()?;
                Some((used, entry.path(), size(&entry.path())))
            })
            .collect();
        entries.sort();
        let mut total = entries.iter().map(|(_, _, size)| size).sum::<u64>();
        for (_, path, size) in entries {
            let full = total.saturating_add(needed) > self.limit;
            if full && path != own && remove(&path).is_ok() {
                total -= size;
            }
        }
        self.limit.saturating_sub(total)
    }
}

/// Notes that a file or folder of the cache is used now.
pub(crate) fn touch(path: &Path) {
    if let Ok(handle) = fs::File::open(path) {
        handle.set_modified(SystemTime::now()).ok();
    }
}

fn parse(limit: &str) -> Result<u64> {
    match limit.trim().parse() {
        Ok(limit) => Ok(limit),
        Err(_) => unusable(format!(
            "FEDANCHOR_CACHE_LIMIT: expected a number of bytes, got `{}`",
            limit.escape_default()
        )),
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// The bytes of a file, or of all files below a folder.
fn size(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|entry| size(&entry.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |metadata| metadata.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_of_bytes() {
        assert_eq!(parse("1000").unwrap(), 1000);
        for wrong in ["10GB", "", "-1"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("FEDANCHOR_CACHE_LIMIT: expected a number of"), "{error}");
        }
    }
}
