//! CIFAR-10 and CIFAR-100 in the two official versions: binary and Python.
//!
//! The binary version is a sequence of records (label bytes, then the red, green and blue planes),
//! the Python version a pickled dictionary with the same planes as a numpy array. The files of the
//! four editions are listed in a table. CIFAR-100 is read with its 100 fine labels; the 20 coarse
//! ones are not used.

use super::checks::{class_numbers, finish, interleave, read_file};
use super::known::{CIFAR10, CIFAR100, Known};
use super::pickle::{Array, Pickle};
use crate::{DataError, ImageSet, Result, Shape};
use std::path::Path;

const SHAPE: Shape = Shape { side: 32, channels: 3 };
/// Bytes per image.
const IMAGE: usize = 32 * 32 * 3;

/// One published archive: the folder it unpacks to and the files in it.
#[derive(Debug)]
pub struct Edition {
    /// CIFAR-10 or CIFAR-100.
    pub known: &'static Known,
    /// The folder in the archive.
    pub folder: &'static str,
    /// The files of the training part, in order.
    pub train: &'static [&'static str],
    /// The file of the test part.
    pub test: &'static str,
}

/// The four archives.
pub const EDITIONS: [Edition; 4] = [
    Edition {
        known: &CIFAR10,
        folder: "cifar-10-batches-bin",
        train: &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
        ],
        test: "test_batch.bin",
    },
    Edition {
        known: &CIFAR10,
        folder: "cifar-10-batches-py",
        train: &["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"],
        test: "test_batch",
    },
    Edition {
        known: &CIFAR100,
        folder: "cifar-100-binary",
        train: &["train.bin"],
        test: "test.bin",
    },
    Edition { known: &CIFAR100, folder: "cifar-100-python", train: &["train"], test: "test" },
];

impl Edition {
    /// Whether at least one of the files is in this folder.
    pub(super) fn is_in(&self, folder: &Path) -> bool {
        self.train.iter().chain([&self.test]).any(|name| folder.join(name).is_file())
    }

    /// Reads the training and the test part; every file must exist.
    pub fn read(&self, folder: &Path) -> Result<(ImageSet, ImageSet)> {
        for name in self.train.iter().chain([&self.test]) {
            if !folder.join(name).is_file() {
                let expected = format!("all files of {}", self.known.title);
                return Err(DataError::malformed(folder, *name, expected, "no such file"));
            }
        }
        let mut train: Option<ImageSet> = None;
        for name in self.train {
            let batch = self.read_file(&folder.join(name))?;
            match &mut train {
                None => train = Some(batch),
                Some(set) => {
                    set.pixels.extend(batch.pixels);
                    set.labels.iter_mut().zip(batch.labels).for_each(|(all, new)| all.extend(new));
                }
            }
        }
        let train = train.expect("every edition has a training file");
        Ok((train, self.read_file(&folder.join(self.test))?))
    }

    fn read_file(&self, path: &Path) -> Result<ImageSet> {
        let set = read(path)?;
        if set.classes.len() != self.known.classes.len() {
            let found = format!("images with {} classes", set.classes.len());
            return Err(DataError::malformed(path, "file", self.known.title, found));
        }
        Ok(set)
    }
}

/// Reads one file of any edition.
pub fn read(path: &Path) -> Result<ImageSet> {
    let bytes = read_file(path)?;
    if path.extension().is_some_and(|extension| extension == "bin") {
        read_binary(path, &bytes)
    } else if bytes.first().is_some_and(|&byte| byte != PICKLE) {
        let expected = "a Python batch of CIFAR, whose first byte is 128";
        Err(DataError::malformed(path, "byte 0", expected, bytes[0].to_string()))
    } else {
        read_python(path, &bytes)
    }
}

/// The first byte of a pickle of protocol 2 or later, which these batches are.
const PICKLE: u8 = 0x80;

