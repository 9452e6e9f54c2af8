//! Folders of PNG and JPEG images: one subfolder per class, or one flat folder without labels.
//!
//! All headers are read before any pixels, each in parallel. So the shape of the set is known
//! before decoding, an image of another shape is reported at once, and every image is decoded into
//! its final position. Classes and images are sorted by name, which makes the set the same on every
//! machine. Hidden files and files of other types are ignored; a class without images and images
//! next to class folders are errors.

use super::checks::{MAX_SIDE, check_unpacked, finish, most_unpacked, shape, volume};
use crate::{DataError, ImageSet, Result, Shape};
use image::imageops::{FilterType, resize};
use image::{ColorType, GrayImage, ImageDecoder, ImageReader, Limits, RgbImage};
use rayon::prelude::*;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Reads a folder. With a size, every image is resized to `size` x `size` pixels; without, all must
/// be square and of the same size. The set is grey if every image is.
pub fn read(folder: &Path, size: Option<usize>) -> Result<ImageSet> {
    let (classes, images) = list(folder)?;
    if classes.is_empty() {
        let files = some(folder, images)?;
        return decode(folder, &files, None, Vec::new(), size);
    }
    if let Some(image) = images.first() {
        let expected = "only class folders, since there is one next to it";
        return Err(DataError::malformed(image, "file", expected, "an image"));
    }
    let (mut files, mut labels, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (class, path) in classes.iter().enumerate() {
        let number = u16::try_from(class).map_err(|_| {
            DataError::malformed(folder, "folders", "at most 65536 classes", "more")
        })?;
        let (folders, images) = list(path)?;
        if let Some(inner) = folders.first() {
            return Err(DataError::malformed(inner, "path", "images of one class", "a folder"));
        }
        let images = some(path, images)?;
        labels.resize(labels.len() + images.len(), number);
        files.extend(images);
        names.push(name(path));
    }
    decode(folder, &files, Some(labels), names, size)
}

/// Reads one image file, as an unlabelled set of one image.
pub fn read_image(path: &Path, size: Option<usize>) -> Result<ImageSet> {
    decode(path, &[path.to_owned()], None, Vec::new(), size)
}

/// Whether a file has the extension of an image.
pub(super) fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    ["png", "jpg", "jpeg"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Resizes a set; `size` must not be 0.
pub(super) fn resize_set(set: ImageSet, size: usize) -> ImageSet {
    let shape = Shape { side: size, ..set.shape };
    let side = set.shape.side as u32;
    let images = set.pixels.par_chunks_exact(set.shape.bytes());
    let resized = images.map(|image| fit(shape, side, side, image.to_vec()));
    let pixels = resized.collect::<Vec<_>>().concat();
    ImageSet { shape, pixels, ..set }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The subfolders and the images in a folder, each sorted by name.
fn list(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let io = |source| DataError::io(folder, source);
    let (mut folders, mut images) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if name(&path).starts_with('.') {
            continue;
        }
        if path.is_dir() {
            folders.push(path);
        } else if is_image(&path) {
            images.push(path);
        }
    }
    folders.sort();
    images.sort();
    Ok((folders, images))
}

fn some(folder: &Path, images: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    if images.is_empty() {
        return Err(DataError::malformed(folder, "folder", "PNG or JPEG images", "none"));
    }
    Ok(images)
}

fn decode(
    path: &Path,
    files: &[PathBuf],
    labels: Option<Vec<u16>>,
    classes: Vec<String>,
    size: Option<usize>,
) -> Result<ImageSet> {
    let headers: Vec<Header> = files.par_iter().map(|file| header(file)).collect::<Result<_>>()?;
    let channels = if headers.iter().all(|header| header.grey) { 1 } else { 3 };
    let shape = match size {
        Some(size) => shape(path, size, size, channels)?,
        None => common_shape(files, &headers, channels)?,
    };
    let mut pixels = vec![0; volume(path, "images", &[files.len(), shape.bytes()])?];
    let places = pixels.par_chunks_exact_mut(shape.bytes());
    places.zip(files).try_for_each(|(place, file)| {
        let picture = open(file)?.decode().map_err(|error| unreadable(file, &error))?;
        let (width, height) = (picture.width(), picture.height());
        let bytes = match shape.channels {
            1 => picture.into_luma8().into_raw(),
            _ => picture.into_rgb8().into_raw(),
        };
        place.copy_from_slice(&fit(shape, width, height, bytes));
        Ok(())
    })?;
    finish(path, shape, pixels, labels, classes)
}

#[derive(Clone, Copy)]
struct Header {
    width: u32,
    height: u32,
    grey: bool,
}

fn header(file: &Path) -> Result<Header> {
    let decoder = open(file)?.into_decoder().map_err(|error| unreadable(file, &error))?;
    let (width, height) = decoder.dimensions();
    // Decoding allocates all announced pixels before it reads them.
    check_unpacked(file, "image", size(file)?, decoder.total_bytes(), "save a smaller image")?;
    let grey = matches!(
        decoder.color_type(),
        ColorType::L8 | ColorType::La8 | ColorType::L16 | ColorType::La16
    );
    Ok(Header { width, height, grey })
}

/// The shape of the first image, if all others share it.
fn common_shape(files: &[PathBuf], headers: &[Header], channels: usize) -> Result<Shape> {
    let side = headers.first().map_or(0, |first| first.width);
    for (file, header) in files.iter().zip(headers) {
        if (header.width, header.height) != (side, side) {
            let expected = format!(
                "{side} x {side} pixels (square and all the same; set a size to resize them)"
            );
            let found = format!("{} x {}", header.width, header.height);
            return Err(DataError::malformed(file, "image size", expected, found));
        }
    }
    let side = side as usize;
    shape(files.first().map_or(Path::new(""), PathBuf::as_path), side, side, channels)
}

fn size(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file).map_err(|source| DataError::io(file, source))?.len())
}

