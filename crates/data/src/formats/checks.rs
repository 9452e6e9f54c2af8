//! Checks shared by all readers, between the bytes of a file and an [`ImageSet`].
//!
//! A reader only finds pixels and labels; whether they form a usable set is checked here, so that
//! the same mistake gives the same message in every format. Sizes stored in a file are not trusted:
//! buffers grow with the bytes read.

use crate::error::malformed;
use crate::{DataError, ImageSet, Result, Shape};
use rayon::prelude::*;
use std::fmt;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

/// The largest width or height of an image, in pixels.
pub const MAX_SIDE: usize = 4096;

/// The most bytes of one array in a file: far more than any published set of small images
/// has, and a damaged size field cannot fill the memory.
const MAX_BYTES: u64 = 16 << 30;

/// Compressed data may unpack to this many times its size (MNIST unpacks to 5 times, photographs to
/// 10 to 80 times) ...
const MAX_RATIO: u64 = 128;
/// ... plus this much, since small files may be uniform and compress better.
const MAX_EXTRA: u64 = 16 << 20;

/// The shape of square images, or an error if they are unusable.
pub(super) fn shape(path: &Path, height: usize, width: usize, channels: usize) -> Result<Shape> {
    let found = format!("{height} x {width} with {channels} channels");
    if height != width || !(1..=MAX_SIDE).contains(&height) {
        let expected = format!("square images of 1 to {MAX_SIDE} pixels per side");
        return malformed(path, "image size", expected, found);
    }
    if !matches!(channels, 1 | 3) {
        return malformed(path, "image size", "1 or 3 channels", found);
    }
    Ok(Shape { side: height, channels })
}

/// The last step of every reader: checks that pixels and labels fit together.
pub(super) fn finish(
    path: &Path,
    shape: Shape,
    pixels: Vec<u8>,
    labels: Option<Vec<u16>>,
    classes: Vec<String>,
) -> Result<ImageSet> {
    if pixels.is_empty() || !pixels.len().is_multiple_of(shape.bytes()) {
        let expected = format!("one or more images of {} bytes", shape.bytes());
        return malformed(path, "images", expected, format!("{} bytes", pixels.len()));
    }
    if let Some(labels) = &labels {
        let count = pixels.len() / shape.bytes();
        if labels.len() != count {
            return malformed(path, "labels", format!("{count}, one per image"), labels.len());
        }
        if let Some(index) = labels.iter().position(|&label| usize::from(label) >= classes.len()) {
            let expected = format!("a class number below {}", classes.len());
            return malformed(path, format!("label of image {index}"), expected, labels[index]);
        }
    }
    Ok(ImageSet::new(shape, pixels, labels, classes))
}

/// Rejects a labelled set in which a class has no image: it cannot be learnt.
pub(super) fn every_class(path: &Path, set: ImageSet) -> Result<ImageSet> {
    if set.labels.is_some()
        && let Some(class) = set.class_counts().iter().position(|&count| count == 0)
    {
        let place = format!("class {class} ({})", set.classes[class]);
        return malformed(path, place, "at least one image", "none");
    }
    Ok(set)
}

/// Rejects a part of another shape than the training part.
pub(super) fn same_shape(path: &Path, train: Shape, part: &str, found: Shape) -> Result<()> {
    if train == found {
        return Ok(());
    }
    let expected = format!("{train}, as for training (to resize them, set data.size or --size)");
    malformed(path, part, expected, found)
}

pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    fedanchor_disk::read(path, MAX_BYTES).map_err(|source| DataError::io(path, source))
}

/// A part of a file, with its name in messages.
#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    pub path: &'a Path,
    pub name: &'a str,
    /// The size of the whole file.
    pub file_bytes: u64,
}

impl Section<'_> {
    pub(super) fn error(&self, expected: impl Into<String>, found: impl ToString) -> DataError {
        DataError::malformed(self.path, self.name, expected, found)
    }

    /// Rejects data that would unpack to more than the limit, before it fills the memory.
    pub(super) fn check_unpacked(&self, bytes: u64, advice: &str) -> Result<()> {
        let file = self.file_bytes;
        let max = file.saturating_mul(MAX_RATIO).saturating_add(MAX_EXTRA);
        if bytes > max {
            let expected = format!("at most {max} bytes unpacked from {file} ({advice})");
            return Err(self.error(expected, bytes));
        }
        Ok(())
    }

    /// Reads exactly `bytes` bytes; an error if there are fewer.
    pub(super) fn read_exactly(&self, reader: &mut dyn Read, bytes: usize) -> Result<Vec<u8>> {
        let fail = |found: String| Err(self.error(format!("{bytes} bytes of data"), found));
        if bytes as u64 > MAX_BYTES {
            return fail(format!("a size above the limit of {MAX_BYTES} bytes"));
        }
        let mut data = Vec::with_capacity(bytes.min(1 << 20));
        match reader.take(bytes as u64).read_to_end(&mut data) {
            Err(error) => fail(format!("{error} after {} bytes", data.len())),
            Ok(1) if bytes > 1 => fail("the end after 1 byte".to_owned()),
            Ok(count) if count < bytes => fail(format!("the end after {count} bytes")),
            Ok(_) => Ok(data),
        }
    }

    /// Checks that a reader is at its end. Compressed streams verify their checksum there.
    pub(super) fn at_end(&self, reader: &mut dyn Read) -> Result<()> {
        let found = match reader.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => "more data".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(self.error("the end of the data", found))
    }
}