fn read_binary(path: &Path, bytes: &[u8]) -> Result<ImageSet> {
    // The length tells which set it is, unless it fits both or neither; then the name does.
    let by_name = path.file_name().is_some_and(|name| name == "train.bin" || name == "test.bin");
    let fits = |label_bytes: usize| bytes.len().is_multiple_of(label_bytes + IMAGE);
    let fine = if fits(1) == fits(2) { by_name } else { fits(2) };
    let (known, label_bytes) = if fine { (CIFAR100, 2) } else { (CIFAR10, 1) };
    let record = label_bytes + IMAGE;
    if !fits(label_bytes) {
        let expected = format!("records of {record} bytes");
        let found = format!("{} bytes after the last complete one", bytes.len() % record);
        let place = format!("record {}", bytes.len() / record);
        return Err(DataError::malformed(path, place, expected, found));
    }
    let mut planar = Vec::with_capacity(bytes.len());
    let mut labels = Vec::with_capacity(bytes.len() / record);
    for record in bytes.chunks_exact(record) {
        let (label, planes) = record.split_at(label_bytes);
        labels.push(u16::from(label[label_bytes - 1]));
        planar.extend_from_slice(planes);
    }
    finish(path, SHAPE, interleave(SHAPE, planar), Some(labels), known.class_names())
}

fn read_python(path: &Path, bytes: &[u8]) -> Result<ImageSet> {
    let pickle = Pickle::load(path, bytes)?;
    let fine = pickle.has("fine_labels");
    let (known, key) = if fine { (CIFAR100, "fine_labels") } else { (CIFAR10, "labels") };
    let numbers = pickle.integers(key)?.into_iter().map(|label| label as f64);
    let labels = class_numbers(path, numbers)?;
    let Array { shape, fortran, data } = pickle.array("data")?;
    let &[count, IMAGE] = shape else {
        let expected = format!("dimensions [count, {IMAGE}]");
        return Err(DataError::malformed(path, "key 'data'", expected, format!("{shape:?}")));
    };
    let planar = if fortran {
        // Stored position by position, each for all images.
        (0..data.len()).map(|at| data[at % IMAGE * count + at / IMAGE]).collect()
    } else {
        data.to_vec()
    };
    finish(path, SHAPE, interleave(SHAPE, planar), Some(labels), known.class_names())
}

#[cfg(test)]
mod tests {
    use super::super::checks::damaged;
    use super::*;

    /// A record whose red, green and blue planes begin with `start`, `start + 1`, `start + 2`.
    fn record(labels: &[u8], start: u8) -> Vec<u8> {
        let mut bytes = labels.to_vec();
        for channel in 0..3 {
            bytes.extend([start + channel, 100 + channel]);
            bytes.extend([0; 1022]);
        }
        bytes
    }

