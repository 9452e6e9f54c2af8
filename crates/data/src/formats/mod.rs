//! Reading image sets of every supported format.
//!
//! [`open`] reads the data set in a folder; [`open_images`] reads one file or one folder of images.
//! No configuration is needed: the published file names tell which data set it is, and so its class
//! names and normalisation. A folder that could be two data sets is an error that names both;
//! choosing one might train on the wrong data.
//!
//! Every format is a module with a function from bytes to [`ImageSet`]. No input makes it panic or
//! allocate much more than it can fill.

mod checks;
pub mod cifar;
pub mod folder;
pub mod idx;
pub mod mat;
pub mod npz;
mod registry;

use crate::catalog::Published;
use crate::{DataError, DataSet, Fit, ImageSet, Normalisation, Progress, Result, pictures};
pub use checks::{MAX_SIDE, free_memory};
use checks::{every_class, same_shape};
use folder::Listing;
use folder::listing::superfluous_share;
pub use folder::{Relabelled, cache_folder, default_cache, natural, seen_from};
pub use registry::{Loader, PUBLISHED, is_registered, load_registered, published, register};
use std::path::{Path, PathBuf};

/// How to read images.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Resizes every image to this many pixels per side.
    pub size: Option<usize>,
    /// By how much the largest image may be enlarged at most, where whoever asks for the size is not trusted.
    pub most_enlarged: Option<usize>,
    /// How pictures that are not square become square.
    pub fit: Fit,
    /// Without a test part: the share of the labelled pictures that becomes one.
    pub test_share: Option<f64>,
    /// Leaves out unreadable pictures and lists them in [`DataSet::skipped`]; otherwise they are an
    /// error.
    pub skip_unreadable: bool,
    /// The folder where decoded pictures are kept for the next time.
    pub cache: Option<PathBuf>,
    /// What is told how many pictures have been read.
    pub progress: Progress,
}

impl Options {
    fn check(&self) -> Result<()> {
        match self.size {
            Some(size) if !(1..=MAX_SIDE).contains(&size) => {
                let problem = format!("the size must be between 1 and {MAX_SIDE}, got {size}");
                Err(DataError::Unusable(problem))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a size that is out of proportion to the images, of which the largest has this side.
    fn check_enlarged(&self, side: usize) -> Result<()> {
        match (self.size, self.most_enlarged) {
            (Some(size), Some(most)) if size > side.saturating_mul(most) => {
                let problem = format!(
                    "the images have at most {side} pixels per side: enlarging them to {size} is more than {most}-fold"
                );
                Err(DataError::Unusable(problem))
            }
            _ => Ok(()),
        }
    }

    fn resize(&self, set: ImageSet) -> Result<ImageSet> {
        self.check_enlarged(set.shape.side)?;
        match self.size {
            Some(size) if size != set.shape.side => folder::resize_set(set, size),
            _ => Ok(set),
        }
    }
}

/// Reads the data set in a folder, or the one a CSV file lists.
///
/// It recognises CIFAR-10 and CIFAR-100 (in the folder itself or in the one the archive unpacks to),
/// the cropped digits of SVHN, MNIST and Fashion-MNIST (the latter if the folder's name contains
/// "fashion"), `train.npz` and `test.npz`, and pictures: `labelled/CLASS` with `unlabelled` or
/// `unlabelled/CLIENT`, or `train/CLASS`; either with `test/CLASS` or `val/CLASS`. A CSV file lists
/// pictures as `path,label,client,split`.
pub fn open(path: &Path, options: &Options) -> Result<DataSet> {
    options.check()?;
    let source = Source::find(path)?;
    if let Some(listing) = source.listing(path, options) {
        return folder::open(path, listing, options);
    }
    if options.test_share.is_some() {
        return Err(superfluous_share(path));
    }
    let ([train, test], published) = match source {
        Source::Published(published, folder) => ((published.read)(&folder)?, Some(published)),
        _ => (npz::read_parts(path)?, None),
    };
    let (train, test) = (every_class(path, options.resize(train)?)?, options.resize(test)?);
    check_parts(path, &train, &test)?;
    // Files under a published name may still hold grey versions of the images.
    let normalisation = published
        .filter(|published| published.mean.len() == train.shape.channels)
        .map_or_else(|| Normalisation::measure(&train), Published::normalisation);
    let flip = published.is_none_or(|published| published.flip);
    let (name, skipped) = (path.display().to_string(), Vec::new());
    Ok(DataSet { name, train, unlabelled: None, test, normalisation, flip, skipped })
}

/// The picture files of a data set, or `None` if it is of another kind.
pub(crate) fn list_pictures(path: &Path, options: &Options) -> Result<Option<Listing>> {
    Ok(Source::find(path)?.listing(path, options))
}

/// Whether a data set of pictures has no test part, so that a share of the labelled ones must serve.
pub fn lacks_test(path: &Path) -> Result<bool> {
    let listing = list_pictures(path, &Options::default())?;
    Ok(listing.is_some_and(|listing| listing.test.files.is_empty()))
}

/// Whether the images at a path can be read as they are. Pictures can if all are square and of one size;
/// otherwise a size must be chosen.
pub fn has_one_size(path: &Path) -> Result<bool> {
    let listing = match is_data_set(path) {
        true => list_pictures(path, &Options::default())?,
        false if path.is_dir() => Some(Listing::images(path)),
        false => pictures::is_picture(path).then(|| Listing::picture(path)),
    };
    Ok(listing.is_none_or(|listing| listing.has_one_size()))
}

/// Lists the pictures of a data set as a CSV file, with the labels of another (columns `path` and `label`)
/// for those that have none. `table` is where the result will be written: paths are relative to it. Without a
/// test part, `test_share` of the pictures that had labels before becomes one.
pub fn relabelled(
    path: &Path,
    labels: &Path,
    table: &Path,
    test_share: Option<f64>,
) -> Result<Relabelled> {
    match list_pictures(path, &Options { test_share, ..Options::default() })? {
        Some(listing) => folder::relabel(&listing, labels, table),
        None => {
            let expected = "labelled and unlabelled pictures";
            Err(DataError::malformed(path, "folder", expected, "files of many images each"))
        }
    }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
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
            idx::read(path, idx::labels_beside(path).as_deref(), published)?
        }
        Some("bin") => cifar::read(path)?,
        _ => {
            let expected = "a .bin, .mat, .npz, IDX or image file, or a folder of images";
            return Err(DataError::malformed(path, "file name", expected, name));
        }
    };
    every_class(path, options.resize(set)?)
}

/// What kind of data set there is at a path.
enum Source {
    /// A published data set, in this folder.
    Published(&'static Published, PathBuf),
    /// `train.npz` and `test.npz`.
    Npz,
    /// A CSV file that lists pictures.
    Table,
    /// Pictures: `train/CLASS`, with `test/CLASS` or `val/CLASS`.
    Train,
    /// Pictures: `labelled/CLASS` and `unlabelled`, with `test/CLASS` or `val/CLASS`.
    Labelled,
}

impl Source {
    /// The one data set at a path.
    fn find(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| DataError::io(path, source))?;
        if is_table(path) && metadata.is_file() {
            return Ok(Self::Table);
        }
        if !metadata.is_dir() {
            let expected =
                "a folder with a training and a test part, or a .csv file that lists pictures";
            return Err(DataError::malformed(path, "path", expected, "a file"));
        }
        let mut sources = Self::all(path);
        match sources.len() {
            0 => {
                let expected = "CIFAR-10, CIFAR-100, SVHN, MNIST or Fashion-MNIST files, \
                                train.npz and test.npz, or pictures in the folders \
                                labelled/CLASS, unlabelled and test/CLASS, or train/CLASS and \
                                test/CLASS";
                let found = cifar::instead_of_python(path).unwrap_or("none of them".to_owned());
                Err(DataError::malformed(path, "folder", expected, found))
            }
            1 => Ok(sources.remove(0)),
            _ => {
                let titles: Vec<String> = sources.iter().map(Self::title).collect();
                let expected = "one data set (put each in its own folder)";
                Err(DataError::malformed(path, "folder", expected, titles.join(" and ")))
            }
        }
    }

