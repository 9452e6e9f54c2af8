//! From the files of a part to its pixels.

use crate::error::malformed;
use crate::features::{Extractor, Features, FromFiles};
use crate::formats::Options;
use crate::formats::checks::{shape, volume};
use crate::pictures::{self, Fit, Header};
use crate::progress::Count;
use crate::skipped::{Reason, Skipped};
use crate::{ImageSet, Result, Shape};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// The readable pictures of a part, in order, and which of its files are unreadable.
pub(super) struct Decoded {
    pub shape: Shape,
    pub pixels: Vec<u8>,
    pub features: Option<Features>,
    /// Sorted by file number.
    pub unreadable: Vec<(usize, Reason)>,
}

impl Decoded {
    /// The unreadable files.
    pub fn skipped(&self, files: &[PathBuf]) -> Vec<Skipped> {
        let skipped = |(file, reason): &(usize, Reason)| Skipped {
            path: files[*file].clone(),
            reason: reason.clone(),
        };
        self.unreadable.iter().map(skipped).collect()
    }

    /// The items of the readable files, given the items of all files.
    pub fn readable<T: Copy>(&self, all: &[T]) -> Vec<T> {
        let is_bad = |file: usize| self.unreadable.binary_search_by_key(&file, |bad| bad.0).is_ok();
        all.iter().enumerate().filter(|(file, _)| !is_bad(*file)).map(|(_, &item)| item).collect()
    }
}

/// Decodes files, and counts those that are done. The pictures are grey if all headers are.
pub(super) fn decode(files: &[PathBuf], options: &Options, count: &Count) -> Result<Decoded> {
    if let Some(extractor) = &options.features {
        return encode(extractor, files, options, count);
    }
    let mut found: Vec<Result<Header, Reason>> =
        files.par_iter().map(|file| pictures::header(file)).collect();
    let sides = found.iter().flatten().map(|header| header.width.max(header.height));
    if let Some(largest) = sides.max() {
        options.check_enlargement(largest as usize)?;
    }
    let channels = if found.iter().flatten().all(|header| header.grey) { 1 } else { 3 };
    let shape = match options.size {
        Some(size) => shape(Path::new("data.size"), size, size, channels)?,
        None => common_shape(files, &found, channels)?,
    };
    let readable = found.iter().filter(|header| header.is_ok()).count();
    count.add(files.len() - readable);
    let first = files.first().map_or(Path::new(""), PathBuf::as_path);
    let mut pixels = vec![0; volume(first, "images", &[readable, shape.bytes()])?];
    let todo: Vec<(&PathBuf, &mut Result<Header, Reason>)> =
        files.iter().zip(&mut found).filter(|(_, header)| header.is_ok()).collect();
    let places = pixels.par_chunks_exact_mut(shape.bytes()).zip(todo);
    let decode = |(place, (file, outcome)): (&mut [u8], (&PathBuf, &mut Result<_, _>))| {
        match pictures::try_read(file, shape, options.fit) {
            Ok(bytes) => place.copy_from_slice(&bytes),
            Err(reason) => *outcome = Err(reason),
        }
        count.add(1);
        outcome.is_err()
    };
    let failed: Vec<bool> = places.map(decode).collect();
    if failed.contains(&true) {
        let images = pixels.chunks_exact(shape.bytes()).zip(&failed);
        let intact = images.filter(|(_, failed)| !**failed);
        pixels = intact.flat_map(|(image, _)| image).copied().collect();
    }
    let outcomes = found.into_iter().enumerate();
    let unreadable = outcomes.filter_map(|(file, outcome)| Some((file, outcome.err()?))).collect();
    Ok(Decoded { shape, pixels, features: None, unreadable })
}

/// The same by a trunk: features, with thumbnails as pixels.
fn encode(
    extractor: &Extractor,
    files: &[PathBuf],
    options: &Options,
    count: &Count,
) -> Result<Decoded> {
    let cache = options.cache.as_ref();
    let found = extractor.of_files(files, options.fit, cache, || count.add(1))?;
    let FromFiles { images, unreadable } = found;
    let ImageSet { shape, pixels, features, .. } = images;
    Ok(Decoded { shape, pixels, features, unreadable })
}

/// Resizes a set; `size` must not be 0.
pub(in crate::formats) fn resize_set(set: ImageSet, size: usize) -> Result<ImageSet> {
    let shape = Shape { side: size, ..set.shape };
    // The resized images are in memory twice: one by one, and joined.
    volume(Path::new("data.size"), "resized images", &[2, set.len(), shape.bytes()])?;
    let side = set.shape.side as u32;
    let images = set.pixels.par_chunks_exact(set.shape.bytes());
    let resized =
        images.map(|image| pictures::fit(shape, Fit::Stretch, side, side, image.to_vec()));
    let pixels = resized.collect::<Vec<_>>().concat();
    Ok(ImageSet { shape, pixels, ..set })
}

/// The shape of the first readable picture, if all others share it.
fn common_shape(
    files: &[PathBuf],
    headers: &[Result<Header, Reason>],
    channels: usize,
) -> Result<Shape> {
    let headers = headers.iter().map(|header| header.as_ref().ok());
    let mut readable = files.iter().zip(headers).filter_map(|(file, header)| Some((file, header?)));
    let Some((file, first)) = readable.clone().next() else {
        return Ok(Shape { side: 1, channels }); // of no pixels
    };
    let side = first.width;
    if let Some((file, other)) =
        readable.find(|(_, header)| (header.width, header.height) != (side, side))
    {
        let expected = format!(
            "{side} x {side} pixels (square and all the same; to resize them, set data.size or \
             --size)"
        );
        let found = format!("{} x {}", other.width, other.height);
        return malformed(file, "image size", expected, found);
    }
    shape(file, side as usize, side as usize, channels)
}
