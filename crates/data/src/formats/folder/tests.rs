//! One folder of pictures.

use super::*;
use crate::Shape;
use crate::formats::tests::damaged;
use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage};
use std::path::PathBuf;

fn grey(path: PathBuf, width: u32, height: u32, value: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    GrayImage::from_pixel(width, height, Luma([value])).save(path).unwrap();
}

fn colour(path: PathBuf, width: u32, height: u32, value: [u8; 3]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(width, height, Rgb(value)).save(path).unwrap();
}

fn sized(size: Option<usize>) -> Options {
    Options { size, ..Options::default() }
}

fn failure(folder: &Path, size: Option<usize>) -> String {
    read(folder, &sized(size)).unwrap_err().to_string()
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
    let set = read(root.path(), &sized(None)).unwrap();
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
    let set = read(root.path(), &sized(None)).unwrap();
    assert_eq!((set.labels, set.classes.len(), set.shape.channels), (None, 0, 1));
    assert_eq!((set.pixels[0], set.pixels[64], set.pixels[128]), (50, 100, 150));
    let one = read_image(&root.path().join("3.png"), &sized(Some(4))).unwrap();
    assert_eq!((one.shape.side, one.pixels), (4, vec![150; 16]));
}

#[test]
fn images_are_resized_if_a_size_is_given() {
    let root = tempfile::tempdir().unwrap();
    colour(root.path().join("a.png"), 4, 6, [10, 20, 30]);
    colour(root.path().join("b.png"), 3, 3, [40, 50, 60]);
    let error = failure(root.path(), None);
    assert!(error.contains("a.png") && error.contains("set data.size"), "{error}");
    assert!(error.ends_with("found 4 x 6"), "{error}");
    let set = read(root.path(), &sized(Some(5))).unwrap();
    assert_eq!(set.image(0), [10, 20, 30].repeat(25));
    assert_eq!(set.image(1), [40, 50, 60].repeat(25));
    assert_eq!(resize_set(set, 2).unwrap().image(1), [40, 50, 60].repeat(4));
    std::fs::remove_file(root.path().join("a.png")).unwrap();
    colour(root.path().join("c.png"), 4, 4, [0; 3]);
    assert!(failure(root.path(), None).contains("c.png: image size: expected 3 x 3"));
}

#[test]
fn resizing_shrinks_smoothly() {
    // A black half and a white half stay black and white when two pixels wide.
    let shape = Shape { side: 4, channels: 1 };
    let set = ImageSet::new(shape, [0, 0, 255, 255].repeat(4), None, vec![]);
    let small = resize_set(set, 2).unwrap().pixels;
    assert!(small[0] < 30 && small[1] > 225 && small[..2] == small[2..], "{small:?}");
}

#[test]
fn invalid_folders_are_rejected() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    assert!(
        failure(root.path(), None)
            .contains("expected PNG, JPEG, TIFF, BMP, WebP, GIF or PNM pictures, found none")
    );
    assert!(failure(&at("absent"), None).contains("absent"));
    grey(at("cat/1.png"), 2, 2, 0);
    std::fs::create_dir(at("dog")).unwrap();
    assert!(failure(root.path(), None).contains("dog: folder: expected PNG, JPEG"));
    grey(at("dog/1.png"), 2, 2, 0);
    assert!(read(root.path(), &sized(Some(0))).is_err());
    grey(at("stray.png"), 2, 2, 0);
    assert!(failure(root.path(), None).contains("stray.png: file: expected only class folders"));
    std::fs::remove_file(at("stray.png")).unwrap();
    std::fs::create_dir(at("dog/inner")).unwrap();
    assert!(
        failure(root.path(), None).contains("inner: path: expected pictures and no folder inside")
    );
    std::fs::remove_dir(at("dog/inner")).unwrap();
    std::fs::write(at("dog/2.jpg"), "not an image").unwrap();
    assert!(failure(root.path(), None).contains("2.jpg: unreadable: expected a PNG, JPEG"));
    let whole = std::fs::read(at("cat/1.png")).unwrap();
    std::fs::write(at("dog/2.jpg"), &whole[..whole.len() - 20]).unwrap();
    assert!(failure(root.path(), None).contains("2.jpg: truncated"));
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
            drop(read_image(&file, &sized(Some(3))));
        }
    }
}
