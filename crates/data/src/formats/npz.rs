//! Numpy archives: a zip file with the arrays `X` (images) and, unless unlabelled, `y` (labels).
//!
//! The simplest way to use your own data: `np.savez("train.npz", X=images, y=labels)`. `X` holds
//! bytes, `[count, side, side]` or `[count, side, side, channels]`; `[count, channels, side, side]`
//! is recognised if the last axis cannot be the channels. The header of an array is a Python
//! dictionary with three keys in a fixed spelling; these are searched for, without a Python parser. The crate `npyz`
//! was rejected: it would replace this header alone, and does not limit its length.

use super::checks::{Number, Section, finish, integers, interleave, shape, volume};
use crate::error::malformed;
use crate::{DataError, ImageSet, Result, Shape};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use zip::ZipArchive;

/// The longest header in bytes; real ones have a few hundred.
const MAX_HEADER: usize = 1 << 16;

/// The two archives of a data set.
pub(super) const FILES: [&str; 2] = ["train.npz", "test.npz"];

/// Reads the training and the test part in a folder, with the classes of the training part.
pub(super) fn read_parts(folder: &Path) -> Result<[ImageSet; 2]> {
    let [train, test] = FILES.map(|name| folder.join(name));
    let train = read(&train, None)?;
    let test = read(&test, Some(&train.classes))?;
    Ok([train, test])
}

/// Reads an archive. Unless names are given, classes are named 0, 1, 2 ... up to the largest label
/// in the file.
pub fn read(path: &Path, classes: Option<&[String]>) -> Result<ImageSet> {
    let file = fedanchor_disk::open(path).map_err(|source| DataError::io(path, source))?;
    parse(path, BufReader::new(file), classes)
}

fn parse(path: &Path, mut file: impl Read + Seek, classes: Option<&[String]>) -> Result<ImageSet> {
    let size = file.seek(SeekFrom::End(0)).map_err(|source| DataError::io(path, source))?;
    let zip = ZipArchive::new(file);
    let mut zip = zip.map_err(|error| DataError::malformed(path, "file", "a zip file", error))?;
    let Some(images) = array(path, size, &mut zip, "X")? else {
        return malformed(path, "arrays", "X, the images", "no such array");
    };
    let (shape, pixels) = arrange(path, images)?;
    let labels = array(path, size, &mut zip, "y")?;
    let labels = labels.map(|labels| flatten(path, &labels)).transpose()?;
    let number = |class| u16::to_string(&class);
    let classes = match (classes, &labels) {
        (Some(names), _) => names.to_vec(),
        (None, Some(labels)) => {
            labels.iter().max().map_or(0..=0, |&max| 0..=max).map(number).collect()
        }
        (None, None) => Vec::new(),
    };
    finish(path, shape, pixels, labels, classes)
}

/// Checks the images and moves their channels last.
fn arrange(path: &Path, images: Array) -> Result<(Shape, Vec<u8>)> {
    if images.number != Number::BYTE {
        return malformed(path, "X", "bytes (uint8)", images.number);
    }
    let (height, width, channels, channels_first) = match images.dims[..] {
        [_, height, width] => (height, width, 1, false),
        [_, height, width, channels @ (1 | 3)] => (height, width, channels, false),
        [_, channels @ (1 | 3), height, width] => (height, width, channels, true),
        _ => {
            let expected = "[count, side, side] or [count, side, side, 1 or 3]";
            return malformed(path, "X", expected, format!("{:?}", images.dims));
        }
    };
    let shape = shape(path, height, width, channels)?;
    match channels_first {
        true => Ok((shape, interleave(shape, &images.data, |position| position))),
        false => Ok((shape, images.data)),
    }
}

/// The labels, from `[count]` or `[count, 1]`.
fn flatten(path: &Path, labels: &Array) -> Result<Vec<u16>> {
    if !matches!(labels.dims[..], [_] | [_, 1]) {
        return malformed(path, "y", "[count] or [count, 1]", format!("{:?}", labels.dims));
    }
    let expected = "a class number: 0, 1, 2 and so on";
    integers(path, labels.number.decode(&labels.data), 0..=u16::MAX, expected)
}

/// One array: little-endian, last index fastest.
struct Array {
    number: Number,
    dims: Vec<usize>,
    data: Vec<u8>,
}

