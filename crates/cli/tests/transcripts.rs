//! What a user types and reads: every subcommand, its help, its output and its complaints, as whole
//! transcripts in `cmd/*.trycmd`. A transcript shows the text a change does to the user; assertions
//! on single words were rejected because they let the rest of a message rot.
//!
//! Where a transcript needs files it runs in the folder of its name with the ending `.in`. Those
//! of `data.in` are mostly broken on purpose, each in one way, and written here before the
//! commands run: code says what is wrong with them, which a committed binary file would hide. Git
//! ignores that folder.
//!
//! After a change of wording: `TRYCMD=overwrite cargo test --test transcripts`, then read the
//! difference. `[..]` stands for what differs from run to run or from machine to machine.

#![allow(clippy::unwrap_used)] // the setting for tests does not reach the functions they share

use image::{GrayImage, Luma, Rgb, RgbImage};
use std::path::Path;

#[test]
fn transcripts() {
    write_data(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/data.in"));
    trycmd::TestCases::new()
        .register_bin("fedanchor", Path::new(env!("CARGO_BIN_EXE_fedanchor")))
        .env("COLUMNS", "100") // the width of help texts
        .env("CUDA_VISIBLE_DEVICES", "") // the same errors on a machine with a GPU
        .env("FEDANCHOR_CACHE", "") // nothing is written beside the files of a transcript
        .env("OMP_NUM_THREADS", "1") // commands run side by side
        .case("tests/cmd/*.trycmd");
}

/// The data sets that `data.trycmd` looks at.
fn write_data(root: &Path) {
    if root.exists() {
        std::fs::remove_dir_all(root).unwrap();
    }
    let at = |name: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).unwrap();
    let grey =
        |name: &str, side, value| GrayImage::from_pixel(side, side, Luma([value])).save(at(name));
    let colour =
        |name: &str, side, value| RgbImage::from_pixel(side, side, Rgb(value)).save(at(name));

    // Image folders: a good set, and its faults.
    for part in ["train", "test"] {
        colour(&format!("pets/{part}/cat/1.png"), 8, [200, 100, 0]).unwrap();
        colour(&format!("pets/{part}/dog/1.png"), 8, [0, 100, 200]).unwrap();
        grey(&format!("unlabelled/{part}/1.png"), 8, 50).unwrap();
        grey(&format!("no-dogs/{part}/cat/1.png"), 8, 50).unwrap();
        write(&format!("no-dogs/{part}/dog/notes.txt"), b"no image");
    }
    colour("pets/train/dog/2.png", 8, [0, 120, 240]).unwrap();
    grey("other-classes/train/cat/1.png", 8, 50).unwrap();
    grey("other-classes/test/cow/1.png", 8, 50).unwrap();
    grey("sizes/1.png", 8, 50).unwrap();
    grey("sizes/2.png", 9, 50).unwrap();
    RgbImage::from_pixel(12, 8, Rgb([0, 100, 200])).save(at("wide/dog/1.png")).unwrap();
    colour("wide/cat/1.png", 8, [200, 100, 0]).unwrap();
    write("unreadable/1.png", b"no image");
    grey("formats/1.png", 8, 50).unwrap();
    write("formats/2.heic", b"not looked at");
    write("formats/3.jxl", b"not looked at");
    write("formats/4.jpg", b"\0\0\0\x18ftypheic\0\0\0\0");
    write("two-sets/train.npz", b"");
    grey("two-sets/train/cat/1.png", 8, 50).unwrap();
    write("no-set/notes.txt", b"no image");
    write("letter.doc", b"no image");

    // Labelled and unlabelled pictures, some of them bad, and one in two places.
    colour("own/labelled/cat/1.png", 8, [200, 100, 0]).unwrap();
    colour("own/labelled/dog/1.png", 8, [0, 100, 200]).unwrap();
    colour("own/unlabelled/north/1.png", 8, [0, 100, 200]).unwrap();
    colour("own/unlabelled/north/2.png", 8, [10, 90, 20]).unwrap();
    colour("own/unlabelled/south/1.png", 8, [240, 240, 10]).unwrap();
    colour("own/test/dog/1.png", 8, [0, 50, 90]).unwrap();
    write("own/unlabelled/south/2.jpg", b"no image");
    write("own/unlabelled/notes.txt", b"no image");
    grey("one-class/labelled/cat/1.png", 8, 50).unwrap();

    // MNIST's files: a good set of ten digits, and its faults.
    let digits: Vec<u8> = (0..10).collect();
    let images = idx(3, &[10, 2, 2], &[7; 40]);
    let labels = idx(1, &[10], &digits);
    let set = |name: &str, images: &[u8], labels: &[u8]| {
        for part in ["train", "t10k"] {
            write(&format!("{name}/{part}-images-idx3-ubyte"), images);
            write(&format!("{name}/{part}-labels-idx1-ubyte"), labels);
        }
    };
    set("digits", &images, &labels);
    set("truncated", &images[..50], &labels);
    set("label-10", &images, &idx(1, &[10], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 10]));
    set("no-nine", &images, &idx(1, &[10], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 8]));
    set("wrong-magic", &idx(2, &[10, 2, 2], &[7; 40]), &labels);
    set("no-images", &idx(3, &[0, 2, 2], &[]), &idx(1, &[0], &[]));

    // One record of CIFAR-10 and half of another.
    write("cifar-10-batches-bin/data_batch_1.bin", &[3; 3073 + 1536]);
}

/// An IDX file of bytes.
fn idx(rank: u8, dims: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, rank];
    dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
    bytes.extend(data);
    bytes
}
