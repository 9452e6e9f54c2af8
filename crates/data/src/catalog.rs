//! The published data sets: addresses and checksums of their files, terms of use, and facts that the files lack.
//!
//! The SHA-256 sums, on which many independent loaders agree, protect against a forged file, also where a source has no
//! TLS. Only the small sample ([`crate::sample`]) is distributed with the program, as its licence allows.
//!
//! Measuring the normalisation was rejected: the values in common use keep results comparable with other code, and they
//! can differ from measured ones. The deviation commonly used for CIFAR-10 is the mean over images of each image's
//! deviation (0.20); over all pixels it is 0.25.

use crate::{ImageSet, Normalisation, Result};
use std::path::{Path, PathBuf};

/// One official file of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its name at the official address. Files ending in `.tar.gz` are unpacked.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 sum in lower-case hexadecimal.
    pub sha256: &'static str,
}

/// A published data set. Those of this crate are listed in [`crate::formats::PUBLISHED`].
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Its name in configs and on the command line, and the name of its folder.
    pub name: &'static str,
    /// Its common name.
    pub title: &'static str,
    /// Its content, in one line.
    pub about: &'static str,
    /// The terms of use, in a few words.
    pub terms: &'static str,
    /// The official address of the files, without file name and last slash.
    pub base_url: &'static str,
    /// The files to download.
    pub files: &'static [File],
    /// Class names, by class number.
    pub classes: &'static [&'static str],
    /// Mean of the training pixels scaled to [0, 1], one per channel.
    pub mean: &'static [f32],
    /// Standard deviation commonly used, one per channel.
    pub std: &'static [f32],
    /// Whether a mirrored image still belongs to its class.
    pub flip: bool,
    /// The folder with at least one of its files: the given one, or one inside it.
    pub locate: fn(&Path) -> Option<PathBuf>,
    /// Reads the training and the test part from that folder.
    pub read: fn(&Path) -> Result<[ImageSet; 2]>,
}

impl Published {
    /// Bytes to download.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The class names, as in an image set.
    pub fn class_names(&self) -> Vec<String> {
        self.classes.iter().map(|&name| name.to_owned()).collect()
    }

    /// The published normalisation.
    pub fn normalisation(&self) -> Normalisation {
        Normalisation { mean: self.mean.to_vec(), std: self.std.to_vec() }
    }
}