/// A decoder chosen by the content of the file, with limits: 16,384 pixels per side, and memory in
/// proportion to the file up to the image library's own limit of 512 MiB.
fn open(file: &Path) -> Result<ImageReader<BufReader<File>>> {
    let reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format);
    let mut reader = reader.map_err(|source| DataError::io(file, source))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE as u32);
    limits.max_image_height = Some(MAX_SIDE as u32);
    limits.max_alloc = limits.max_alloc.min(Some(most_unpacked(size(file)?)));
    reader.limits(limits);
    Ok(reader)
}

fn unreadable(file: &Path, error: &image::ImageError) -> DataError {
    DataError::malformed(file, "image", "a PNG or JPEG image", error.to_string())
}

/// The bytes of one image, resized to the shape if it has another size.
fn fit(shape: Shape, width: u32, height: u32, bytes: Vec<u8>) -> Vec<u8> {
    let side = shape.side as u32;
    if (width, height) == (side, side) {
        return bytes;
    }
    let complete = "an image has as many bytes as its size requires";
    if shape.channels == 1 {
        let picture = GrayImage::from_raw(width, height, bytes).expect(complete);
        resize(&picture, side, side, FilterType::Lanczos3).into_raw()
    } else {
        let picture = RgbImage::from_raw(width, height, bytes).expect(complete);
        resize(&picture, side, side, FilterType::Lanczos3).into_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::damaged;
    use super::*;
    use image::{ImageFormat, Luma, Rgb};

    fn grey(path: PathBuf, width: u32, height: u32, value: u8) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        GrayImage::from_pixel(width, height, Luma([value])).save(path).unwrap();
    }

    fn colour(path: PathBuf, width: u32, height: u32, value: [u8; 3]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(width, height, Rgb(value)).save(path).unwrap();
    }

    fn failure(folder: &Path, size: Option<usize>) -> String {
        read(folder, size).unwrap_err().to_string()
    }

    #[test]
    fn subfolders_are_classes_sorted_by_name() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        colour(at("dog/1.png"), 2, 2, [1, 2, 3]);
        grey(at("cat/b.png"), 2, 2, 9);
        colour(at("cat/a.PNG"), 2, 2, [4, 5, 6]);
        std::fs::write(at("cat/notes.txt"), "not an image").unwrap();
        std::fs::write(at("cat/.hidden.png"), "not an image").unwrap();
        std::fs::create_dir(at(".cache")).unwrap();
        let set = read(root.path(), None).unwrap();
        assert_eq!(set.classes, ["cat", "dog"]);
        assert_eq!(set.labels, Some(vec![0, 0, 1]));
        assert_eq!((set.shape.side, set.shape.channels), (2, 3));
        assert_eq!(set.image(0), [4, 5, 6].repeat(4));
        assert_eq!(set.image(1), [9; 12]);
        assert_eq!(set.image(2), [1, 2, 3].repeat(4));
    }

    #[test]
    fn flat_folders_and_grey_images_are_read() {
        let root = tempfile::tempdir().unwrap();
        for name in ["3.png", "1.jpeg", "2.jpg"] {
            grey(root.path().join(name), 8, 8, 50 * (name.as_bytes()[0] - b'0'));
        }
        let set = read(root.path(), None).unwrap();
        assert_eq!((set.labels, set.classes.len(), set.shape.channels), (None, 0, 1));
        assert_eq!((set.pixels[0], set.pixels[64], set.pixels[128]), (50, 100, 150));
        let one = read_image(&root.path().join("3.png"), Some(4)).unwrap();
        assert_eq!((one.shape.side, one.pixels), (4, vec![150; 16]));
    }

    #[test]
    fn images_are_resized_if_a_size_is_given() {
        let root = tempfile::tempdir().unwrap();
        colour(root.path().join("a.png"), 4, 6, [10, 20, 30]);
        colour(root.path().join("b.png"), 3, 3, [40, 50, 60]);
        let error = failure(root.path(), None);
        assert!(error.contains("a.png") && error.contains("set a size"), "{error}");
        assert!(error.ends_with("found 4 x 6"), "{error}");
        let set = read(root.path(), Some(5)).unwrap();
        assert_eq!(set.image(0), [10, 20, 30].repeat(25));
        assert_eq!(set.image(1), [40, 50, 60].repeat(25));
        assert_eq!(resize_set(set, 2).image(1), [40, 50, 60].repeat(4));
        std::fs::remove_file(root.path().join("a.png")).unwrap();
        colour(root.path().join("c.png"), 4, 4, [0; 3]);
        assert!(failure(root.path(), None).contains("c.png: image size: expected 3 x 3"));
    }

    #[test]
    fn resizing_shrinks_smoothly() {
        // A black half and a white half stay black and white when two pixels wide.
        let shape = Shape { side: 4, channels: 1 };
        let set =
            ImageSet { shape, pixels: [0, 0, 255, 255].repeat(4), labels: None, classes: vec![] };
        let small = resize_set(set, 2).pixels;
        assert!(small[0] < 30 && small[1] > 225 && small[..2] == small[2..], "{small:?}");
    }

    #[test]
    fn invalid_folders_are_rejected() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        assert!(failure(root.path(), None).contains("expected PNG or JPEG images, found none"));
        assert!(failure(&at("absent"), None).contains("absent"));
        grey(at("cat/1.png"), 2, 2, 0);
        std::fs::create_dir(at("dog")).unwrap();
        assert!(failure(root.path(), None).contains("dog: folder: expected PNG"));
        grey(at("dog/1.png"), 2, 2, 0);
        assert!(read(root.path(), Some(0)).is_err());
        grey(at("stray.png"), 2, 2, 0);
        assert!(
            failure(root.path(), None).contains("stray.png: file: expected only class folders")
        );
        std::fs::remove_file(at("stray.png")).unwrap();
        std::fs::create_dir(at("dog/inner")).unwrap();
        assert!(failure(root.path(), None).contains("inner: path: expected images of one class"));
        std::fs::remove_dir(at("dog/inner")).unwrap();
        std::fs::write(at("dog/2.jpg"), "not an image").unwrap();
        assert!(failure(root.path(), None).contains("2.jpg: image: expected a PNG or JPEG"));
        let whole = std::fs::read(at("cat/1.png")).unwrap();
        std::fs::write(at("dog/2.jpg"), &whole[..whole.len() - 20]).unwrap();
        assert!(failure(root.path(), None).contains("2.jpg: image: expected a PNG or JPEG"));
    }

    #[test]
    fn announced_image_sizes_are_not_trusted() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.jpg");
        colour(file.clone(), 16, 16, [1, 2, 3]);
        let mut bytes = std::fs::read(&file).unwrap();
        // The frame header: its marker, its length, the bits of a sample, height and width.
        let at = bytes.windows(2).position(|window| window == [0xff, 0xc0]).unwrap();
        assert_eq!(bytes[at + 5..at + 9], [0, 16, 0, 16]);
        bytes[at + 5..at + 9].copy_from_slice(&[0x40, 0, 0x40, 0]);
        std::fs::write(&file, bytes).unwrap();
        for size in [None, Some(8)] {
            let error = failure(root.path(), size);
            assert!(error.contains("save a smaller image), found 805306368"), "{error}");
        }
    }

    #[test]
    fn damaged_files_never_panic() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.png");
        for (format, cases) in [(ImageFormat::Png, 2000), (ImageFormat::Jpeg, 300)] {
            let picture = RgbImage::from_fn(9, 9, |x, y| Rgb([x as u8 * 9, y as u8 * 9, 7]));
            picture.save_with_format(&file, format).unwrap();
            for bytes in damaged(&std::fs::read(&file).unwrap(), cases) {
                std::fs::write(&file, &bytes).unwrap();
                drop(read_image(&file, Some(3)));
            }
        }
    }
}