/// Reads the array with this name, if the archive, of this size, has it.
fn array(
    path: &Path,
    size: u64,
    zip: &mut ZipArchive<impl Read + Seek>,
    name: &str,
) -> Result<Option<Array>> {
    let section = Section { path, name, file_bytes: size };
    match zip.by_name(&format!("{name}.npy")) {
        Ok(mut entry) => npy(section, &mut entry).map(Some),
        Err(zip::result::ZipError::FileNotFound) => Ok(None),
        Err(error) => Err(section.error("a zip entry", error)),
    }
}

fn npy(section: Section, reader: &mut dyn Read) -> Result<Array> {
    let magic = section.read_exactly(reader, 8)?;
    let length_bytes = match magic[..] {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _] => 2,
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _] => 4,
        _ => return Err(section.error("the start of a numpy array", format!("{magic:02x?}"))),
    };
    let length = section.read_exactly(reader, length_bytes)?;
    let length = length.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    if length > MAX_HEADER {
        return Err(section.error(format!("a header of at most {MAX_HEADER} bytes"), length));
    }
    let header = section.read_exactly(reader, length)?;
    let header = String::from_utf8_lossy(&header);
    let (descr, order, dims) = fields(&header).ok_or_else(|| {
        section.error("a numpy header with descr, fortran_order and shape", header.trim_end())
    })?;
    let mut code = descr.chars(); // the byte order, the kind of number, its size
    let (big_endian, kind) = (code.next() == Some('>'), code.next());
    let number =
        kind.zip(code.as_str().parse().ok()).and_then(|(kind, size)| Number::new(kind, size));
    let number = number.ok_or_else(|| section.error("plain numbers", descr))?;
    // If only one axis is longer than 1, the order has no effect.
    if order != "False" && dims.iter().filter(|&&dim| dim > 1).count() > 1 {
        return Err(section.error("an array in C order (np.ascontiguousarray)", "Fortran order"));
    }
    let bytes = volume(section.path, section.name, &dims)?.saturating_mul(number.size);
    section.check_unpacked(bytes as u64, "save it with np.savez")?;
    let mut data = section.read_exactly(reader, bytes)?;
    section.at_end(reader)?;
    if big_endian {
        data.chunks_exact_mut(number.size).for_each(<[u8]>::reverse);
    }
    Ok(Array { number, dims, data })
}

