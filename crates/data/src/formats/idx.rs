//! IDX files: MNIST, Fashion-MNIST and others of the same format.
//!
//! A magic number (two zeros, the element type, the number of dimensions), the dimensions as
//! big-endian 32-bit numbers, the bytes. Whether a file is compressed is decided by its first two
//! bytes, not its name, because both kinds exist under both names. Images without a label file are
//! an unlabelled set.

use super::checks::{Section, finish, read_file, shape, volume};
use crate::catalog::{File, Published};
use crate::error::malformed;
use crate::{DataError, ImageSet, Result};
use flate2::read::MultiGzDecoder;
use std::io::Read;
use std::path::{Path, PathBuf};

/// MNIST: 28 x 28 handwritten digits.
pub const MNIST: Published = Published {
    name: "mnist",
    title: "MNIST",
    about: "70,000 grey images of handwritten digits, 28x28, 10 classes",
    terms: "CC BY-SA 3.0, cite LeCun et al. 1998",
    base_url: "https://ossci-datasets.s3.amazonaws.com/mnist",
    files: &files([
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ]),
    classes: &DIGITS,
    mean: &[0.1307],
    std: &[0.3081],
    flip: false,
    locate: |path| locate(path, &MNIST),
    read: |folder| read_parts(folder, &MNIST),
};

/// Fashion-MNIST: 28 x 28 grey images of clothing, with the file names of MNIST.
pub const FASHION_MNIST: Published = Published {
    name: "fashion-mnist",
    title: "Fashion-MNIST",
    about: "70,000 grey images of clothing, 28x28, 10 classes",
    terms: "MIT licence, Zalando SE",
    base_url: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    files: &files([
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ]),
    classes: &[
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ],
    mean: &[0.2860],
    std: &[0.3530],
    flip: true,
    locate: |path| locate(path, &FASHION_MNIST),
    read: |folder| read_parts(folder, &FASHION_MNIST),
};

