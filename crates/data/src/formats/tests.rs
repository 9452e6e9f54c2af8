//! Detection of data sets and consistency of their parts, in every format.

use super::*;
use crate::{Purpose, Stream};
use image::{GrayImage, Luma};
use rand::RngExt;
use std::fs;
use std::io::Write;

/// Damaged copies of a valid file, on which no decoder may panic.
pub(super) fn damaged(valid: &[u8], cases: u64) -> impl Iterator<Item = Vec<u8>> {
    let stream = Stream::new(2024, Purpose::Shuffle, 0, 0);
    let valid = valid.to_vec();
    (0..cases).map(move |case| {
        let mut rng = stream.at(case);
        let mut bytes = valid.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..bytes.len().max(1));
            match rng.random_range(0..6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at.min(bytes.len()), rng.random()),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][case as usize % 5],
                _ if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
                _ => {}
            }
        }
        bytes
    })
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn image(&self, name: &str, side: u32, value: u8) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        GrayImage::from_pixel(side, side, Luma([value])).save(path).unwrap();
    }

    fn open(&self) -> DataSet {
        open(self.path(), &Options::default()).unwrap()
    }

    fn failure(&self) -> String {
        open(self.path(), &Options::default()).unwrap_err().to_string()
    }
}

/// CIFAR-10 records, all pixels equal to the label.
fn records(labels: impl IntoIterator<Item = u8>) -> Vec<u8> {
    labels.into_iter().flat_map(|label| [label; 3073]).collect()
}

fn idx(rank: u8, dims: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, rank];
    dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn npz(side: usize, labels: Option<&[u8]>) -> Vec<u8> {
    let npy = |shape: String, data: &[u8]| {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n");
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    };
    let count = labels.map_or(1, <[u8]>::len);
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut add = |name: &str, bytes: Vec<u8>| {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    };
    add("X.npy", npy(format!("({count}, {side}, {side})"), &vec![51; count * side * side]));
    if let Some(labels) = labels {
        add("y.npy", npy(format!("({count},)"), labels));
    }
    zip.finish().unwrap().into_inner()
}

fn cifar(folder: &Folder, under: &str) {
    for batch in 1..=5u8 {
        folder.write(
            &format!("{under}data_batch_{batch}.bin"),
            &records([2 * batch - 2, 2 * batch - 1]),
        );
    }
    folder.write(&format!("{under}test_batch.bin"), &records([3]));
}

#[test]
fn cifar_in_the_folder_or_in_the_official_one() {
    for under in ["", "cifar-10-batches-bin/"] {
        let folder = Folder::new();
        cifar(&folder, under);
        let set = folder.open();
        assert_eq!((set.train.len(), set.test.len(), set.flip), (10, 1, true));
        assert_eq!(set.normalisation, cifar::CIFAR10.normalisation());
        assert_eq!(set.name, folder.path().display().to_string());
        fs::remove_file(folder.path().join(format!("{under}data_batch_4.bin"))).unwrap();
        assert!(folder.failure().contains("data_batch_4.bin"), "{}", folder.failure());
    }
}

#[test]
fn a_class_without_images_is_an_error_in_training_only() {
    let folder = Folder::new();
    cifar(&folder, "");
    assert_eq!(folder.open().test.class_counts()[0], 0);
    folder.write("data_batch_2.bin", &records([2, 2]));
    assert!(folder.failure().contains("class 3 (cat): expected at least one image"));
    let batch = folder.path().join("data_batch_2.bin");
    let error = open_images(&batch, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("class 0 (airplane)"), "{error}");
}

#[test]
fn two_data_sets_in_one_folder_are_named() {
    let folder = Folder::new();
    cifar(&folder, "");
    folder.write("train.npz", &npz(2, None));
    let error = folder.failure();
    assert!(error.contains("CIFAR-10 in") && error.contains("train.npz"), "{error}");
}

#[test]
fn unrecognised_folders_and_files_are_errors() {
    let folder = Folder::new();
    folder.write("readme.txt", b"");
    assert!(folder.failure().contains("found none of them"));
    let file = folder.path().join("readme.txt");
    assert!(open(&file, &Options::default()).unwrap_err().to_string().contains("found a file"));
    assert!(open_images(&file, &Options::default()).is_err());
    let absent = folder.path().join("absent");
    assert!(matches!(open(&absent, &Options::default()), Err(DataError::Io { .. })));
    assert!(matches!(open_images(&absent, &Options::default()), Err(DataError::Io { .. })));
}

#[test]
fn the_folder_name_distinguishes_mnist_from_fashion_mnist() {
    let digits: Vec<u8> = (0..10).collect();
    for (under, title) in [("mnist", &idx::MNIST), ("My-Fashion/raw", &idx::FASHION_MNIST)] {
        let folder = Folder::new();
        for part in ["train", "t10k"] {
            let images = idx(3, &[10, 1, 1], &digits);
            folder.write(&format!("{under}/{part}-images-idx3-ubyte"), &images);
            folder.write(&format!("{under}/{part}-labels-idx1-ubyte"), &idx(1, &[10], &digits));
        }
        let path = folder.path().join(under);
        let set = open(&path, &Options { size: Some(2), ..Options::default() }).unwrap();
        assert_eq!((set.train.shape.side, set.train.image(7)), (2, &[7; 4][..]));
        assert_eq!((set.flip, set.train.classes), (title.flip, title.class_names()));
        assert_eq!(set.normalisation, title.normalisation());
        let one = open_images(&path.join("t10k-images-idx3-ubyte"), &Options::default()).unwrap();
        assert_eq!((one.len(), one.classes), (10, title.class_names()));
        fs::remove_file(path.join("t10k-labels-idx1-ubyte")).unwrap();
        let error = open(&path, &Options::default()).unwrap_err().to_string();
        assert!(error.contains("t10k-labels: expected an IDX file"), "{error}");
    }
}

