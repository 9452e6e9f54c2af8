//! Data sets of picture files: folders, or a CSV file or an export of Label Studio that lists them.
//!
//! First all files are listed (`listing`), so that a missing part is found before a picture is
//! opened. Then each part is decoded separately (`decode`): headers first, which give the shape,
//! then pixels, each picture into its final position. Classes and pictures are sorted by name, which
//! makes the set the same on every machine.

mod cache;
mod decode;
mod label_studio;
pub(crate) mod listing;
mod relabel;
mod table;

pub(super) use decode::resize_set;
pub use listing::natural;
pub(crate) use listing::{Listing, Part};
pub use relabel::{Relabelled, relabelled, seen_from};

use super::Options;
use super::checks::{every_class, finish, same_shape};
use crate::error::malformed;
use crate::image_set::by_class;
use crate::progress::Count;
use crate::skipped::Skipped;
use crate::{DataError, DataSet, ImageSet, Result, Unlabelled, pictures};
use decode::Decoded;
use rayon::prelude::*;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Reads one folder: class folders, or pictures without labels. With a size, every picture is
/// resized to `size` x `size` pixels; without, all must be square and of the same size. The set is
/// grey if every picture is.
pub fn read(folder: &Path, options: &Options) -> Result<ImageSet> {
    let listing = match options.unlabelled {
        true => Listing::all_below(folder),
        false => Listing::images(folder),
    };
    read_images(folder, listing, options)
}

/// Reads one picture file, as an unlabelled set of one image.
pub fn read_image(path: &Path, options: &Options) -> Result<ImageSet> {
    let options = Options { skip_unreadable: false, ..options.clone() };
    read_images(path, Listing::picture(path), &options)
}

fn read_images(path: &Path, mut listing: Listing, options: &Options) -> Result<ImageSet> {
    listing.take_problems()?;
    let Part { files, labels, .. } = listing.train;
    let decoded = decode::decode(&files, options, &options.progress.count(files.len()))?;
    check_readable(vec![decoded.skipped(&files)], options)?;
    images(path, labels, decoded, listing.classes)
}

/// Reads the pictures of a listing.
pub(super) fn open(path: &Path, mut listing: Listing, options: &Options) -> Result<DataSet> {
    listing.take_problems()?;
    let Listing { root, classes, train, unlabelled, test, mut skipped, .. } = listing;
    let unlabelled = unlabelled.unwrap_or_default();
    let parts = [&train.files, &test.files, &unlabelled.files];
    let count = options.progress.count(parts.iter().map(|files| files.len()).sum());
    let decoded: Vec<Decoded> =
        parts.iter().map(|files| cached(&root, files, options, &count)).collect::<Result<_>>()?;
    let bad = decoded.iter().zip(parts).map(|(part, files)| part.skipped(files)).collect();
    skipped.extend(check_readable(bad, options)?);
    // Grey only if every picture of all parts is.
    let channels = decoded.iter().map(|part| part.shape.channels).max().unwrap_or(1);
    let mut decoded = decoded.into_iter();
    let mut next = || decoded.next().expect("three parts were decoded");
    let train = images(path, train.labels, next(), classes.clone())?.with_channels(channels);
    let train = every_class(path, train)?;
    let test = images(path, test.labels, next(), classes)?.with_channels(channels);
    let unlabelled = match unlabelled.files.is_empty() {
        true => None,
        false => Some(clients(path, unlabelled, next(), channels)?),
    };
    same_shape(path, train.shape, "test part", test.shape)?;
    if let Some(unlabelled) = &unlabelled {
        same_shape(path, train.shape, "unlabelled part", unlabelled.images.shape)?;
    }
    let set = DataSet::new(path.display().to_string(), train, test);
    let set = DataSet { unlabelled, skipped, ..set };
    Ok(match &options.features {
        Some(extractor) => set.with_trunk(extractor),
        None => set,
    })
}

