//! Reports on all files of a data set, despite any problem.
//!
//! [`inspect`] counts and measures, and lists unreadable pictures, files that are not pictures, and pictures
//! in two places where they must not be: under two labels, or in two of the parts labelled,
//! unlabelled and test. Whether a run would accept the data set is not judged a second time:
//! it is opened as a run opens it, and the error is reported.

mod duplicates;

pub use duplicates::{Duplicates, NearPair};

use crate::formats::folder::{self, Listing};
use crate::formats::{self, Options};
use crate::pictures::{self, Fit, Header};
use crate::skipped::{Reason, Skipped};
use crate::{DataSet, ImageSet, Progress, Result, Shape, names, paths};
use duplicates::Fingerprint;
use rayon::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The content of a data set.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Inspection {
    /// The path of the data set.
    #[serde(serialize_with = "paths::serialize")]
    pub path: PathBuf,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The labelled, the unlabelled and the test part, if they exist.
    pub parts: Vec<Part>,
    /// Pictures that cannot be read.
    pub unreadable: Vec<Skipped>,
    /// Files of other types.
    pub others: Vec<Skipped>,
    /// Pictures in two places.
    pub duplicates: Duplicates,
    /// Names of classes that differ only in upper and lower case, and may be one class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alike: Vec<[String; 2]>,
    /// Why a run would refuse the data set; `None` if it would not.
    pub refusal: Option<String>,
}

/// The content of one part.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// `labelled`, `train`, `unlabelled`, `test` or `images`.
    pub name: String,
    /// Readable pictures.
    pub pictures: usize,
    /// Readable pictures of every class; empty without labels.
    pub by_class: Vec<usize>,
    /// Readable pictures of every client, by name; empty if clients have no folders.
    pub by_client: Vec<(String, usize)>,
    /// In pixels.
    pub width: Option<Spread>,
    /// In pixels.
    pub height: Option<Spread>,
    /// Width divided by height.
    pub aspect: Option<Spread>,
    /// Square pictures.
    pub square: usize,
    /// Grey pictures, by their headers.
    pub grey: usize,
}

/// The range of some measurements, and their median, or the lower of the two in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Spread {
    pub smallest: f64,
    pub median: f64,
    pub largest: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (smallest, largest) = (*values.first()?, *values.last()?);
        Some(Self { smallest, median: values[(values.len() - 1) / 2], largest })
    }
}

/// The location of a picture in a data set; a class if it has a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Location {
    #[serde(serialize_with = "paths::serialize")]
    pub path: PathBuf,
    pub part: &'static str,
    pub class: Option<String>,
}

/// Inspects the data set, the folder of pictures or the file at this path, and opens it as a run does to see
/// whether a run would refuse it.
pub fn inspect(path: &Path, options: &Options) -> Result<Inspection> {
    let mut found = survey(path, options)?;
    if found.refusal.is_none() {
        found.refusal = formats::open(path, options).err().map(|error| error.to_string());
    }
    Ok(found)
}

/// Inspects without opening: refusals follow from the names of files and the number of classes alone.
pub fn survey(path: &Path, options: &Options) -> Result<Inspection> {
    const PARTS_NEEDED: &str = "a run needs a labelled and a test part: put the pictures into labelled/CLASS, \
                                unlabelled and test/CLASS, or into train/CLASS and test/CLASS";
    let is_data_set = formats::is_data_set(path);
    let mut listing = if is_data_set {
        match formats::list_pictures(path, options) {
            Ok(Some(listing)) => listing,
            Ok(None) => match formats::open(path, options) {
                Ok(set) => return Ok(of_images(path, &set)),
                Err(error) => return Ok(refused(path, error.to_string())),
            },
            Err(error) => return Ok(refused(path, error.to_string())),
        }
    } else if path.is_dir() {
        Listing::images(path)
    } else {
        let images = formats::open_images(path, options)?;
        let parts = vec![part_of_images("images", &images)];
        let refused = refused(path, PARTS_NEEDED.to_owned());
        return Ok(Inspection { parts, classes: images.classes, ..refused });
    };
    let problem = listing.take_problems().err().map(|error| error.to_string());
    let mut found = examine(path, listing, &options.progress);
    let classes = found.classes.len();
    found.refusal = match problem {
        _ if !is_data_set => Some(PARTS_NEEDED.to_owned()),
        None if classes < 2 => {
            Some(format!("a classifier needs at least two classes, found {classes}"))
        }
        problem => problem,
    };
    Ok(found)
}