#[test]
fn archives_take_their_classes_from_training() {
    let folder = Folder::new();
    folder.write("train.npz", &npz(2, Some(&[0, 2, 1])));
    assert!(folder.failure().contains("test.npz"));
    folder.write("test.npz", &npz(2, Some(&[1])));
    let set = folder.open();
    assert_eq!((set.train.classes.as_slice(), set.flip), (set.test.classes.as_slice(), true));
    // Every pixel is 51, a fifth of 255.
    assert_eq!(set.normalisation, Normalisation { mean: vec![0.2], std: vec![1.0] });
    for (test, message) in [
        (npz(2, Some(&[3])), "a class number below 3, found 3"),
        (
            npz(3, Some(&[0])),
            "test part: expected grey images of 2 x 2 pixels, as for training (to resize",
        ),
        (npz(2, None), "test part: expected labels"),
    ] {
        folder.write("test.npz", &test);
        assert!(folder.failure().contains(message), "{}", folder.failure());
    }
}

#[test]
fn the_python_edition_of_cifar_is_named() {
    let folder = Folder::new();
    folder.write("cifar-10-batches-py/data_batch_1", b"\x80\x02");
    let error = folder.failure();
    let advice = "found the Python edition of CIFAR-10, which is not supported: get the binary \
                  edition with `fedanchor data get cifar10`";
    assert!(error.ends_with(advice), "{error}");
    let folder = Folder::new();
    folder.write("train", b"\x80\x02");
    assert!(folder.failure().ends_with("`fedanchor data get cifar100`"), "{}", folder.failure());
    let batch = folder.path().join("train");
    let error = open_images(&batch, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("expected a .bin, .mat, .npz, IDX or image file"), "{error}");
}

#[test]
fn image_folders_must_agree() {
    let folder = Folder::new();
    folder.image("train/cat/1.png", 2, 0);
    folder.image("train/dog/1.png", 2, 255);
    assert!(folder.failure().contains("test"));
    folder.image("test/cat/1.png", 2, 9);
    assert!(folder.failure().ends_with("found no class `dog`"), "{}", folder.failure());
    folder.image("test/dog/1.png", 2, 9);
    folder.image("test/cow/1.png", 2, 9);
    assert!(folder.failure().ends_with("an additional class `cow`"), "{}", folder.failure());
    std::fs::remove_dir_all(folder.path().join("test/cow")).unwrap();
    let set = folder.open();
    assert_eq!(set.train.classes, ["cat", "dog"]);
    assert_eq!(set.normalisation, Normalisation { mean: vec![0.5], std: vec![0.5] });
    let train =
        open_images(&folder.path().join("train"), &Options { size: Some(4), ..Options::default() })
            .unwrap();
    assert_eq!((train.len(), train.shape.side), (2, 4));
    folder.image("test/dog/2.png", 3, 9);
    assert!(folder.failure().contains("2.png: image size"));
    assert_eq!(
        open(folder.path(), &Options { size: Some(2), ..Options::default() }).unwrap().test.len(),
        3
    );
    let image = open_images(&folder.path().join("test/dog/2.png"), &Options::default()).unwrap();
    assert_eq!((image.len(), image.labels), (1, None));
}

#[test]
fn sizes_are_limited() {
    let folder = Folder::new();
    for size in [0, MAX_SIDE + 1] {
        let error = open(folder.path(), &Options { size: Some(size), ..Options::default() })
            .unwrap_err()
            .to_string();
        assert_eq!(error, format!("the size must be between 1 and 4096, got {size}"));
    }
}

/// An untrusted size must be in proportion to the largest image, for pictures and for arrays.
#[test]
fn enlargement_is_limited() {
    let folder = Folder::new();
    folder.image("pictures/1.png", 4, 9);
    folder.image("pictures/2.png", 2, 9);
    let array = folder.path().join("data_batch_1.bin");
    let images: Vec<u8> = (0..10).flat_map(|label| [vec![label], vec![0; 3072]].concat()).collect();
    std::fs::write(&array, images).unwrap();
    let options =
        |size| Options { size: Some(size), max_enlargement: Some(8), ..Options::default() };
    for (path, side) in [(folder.path().join("pictures"), 4), (array, 32)] {
        let problem = format!(
            "the images have at most {side} pixels per side: enlarging them to {} is more than 8-fold",
            8 * side + 1
        );
        assert_eq!(open_images(&path, &options(8 * side + 1)).unwrap_err().to_string(), problem);
        let enlarged =
            open_images(&path, &Options { max_enlargement: None, ..options(8 * side + 1) });
        assert_eq!(enlarged.unwrap().shape.side, 8 * side + 1);
        assert_eq!(open_images(&path, &options(8 * side)).unwrap().shape.side, 8 * side);
    }
}