/// The number of elements of an array with these dimensions; an error if they do not fit into the free memory, rather
/// than a killed process later.
pub(super) fn volume(path: &Path, place: &str, dims: &[usize]) -> Result<usize> {
    let product = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    let product = product.filter(|&product| product as u64 <= MAX_BYTES).ok_or_else(|| {
        let expected = format!("dimensions with a product of at most {MAX_BYTES}");
        DataError::malformed(path, place, expected, format!("{dims:?}"))
    })?;
    match free_memory() {
        Some(free) if product as u64 > free => {
            let expected = format!("at most the {} MB of free memory", free / 1_000_000);
            let found =
                format!("{} MB: use a smaller size (data.size, --size)", product / 1_000_000);
            malformed(path, place, expected, found)
        }
        _ => Ok(product),
    }
}

/// The memory that can be allocated without swapping, in bytes, if the system tells it.
pub fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Moves the channels of `[count, channels, side, side]` images last. The pixel at `position` is at `place(position)` of
/// its plane.
pub(super) fn interleave(
    shape: Shape,
    planar: &[u8],
    place: impl Fn(usize) -> usize + Sync,
) -> Vec<u8> {
    let plane = shape.side * shape.side;
    let mut pixels = vec![0; planar.len()];
    let images = pixels.par_chunks_exact_mut(shape.bytes());
    images.zip(planar.par_chunks_exact(shape.bytes())).for_each(|(image, planar)| {
        for (position, pixel) in image.chunks_exact_mut(shape.channels).enumerate() {
            for (channel, value) in pixel.iter_mut().enumerate() {
                *value = planar[channel * plane + place(position)];
            }
        }
    });
    pixels
}

/// The type of the numbers in a file: `u` (unsigned), `i` (signed) or `f` (floating point), and the size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    kind: char,
    pub(super) size: usize,
}

impl Number {
    pub(super) const BYTE: Self = Self { kind: 'u', size: 1 };

    /// The type, if it exists.
    pub(super) fn new(kind: char, size: usize) -> Option<Self> {
        let exists = matches!((kind, size), ('u' | 'i', 1 | 2 | 4 | 8) | ('f', 4 | 8));
        exists.then_some(Self { kind, size })
    }

    /// Little-endian bytes as numbers; exact for every possible class number. Lazy, since all of
    /// them together could take eight times the size of the file.
    pub(super) fn decode(self, bytes: &[u8]) -> impl Iterator<Item = f64> {
        let decode = move |item: &[u8]| {
            // The sign is in the most significant byte, the last one.
            let negative = self.kind == 'i' && item.last().is_some_and(|&byte| byte >= 0x80);
            let mut wide = [if negative { 0xff } else { 0 }; 8];
            wide[..item.len()].copy_from_slice(item);
            let bits = u64::from_le_bytes(wide);
            match (self.kind, self.size) {
                ('f', 4) => f64::from(f32::from_bits(bits as u32)),
                ('f', _) => f64::from_bits(bits),
                ('i', _) => bits as i64 as f64,
                _ => bits as f64,
            }
        };
        bytes.chunks_exact(self.size).map(decode)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let kind = match self.kind {
            'u' => "uint",
            'i' => "int",
            _ => "float",
        };
        write!(f, "{kind}{}", 8 * self.size)
    }
}