/// An inspection that found nothing else.
fn refused(path: &Path, refusal: String) -> Inspection {
    Inspection { path: path.to_owned(), refusal: Some(refusal), ..Inspection::default() }
}

/// An inspection of a data set that is not made of picture files.
pub fn of_images(path: &Path, set: &DataSet) -> Inspection {
    let parts = vec![part_of_images("train", &set.train), part_of_images("test", &set.test)];
    let (path, classes) = (path.to_owned(), set.train.classes.clone());
    Inspection { path, classes, parts, ..Inspection::default() }
}

fn part_of_images(name: &str, images: &ImageSet) -> Part {
    let side = images.shape.side as f64;
    let count = images.len();
    let all = |value| Some(Spread { smallest: value, median: value, largest: value });
    Part {
        name: name.to_owned(),
        pictures: count,
        by_class: if images.labels.is_some() { images.class_counts() } else { Vec::new() },
        by_client: Vec::new(),
        width: all(side),
        height: all(side),
        aspect: all(1.0),
        square: count,
        grey: if images.shape.channels == 1 { count } else { 0 },
    }
}

/// Opens every picture of a listing once.
fn examine(path: &Path, listing: Listing, progress: &Progress) -> Inspection {
    let Listing { train_name, classes, train, unlabelled, test, skipped, .. } = listing;
    let unlabelled_files = unlabelled.as_ref().map_or(0, |unlabelled| unlabelled.files.len());
    let count = progress.count(train.files.len() + unlabelled_files + test.files.len());
    let (mut parts, mut unreadable, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |name: &'static str, part: folder::Part| {
        let folder::Part { files, labels, clients, client_names } = part;
        let examine = |file: &PathBuf| {
            let examined = examine_picture(file);
            count.add(1);
            examined
        };
        let examined: Vec<_> = files.par_iter().map(examine).collect();
        let mut readable = vec![false; files.len()];
        let mut by_class = vec![0; if labels.is_some() { classes.len() } else { 0 }];
        let mut headers: Vec<Header> = Vec::new();
        for (file, (path, examined)) in files.into_iter().zip(examined).enumerate() {
            let (header, print) = match examined {
                Ok(examined) => examined,
                Err(reason) => {
                    unreadable.push(Skipped { path, reason });
                    continue;
                }
            };
            let class = labels.as_ref().map(|labels| usize::from(labels[file]));
            if let Some(class) = class {
                by_class[class] += 1;
            }
            readable[file] = true;
            headers.push(header);
            let class = class.map(|class| classes[class].clone());
            seen.push((Location { path, part: name, class }, print));
        }
        let of_client =
            |files: &Vec<u32>| files.iter().filter(|&&at| readable[at as usize]).count();
        parts.push(Part {
            name: name.to_owned(),
            pictures: headers.len(),
            by_class,
            by_client: client_names.into_iter().zip(clients.iter().map(of_client)).collect(),
            width: Spread::of(headers.iter().map(|header| f64::from(header.width))),
            height: Spread::of(headers.iter().map(|header| f64::from(header.height))),
            aspect: Spread::of(
                headers.iter().map(|header| f64::from(header.width) / f64::from(header.height)),
            ),
            square: headers.iter().filter(|header| header.width == header.height).count(),
            grey: headers.iter().filter(|header| header.grey).count(),
        });
    };
    add(train_name, train);
    if let Some(unlabelled) = unlabelled {
        add("unlabelled", unlabelled);
    }
    if !test.files.is_empty() {
        add("test", test);
    }
    let duplicates = duplicates::find(&seen);
    let path = path.to_owned();
    let alike = names::alike_among(&classes).into_iter();
    let alike = alike.filter(|(_, how)| *how == names::Alike::Case);
    let alike = alike.map(|(pair, _)| pair.map(str::to_owned)).collect();
    let refusal = None;
    Inspection { path, classes, parts, unreadable, others: skipped, duplicates, alike, refusal }
}

/// The header of a picture, and the features that duplicates are found by.
fn examine_picture(path: &Path) -> Result<(Header, Fingerprint), Reason> {
    let header = pictures::header(path)?;
    let shape = Shape { side: duplicates::SIDE, channels: 1 };
    let hash = |bytes: &[u8]| blake3::hash(bytes);
    let (content, pixels) = pictures::try_read_and(path, shape, Fit::Stretch, hash)?;
    Ok((header, Fingerprint::new(content, &pixels)))
}

#[cfg(test)]
mod tests;
