//! Files that were not read, and why.

use crate::paths;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The formats that can be read, for messages.
pub const FORMATS: &str = "PNG, JPEG, TIFF, BMP, WebP, GIF or PNM";

/// A file that was not read, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The file.
    #[serde(serialize_with = "paths::serialize")]
    pub path: PathBuf,
    /// Why it was not read.
    pub reason: Reason,
}

/// Why a file was not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
#[allow(missing_docs)] // each comment explains the fields of its reason
pub enum Reason {
    /// Its name is not that of a picture, for example `notes.txt`. Not an error.
    #[error("not a picture (by its name)")]
    NotAPicture,
    /// Its name is that of a picture in a format that cannot be read, for example `scan.heic`. Not an
    /// error: cameras write such files in addition to others of the same picture.
    #[error("{format} is not supported: convert it to {}", FORMATS)]
    Unsupported { format: String },
    /// It cannot be opened or read, by the error of the operating system.
    #[error("cannot be opened: {why}")]
    NotOpened { why: String },
    /// Its name is that of a picture, but the content is something else or damaged, as the decoder says.
    #[error("unreadable: {why}")]
    Unreadable { why: String },
    /// It ends before its picture does.
    #[error("truncated: the file ends before the picture does")]
    Truncated,
    /// It has more pixels than can be read.
    #[error(
        "too large: expected at most {} megapixels and {MAX_PICTURE_SIDE} pixels per side, found {width} x {height} pixels",
        MAX_PIXELS / 1_000_000
    )]
    TooLarge { width: u32, height: u32 },
    /// It has fewer pixels than a picture needs.
    #[error(
        "too small: expected at least {MIN_PICTURE_SIDE} pixels per side, found {width} x {height}"
    )]
    TooSmall { width: u32, height: u32 },
}

/// The most pixels of a picture.
pub(crate) const MAX_PIXELS: u64 = 100_000_000;
/// The largest width or height of a picture.
pub(crate) const MAX_PICTURE_SIDE: u32 = 65_535;
/// The smallest width or height of a picture.
pub(crate) const MIN_PICTURE_SIDE: u32 = 2;

impl Reason {
    /// Whether the file should have been read: its name promises a picture in a known format.
    pub fn is_error(&self) -> bool {
        !matches!(self, Self::NotAPicture | Self::Unsupported { .. })
    }

    /// The kind of reason, by which files are counted.
    pub fn group(&self) -> &'static str {
        match self {
            Self::NotAPicture => "not a picture",
            Self::Unsupported { .. } => "in a format that is not supported",
            Self::NotOpened { .. } => "not opened",
            Self::Unreadable { .. } => "unreadable",
            Self::Truncated => "truncated",
            Self::TooLarge { .. } => "too large",
            Self::TooSmall { .. } => "too small",
        }
    }
}

/// How many files were skipped for each reason.
pub fn by_reason(files: &[Skipped]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for file in files {
        *counts.entry(file.reason.group()).or_default() += 1;
    }
    counts
}