    fn pickle(key: &str, count: u8, fortran: bool, data: &[u8], labels: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n".to_vec();
        bytes.extend(b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01");
        bytes.extend([b'K', count, b'M', 0x00, 0x0c, 0x86]);
        bytes.extend(b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNtb");
        bytes.extend([if fortran { 0x88 } else { 0x89 }, b'T']);
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
        bytes.extend([b't', b'b', b'U', key.len() as u8]);
        bytes.extend(key.as_bytes());
        bytes.extend(b"](");
        labels.iter().for_each(|&label| bytes.extend([b'K', label]));
        bytes.extend(b"eu.");
        bytes
    }

    fn write(folder: &Path, name: &str, bytes: &[u8]) {
        std::fs::write(folder.join(name), bytes).unwrap();
    }

    #[test]
    fn binary_records_are_read() {
        let bytes = [record(&[6], 1), record(&[9], 50)].concat();
        let set = read_binary(Path::new("data_batch_1.bin"), &bytes).unwrap();
        assert_eq!((set.len(), set.shape, set.labels.as_deref()), (2, SHAPE, Some(&[6, 9][..])));
        assert_eq!(set.image(0)[..7], [1, 2, 3, 100, 101, 102, 0]);
        assert_eq!(set.image(1)[..3], [50, 51, 52]);
        assert_eq!(set.classes[6], "frog");
        let set = read_binary(Path::new("any.bin"), &record(&[19, 99], 7)).unwrap();
        assert_eq!((set.labels, set.classes.len()), (Some(vec![99]), 100));
    }

    #[test]
    fn python_batches_are_read() {
        let [first, second] = [record(&[], 1), record(&[], 50)];
        let rows = [first.clone(), second.clone()].concat();
        let columns: Vec<u8> = first.iter().zip(&second).flat_map(|(&a, &b)| [a, b]).collect();
        for (fortran, data) in [(false, &rows), (true, &columns)] {
            let bytes = pickle("labels", 2, fortran, data, &[3, 0]);
            let set = read_python(Path::new("data_batch_1"), &bytes).unwrap();
            assert_eq!((set.len(), set.labels.as_deref()), (2, Some(&[3, 0][..])));
            assert_eq!(set.image(0)[..7], [1, 2, 3, 100, 101, 102, 0]);
            assert_eq!(set.image(1)[..3], [50, 51, 52]);
            assert_eq!(set.classes.len(), 10);
        }
        let fine = pickle("fine_labels", 1, false, &first, &[42]);
        let set = read_python(Path::new("train"), &fine).unwrap();
        assert_eq!((set.labels, set.classes[42].as_str()), (Some(vec![42]), "leopard"));
    }

    #[test]
    fn batches_are_joined_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let edition = &EDITIONS[0];
        assert!(!edition.is_in(folder.path()));
        for (index, name) in edition.train.iter().enumerate() {
            write(folder.path(), name, &record(&[index as u8], index as u8 + 20));
        }
        assert!(edition.is_in(folder.path()));
        let error = edition.read(folder.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("test_batch.bin: expected all files of CIFAR-10, found no such file")
        );
        write(folder.path(), "test_batch.bin", &record(&[8], 9));
        let (train, test) = edition.read(folder.path()).unwrap();
        assert_eq!(train.labels, Some(vec![0, 1, 2, 3, 4]));
        assert_eq!((train.len(), train.image(4)[0], test.image(0)[0]), (5, 24, 9));
        write(folder.path(), "data_batch_3.bin", &record(&[1, 1], 0));
        let error = edition.read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("data_batch_3.bin: file: expected CIFAR-10"), "{error}");
    }

    #[test]
    fn invalid_files_are_rejected() {
        let binary =
            |name: &str, bytes: &[u8]| read_binary(Path::new(name), bytes).unwrap_err().to_string();
        let whole = [record(&[1], 0), record(&[10], 0)].concat();
        assert!(
            binary("a.bin", &whole).contains("label of image 1: expected a class number below 10")
        );
        assert!(
            binary("a.bin", &whole[..6000]).contains("record 1: expected records of 3073 bytes")
        );
        assert!(binary("test.bin", &whole[..6000]).contains("records of 3074 bytes"));
        assert!(binary("a.bin", b"").contains("one or more images"));
        let python = |bytes: &[u8]| read_python(Path::new("f"), bytes).unwrap_err().to_string();
        let image = record(&[], 1);
        assert!(
            python(&pickle("labels", 1, false, &image, &[1, 2])).contains("expected 1, one per")
        );
        assert!(python(&pickle("labels", 1, false, &image, &[10])).contains("label of image 0"));
        assert!(python(&pickle("labels", 2, false, &image, &[1])).contains("[2, 3072]"));
        assert!(python(&pickle("names", 1, false, &image, &[1])).contains("no such key"));
        assert!(python(&pickle("labels", 0, false, &[], &[])).contains("one or more images"));
        assert!(python(b"}.").contains("key 'labels'"));
    }

    #[test]
    fn damaged_files_never_panic() {
        let valid = pickle("labels", 1, false, &record(&[], 1), &[3]);
        for bytes in damaged(&valid, 2000) {
            drop(read_python(Path::new("f"), &bytes));
        }
        for bytes in damaged(&record(&[3], 1), 500) {
            drop(read_binary(Path::new("f.bin"), &bytes));
        }
    }
}
