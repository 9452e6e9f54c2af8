//! CIFAR-10 and CIFAR-100 in their binary edition: records of label bytes, then the red, green and blue planes.
//!
//! CIFAR-100 is read with its 100 fine labels; the 20 coarse ones are not used. The Python edition is recognised, so that
//! a message can name it, but not read: it is a pickle, which is a program for Python.

use super::checks::{finish, interleave, read_file};
use crate::catalog::{File, Published};
use crate::error::malformed;
use crate::{ImageSet, Result, Shape};
use std::path::{Path, PathBuf};

const SHAPE: Shape = Shape { side: 32, channels: 3 };
const IMAGE: usize = 32 * 32 * 3;
const BASE_URL: &str = "https://www.cs.toronto.edu/~kriz";
const TERMS: &str = "no licence stated; free for research, cite Krizhevsky 2009";

/// CIFAR-10: 32 x 32 colour photographs.
pub const CIFAR10: Published = Published {
    name: "cifar10",
    title: "CIFAR-10",
    about: "60,000 colour photographs, 32x32, 10 classes of animals and vehicles",
    terms: TERMS,
    base_url: BASE_URL,
    files: &[File {
        name: "cifar-10-binary.tar.gz",
        bytes: 170_052_171,
        sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    }],
    classes: &TEN_CLASSES,
    mean: &[0.4914, 0.4822, 0.4465],
    std: &[0.2023, 0.1994, 0.2010],
    flip: true,
    locate: |path| TEN.locate(path),
    read: |folder| TEN.read(folder, &CIFAR10),
};

/// CIFAR-100 with its fine labels.
pub const CIFAR100: Published = Published {
    name: "cifar100",
    title: "CIFAR-100",
    about: "60,000 colour photographs, 32x32, 100 classes of things, animals and plants",
    terms: TERMS,
    base_url: BASE_URL,
    files: &[File {
        name: "cifar-100-binary.tar.gz",
        bytes: 168_513_733,
        sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    }],
    classes: &HUNDRED_CLASSES,
    mean: &[0.5071, 0.4865, 0.4409],
    std: &[0.2673, 0.2564, 0.2762],
    flip: true,
    locate: |path| HUNDRED.locate(path),
    read: |folder| HUNDRED.read(folder, &CIFAR100),
};

/// The files of an edition, the test part last, and their folder in the archive.
struct Edition {
    folder: &'static str,
    files: &'static [&'static str],
}

const TEN: Edition = Edition {
    folder: "cifar-10-batches-bin",
    files: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
        "test_batch.bin",
    ],
};
const HUNDRED: Edition = Edition { folder: "cifar-100-binary", files: &["train.bin", "test.bin"] };
const PYTHON_TEN: Edition =
    Edition { folder: "cifar-10-batches-py", files: &["data_batch_1", "test_batch"] };
const PYTHON_HUNDRED: Edition = Edition { folder: "cifar-100-python", files: &["train", "test"] };

impl Edition {
    /// The folder that holds at least one of the files: this one, or the archive's folder inside it.
    fn locate(&self, path: &Path) -> Option<PathBuf> {
        let folders = [path.to_owned(), path.join(self.folder)];
        let holds_any =
            |folder: &PathBuf| self.files.iter().any(|name| folder.join(name).is_file());
        folders.into_iter().find(holds_any)
    }

    /// Reads the training and the test part; every file must exist.
    fn read(&self, folder: &Path, published: &Published) -> Result<[ImageSet; 2]> {
        if let Some(name) = self.files.iter().find(|name| !folder.join(name).is_file()) {
            let expected = format!("all files of {}", published.title);
            return malformed(folder, *name, expected, "no such file");
        }
        let read = |name: &&str| {
            let path = folder.join(name);
            let batch = read(&path)?;
            if batch.classes.len() == published.classes.len() {
                return Ok(batch);
            }
            let found = format!("images with {} classes", batch.classes.len());
            malformed(path, "file", published.title, found)
        };
        let mut batches = self.files.iter().map(read).collect::<Result<Vec<_>>>()?;
        let test = batches.pop().expect("every edition has a test file");
        let join = |mut all: ImageSet, batch: ImageSet| {
            all.pixels.extend(batch.pixels);
            all.labels.iter_mut().zip(batch.labels).for_each(|(all, new)| all.extend(new));
            all
        };
        let train = batches.into_iter().reduce(join).expect("every edition has a training file");
        Ok([train, test])
    }
}

/// A description of the Python edition in a folder, with the data set to get instead.
pub(super) fn python_edition(path: &Path) -> Option<String> {
    let editions = [(PYTHON_TEN, CIFAR10), (PYTHON_HUNDRED, CIFAR100)];
    let (_, published) = editions.iter().find(|(edition, _)| edition.locate(path).is_some())?;
    Some(format!(
        "the Python edition of {}, which is not supported: get the binary edition with `fedanchor data get {}`",
        published.title, published.name
    ))
}

