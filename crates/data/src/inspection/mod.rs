//! A look at all files of a data set, which stops at nothing.
//!
//! [`inspect`] counts, measures, and lists what is unreadable, what is no picture, and which pictures
//! are in two places where they must not be: under two labels, or in two of the parts labelled,
//! unlabelled and test. Whether a run would accept the data set is not judged here a second time:
//! it is opened as a run opens it, and what that says is reported.

mod duplicates;

pub use duplicates::{Duplicates, NearPair};

use crate::formats::folder::Listing;
use crate::formats::{self, Options};
use crate::pictures::{self, Fit, Header};
use crate::skipped::{Reason, Skipped};
use crate::{DataSet, ImageSet, Progress, Result, Shape, paths};
use duplicates::Fingerprint;
use rayon::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What there is in a data set.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Where it is.
    #[serde(serialize_with = "paths::serialize")]
    pub path: PathBuf,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The labelled, the unlabelled and the test part, as far as they exist.
    pub parts: Vec<Part>,
    /// Pictures that cannot be read.
    pub unreadable: Vec<Skipped>,
    /// Files of other types.
    pub others: Vec<Skipped>,
    /// Pictures that are in two places.
    pub duplicates: Duplicates,
    /// Why a run would refuse the data set; `None` if it would not.
    pub refusal: Option<String>,
}

/// What there is in one part.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// `labelled`, `train`, `unlabelled`, `test` or `images`.
    pub name: String,
    /// Readable pictures.
    pub pictures: usize,
    /// Readable pictures of every class; empty without labels.
    pub by_class: Vec<usize>,
    /// Readable pictures of every client, by name; empty if the files do not tell.
    pub by_client: Vec<(String, usize)>,
    /// Widths in pixels.
    pub width: Option<Spread>,
    /// Heights in pixels.
    pub height: Option<Spread>,
    /// Width divided by height.
    pub aspect: Option<Spread>,
    /// Square pictures.
    pub square: usize,
    /// Grey pictures, by their headers.
    pub grey: usize,
}

/// The range of some measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub smallest: f64,
    /// The one in the middle, or the lower of the two there.
    pub median: f64,
    /// The largest.
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

/// A picture of a data set, by where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file.
    #[serde(serialize_with = "paths::serialize")]
    pub path: PathBuf,
    /// The name of its part.
    pub part: &'static str,
    /// The name of its class, if it has a label.
    pub class: Option<String>,
}

/// Looks at the data set, the folder of pictures or the file at this path, and opens it as a run does to see
/// whether it would be refused.
pub fn inspect(path: &Path, options: &Options) -> Result<Inspection> {
    let found = survey(path, options)?;
    let refused = || formats::open(path, options).err().map(|error| error.to_string());
    Ok(Inspection { refusal: found.refusal.clone().or_else(refused), ..found })
}

/// Looks at the same without opening it: what is refused is what the names of files and the number of classes
/// already tell.
pub fn survey(path: &Path, options: &Options) -> Result<Inspection> {
    let (mut listing, refusal) = match formats::is_data_set(path) {
        true => match formats::list_pictures(path, options) {
            Ok(Some(listing)) => (listing, None),
            Ok(None) => return Ok(of_arrays(path, formats::open(path, options))),
            Err(error) => return Ok(empty(path, error.to_string())),
        },
        false => {
            if !path.is_dir() {
                let images = formats::open_images(path, options)?;
                let mut inspection = empty(path, PARTS_NEEDED.to_owned());
                inspection.parts.push(part_of_images("images", &images));
                inspection.classes = images.classes;
                return Ok(inspection);
            }
            (Listing::images(path), Some(PARTS_NEEDED.to_owned()))
        }
    };
    let problem = listing.take_problems().err().map(|error| error.to_string());
    let looked = look(path, listing, &options.progress);
    let single = (looked.classes.len() < 2).then(|| {
        format!("a classifier needs at least two classes, found {}", looked.classes.len())
    });
    Ok(Inspection { refusal: refusal.or(problem).or(single), ..looked })
}

const PARTS_NEEDED: &str = "a run needs a labelled and a test part: put the pictures into \
                            labelled/CLASS, unlabelled and test/CLASS, or into train/CLASS and \
                            test/CLASS";