/// The files of MNIST, which Fashion-MNIST names alike, by size and SHA-256 sum.
const fn files([a, b, c, d]: [(u64, &'static str); 4]) -> [File; 4] {
    [
        File { name: "train-images-idx3-ubyte.gz", bytes: a.0, sha256: a.1 },
        File { name: "train-labels-idx1-ubyte.gz", bytes: b.0, sha256: b.1 },
        File { name: "t10k-images-idx3-ubyte.gz", bytes: c.0, sha256: c.1 },
        File { name: "t10k-labels-idx1-ubyte.gz", bytes: d.0, sha256: d.1 },
    ]
}

/// The ten digits as class names.
pub(super) const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// MNIST, or Fashion-MNIST if the folder's name says so: their files have the same names. Some tools put the files into
/// a subfolder `raw`; then its parent's name decides.
pub(super) fn published_in(folder: &Path) -> &'static Published {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mut names = full.iter().rev().map(|name| name.to_string_lossy().to_ascii_lowercase());
    let name = names.find(|name| name != "raw").unwrap_or_default();
    if name.contains("fashion") { &FASHION_MNIST } else { &MNIST }
}

fn locate(folder: &Path, published: &Published) -> Option<PathBuf> {
    let has_images = ["train", "t10k"].iter().any(|part| find(folder, part, "images", 3).is_some());
    (has_images && published_in(folder).name == published.name).then(|| folder.to_owned())
}

fn read_parts(folder: &Path, published: &Published) -> Result<[ImageSet; 2]> {
    let read = |part: &str| {
        let find = |kind: &str, rank: usize| {
            let missing = || {
                let place = format!("{part}-{kind}");
                DataError::malformed(folder, place, "an IDX file", "no such file")
            };
            find(folder, part, kind, rank).ok_or_else(missing)
        };
        read(&find("images", 3)?, Some(&find("labels", 1)?), published)
    };
    Ok([read("train")?, read("t10k")?])
}

/// Reads an image file and, if given, its label file.
pub fn read(images: &Path, labels: Option<&Path>, published: &Published) -> Result<ImageSet> {
    let (dims, pixels) = decode(images, &read_file(images)?, 3)?;
    if dims[0] == 0 {
        return malformed(images, "header", "one or more images", "none");
    }
    let shape = shape(images, dims[1], dims[2], 1)?;
    let read_labels = |path: &Path| {
        let (_, bytes) = decode(path, &read_file(path)?, 1)?;
        Ok::<_, DataError>(bytes.into_iter().map(u16::from).collect())
    };
    let classes = labels.map(read_labels).transpose()?;
    finish(labels.unwrap_or(images), shape, pixels, classes, published.class_names())
}

/// The file of a part (`train` or `t10k`) with its `images` or `labels`, if it exists.
fn find(folder: &Path, part: &str, kind: &str, rank: usize) -> Option<PathBuf> {
    let spellings = ["-", "."].into_iter().flat_map(|joint| {
        ["", ".gz"].map(|end| format!("{part}-{kind}{joint}idx{rank}-ubyte{end}"))
    });
    spellings.map(|name| folder.join(name)).find(|path| path.is_file())
}

/// The label file next to an image file: the same name with `labels` and `idx1`.
pub(super) fn label_file(images: &Path) -> Option<PathBuf> {
    let name = images.file_name()?.to_str()?;
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    let labels = plain.replace("images", "labels").replace("idx3", "idx1");
    let candidates = [labels.clone(), labels.clone() + ".gz"];
    let mut paths = candidates.iter().map(|name| images.with_file_name(name));
    paths.find(|path| labels != plain && path.is_file())
}

/// The dimensions and elements of a file with `rank` dimensions.
fn decode(path: &Path, bytes: &[u8], rank: usize) -> Result<(Vec<usize>, Vec<u8>)> {
    let mut reader: Box<dyn Read + '_> = match bytes {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(bytes)),
        _ => Box::new(bytes),
    };
    let header_section = Section { path, name: "header", file_bytes: bytes.len() as u64 };
    let data_section = Section { name: "data", ..header_section };
    let header = header_section.read_exactly(&mut reader, 4 + 4 * rank)?;
    let (magic, sizes) = header.split_at(4);
    if magic != [0, 0, 8, rank as u8] {
        let expected = format!("00 00 08 {rank:02x} (bytes in {rank} dimensions)");
        let found = format!("{:02x} {:02x} {:02x} {:02x}", magic[0], magic[1], magic[2], magic[3]);
        return malformed(path, "magic number", expected, found);
    }
    let big_endian = |size: &[u8]| size.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    let dims: Vec<usize> = sizes.chunks_exact(4).map(big_endian).collect();
    let count = volume(path, "header", &dims)?;
    header_section.check_unpacked(count as u64, "decompress it with gunzip")?;
    let elements = data_section.read_exactly(&mut reader, count)?;
    data_section.at_end(&mut reader)?;
    Ok((dims, elements))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::damaged;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn file(rank: u8, dims: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, rank];
        dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn images_and_labels_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let pixels: Vec<u8> = (0..12).collect();
        let images = folder.path().join("t10k-images.idx3-ubyte");
        let labels = folder.path().join("t10k-labels-idx1-ubyte.gz");
        std::fs::write(&images, file(3, &[3, 2, 2], &pixels)).unwrap();
        std::fs::write(&labels, gzip(&file(1, &[3], &[7, 0, 9]))).unwrap();
        let find = |part, kind, rank| find(folder.path(), part, kind, rank);
        assert_eq!(find("t10k", "images", 3), Some(images.clone()));
        assert_eq!(find("t10k", "labels", 1), Some(labels.clone()));
        assert_eq!((find("train", "images", 3), find("train", "labels", 1)), (None, None));

        let set = read(&images, Some(&labels), &FASHION_MNIST).unwrap();
        assert_eq!((set.shape.side, set.shape.channels, set.len()), (2, 1, 3));
        assert_eq!(set.pixels, pixels);
        assert_eq!(set.labels, Some(vec![7, 0, 9]));
        assert_eq!(set.classes[9], "Ankle boot");
        assert_eq!(read(&images, None, &MNIST).unwrap().labels, None);
    }

    #[test]
    fn a_label_file_is_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let images = folder.path().join("my-images.idx3-ubyte.gz");
        assert_eq!(label_file(&images), None);
        std::fs::write(folder.path().join("my-labels.idx1-ubyte"), "").unwrap();
        assert_eq!(label_file(&images), Some(folder.path().join("my-labels.idx1-ubyte")));
        std::fs::write(folder.path().join("odd.gz"), "").unwrap();
        assert_eq!(label_file(&folder.path().join("odd.gz")), None);
    }

    #[test]
    fn invalid_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let read = |images: &[u8], labels: &[u8]| {
            let paths = [folder.path().join("i"), folder.path().join("l")];
            std::fs::write(&paths[0], images).unwrap();
            std::fs::write(&paths[1], labels).unwrap();
            read(&paths[0], Some(&paths[1]), &MNIST).unwrap_err().to_string()
        };
        let (images, labels) = (file(3, &[2, 1, 1], &[5, 6]), file(1, &[2], &[0, 1]));
        assert!(read(&labels, &labels).contains("header: expected 16 bytes"));
        assert!(read(&images, &images).contains("expected 00 00 08 01"));
        assert!(read(&file(3, &[2, 1, 1], &[5]), &labels).contains("found the end after 1 byte"));
        assert!(read(&file(3, &[2, 1, 1], &[5, 6, 7]), &labels).contains("found more data"));
        assert!(read(&file(3, &[2, 1, 2], &[0; 4]), &labels).contains("found 1 x 2"));
        assert!(read(&file(3, &[0, 1, 1], &[]), &labels).contains("one or more images"));
        assert!(read(&file(3, &[9, 0, 0], &[]), &labels).contains("found 0 x 0"));
        assert!(read(&images, &file(1, &[1], &[0])).contains("expected 2, one per image"));
        assert!(read(&images, &file(1, &[2], &[0, 10])).contains("label of image 1"));
        let huge = file(3, &[u32::MAX; 3], &[]);
        assert!(read(&huge, &labels).contains("product of at most"));
        // 20 MB of zeros in 20 KB.
        let bomb = gzip(&file(3, &[20, 1000, 1000], &vec![0; 20_000_000]));
        assert!(read(&bomb, &labels).contains("decompress it with gunzip"));
        let packed = gzip(&images);
        for length in 2..packed.len() {
            read(&packed[..length], &labels);
        }
    }

    #[test]
    fn damaged_files_never_panic() {
        let plain = file(3, &[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
        let path = Path::new("f");
        let mut fine = 0;
        for bytes in damaged(&plain, 4000).chain(damaged(&gzip(&plain), 4000)) {
            fine += usize::from(decode(path, &bytes, 3).is_ok());
        }
        assert!((100..7900).contains(&fine), "{fine}");
    }
}