    /// Everything in the folder that looks like a data set, complete or not.
    fn all(path: &Path) -> Vec<Self> {
        let published = PUBLISHED
            .into_iter()
            .filter_map(|published| Some(Self::Published(published, (published.locate)(path)?)));
        let mut found: Vec<Self> = published.collect();
        if npz::FILES.iter().any(|name| path.join(name).is_file()) {
            found.push(Self::Npz);
        }
        let [train, labelled, unlabelled, test, val] =
            ["train", "labelled", "unlabelled", "test", "val"].map(|name| path.join(name).is_dir());
        if labelled || unlabelled {
            found.push(Self::Labelled);
        }
        if train || !(labelled || unlabelled) && (test || val) {
            found.push(Self::Train);
        }
        found
    }

    fn title(&self) -> String {
        match self {
            Self::Published(published, folder) => {
                format!("{} in {}", published.title, folder.display())
            }
            Self::Npz => "numpy archives (train.npz)".to_owned(),
            Self::Table => "a CSV file".to_owned(),
            Self::Train => "class folders in `train`".to_owned(),
            Self::Labelled => "`labelled` and `unlabelled`".to_owned(),
        }
    }

    /// The picture files of the data set, if it is made of such.
    fn listing(&self, path: &Path, options: &Options) -> Option<Listing> {
        match self {
            Self::Published(..) | Self::Npz => None,
            Self::Table => Some(Listing::table(path, options)),
            Self::Train => Some(Listing::train_and_test(path, options)),
            Self::Labelled => Some(Listing::labelled_and_unlabelled(path, options)),
        }
    }
}

/// Checks that both parts have labels, the same shape and the same classes.
fn check_parts(path: &Path, train: &ImageSet, test: &ImageSet) -> Result<()> {
    for (part, set) in [("training part", train), ("test part", test)] {
        if set.labels.is_none() {
            let expected = "labels (one subfolder per class, or an array y)";
            return Err(DataError::malformed(path, part, expected, "images without labels"));
        }
    }
    same_shape(path, train.shape, "test part", test.shape)?;
    if train.classes != test.classes {
        let expected = "the classes of the training part";
        let found = difference(&train.classes, &test.classes);
        return Err(DataError::malformed(path, "test part", expected, found));
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
mod tests;
