//! Reading image sets of every supported format.
//!
//! [`open`] reads the data set in a folder; [`open_images`] reads one file or one folder of images.
//! No configuration is needed: published file names identify the data set, and so its class
//! names and normalisation. A folder that could be two data sets is an error that names both;
//! choosing one might train on the wrong data.
//!
//! Every format is a module with a function from bytes to [`ImageSet`]. No input makes it panic or
//! allocate much more memory than it fills.

mod checks;
pub mod cifar;
pub mod folder;
pub mod idx;
pub mod mat;
pub mod npz;
mod registry;
pub mod sample;

use crate::catalog::Published;
use crate::error::{malformed, unusable};
use crate::features::Extractor;
use crate::{Cache, DataError, DataSet, Fit, ImageSet, Normalisation, Progress, Result, pictures};
pub use checks::{MAX_SIDE, free_memory};
use checks::{every_class, same_shape};
use folder::Listing;
use folder::listing::{has_labelled_or_unlabelled, superfluous_share};
pub use folder::{Relabelled, natural, relabelled, seen_from};
pub use registry::{Loader, PUBLISHED, is_registered, load_registered, published, register};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// How to read images.
#[derive(Clone, Default)]
pub struct Options {
    /// Resizes every image to this many pixels per side.
    pub size: Option<usize>,
    /// The largest factor by which images may be enlarged, if the source of `size` is not trusted.
    pub max_enlargement: Option<usize>,
    /// How pictures that are not square become square.
    pub fit: Fit,
    /// Without a test part: the share of the labelled pictures that becomes one.
    pub test_share: Option<f64>,
    /// Takes all pictures below a folder, at any depth, as unlabelled: folders are not classes.
    pub unlabelled: bool,
    /// Leaves out unreadable pictures and lists them in [`DataSet::skipped`]; otherwise they are an
    /// error.
    pub skip_unreadable: bool,
    /// Where decoded pictures and features are kept.
    pub cache: Option<Cache>,
    /// Makes features of the pictures, at the size of its trunk; `size` is not used then.
    pub features: Option<Extractor>,
    /// Called with the number of pictures that have been read.
    pub progress: Progress,
}

impl Options {
    fn check(&self) -> Result<()> {
        let size = self.features.as_ref().map(|extractor| extractor.format.picture.side);
        match size.or(self.size) {
            Some(size) if !(1..=MAX_SIDE).contains(&size) => {
                unusable(format!("the size must be between 1 and {MAX_SIDE}, got {size}"))
            }
            _ => Ok(()),
        }
    }

    /// The data with features, if they are asked for.
    pub fn extract(&self, data: DataSet) -> Result<DataSet> {
        match &self.features {
            Some(extractor) => extractor.of_data(data, self.cache.as_ref(), &self.progress),
            None => Ok(data),
        }
    }

    /// Refuses a size that is out of proportion to the largest image, which has this side.
    fn check_enlargement(&self, side: usize) -> Result<()> {
        match (self.size, self.max_enlargement) {
            (Some(size), Some(max)) if size > side.saturating_mul(max) => unusable(format!(
                "the images have at most {side} pixels per side: enlarging them to {size} is more than {max}-fold"
            )),
            _ => Ok(()),
        }
    }

    fn resize(&self, set: ImageSet) -> Result<ImageSet> {
        if self.features.is_some() {
            return Ok(set); // the trunk's size counts
        }
        self.check_enlargement(set.shape.side)?;
        match self.size {
            Some(size) if size != set.shape.side => folder::resize_set(set, size),
            _ => Ok(set),
        }
    }
}

/// Reads the data set in a folder, or the one that a CSV file or an export of Label Studio lists.
///
/// It recognises CIFAR-10 and CIFAR-100 (in the folder itself or in the one the archive unpacks to),
/// the cropped digits of SVHN, MNIST and Fashion-MNIST (the latter if the folder's name contains
/// "fashion"), `train.npz` and `test.npz`, and pictures: `labelled/CLASS` with `unlabelled` or
/// `unlabelled/CLIENT`, or `train/CLASS`; either with `test/CLASS` or `val/CLASS`. A CSV file lists
/// pictures as `path,label,client,split`; an export of Label Studio (`.json`) lists pictures below its folder.
pub fn open(path: &Path, options: &Options) -> Result<DataSet> {
    options.check()?;
    let (folder, read, published) = match Source::find(path)? {
        Source::Arrays { folder, read, published } => (folder, read, published),
        Source::Pictures(list) => return folder::open(path, list(path, options), options),
    };
    if options.test_share.is_some() {
        return Err(superfluous_share(path));
    }
    let [train, test] = read(&folder)?;
    let (train, test) = (every_class(path, options.resize(train)?)?, options.resize(test)?);
    check_parts(path, &train, &test)?;
    // Files under a published name may still hold grey versions of the images.
    let normalisation = published
        .filter(|published| published.mean.len() == train.shape.channels)
        .map_or_else(|| Normalisation::measure(&train), Published::normalisation);
    let flip = published.is_none_or(|published| published.flip);
    let (name, skipped) = (path.display().to_string(), Vec::new());
    let (unlabelled, trunk) = (None, None);
    options.extract(DataSet { name, train, unlabelled, test, normalisation, flip, skipped, trunk })
}

