//! The decoders of untrusted files, each as a function of bytes, with its memory limit.
//!
//! The fuzz targets and `crates/data/tests/mutated.rs`, which includes this file, share this list,
//! so that neither can miss a decoder. Checksums and compression keep damage from the code after
//! them, so some decoders are listed twice: with the damaged file as it is, and with damaged
//! content that is then compressed or given valid checksums.

use crate::decoder::{Decoder, as_it_is};
use fedanchor_data::formats::{Options, cifar, folder, idx, mat, npz, picture_files};
use fedanchor_data::{ImageSet, Result, fetch};
use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::{Compression, Crc};
use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::write::{SimpleFileOptions, ZipWriter};

/// Every decoder of untrusted files in this crate.
pub const DECODERS: [Decoder; 15] = [
    Decoder {
        name: "cifar-binary",
        family: "cifar",
        seeds: &[".bin"],
        wrap: as_it_is,
        decode: cifar_binary,
        most: |bytes| 4 * bytes + (64 << 10),
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
        name: "bitmap",
        family: "bitmap",
        seeds: &[".bmp", ".gif", ".webp"],
        wrap: as_it_is,
        decode: picture,
        most: pictures,
    },
    Decoder {
        name: "tiff",
        family: "tiff",
        seeds: &[".tif", ".ppm", ".pgm", ".pbm"],
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
    Decoder {
        name: "label-studio",
        family: "label-studio",
        seeds: &[".json"],
        wrap: as_it_is,
        decode: label_studio,
        most: |bytes| 128 * bytes + (64 << 10),
    },
];

/// The limit of unpacking, as in `formats/checks.rs`.
fn unpacked(bytes: usize) -> usize {
    128 * bytes + (16 << 20)
}

/// The file, the bytes of two arrays in doubling buffers, pixels, and labels as numbers, also in a
/// doubling buffer: two, two, one and three times the unpacked size.
fn arrays(bytes: usize) -> usize {
    9 * unpacked(bytes)
}

/// The file, and the cost of 100 megapixels: 16 bytes each while they are decoded, as in
/// `pictures/budget.rs`, and 3 in the set; also the content of a file other than pixels.
fn pictures(bytes: usize) -> usize {
    2 * bytes + 19 * 100_000_000 + (64 << 20)
}

/// Only the name of an entry is kept, which may be the whole unpacked archive, in a doubling
/// buffer.
fn archives(bytes: usize) -> usize {
    4 * (16 * bytes + (1 << 20))
}

// Decoding.

/// Overwrites a file. Truncating it first, as usual, makes some file systems wait for the disk.
fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_len(bytes.len() as u64)
    });
    written.expect("cannot write a temporary file");
    path
}

/// Whether a set was read. If so it must be consistent, or training would panic.
fn sound(set: Result<ImageSet>) -> bool {
    let Ok(set) = set else { return false };
    assert!(!set.is_empty() && set.pixels.len() == set.len() * set.shape.bytes());
    if let Some(labels) = &set.labels {
        assert_eq!((labels.len(), set.class_counts().iter().sum()), (set.len(), set.len()));
    }
    true
}

fn cifar_binary(folder: &Path, bytes: &[u8]) -> bool {
    // If the length fits both sets or neither, the name decides.
    let [ten, hundred] =
        ["data_batch_1.bin", "train.bin"].map(|name| sound(cifar::read(&put(folder, name, bytes))));
    ten || hundred
}

fn svhn(folder: &Path, bytes: &[u8]) -> bool {
    sound(mat::read(&put(folder, "train_32x32.mat", bytes)))
}

fn mnist(folder: &Path, bytes: &[u8]) -> bool {
    let path = put(folder, "foreign", bytes);
    let images = put(folder, "images", &[0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 5, 6, 7]);
    let as_images = sound(idx::read(&path, None, &idx::MNIST));
    as_images || sound(idx::read(&images, Some(&path), &idx::MNIST))
}

fn numpy(folder: &Path, bytes: &[u8]) -> bool {
    sound(npz::read(&put(folder, "train.npz", bytes), None))
}

fn picture(folder: &Path, bytes: &[u8]) -> bool {
    // The content decides the format, not the name.
    put(folder, "a.png", bytes);
    let [as_it_is, resized] = [None, Some(8)]
        .map(|size| sound(folder::read(folder, &Options { size, ..Options::default() })));
    as_it_is || resized
}

fn archive(folder: &Path, bytes: &[u8]) -> bool {
    let path = put(folder, "set.tar.gz", bytes);
    let content = folder.join("content");
    if content.exists() {
        fs::remove_dir_all(&content).expect("cannot remove the unpacked files");
    }
    fs::create_dir(&content).expect("cannot create a folder");
    let outcome = fetch::unpack(&path, &content, &mut |_| {});
    let entries = fs::read_dir(folder).expect("cannot list a folder").count();
    assert_eq!(entries, 2, "files were written outside the target folder");
    outcome.is_ok()
}

fn label_studio(folder: &Path, bytes: &[u8]) -> bool {
    fs::create_dir_all(folder.join("photos")).expect("cannot create a folder");
    for name in ["photos/1.png", "photos/2 b.png", "photos/3.png"] {
        put(folder, name, &[]); // only their names are read
    }
    let files = picture_files(&put(folder, "export.json", bytes), &Options::default());
    files.is_ok_and(|files| !files.train.is_empty())
}

// Wrapping.

const IN_MEMORY: &str = "writing to memory cannot fail";

fn gzip(bytes: Vec<u8>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&bytes).and_then(|()| encoder.finish()).expect(IN_MEMORY)
}

/// Compresses each variable of a MATLAB file.
fn compress_variables(bytes: Vec<u8>) -> Vec<u8> {
    let (header, mut rest) = bytes.split_at(bytes.len().min(128));
    let mut file = header.to_vec();
    while let Some((tag, _)) = rest.split_first_chunk::<8>() {
        let size = u32::from_le_bytes([tag[4], tag[5], tag[6], tag[7]]) as usize;
        let (variable, after) = rest.split_at(rest.len().min(8 + size));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        let packed = encoder.write_all(variable).and_then(|()| encoder.finish());
        let packed = packed.expect(IN_MEMORY);
        file.extend(15u32.to_le_bytes());
        file.extend((packed.len() as u32).to_le_bytes());
        file.extend(packed);
        rest = after;
    }
    file
}

/// Packs two consecutive numpy arrays as the arrays X and y of an archive.
fn zip_arrays(bytes: Vec<u8>) -> Vec<u8> {
    const START: &[u8] = b"\x93NUMPY";
    let second = bytes.windows(START.len()).skip(1).position(|window| window == START);
    let (images, labels) = bytes.split_at(second.map_or(bytes.len(), |at| at + 1));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, array) in [("X.npy", images), ("y.npy", labels)] {
        if !array.is_empty() {
            zip.start_file(name, SimpleFileOptions::default()).expect(IN_MEMORY);
            zip.write_all(array).expect(IN_MEMORY);
        }
    }
    zip.finish().expect(IN_MEMORY).into_inner()
}

/// Corrects the checksum of every chunk of a PNG file.
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

/// Corrects the checksum of everything in a tar archive that looks like a header.
fn mend_headers(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    bytes
}
