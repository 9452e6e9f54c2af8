//! From the files of a part to its pixels.

use crate::formats::Options;
use crate::formats::checks::{shape, volume};
use crate::pictures::{self, Fit, Header};
use crate::progress::Count;
use crate::skipped::{Reason, Skipped};
use crate::{DataError, ImageSet, Result, Shape};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// The readable pictures of a part, in order, and which of its files are unreadable.
pub(super) struct Decoded {
    pub shape: Shape,
    pub pixels: Vec<u8>,
    /// Sorted by file number.
    pub unreadable: Vec<(usize, Reason)>,
}

impl Decoded {
    /// The unreadable files.
    pub fn bad(&self, files: &[PathBuf]) -> Vec<Skipped> {
        let bad = |(file, reason): &(usize, Reason)| Skipped {
            path: files[*file].clone(),
            reason: reason.clone(),
        };
        self.unreadable.iter().map(bad).collect()
    }

    /// What belongs to the readable files, of something that belongs to all files.
    pub fn kept<T: Copy>(&self, all: &[T]) -> Vec<T> {
        let is_bad = |file: usize| self.unreadable.binary_search_by_key(&file, |bad| bad.0).is_ok();
        all.iter().enumerate().filter(|(file, _)| !is_bad(*file)).map(|(_, &item)| item).collect()
    }

    /// The same with three channels: what the pictures would be if one of them had colours.
    pub fn coloured(self) -> Self {
        if self.shape.channels == 3 {
            return self;
        }
        let pixels = self.pixels.iter().flat_map(|&value| [value; 3]).collect();
        Self { shape: Shape { channels: 3, ..self.shape }, pixels, ..self }
    }
}

/// Decodes files, and counts those that are done; grey if every one of them is.
pub(super) fn decode(files: &[PathBuf], options: &Options, count: &Count) -> Result<Decoded> {
    let mut found: Vec<Result<Header, Reason>> =
        files.par_iter().map(|file| pictures::try_header(file)).collect();
    let sides = found.iter().flatten().map(|header| header.width.max(header.height));
    if let Some(largest) = sides.max() {
        options.check_enlarged(largest as usize)?;
    }
    let grey = found.iter().flatten().all(|header| header.grey);
    let channels = if grey { 1 } else { 3 };
    let shape = match options.size {
        Some(size) => shape(Path::new("data.size"), size, size, channels)?,
        None => common_shape(files, &found, channels)?,
    };
    let readable = found.iter().filter(|header| header.is_ok()).count();
    count.add(files.len() - readable);
    let mut pixels = vec![0; volume(first(files), "images", &[readable, shape.bytes()])?];
    let todo: Vec<(&PathBuf, &mut Result<Header, Reason>)> =
        files.iter().zip(&mut found).filter(|(_, header)| header.is_ok()).collect();
    let places = pixels.par_chunks_exact_mut(shape.bytes());
    let failed: Vec<bool> = places
        .zip(todo)
        .map(|(place, (file, outcome))| {
            let read = pictures::try_read(file, shape, options.fit);
            count.add(1);
            match read {
                Ok(bytes) => {
                    place.copy_from_slice(&bytes);
                    false
                }
                Err(reason) => {
                    *outcome = Err(reason);
                    true
                }
            }
        })
        .collect();
    if failed.contains(&true) {
        let images = pixels.chunks_exact(shape.bytes()).zip(&failed);
        pixels =
            images.filter(|(_, failed)| !**failed).flat_map(|(image, _)| image).copied().collect();
    }
    let bad =
        |(file, outcome): (usize, Result<Header, Reason>)| outcome.err().map(|why| (file, why));
    let unreadable = found.into_iter().enumerate().filter_map(bad).collect();
    Ok(Decoded { shape, pixels, unreadable })
}

/// Resizes a set; `size` must not be 0.
pub(in crate::formats) fn resize_set(set: ImageSet, size: usize) -> Result<ImageSet> {
    let shape = Shape { side: size, ..set.shape };
    // Twice: one by one, and one after the other.
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
    let mut readable = files.iter().zip(headers).filter_map(|(file, header)| {
        header.as_ref().ok().map(|header| (file, header.width, header.height))
    });
    let Some((file, side, _)) = readable.clone().next() else {
        return Ok(Shape { side: 1, channels }); // of no pixels
    };
    if let Some((file, width, height)) =
        readable.find(|&(_, width, height)| (width, height) != (side, side))
    {
        let expected = format!(
            "{side} x {side} pixels (square and all the same; to resize them, set data.size or \
             --size)"
        );
        let found = format!("{width} x {height}");
        return Err(DataError::malformed(file, "image size", expected, found));
    }
    let side = side as usize;
    shape(file, side, side, channels)
}

fn first(files: &[PathBuf]) -> &Path {
    files.first().map_or(Path::new(""), PathBuf::as_path)
}