/// The element type, the order and the dimensions in a header such as
/// `{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}`.
fn fields(header: &str) -> Option<(&str, &str, Vec<usize>)> {
    let value = |key: &str| Some(header.split_once(&format!("'{key}':"))?.1.trim_start());
    let descr = value("descr")?.strip_prefix('\'')?.split('\'').next()?;
    let order = value("fortran_order")?.split([',', '}']).next()?.trim_end();
    let (dims, _) = value("shape")?.strip_prefix('(')?.split_once(')')?;
    let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    Some((descr, order, dims.map(|dim| dim.parse().ok()).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::damaged;
    use std::io::{Cursor, Write};
    use zip::write::{SimpleFileOptions, ZipWriter};

    fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}   \n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn archive(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in arrays {
            let method = match *name {
                "X" => zip::CompressionMethod::Deflated,
                _ => zip::CompressionMethod::Stored,
            };
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(format!("{name}.npy"), options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn open(arrays: &[(&str, Vec<u8>)]) -> Result<ImageSet> {
        parse(Path::new("f"), Cursor::new(archive(arrays)), None)
    }

    fn failure(arrays: &[(&str, Vec<u8>)]) -> String {
        open(arrays).unwrap_err().to_string()
    }

    fn grey() -> Vec<u8> {
        npy("|u1", "False", "(3, 1, 1)", &[7, 8, 9])
    }

    #[test]
    fn images_of_every_layout_are_read() {
        let bytes: Vec<u8> = (0..24).collect();
        let last = open(&[("X", npy("|u1", "False", "(2, 2, 2, 3)", &bytes))]).unwrap();
        assert_eq!((last.len(), last.shape.side, last.shape.channels), (2, 2, 3));
        assert_eq!((&last.pixels, &last.labels, last.classes.len()), (&bytes, &None, 0));
        let first = open(&[("X", npy("|u1", "False", "(2, 3, 2, 2)", &bytes))]).unwrap();
        assert_eq!((first.shape, &first.pixels[..3]), (last.shape, &[0, 4, 8][..]));
        let grey = open(&[("X", npy("|u1", "False", "(6, 2, 2)", &bytes))]).unwrap();
        assert_eq!((grey.len(), grey.shape.channels), (6, 1));
        let mut newer = npy("|u1", "False", "(6, 2, 2, 1)", &bytes);
        newer[6] = 2;
        newer.splice(10..10, [0, 0]);
        assert_eq!(open(&[("X", newer)]).unwrap(), grey);
    }

    #[test]
    fn labels_of_every_type_are_read() {
        let le = |numbers: [f32; 3]| numbers.map(f32::to_le_bytes).concat();
        let cases = [
            npy("|u1", "False", "(3,)", &[2, 0, 1]),
            npy("<i8", "False", "(3,)", &[2i64, 0, 1].map(i64::to_le_bytes).concat()),
            npy(">i4", "False", "(3, 1)", &[2i32, 0, 1].map(i32::to_be_bytes).concat()),
            npy("<f4", "True", "(3, 1)", &le([2.0, 0.0, 1.0])),
        ];
        for labels in cases {
            let set = open(&[("X", grey()), ("y", labels)]).unwrap();
            assert_eq!(set.labels, Some(vec![2, 0, 1]));
            assert_eq!(set.classes, ["0", "1", "2"]);
        }
        let halves = npy("<f4", "False", "(3,)", &le([1.0, 1.5, 2.0]));
        assert!(failure(&[("X", grey()), ("y", halves)]).contains("label of image 1"));
        let negative = npy("|i1", "False", "(3,)", &[0, 0, 0xff]);
        assert!(failure(&[("X", grey()), ("y", negative)]).contains("found -1"));
        let labels = npy("|u1", "False", "(3,)", &[2, 0, 1]);
        let bytes = archive(&[("X", grey()), ("y", labels)]);
        let names = ["a".to_owned(), "b".to_owned()];
        let error = parse(Path::new("f"), Cursor::new(bytes), Some(&names)).unwrap_err();
        assert!(error.to_string().contains("a class number below 2, found 2"));
    }

    #[test]
    fn invalid_files_are_rejected() {
        let images =
            |descr, order, shape, data: &[u8]| failure(&[("X", npy(descr, order, shape, data))]);
        assert!(failure(&[("y", grey())]).contains("expected X, the images"));
        assert!(images("<f4", "False", "(1, 1, 1)", &[0; 4]).contains("(uint8), found float32"));
        assert!(images("|O", "False", "(1, 1, 1)", &[0]).contains("plain numbers, found |O"));
        assert!(images("|u1", "True", "(2, 2, 2)", &[0; 8]).contains("Fortran order"));
        assert!(images("|u1", "False", "(2, 2)", &[0; 4]).contains("found [2, 2]"));
        assert!(images("|u1", "False", "(1, 2, 2, 4)", &[0; 16]).contains("[1, 2, 2, 4]"));
        assert!(images("|u1", "False", "(1, 1, 2)", &[0; 2]).contains("found 1 x 2"));
        assert!(images("|u1", "False", "(0, 2, 2)", &[]).contains("one or more images"));
        assert!(images("|u1", "False", "(1, 2, 2)", &[0; 3]).contains("the end after 3 bytes"));
        assert!(images("|u1", "False", "(1, 2, 2)", &[0; 5]).contains("more data"));
        assert!(images("|u1", "False", "(1, -2, 2)", &[]).contains("a numpy header"));
        assert!(images("|u1", "False", "(4294967295, 4294967295, 9)", &[]).contains("product"));
        assert!(failure(&[("X", b"\x93NUMPX\x01\0\0\0".to_vec())]).contains("the start of a"));
        // 20 MB of zeros in 20 KB.
        let bomb = images("|u1", "False", "(20, 1000, 1000)", &vec![0; 20_000_000]);
        assert!(bomb.contains("save it with np.savez"), "{bomb}");
        let short = npy("|u1", "False", "(2,)", &[0, 1]);
        assert!(failure(&[("X", grey()), ("y", short)]).contains("expected 3, one per image"));
        let square = npy("|u1", "False", "(1, 3)", &[0, 1, 2]);
        assert!(failure(&[("X", grey()), ("y", square)]).contains("y: expected [count]"));
        let error = parse(Path::new("f"), Cursor::new(b"PK no"), None).unwrap_err();
        assert!(error.to_string().contains("a zip file"));
    }

    #[test]
    fn damaged_files_never_panic() {
        let labels = npy("<i8", "False", "(3,)", &[0; 24]);
        for bytes in damaged(&archive(&[("X", grey()), ("y", labels)]), 3000) {
            drop(parse(Path::new("f"), Cursor::new(bytes), None));
        }
        for bytes in damaged(&grey(), 5000) {
            let section =
                Section { path: Path::new("f"), name: "X", file_bytes: bytes.len() as u64 };
            drop(super::npy(section, &mut &bytes[..]));
        }
    }
}
