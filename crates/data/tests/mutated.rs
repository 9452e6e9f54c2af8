//! Runs every decoder of this crate on damaged files; see `mutate.rs`.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../fuzz/src/damage.rs"]
mod damage;
#[path = "../fuzz/src/decoder.rs"]
mod decoder;
#[path = "../fuzz/src/decoders.rs"]
mod decoders;
#[path = "../fuzz/src/mutate.rs"]
mod mutate;

use decoder::scratch;
use decoders::DECODERS;
use mutate::{TURN, survives};
use std::sync::PoisonError;

/// Random damage rarely produces the files that need the most memory for their size, so these are
/// built on purpose.
#[test]
fn limits_hold_for_the_costliest_files() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch().unwrap();
    let run = |name: &str, bytes: &[u8]| {
        let decoder = DECODERS.iter().find(|decoder| decoder.name == name).unwrap();
        let folder = tempfile::tempdir_in(folder.path()).unwrap();
        let bytes = (decoder.wrap)(bytes.to_vec());
        let outcome = decoder.run(folder.path(), &bytes);
        let (memory, length) = (outcome.memory.div_ceil(1024), bytes.len());
        let most = (decoder.most)(length) / 1024;
        println!("{name}: {length} bytes, peak memory {memory} KiB (limit {most} KiB)");
        outcome
    };

    // Arrays of ones, just within the limit of unpacking.
    let ones = vec![1; 16 << 20];
    let images = [&[0, 0, 8, 3, 0, 0, 0, 16, 0, 0, 4, 0, 0, 0, 4, 0], &ones[..]].concat();
    assert!(run("idx-wrapped", &images).accepted);
    let labels = [&[0, 0, 8, 1, 1, 0, 0, 0], &ones[..]].concat();
    run("idx-wrapped", &labels);
    let header = |shape: &str| {
        let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n");
        let length = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes()].concat()
    };
    let arrays = [header("(1398101, 3, 2, 2)"), ones[4..].into(), header("(16777216,)")];
    run("npz-wrapped", &[&arrays.concat(), &ones[..]].concat());
    let variable = |name: u8, dims: [u32; 4]| {
        let dims = dims.map(u32::to_le_bytes).concat();
        let body = [
            &[6, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 16, 0, 0, 0][..],
            &dims,
            &[1, 0, 1, 0, name, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1],
            &ones,
        ];
        let body = body.concat();
        [&14u32.to_le_bytes()[..], &(body.len() as u32).to_le_bytes(), &body].concat()
    };
    let mut file = [b' '; 128];
    file[124..].copy_from_slice(&[0, 1, b'I', b'M']);
    let variables = [variable(b'X', [1, 1, 1, 1 << 24]), variable(b'y', [1 << 24, 1, 1, 1])];
    run("mat-wrapped", &[&file[..], &variables.concat()].concat());

    // Flat pictures: four million pixels in a few kilobytes, of 1 and of 8 bytes. The limit is that
    // of 100 megapixels; smaller ones must cost in proportion.
    let grey = image::DynamicImage::new_luma8(2048, 2048);
    let colour = image::DynamicImage::new_rgb8(2048, 2048);
    let deep = image::DynamicImage::new_rgba16(2048, 2048);
    for (name, picture, format) in [
        ("png", &grey, image::ImageFormat::Png),
        ("png", &deep, image::ImageFormat::Png),
        ("jpeg", &grey, image::ImageFormat::Jpeg),
        ("bitmap", &colour, image::ImageFormat::Bmp),
        ("bitmap", &colour, image::ImageFormat::Gif),
        ("bitmap", &colour, image::ImageFormat::WebP),
        ("tiff", &deep, image::ImageFormat::Tiff),
        ("tiff", &colour, image::ImageFormat::Pnm),
    ] {
        let mut file = std::io::Cursor::new(Vec::new());
        picture.write_to(&mut file, format).unwrap();
        let outcome = run(name, file.get_ref());
        assert!(outcome.accepted, "{format:?}");
        let most = 19 * (2048 * 2048) + 2 * file.get_ref().len() + (1 << 20);
        assert!(outcome.memory <= most, "{format:?}: {} bytes", outcome.memory);
    }

    // An entry with a name of one megabyte.
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, "a/".repeat(1 << 19), &b""[..]).unwrap();
    run("archive-wrapped", &builder.into_inner().unwrap());
}

macro_rules! every_decoder {
    ($($test:ident: $name:literal),*) => {
        $(#[test] fn $test() { survives(&DECODERS, $name) })*

        #[test]
        fn every_decoder_is_tested() {
            assert_eq!(DECODERS.map(|decoder| decoder.name), [$($name),*]);
        }
    };
}

every_decoder!(
    cifar_binary: "cifar-binary",
    mat: "mat",
    mat_wrapped: "mat-wrapped",
    idx: "idx",
    idx_wrapped: "idx-wrapped",
    npz: "npz",
    npz_wrapped: "npz-wrapped",
    png: "png",
    png_wrapped: "png-wrapped",
    jpeg: "jpeg",
    bitmap: "bitmap",
    tiff: "tiff",
    archive: "archive",
    archive_wrapped: "archive-wrapped",
    label_studio: "label-studio"
);
