//! SVHN in its official version: MATLAB 5 files with the variables `X` (bytes, `[side, side,
//! channels, count]`, first index fastest) and `y` (labels 1 to 10, where 10 is the digit 0).
//!
//! A file is a header and a sequence of elements, each a tag (type, size) with its data; a variable
//! is an element made of elements, compressed as a whole or not. Both are read through one `Read`,
//! by one parser. Other variables are skipped. Files of MATLAB 7.3, which are HDF5, and big-endian
//! files, which have not been written for decades, are rejected by name.

use super::checks::{Number, Section, finish, integers, interleave, read_file, shape, volume};
use super::idx::DIGITS;
use crate::catalog::{File, Published};
use crate::error::malformed;
use crate::{DataError, ImageSet, Result};
use flate2::read::ZlibDecoder;
use std::io::Read;
use std::path::Path;

/// SVHN, cropped digits: 32 x 32 colour photographs of house numbers.
pub const SVHN: Published = Published {
    name: "svhn",
    title: "SVHN",
    about: "99,289 colour images of house numbers, 32x32, 10 classes (without the extra part)",
    terms: "non-commercial use only, cite Netzer et al. 2011",
    base_url: "http://ufldl.stanford.edu/housenumbers",
    files: &[
        File {
            name: "train_32x32.mat",
            bytes: 182_040_794,
            sha256: "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        },
        File {
            name: "test_32x32.mat",
            bytes: 64_275_384,
            sha256: "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
    ],
    classes: &DIGITS,
    mean: &[0.4377, 0.4438, 0.4728],
    std: &[0.1980, 0.2010, 0.1970],
    flip: false,
    locate: |path| {
        let has_any = SVHN.files.iter().any(|file| path.join(file.name).is_file());
        has_any.then(|| path.to_owned())
    },
    read: |folder| {
        let part = |file: &File| read(&folder.join(file.name));
        Ok([part(&SVHN.files[0])?, part(&SVHN.files[1])?])
    },
};

const HEADER: usize = 128;
const MATRIX: u32 = 14;
const COMPRESSED: u32 = 15;
/// The largest dimension list or variable name in bytes; real ones have a few.
const MAX_FIELD: usize = 256;

/// Reads `train_32x32.mat`, `test_32x32.mat` or another file of the same form.
pub fn read(path: &Path) -> Result<ImageSet> {
    parse(path, &read_file(path)?)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<ImageSet> {
    check_header(path, bytes)?;
    let (mut images, mut labels) = (None, None);
    let mut rest = &bytes[HEADER..];
    while !rest.is_empty() {
        let name = format!("element at byte {}", bytes.len() - rest.len());
        let section = Section { path, name: &name, file_bytes: bytes.len() as u64 };
        let tag = Tag::read(section, &mut rest)?;
        let fail = || section.error(format!("{} bytes", tag.size), rest.len());
        let (body, after) = rest.split_at_checked(tag.size).ok_or_else(fail)?;
        let variable = match tag.kind {
            COMPRESSED => {
                let mut stream = ZlibDecoder::new(body);
                let inner = Tag::read(section, &mut stream)?;
                if inner.kind != MATRIX {
                    return Err(section.error("a variable", format!("type {}", inner.kind)));
                }
                let variable = Variable::read(section, &mut (&mut stream).take(inner.size as u64))?;
                if variable.is_some() {
                    section.at_end(&mut stream)?;
                }
                variable
            }
            MATRIX => Variable::read(section, &mut &*body)?,
            _ => None,
        };
        match variable {
            Some(variable) if variable.name == "X" => images = Some(variable),
            Some(variable) => labels = Some(variable),
            None => {}
        }
        let padding = if tag.kind == COMPRESSED { 0 } else { tag.padding() };
        rest = after.get(padding..).unwrap_or_default();
    }
    let missing = |name| DataError::malformed(path, "variables", name, "no such variable");
    let images = images.ok_or_else(|| missing("X, the images"))?;
    let labels = labels.ok_or_else(|| missing("y, the labels"))?;
    assemble(path, &images, &labels)
}

fn check_header(path: &Path, bytes: &[u8]) -> Result<()> {
    let fail = |found: &str| malformed(path, "header", "a MATLAB 5 file", found);
    match bytes.get(..HEADER) {
        None => fail("a shorter file"),
        Some(header) if header.starts_with(b"MATLAB 7.3") => {
            fail("MATLAB 7.3 (HDF5); save it with the option -v7")
        }
        Some(header) => match &header[124..] {
            [0, 1, b'I', b'M'] => Ok(()),
            [1, 0, b'M', b'I'] => fail("a big-endian file"),
            other => fail(&format!("version and byte order {other:02x?}")),
        },
    }
}

/// Makes a set of the two variables: images with channels last, and class numbers.
fn assemble(path: &Path, images: &Variable, labels: &Variable) -> Result<ImageSet> {
    // MATLAB drops a trailing dimension of 1, so a single image has three dimensions.
    let &[height, width, channels, ref count @ ..] = images.dims.as_slice() else {
        return malformed(path, "X", "[side, side, channels, count]", format!("{:?}", images.dims));
    };
    if count.len() > 1 || images.number != Number::BYTE {
        let found = format!("{} in dimensions {:?}", images.number, images.dims);
        return malformed(path, "X", "uint8 in 4 dimensions", found);
    }
    let shape = shape(path, height, width, channels)?;
    // The first index, the row, is the fastest.
    let side = shape.side;
    let pixels = interleave(shape, &images.data, |at| at % side * side + at / side);
    let numbers = labels.number.decode(&labels.data);
    let labels = integers(path, numbers, 1..=10, "1 to 10 (10 is the digit 0)")?;
    let digits = labels.into_iter().map(|label| label % 10).collect();
    finish(path, shape, pixels, Some(digits), SVHN.class_names())
}

/// The header of an element. Up to four bytes of data are stored in the tag itself.
struct Tag {
    kind: u32,
    size: usize,
    within: Option<[u8; 4]>,
}

impl Tag {
    fn read(section: Section, reader: &mut dyn Read) -> Result<Self> {
        let bytes = section.read_exactly(reader, 8)?;
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let (first, second) = (u32::from_le_bytes(word(0)), u32::from_le_bytes(word(4)));
        match first >> 16 {
            0 => Ok(Self { kind: first, size: second as usize, within: None }),
            size @ 1..=4 => {
                Ok(Self { kind: first & 0xffff, size: size as usize, within: Some(word(4)) })
            }
            size => Err(section.error("at most 4 bytes in a small element", size)),
        }
    }

    /// Bytes between the data and the next tag.
    fn padding(&self) -> usize {
        if self.within.is_some() { 0 } else { self.size.next_multiple_of(8) - self.size }
    }

    /// The type of the numbers in the element.
    fn number(&self) -> Option<Number> {
        let kind = match self.kind {
            1 | 3 | 5 | 12 => 'i',
            2 | 4 | 6 | 13 => 'u',
            7 | 9 => 'f',
            _ => return None,
        };
        let size = match self.kind {
            1 | 2 => 1,
            3 | 4 => 2,
            5..=7 => 4,
            _ => 8,
        };
        Number::new(kind, size)
    }

    /// Reads the data of the element and skips the padding after it.
    fn data(&self, section: Section, reader: &mut dyn Read) -> Result<Vec<u8>> {
        if let Some(bytes) = self.within {
            return Ok(bytes[..self.size].to_vec());
        }
        let data = section.read_exactly(reader, self.size)?;
        // Some writers omit the last padding.
        let mut padding = reader.take(self.padding() as u64);
        let skipped = std::io::copy(&mut padding, &mut std::io::sink());
        skipped.map_err(|error| section.error("padding", error))?;
        Ok(data)
    }
}

/// A numeric array with a name.
struct Variable {
    name: String,
    dims: Vec<usize>,
    number: Number,
    data: Vec<u8>,
}

impl Variable {
    /// Reads a variable; `None` if it is neither `X` nor `y`.
    fn read(section: Section, reader: &mut dyn Read) -> Result<Option<Self>> {
        let flags = field(section, reader, "array flags")?;
        let dims = field(section, reader, "dimensions")?;
        let name = String::from_utf8_lossy(&field(section, reader, "name")?).into_owned();
        if !matches!(name.as_str(), "X" | "y") {
            return Ok(None);
        }
        // The first byte of the flags is the class (numeric arrays: 6 to 15), the second has a
        // bit for complex numbers.
        if !matches!(flags.as_slice(), [6..=15, bits, ..] if bits & 8 == 0) {
            let expected = format!("{name} to be numeric");
            return Err(section.error(expected, format!("flags {flags:02x?}")));
        }
        let (dims, _) = dims.as_chunks();
        let dims: Vec<usize> =
            dims.iter().map(|&dim| i32::from_le_bytes(dim).max(0) as usize).collect();
        let tag = Tag::read(section, reader)?;
        let fail =
            || section.error(format!("{name} to hold numbers"), format!("type {}", tag.kind));
        let number = tag.number().ok_or_else(fail)?;
        let bytes = volume(section.path, section.name, &dims)?.saturating_mul(number.size);
        if tag.size != bytes {
            let expected = format!("{bytes} bytes for the dimensions {dims:?} of {name}");
            return Err(section.error(expected, tag.size));
        }
        section.check_unpacked(bytes as u64, "save it with the option -v6")?;
        let data = tag.data(section, reader)?;
        Ok(Some(Self { name, dims, number, data }))
    }
}

/// Reads one of the short elements at the start of a variable: flags, dimensions or name.
fn field(section: Section, reader: &mut dyn Read, name: &str) -> Result<Vec<u8>> {
    let tag = Tag::read(section, reader)?;
    if tag.size > MAX_FIELD {
        let expected = format!("{name} in at most {MAX_FIELD} bytes");
        return Err(section.error(expected, format!("{} bytes", tag.size)));
    }
    tag.data(section, reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::tests::damaged;
    use flate2::{Compression, write::ZlibEncoder};
    use std::io::Write;

    fn element(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if (1..=4).contains(&data.len()) {
            bytes.extend((kind | (data.len() as u32) << 16).to_le_bytes());
            bytes.extend(data);
            bytes.resize(8, 0);
        } else {
            bytes.extend(kind.to_le_bytes());
            bytes.extend((data.len() as u32).to_le_bytes());
            bytes.extend(data);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }

    fn variable(name: &str, class: u8, dims: &[i32], kind: u32, data: &[u8]) -> Vec<u8> {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let mut body = element(6, &[class, 0, 0, 0, 0, 0, 0, 0]);
        body.extend(element(5, &dims));
        body.extend(element(1, name.as_bytes()));
        body.extend(element(kind, data));
        element(MATRIX, &body)
    }

    fn compressed(variable: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(variable).unwrap();
        let data = encoder.finish().unwrap();
        let mut bytes = COMPRESSED.to_le_bytes().to_vec();
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
        bytes
    }

    fn file(elements: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"MATLAB 5.0 MAT-file".to_vec();
        bytes.resize(124, b' ');
        bytes.extend([0, 1, b'I', b'M']);
        bytes.extend(elements.concat());
        bytes
    }

    /// Two 2 x 2 images; the first one's red plane has the rows 0 1 and 2 3, stored by columns.
    fn images() -> Vec<u8> {
        let first = [0, 2, 1, 3, 10, 12, 11, 13, 20, 22, 21, 23];
        let data: Vec<u8> = first.iter().copied().chain(first.map(|value| value + 100)).collect();
        variable("X", 9, &[2, 2, 3, 2], 2, &data)
    }

    fn failure(elements: &[Vec<u8>]) -> String {
        parse(Path::new("f"), &file(elements)).unwrap_err().to_string()
    }

    #[test]
    fn images_and_labels_are_read() {
        let doubles: Vec<u8> = [10f64, 3.0].iter().flat_map(|label| label.to_le_bytes()).collect();
        let as_bytes = variable("y", 9, &[2, 1], 2, &[10, 3]);
        let as_doubles = variable("y", 6, &[2, 1], 9, &doubles);
        let other = variable("info", 4, &[1, 5], 4, b"a\0b\0c\0d\0e\0");
        let row: Vec<u8> = vec![0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23];
        for elements in [
            vec![images(), as_bytes.clone()],
            vec![compressed(&images()), compressed(&as_bytes)],
            vec![other.clone(), compressed(&as_doubles), compressed(&other), images()],
        ] {
            let set = parse(Path::new("f"), &file(&elements)).unwrap();
            assert_eq!((set.shape.side, set.shape.channels, set.len()), (2, 3, 2));
            assert_eq!(set.image(0), row);
            assert_eq!(set.image(1), row.iter().map(|value| value + 100).collect::<Vec<u8>>());
            assert_eq!(set.labels, Some(vec![0, 3]));
        }
    }

    #[test]
    fn a_single_image_has_three_dimensions() {
        let image = variable("X", 9, &[1, 1, 3], 2, &[7, 8, 9]);
        let set = parse(Path::new("f"), &file(&[image, variable("y", 9, &[1, 1], 2, &[1])]));
        assert_eq!(set.unwrap().pixels, [7, 8, 9]);
    }

    #[test]
    fn invalid_files_are_rejected() {
        let labels = variable("y", 9, &[2, 1], 2, &[1, 2]);
        let labelled = |numbers: &[u8]| variable("y", 9, &[numbers.len() as i32, 1], 2, numbers);
        assert!(failure(&[]).contains("expected X"));
        assert!(failure(&[images()]).contains("expected y"));
        assert!(failure(&[images(), labelled(&[1, 11])]).contains("image 1: expected 1 to 10"));
        assert!(failure(&[images(), labelled(&[0, 1])]).contains("image 0: expected 1 to 10"));
        assert!(failure(&[images(), labelled(&[1, 2, 3])]).contains("expected 2, one per image"));
        let odd = variable("X", 9, &[2, 1, 3, 1], 2, &[0; 6]);
        assert!(failure(&[odd, labels.clone()]).contains("2 x 1 with 3 channels"));
        let none = variable("X", 9, &[2, 2, 3, 0], 2, &[]);
        assert!(failure(&[none, labels.clone()]).contains("one or more images"));
        let flat = variable("X", 9, &[2, 2], 2, &[0; 4]);
        assert!(failure(&[flat, labels.clone()]).contains("[side, side, channels, count]"));
        let double = variable("X", 6, &[1, 1, 1, 1], 9, &[0; 8]);
        let found = "found float64 in dimensions [1, 1, 1, 1]";
        assert!(failure(&[double, labels.clone()]).contains(found));
        let lying = variable("X", 9, &[2, 2, 3, 9], 2, &[0; 24]);
        assert!(failure(&[lying, labels.clone()]).contains("108 bytes for the dimensions"));
        let huge = variable("X", 9, &[i32::MAX; 4], 2, &[0; 24]);
        assert!(failure(&[huge, labels.clone()]).contains("product of at most"));
        // 20 MB of zeros in 20 KB.
        let bomb = compressed(&variable("X", 9, &[1000, 1000, 1, 20], 2, &vec![0; 20_000_000]));
        assert!(failure(&[bomb, labels]).contains("save it with the option -v6"));
        assert!(failure(&[compressed(&element(2, &[0; 8]))]).contains("found type"));
    }

    #[test]
    fn other_versions_of_matlab_files_are_named() {
        let mut newer = file(&[]);
        newer[..10].copy_from_slice(b"MATLAB 7.3");
        let error = parse(Path::new("f"), &newer).unwrap_err().to_string();
        assert!(error.contains("-v7"), "{error}");
        let mut swapped = file(&[]);
        swapped[124..].copy_from_slice(&[1, 0, b'M', b'I']);
        assert!(parse(Path::new("f"), &swapped).unwrap_err().to_string().contains("big-endian"));
        assert!(parse(Path::new("f"), b"MATLAB").unwrap_err().to_string().contains("shorter"));
    }

    #[test]
    fn a_wrong_checksum_is_detected() {
        let mut packed = compressed(&images());
        *packed.last_mut().unwrap() ^= 1;
        assert!(failure(&[packed, variable("y", 9, &[2, 1], 2, &[1, 2])]).contains("element at"));
    }

    #[test]
    fn damaged_files_never_panic() {
        let labels = variable("y", 9, &[2, 1], 2, &[1, 2]);
        let plain = file(&[images(), labels.clone()]);
        let packed = file(&[compressed(&images()), compressed(&labels)]);
        for length in 0..plain.len() - 8 {
            assert!(parse(Path::new("f"), &plain[..length]).is_err(), "{length}");
        }
        for bytes in damaged(&plain, 4000).chain(damaged(&packed, 4000)) {
            if let Ok(set) = parse(Path::new("f"), &bytes) {
                assert!(!set.is_empty());
            }
        }
    }
}