/// Reads one file of either data set.
pub fn read(path: &Path) -> Result<ImageSet> {
    parse(path, &read_file(path)?)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<ImageSet> {
    // The length decides between the two sets, unless it fits both or neither; then the name does.
    let by_name = path.file_name().is_some_and(|name| name == "train.bin" || name == "test.bin");
    let fits = |label_bytes: usize| bytes.len().is_multiple_of(label_bytes + IMAGE);
    let fine = if fits(1) == fits(2) { by_name } else { fits(2) };
    let (published, label_bytes) = if fine { (CIFAR100, 2) } else { (CIFAR10, 1) };
    let record = label_bytes + IMAGE;
    if !fits(label_bytes) {
        let expected = format!("records of {record} bytes");
        let found = format!("{} bytes after the last complete one", bytes.len() % record);
        return malformed(path, format!("record {}", bytes.len() / record), expected, found);
    }
    let mut planar = Vec::with_capacity(bytes.len());
    let mut labels = Vec::with_capacity(bytes.len() / record);
    for record in bytes.chunks_exact(record) {
        let (label, planes) = record.split_at(label_bytes);
        labels.push(u16::from(label[label_bytes - 1]));
        planar.extend_from_slice(planes);
    }
    let pixels = interleave(SHAPE, &planar, |position| position);
    finish(path, SHAPE, pixels, Some(labels), published.class_names())
}

const TEN_CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

#[rustfmt::skip]
const HUNDRED_CLASSES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::damaged;

    /// A record whose red, green and blue planes begin with `start`, `start + 1`, `start + 2`.
    fn record(labels: &[u8], start: u8) -> Vec<u8> {
        let mut bytes = labels.to_vec();
        for channel in 0..3 {
            bytes.extend([start + channel, 100 + channel]);
            bytes.extend([0; 1022]);
        }
        bytes
    }

    fn write(folder: &Path, name: &str, bytes: &[u8]) {
        std::fs::write(folder.join(name), bytes).unwrap();
    }

    #[test]
    fn binary_records_are_read() {
        let bytes = [record(&[6], 1), record(&[9], 50)].concat();
        let set = parse(Path::new("data_batch_1.bin"), &bytes).unwrap();
        assert_eq!((set.len(), set.shape, set.labels.as_deref()), (2, SHAPE, Some(&[6, 9][..])));
        assert_eq!(set.image(0)[..7], [1, 2, 3, 100, 101, 102, 0]);
        assert_eq!(set.image(1)[..3], [50, 51, 52]);
        assert_eq!(set.classes[6], "frog");
        let set = parse(Path::new("any.bin"), &record(&[19, 99], 7)).unwrap();
        assert_eq!((set.labels, set.classes.len()), (Some(vec![99]), 100));
    }

    #[test]
    fn batches_are_joined_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let edition = &TEN;
        assert!(edition.locate(folder.path()).is_none());
        for (index, name) in edition.files[..5].iter().enumerate() {
            write(folder.path(), name, &record(&[index as u8], index as u8 + 20));
        }
        assert!(edition.locate(folder.path()).is_some());
        let error = edition.read(folder.path(), &CIFAR10).unwrap_err().to_string();
        assert!(
            error.ends_with("test_batch.bin: expected all files of CIFAR-10, found no such file")
        );
        write(folder.path(), "test_batch.bin", &record(&[8], 9));
        let [train, test] = edition.read(folder.path(), &CIFAR10).unwrap();
        assert_eq!(train.labels, Some(vec![0, 1, 2, 3, 4]));
        assert_eq!((train.len(), train.image(4)[0], test.image(0)[0]), (5, 24, 9));
        write(folder.path(), "data_batch_3.bin", &record(&[1, 1], 0));
        let error = edition.read(folder.path(), &CIFAR10).unwrap_err().to_string();
        assert!(error.contains("data_batch_3.bin: file: expected CIFAR-10"), "{error}");
    }

    #[test]
    fn invalid_files_are_rejected() {
        let binary =
            |name: &str, bytes: &[u8]| parse(Path::new(name), bytes).unwrap_err().to_string();
        let whole = [record(&[1], 0), record(&[10], 0)].concat();
        assert!(
            binary("a.bin", &whole).contains("label of image 1: expected a class number below 10")
        );
        assert!(
            binary("a.bin", &whole[..6000]).contains("record 1: expected records of 3073 bytes")
        );
        assert!(binary("test.bin", &whole[..6000]).contains("records of 3074 bytes"));
        assert!(binary("a.bin", b"").contains("one or more images"));
    }

    #[test]
    fn damaged_files_never_panic() {
        for bytes in damaged(&record(&[3], 1), 500) {
            drop(parse(Path::new("f.bin"), &bytes));
        }
    }

    #[test]
    fn the_hundred_classes_are_alphabetical() {
        assert!(HUNDRED_CLASSES.is_sorted());
        assert_eq!((HUNDRED_CLASSES[0], HUNDRED_CLASSES[99]), ("apple", "worm"));
    }
}