fn empty(path: &Path, refusal: String) -> Inspection {
    Inspection {
        path: path.to_owned(),
        classes: Vec::new(),
        parts: Vec::new(),
        unreadable: Vec::new(),
        others: Vec::new(),
        duplicates: Duplicates::default(),
        refusal: Some(refusal),
    }
}

/// Files of many images each are readable or not as a whole.
fn of_arrays(path: &Path, outcome: Result<DataSet>) -> Inspection {
    match outcome {
        Err(error) => empty(path, error.to_string()),
        Ok(set) => of_images(path, &set),
    }
}

/// What there is in a data set that is not made of picture files.
pub fn of_images(path: &Path, set: &DataSet) -> Inspection {
    Inspection {
        parts: vec![part_of_images("train", &set.train), part_of_images("test", &set.test)],
        classes: set.train.classes.clone(),
        refusal: None,
        ..empty(path, String::new())
    }
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
fn look(path: &Path, listing: Listing, progress: &Progress) -> Inspection {
    let Listing { train_name, classes, train, unlabelled, test, skipped, .. } = listing;
    let clients = unlabelled.as_ref().map_or(0, |unlabelled| unlabelled.files.len());
    let count = progress.count(train.files.len() + clients + test.files.len());
    let (mut parts, mut unreadable, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let mut part = |name: &'static str, files: Vec<PathBuf>, labels: Option<Vec<u16>>| {
        let looks = files.par_iter().map(|file| {
            let look = Look::at(file);
            count.add(1);
            look
        });
        let looks: Vec<Result<Look, Reason>> = looks.collect();
        let mut readable = vec![false; files.len()];
        let mut by_class = vec![0; if labels.is_some() { classes.len() } else { 0 }];
        let mut headers: Vec<Header> = Vec::new();
        for (file, (path, look)) in files.into_iter().zip(looks).enumerate() {
            match look {
                Err(reason) => unreadable.push(Skipped { path, reason }),
                Ok(look) => {
                    let class = labels.as_ref().map(|labels| usize::from(labels[file]));
                    if let Some(class) = class {
                        by_class[class] += 1;
                    }
                    readable[file] = true;
                    headers.push(look.header);
                    let class = class.map(|class| classes[class].clone());
                    seen.push((Place { path, part: name, class }, look.print));
                }
            }
        }
        parts.push(Part {
            name: name.to_owned(),
            pictures: headers.len(),
            by_class,
            by_client: Vec::new(),
            width: Spread::of(headers.iter().map(|header| f64::from(header.width))),
            height: Spread::of(headers.iter().map(|header| f64::from(header.height))),
            aspect: Spread::of(
                headers.iter().map(|header| f64::from(header.width) / f64::from(header.height)),
            ),
            square: headers.iter().filter(|header| header.width == header.height).count(),
            grey: headers.iter().filter(|header| header.grey).count(),
        });
        readable
    };
    part(train_name, train.files, train.labels);
    let mut by_client = Vec::new();
    if let Some(unlabelled) = unlabelled {
        let readable = part("unlabelled", unlabelled.files, None);
        let count =
            |files: &Vec<u32>| files.iter().filter(|&&file| readable[file as usize]).count();
        by_client =
            unlabelled.names.into_iter().zip(unlabelled.clients.iter().map(count)).collect();
    }
    if !test.files.is_empty() {
        part("test", test.files, test.labels);
    }
    if let Some(part) = parts.get_mut(1).filter(|_| !by_client.is_empty()) {
        part.by_client = by_client;
    }
    Inspection {
        path: path.to_owned(),
        classes,
        parts,
        unreadable,
        others: skipped,
        duplicates: duplicates::find(&seen),
        refusal: None,
    }
}

/// What one picture shows.
struct Look {
    header: Header,
    print: Fingerprint,
}

impl Look {
    fn at(path: &Path) -> Result<Self, Reason> {
        let header = pictures::try_header(path)?;
        let shape = Shape { side: duplicates::SIDE, channels: 1 };
        let hash = |bytes: &[u8]| blake3::hash(bytes);
        let (content, pixels) = pictures::try_read_and(path, shape, Fit::Stretch, hash)?;
        Ok(Self { header, print: Fingerprint::new(content, &pixels) })
    }
}

#[cfg(test)]
mod tests;
