//! The decoders that meet foreign bytes, each as a function of bytes, with what it may cost.
//!
//! One list for both who throw damaged bytes at them: the fuzz targets beside this file, and
//! `crates/data/tests/mutated.rs`, which includes it, so that neither can forget a decoder the other
//! knows. Checksums and compression keep damage away from what lies behind them; so some decoders
//! are here twice, as the file comes and with its wrapping made anew around the damage.

use crate::decoder::{Decoder, as_it_is};
use fedanchor_data::formats::{cifar, folder, idx, known, mat, npz};
use fedanchor_data::{ImageSet, Result, fetch};
use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::{Compression, Crc};
use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::write::{SimpleFileOptions, ZipWriter};

/// Every decoder of this crate that reads what others wrote.
pub const DECODERS: [Decoder; 13] = [
    Decoder {
        name: "cifar-binary",
        family: "cifar",
        seeds: &[".bin"],
        wrap: as_it_is,
        decode: cifar_binary,
        most: |bytes| 4 * bytes + (64 << 10),
    },
    Decoder {
        name: "cifar-python",
        family: "cifar",
        seeds: &[".pkl"],
        wrap: as_it_is,
        decode: cifar_python,
        most: |bytes| 128 * bytes + (64 << 10),
    },
    Decoder {
        name: "mat",
        family: "mat",
        seeds: &[".mat"],
        wrap: as_it_is,
        decode: svhn,
        most: arrays,
    },
    Decoder {
        name: "mat-wrapped",
        family: "mat",
        seeds: &["plain.mat"],
        wrap: compress_variables,
        decode: svhn,
        most: arrays,
    },
    Decoder {
        name: "idx",
        family: "idx",
        seeds: &[""],
        wrap: as_it_is,
        decode: mnist,
        most: arrays,
    },
    Decoder {
        name: "idx-wrapped",
        family: "idx",
        seeds: &["images", "labels"],
        wrap: gzip,
        decode: mnist,
        most: arrays,
    },
    Decoder {
        name: "npz",
        family: "npz",
        seeds: &[".npz"],
        wrap: as_it_is,
        decode: numpy,
        most: arrays,
    },
    Decoder {
        name: "npz-wrapped",
        family: "npz",
        seeds: &[".npy"],
        wrap: zip_arrays,
        decode: numpy,
        most: arrays,
    },
    Decoder {
        name: "png",
        family: "png",
        seeds: &[".png"],
        wrap: as_it_is,
        decode: picture,
        most: pictures,
    },
    Decoder {
        name: "png-wrapped",
        family: "png",
        seeds: &[".png"],
        wrap: mend_chunks,
        decode: picture,
        most: pictures,
    },
    Decoder {
        name: "jpeg",
        family: "jpeg",
        seeds: &[".jpg"],
        wrap: as_it_is,
        decode: picture,
        most: pictures,
    },
    Decoder {
        name: "archive",
        family: "archive",
        seeds: &[".gz"],
        wrap: as_it_is,
        decode: archive,
        most: archives,
    },
    Decoder {
        name: "archive-wrapped",
        family: "archive",
        seeds: &[".tar"],
        wrap: |bytes| gzip(mend_headers(bytes)),
        decode: archive,
        most: archives,
    },
];

/// What packed data may unpack to, as in `formats/checks.rs`.
fn unpacked(bytes: usize) -> usize {
    128 * bytes + (16 << 20)
}

/// The file, the bytes of two arrays in buffers that double, pixels, and labels as numbers, again in
/// a buffer that doubles: two, two, one and three times what is unpacked.
fn arrays(bytes: usize) -> usize {
    9 * unpacked(bytes)
}

/// The file, the pixels decoded and at their place, and the 16-bit coefficients of up to four
/// components from which they are computed.
fn pictures(bytes: usize) -> usize {
    6 * unpacked(bytes)
}

/// Nothing is kept but the name of an entry, which may be all that the archive unpacks to, in a
/// buffer that doubles.
fn archives(bytes: usize) -> usize {
    4 * (16 * bytes + (1 << 20))
}

// Decoding.

/// Writes a file over what was there. Emptying it first, as usual, makes some file systems wait for
/// the disk.
fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_len(bytes.len() as u64)
    });
    written.expect("a temporary file can be written");
    path
}