/// The labelled part of a data set alone, with at most `each` images per class. Unreadable pictures are left out.
pub fn open_labelled(path: &Path, each: usize, options: &Options) -> Result<ImageSet> {
    options.check()?;
    match Source::find(path)? {
        Source::Arrays { folder, read, .. } => {
            let [train, _] = read(&folder)?;
            let chosen =
                train.by_class().into_iter().flat_map(|class| class.into_iter().take(each));
            let train = options.resize(train.select(&chosen.collect::<Vec<_>>()))?;
            match &options.features {
                Some(extractor) => {
                    let cache = options.cache.as_ref();
                    extractor.of_images(train, true, cache, &options.progress)
                }
                None => Ok(train),
            }
        }
        Source::Pictures(list) => folder::open_labelled(path, list(path, options), each, options),
    }
}

/// The picture files of a data set, or `None` if it is of another kind.
pub(crate) fn list_pictures(path: &Path, options: &Options) -> Result<Option<Listing>> {
    Ok(match Source::find(path)? {
        Source::Pictures(list) => Some(list(path, options)),
        Source::Arrays { .. } => None,
    })
}

/// The files of pictures.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Files {
    pub train: Vec<PathBuf>,
    pub unlabelled: Vec<PathBuf>,
    pub test: Vec<PathBuf>,
}

/// The files of a data set of pictures, or as `train` those of a folder of pictures: in the order of the images that
/// [`open`] and [`open_images`] make of them, with those that cannot be read. Other formats have none.
pub fn picture_files(path: &Path, options: &Options) -> Result<Files> {
    let listing = match is_data_set(path) {
        true => list_pictures(path, options)?,
        false => path.is_dir().then(|| Listing::images(path)),
    };
    let files = |Listing { train, unlabelled, test, .. }| Files {
        train: train.files,
        unlabelled: unlabelled.unwrap_or_default().files,
        test: test.files,
    };
    Ok(listing.map(files).unwrap_or_default())
}

/// Whether this is a data set of pictures without a test part, which needs a share of the labelled ones.
pub fn lacks_test(path: &Path) -> Result<bool> {
    let listing = list_pictures(path, &Options::default())?;
    Ok(listing.is_some_and(|listing| listing.test.files.is_empty()))
}

/// Whether the images at a path can be read without a size. Pictures can if all are square and of one size.
pub fn has_one_size(path: &Path) -> Result<bool> {
    let listing = match is_data_set(path) {
        true => list_pictures(path, &Options::default())?,
        false if path.is_dir() => Some(Listing::images(path)),
        false => pictures::is_picture(path).then(|| Listing::picture(path)),
    };
    Ok(listing.is_none_or(|listing| listing.has_one_size()))
}

fn is_table(path: &Path) -> bool {
    let lists =
        |extension: &OsStr| ["csv", "json"].iter().any(|list| extension.eq_ignore_ascii_case(list));
    path.extension().is_some_and(lists)
}

/// Whether this is a data set with a training and a test part, complete or not.
pub fn is_data_set(path: &Path) -> bool {
    if path.is_dir() { !Source::all(path).is_empty() } else { is_table(path) && path.is_file() }
}

/// Reads one file (`.bin`, `.mat`, `.npz`, IDX, a picture) or one folder of pictures, with class subfolders or flat.
pub fn open_images(path: &Path, options: &Options) -> Result<ImageSet> {
    options.check()?;
    let metadata = std::fs::metadata(path).map_err(|source| DataError::io(path, source))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let set = match path.extension().and_then(|extension| extension.to_str()) {
        _ if metadata.is_dir() => folder::read(path, options)?,
        _ if pictures::is_picture(path) => folder::read_image(path, options)?,
        Some("mat") => mat::read(path)?,
        Some("npz") => npz::read(path, None)?,
        _ if name.contains("ubyte") || name.contains("idx") => {
            let published = idx::published_in(path.parent().unwrap_or(path));
            idx::read(path, idx::label_file(path).as_deref(), published)?
        }
        Some("bin") => cifar::read(path)?,
        _ => {
            let expected = "a .bin, .mat, .npz, IDX or image file, or a folder of images";
            return malformed(path, "file name", expected, name);
        }
    };
    let set = every_class(path, options.resize(set)?)?;
    match &options.features {
        Some(extractor) if set.features.is_none() => {
            extractor.of_images(set, true, options.cache.as_ref(), &options.progress)
        }
        _ => Ok(set),
    }
}