/// Reads at most `each` labelled pictures per class.
pub(super) fn open_labelled(
    path: &Path,
    mut listing: Listing,
    each: usize,
    options: &Options,
) -> Result<ImageSet> {
    listing.take_problems()?;
    let Listing { classes, train, .. } = listing;
    let labels = train.labels.unwrap_or_default();
    let chosen = by_class(&labels, classes.len());
    let chosen = chosen.into_iter().flat_map(|class| class.into_iter().take(each));
    let chosen: Vec<usize> = chosen.map(|file| file as usize).collect();
    let files: Vec<PathBuf> = chosen.iter().map(|&file| train.files[file].clone()).collect();
    let labels = chosen.iter().map(|&file| labels[file]).collect();
    let decoded = decode::decode(&files, options, &options.progress.count(files.len()))?;
    images(path, Some(labels), decoded, classes)
}

/// Decodes the files of a part unless they are in the cache.
fn cached(root: &Path, files: &[PathBuf], options: &Options, count: &Count) -> Result<Decoded> {
    let cached = cache::CacheFile::new(root, files, options);
    if let Some(decoded) = cached.as_ref().and_then(cache::CacheFile::load) {
        count.add(files.len());
        return Ok(decoded);
    }
    let decoded = decode::decode(files, options, count)?;
    if let Some(cached) = cached {
        cached.store(&decoded);
    }
    Ok(decoded)
}

/// An error that names all unreadable pictures, or the pictures to leave out if the options ask for that.
fn check_readable(bad: Vec<Vec<Skipped>>, options: &Options) -> Result<Vec<Skipped>> {
    let bad = bad.concat();
    if bad.is_empty() || options.skip_unreadable { Ok(bad) } else { Err(DataError::Pictures(bad)) }
}

/// The readable pictures of a part.
fn images(
    path: &Path,
    labels: Option<Vec<u16>>,
    decoded: Decoded,
    classes: Vec<String>,
) -> Result<ImageSet> {
    if decoded.pixels.is_empty() {
        return malformed(path, "pictures", "at least one readable one", "none");
    }
    let labels = labels.map(|labels| decoded.readable(&labels));
    let set = finish(path, decoded.shape, decoded.pixels, labels, classes)?;
    Ok(ImageSet { features: decoded.features, ..set })
}

/// The readable pictures of the clients.
fn clients(path: &Path, part: Part, decoded: Decoded, channels: usize) -> Result<Unlabelled> {
    let mut clients = vec![Vec::new(); part.clients.len()];
    if !clients.is_empty() {
        let mut owners = vec![0; part.files.len()];
        for (client, files) in part.clients.iter().enumerate() {
            files.iter().for_each(|&file| owners[file as usize] = client);
        }
        for (image, client) in decoded.readable(&owners).into_iter().enumerate() {
            clients[client].push(image as u32);
        }
    }
    if let Some(client) = clients.iter().position(Vec::is_empty) {
        let place = format!("client {}", part.client_names[client]);
        return malformed(path, place, "at least one readable picture", "none");
    }
    let images = images(path, None, decoded, Vec::new())?.with_channels(channels);
    Ok(Unlabelled { images, clients, client_names: part.client_names })
}

impl Listing {
    /// Whether all readable pictures are square and of one size.
    pub(super) fn has_one_size(&self) -> bool {
        let parts = [Some(&self.train), Some(&self.test), self.unlabelled.as_ref()];
        let files: Vec<&PathBuf> =
            parts.into_iter().flatten().flat_map(|part| &part.files).collect();
        let headers = files.par_iter().filter_map(|file| pictures::header(file).ok());
        let sizes: HashSet<(u32, u32)> =
            headers.map(|header| (header.width, header.height)).collect();
        sizes.len() <= 1 && sizes.iter().all(|(width, height)| width == height)
    }

    /// An error if there is any problem.
    pub(crate) fn take_problems(&mut self) -> Result<()> {
        DataError::all(std::mem::take(&mut self.problems))
    }
}

#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod tests;