/// Whether there is a set. If so it must be consistent, or training panics later.
fn sound(set: Result<ImageSet>) -> bool {
    let Ok(set) = set else { return false };
    assert!(!set.is_empty() && set.pixels.len() == set.len() * set.shape.bytes());
    if let Some(labels) = &set.labels {
        assert_eq!((labels.len(), set.class_counts().iter().sum()), (set.len(), set.len()));
    }
    true
}

fn cifar_binary(folder: &Path, bytes: &[u8]) -> bool {
    // Where the length fits both sets or neither, the name decides.
    let [ten, hundred] =
        ["data_batch_1.bin", "train.bin"].map(|name| sound(cifar::read(&put(folder, name, bytes))));
    ten || hundred
}

fn cifar_python(folder: &Path, bytes: &[u8]) -> bool {
    sound(cifar::read(&put(folder, "data_batch_1", bytes)))
}

fn svhn(folder: &Path, bytes: &[u8]) -> bool {
    sound(mat::read(&put(folder, "train_32x32.mat", bytes)))
}

fn mnist(folder: &Path, bytes: &[u8]) -> bool {
    let path = put(folder, "foreign", bytes);
    let images = put(folder, "images", &[0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 5, 6, 7]);
    let as_images = sound(idx::read(&path, None, &known::MNIST));
    as_images || sound(idx::read(&images, Some(&path), &known::MNIST))
}

fn numpy(folder: &Path, bytes: &[u8]) -> bool {
    sound(npz::read(&put(folder, "train.npz", bytes), None))
}

fn picture(folder: &Path, bytes: &[u8]) -> bool {
    // Whatever it holds: the content decides, not the name.
    put(folder, "a.png", bytes);
    let [as_it_is, resized] = [None, Some(8)].map(|size| sound(folder::read(folder, size)));
    as_it_is || resized
}

fn archive(folder: &Path, bytes: &[u8]) -> bool {
    let path = put(folder, "set.tar.gz", bytes);
    let content = folder.join("content");
    if content.exists() {
        fs::remove_dir_all(&content).expect("what was unpacked can be removed");
    }
    fs::create_dir(&content).expect("a folder can be made");
    let outcome = fetch::unpack(&path, &content, &mut |_| {});
    let beside = fs::read_dir(folder).expect("a folder can be listed").count();
    assert_eq!(beside, 2, "nothing is written beside the folder for the content");
    outcome.is_ok()
}

// Wrapping.

fn gzip(bytes: Vec<u8>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&bytes).and_then(|()| encoder.finish()).expect("memory takes all")
}

/// The variables of a MATLAB file, each compressed.
fn compress_variables(bytes: Vec<u8>) -> Vec<u8> {
    let (header, mut rest) = bytes.split_at(bytes.len().min(128));
    let mut file = header.to_vec();
    while let Some((tag, _)) = rest.split_first_chunk::<8>() {
        let size = u32::from_le_bytes([tag[4], tag[5], tag[6], tag[7]]) as usize;
        let (variable, after) = rest.split_at(rest.len().min(8 + size));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        let packed = encoder.write_all(variable).and_then(|()| encoder.finish());
        let packed = packed.expect("memory takes all");
        file.extend(15u32.to_le_bytes());
        file.extend((packed.len() as u32).to_le_bytes());
        file.extend(packed);
        rest = after;
    }
    file
}

/// Numpy arrays that follow one another, as the arrays X and y of an archive.
fn zip_arrays(bytes: Vec<u8>) -> Vec<u8> {
    const START: &[u8] = b"\x93NUMPY";
    let second = bytes.windows(START.len()).skip(1).position(|window| window == START);
    let (images, labels) = bytes.split_at(second.map_or(bytes.len(), |at| at + 1));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, array) in [("X.npy", images), ("y.npy", labels)] {
        if !array.is_empty() {
            zip.start_file(name, SimpleFileOptions::default()).expect("memory takes all");
            zip.write_all(array).expect("memory takes all");
        }
    }
    zip.finish().expect("memory takes all").into_inner()
}

/// A PNG file with the right checksum behind every chunk.
fn mend_chunks(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
        let end = at + 8 + length;
        if bytes.len() < end + 4 {
            break;
        }
        let mut crc = Crc::new();
        crc.update(&bytes[at + 4..end]);
        bytes[end..end + 4].copy_from_slice(&crc.sum().to_be_bytes());
        at = end + 4;
    }
    bytes
}

/// A tar archive with the right checksum in everything that looks like a header.
fn mend_headers(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    bytes
}