/// Converts labels in a range to integers.
pub(super) fn integers(
    path: &Path,
    labels: impl Iterator<Item = f64>,
    range: RangeInclusive<u16>,
    expected: &str,
) -> Result<Vec<u16>> {
    let convert = |(index, label): (usize, f64)| {
        if label.fract() == 0.0
            && (0.0..65536.0).contains(&label)
            && range.contains(&(label as u16))
        {
            return Ok(label as u16);
        }
        malformed(path, format!("label of image {index}"), expected, label)
    };
    labels.enumerate().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|class| format!("c{class}")).collect()
    }

    const TWO: Shape = Shape { side: 1, channels: 3 };

    #[test]
    fn finish_says_what_does_not_fit() {
        let finish = |pixels: usize, labels| {
            finish(Path::new("f"), TWO, vec![0; pixels], labels, names(2))
                .map_err(|e| e.to_string())
        };
        assert_eq!(finish(6, Some(vec![1, 0])).unwrap().len(), 2);
        assert_eq!(finish(6, None).unwrap().labels, None);
        let wrong = "f: images: expected one or more images of 3 bytes, found";
        assert_eq!(finish(0, None).unwrap_err(), format!("{wrong} 0 bytes"));
        assert_eq!(finish(4, None).unwrap_err(), format!("{wrong} 4 bytes"));
        let wrong = "f: labels: expected 2, one per image, found 1";
        assert_eq!(finish(6, Some(vec![1])).unwrap_err(), wrong);
        let wrong = "f: label of image 1: expected a class number below 2, found 2";
        assert_eq!(finish(6, Some(vec![1, 2])).unwrap_err(), wrong);
    }

    #[test]
    fn a_class_without_images_is_named() {
        let set = finish(Path::new("f"), TWO, vec![0; 6], Some(vec![0, 2]), names(3)).unwrap();
        let error = every_class(Path::new("f"), set).unwrap_err().to_string();
        assert_eq!(error, "f: class 1 (c1): expected at least one image, found none");
    }

    #[test]
    fn shapes_are_square_and_nonempty() {
        assert_eq!(shape(Path::new("f"), 1, 1, 3).unwrap(), TWO);
        for (height, width, channels) in [(0, 0, 1), (2, 3, 1), (16_385, 16_385, 1), (2, 2, 4)] {
            assert!(shape(Path::new("f"), height, width, channels).is_err());
        }
    }

    #[test]
    fn announced_sizes_are_not_trusted() {
        let section = Section { path: Path::new("f"), name: "pixels", file_bytes: 10 };
        let error = section.read_exactly(&mut &b"abc"[..], 1 << 33).unwrap_err();
        let wrong = "f: pixels: expected 8589934592 bytes of data, found the end after 3 bytes";
        assert_eq!(error.to_string(), wrong);
        assert!(section.read_exactly(&mut &b"abc"[..], usize::MAX).is_err());
        assert!(volume(section.path, "pixels", &[usize::MAX, 2]).is_err());
        assert_eq!(volume(section.path, "pixels", &[3, 2]).unwrap(), 6);
    }

    #[test]
    fn unpacked_sizes_are_limited() {
        let section = Section { path: Path::new("f"), name: "data", file_bytes: 10 };
        let check = |bytes| section.check_unpacked(bytes, "decompress it");
        check((16 << 20) + 1280).unwrap();
        let error = check((16 << 20) + 1281).unwrap_err().to_string();
        let wrong = "f: data: expected at most 16778496 bytes unpacked from 10 (decompress it)";
        assert_eq!(error, format!("{wrong}, found 16778497"));
    }

    #[test]
    fn channels_are_moved_last() {
        let shape = Shape { side: 2, channels: 3 };
        let planar: Vec<u8> = (0..24).collect();
        let pixels = interleave(shape, &planar, |position| position);
        assert_eq!(pixels[..6], [0, 4, 8, 1, 5, 9]);
        assert_eq!(pixels[12..15], [12, 16, 20]);
    }

    #[test]
    fn numbers_of_every_type_are_decoded() {
        let cases: [(char, usize, &[u8], f64); 10] = [
            ('i', 1, &[0xff], -1.0),
            ('u', 1, &[0xff], 255.0),
            ('i', 2, &[0xfe, 0xff], -2.0),
            ('u', 2, &[1, 1], 257.0),
            ('i', 4, &[9, 0, 0, 0], 9.0),
            ('u', 4, &[0, 0, 0, 0x80], 2_147_483_648.0),
            ('i', 8, &[0xff; 8], -1.0),
            ('u', 8, &[7, 0, 0, 0, 0, 0, 0, 0], 7.0),
            ('f', 4, &2.5f32.to_le_bytes(), 2.5),
            ('f', 8, &10f64.to_le_bytes(), 10.0),
        ];
        for (kind, size, bytes, value) in cases {
            let number = Number::new(kind, size).unwrap();
            assert_eq!(number.decode(bytes).collect::<Vec<_>>(), [value], "{number:?}");
        }
    }

    #[test]
    fn class_numbers_are_integers() {
        let labels = |labels: &[f64]| {
            integers(Path::new("f"), labels.iter().copied(), 0..=u16::MAX, "a class number")
        };
        assert_eq!(labels(&[0.0, 65_535.0]).unwrap(), [0, 65_535]);
        for wrong in [-1.0, 0.5, 65_536.0, f64::NAN, f64::INFINITY] {
            assert!(labels(&[1.0, wrong]).is_err(), "{wrong}");
        }
    }
}