/// The data set at a path.
enum Source {
    /// Files of many images each: the reader and its folder, and the published data set, if it is one.
    Arrays {
        folder: PathBuf,
        read: fn(&Path) -> Result<[ImageSet; 2]>,
        published: Option<&'static Published>,
    },
    /// Picture files.
    Pictures(fn(&Path, &Options) -> Listing),
}

impl Source {
    /// The one data set at a path.
    fn find(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| DataError::io(path, source))?;
        if is_table(path) && metadata.is_file() {
            return Ok(Self::Pictures(Listing::table));
        }
        if !metadata.is_dir() {
            let expected = "a folder with a training and a test part, or a .csv or .json file that lists pictures";
            return malformed(path, "path", expected, "a file");
        }
        let mut sources = Self::all(path);
        match sources.len() {
            0 => {
                let expected = format!(
                    "files of a published data set ({}), train.npz and test.npz, or pictures in the folders \
                     labelled/CLASS, unlabelled and test/CLASS, or train/CLASS and test/CLASS",
                    PUBLISHED.map(|published| published.title).join(", ")
                );
                let found = cifar::python_edition(path).unwrap_or("none of them".to_owned());
                malformed(path, "folder", expected, found)
            }
            1 => Ok(sources.remove(0).1),
            _ => {
                let titles: Vec<String> = sources.into_iter().map(|(title, _)| title).collect();
                let expected = "one data set (put each in its own folder)";
                malformed(path, "folder", expected, titles.join(" and "))
            }
        }
    }

    /// All data sets in the folder, complete or not, with their titles for messages.
    fn all(path: &Path) -> Vec<(String, Self)> {
        let mut found = Vec::new();
        for published in PUBLISHED {
            if let Some(folder) = (published.locate)(path) {
                let title = format!("{} in {}", published.title, folder.display());
                let (read, published) = (published.read, Some(published));
                found.push((title, Self::Arrays { folder, read, published }));
            }
        }
        if npz::FILES.iter().any(|name| path.join(name).is_file()) {
            let (folder, read) = (path.to_owned(), npz::read_parts);
            let arrays = Self::Arrays { folder, read, published: None };
            found.push(("numpy archives (train.npz)".to_owned(), arrays));
        }
        let [train, test, val] = ["train", "test", "val"].map(|name| path.join(name).is_dir());
        let own = has_labelled_or_unlabelled(path);
        if own {
            let pictures = Self::Pictures(Listing::labelled_and_unlabelled);
            found.push(("`labelled` and `unlabelled`".to_owned(), pictures));
        }
        if train || !own && (test || val) {
            let pictures = Self::Pictures(Listing::train_and_test);
            found.push(("class folders in `train`".to_owned(), pictures));
        }
        found
    }
}

/// Checks that both parts have labels, the same shape and the same classes.
fn check_parts(path: &Path, train: &ImageSet, test: &ImageSet) -> Result<()> {
    for (part, set) in [("training part", train), ("test part", test)] {
        if set.labels.is_none() {
            let expected = "labels (one subfolder per class, or an array y)";
            return malformed(path, part, expected, "images without labels");
        }
    }
    same_shape(path, train.shape, "test part", test.shape)?;
    if train.classes != test.classes {
        let expected = "the classes of the training part";
        return malformed(path, "test part", expected, difference(&train.classes, &test.classes));
    }
    Ok(())
}

/// How one list of names differs from the other.
fn difference(expected: &[String], found: &[String]) -> String {
    let first = |of: &[String], other: &[String]| {
        of.iter().find(|name| !other.contains(name)).map(|name| format!("`{name}`"))
    };
    match (first(expected, found), first(found, expected)) {
        (Some(missing), Some(more)) => format!("a class {more} and no class {missing}"),
        (Some(missing), None) => format!("no class {missing}"),
        (None, Some(more)) => format!("an additional class {more}"),
        (None, None) => "the same classes in another order".to_owned(),
    }
}

#[cfg(test)]
mod features_tests;
#[cfg(test)]
mod tests;
