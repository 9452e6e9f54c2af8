//! Picture files on a disk.

use super::by_name;
use crate::error::unusable;
use crate::skipped::{FORMATS, Skipped};
use crate::{DataError, Result};
use std::path::{Path, PathBuf};

/// Picture files and other files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Files with the name of a picture, and files that were given by path.
    pub pictures: Vec<PathBuf>,
    /// Other files in folders.
    pub others: Vec<Skipped>,
}

/// The picture files among these paths and below folders among them, sorted by name. Hidden files and folders are
/// ignored. No picture is an error.
pub fn find(paths: &[PathBuf]) -> Result<Found> {
    let mut found = Found::default();
    for path in paths {
        if path.is_dir() {
            found.walk(path)?;
        } else {
            found.pictures.push(path.clone());
        }
    }
    if found.pictures.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return unusable(format!("{}: expected {FORMATS} pictures, found none", names.join(", ")));
    }
    Ok(found)
}

impl Found {
    /// All files below a folder, at any depth.
    pub(crate) fn below(folder: &Path) -> Result<Self> {
        let mut found = Self::default();
        found.walk(folder)?;
        Ok(found)
    }

    fn walk(&mut self, folder: &Path) -> Result<()> {
        for path in visible(folder)? {
            if path.is_dir() {
                self.walk(&path)?;
            } else {
                self.add(path);
            }
        }
        Ok(())
    }

    /// Adds a file to the list for its name.
    pub(crate) fn add(&mut self, path: PathBuf) {
        match by_name(&path) {
            Ok(()) => self.pictures.push(path),
            Err(reason) => self.others.push(Skipped { path, reason }),
        }
    }
}

/// The content of a folder, sorted by name, without hidden files and folders.
pub(crate) fn visible(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |error| DataError::io(folder, error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    #[test]
    fn everything_below_folders_is_found_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("new/b")).unwrap();
        std::fs::create_dir_all(at("new/.thumbnails")).unwrap();
        for name in
            ["new/b/2.jpg", "new/b/1.png", "new/a.heic", "new/c.txt", "new/.thumbnails/1.png", "x"]
        {
            std::fs::write(at(name), "").unwrap();
        }
        let found = find(&[at("x"), at("new")]).unwrap();
        assert_eq!(found.pictures, [at("x"), at("new/b/1.png"), at("new/b/2.jpg")]);
        let heic = Skipped {
            path: at("new/a.heic"),
            reason: Reason::Unsupported { format: "HEIC".to_owned() },
        };
        assert_eq!(
            heic.reason.to_string(),
            "HEIC is not supported: convert it to PNG, JPEG, TIFF, BMP, WebP, GIF or PNM"
        );
        let text = Skipped { path: at("new/c.txt"), reason: Reason::NotAPicture };
        assert_eq!(found.others, [heic, text]);
        let error = find(&[at("new/.thumbnails/none")]);
        assert!(error.is_ok(), "a file given by path: reading it reports the problem");
        std::fs::create_dir(at("empty")).unwrap();
        assert!(find(&[at("empty")]).unwrap_err().to_string().contains("found none"));
    }
}
