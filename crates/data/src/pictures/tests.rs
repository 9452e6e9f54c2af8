//! Pictures of every format, turned, transparent, damaged and large.

use super::*;
use image::{
    GrayImage, ImageBuffer, ImageEncoder, ImageFormat, Luma, LumaA, Rgb, RgbImage, RgbaImage,
};

const FOUR: Shape = Shape { side: 4, channels: 3 };
const NAME: &str = "a.png";

fn encode(picture: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    picture.into().write_to(&mut file, format).unwrap();
    file.into_inner()
}

fn pixels_of(bytes: &[u8], shape: Shape) -> Vec<u8> {
    decode(bytes, Path::new(NAME), shape, Fit::Stretch).unwrap()
}

fn reason(bytes: &[u8]) -> Reason {
    try_decode(bytes, FOUR, Fit::Stretch).unwrap_err()
}

/// Noise, so that no part of the file can be missed.
fn noise(side: u32) -> RgbImage {
    RgbImage::from_fn(side, side, |x, y| {
        let value = x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503).rotate_left(7);
        Rgb([value as u8, (value >> 8) as u8, (value >> 16) as u8])
    })
}

const ALL: [ImageFormat; 7] = [
    ImageFormat::Png,
    ImageFormat::Jpeg,
    ImageFormat::Tiff,
    ImageFormat::Bmp,
    ImageFormat::WebP,
    ImageFormat::Gif,
    ImageFormat::Pnm,
];

#[test]
fn every_format_is_read_whatever_its_name() {
    let plain = RgbImage::from_pixel(4, 4, Rgb([200, 40, 40]));
    for format in ALL {
        let pixels = pixels_of(&encode(plain.clone(), format), FOUR);
        // JPEG and the palettes of GIF are not exact.
        let near = pixels.chunks(3).all(|pixel| {
            pixel.iter().zip([200u8, 40, 40]).all(|(&value, right)| value.abs_diff(right) < 8)
        });
        assert!(near, "{format:?}: {pixels:?}");
    }
    for name in [
        "a.PNG", "a.jpg", "a.jpeg", "a.bmp", "a.webp", "a.gif", "a.TIF", "a.tiff", "a.ppm",
        "a.pgm", "a.pnm",
    ] {
        assert!(is_picture(Path::new(name)), "{name}");
    }
    for name in ["a.tifs", "a.txt", "png", ".png"] {
        assert!(!is_picture(Path::new(name)), "{name}");
    }
}

#[test]
fn files_cut_in_half_are_refused() {
    for format in ALL {
        let whole = encode(noise(64), format);
        pixels_of(&whole, FOUR);
        for length in [whole.len() / 2, whole.len() * 9 / 10] {
            let reason = reason(&whole[..length]);
            let named = reason == Reason::Truncated
                || format == ImageFormat::Gif && reason.to_string().contains("End of File");
            assert!(named, "{format:?} of {length} bytes: {reason}");
        }
    }
}

#[test]
fn bytes_after_a_jpeg_do_not_matter() {
    let whole = encode(noise(64), ImageFormat::Jpeg);
    let longer = [&whole[..], b"appended by a camera"].concat();
    assert_eq!(pixels_of(&longer, FOUR), pixels_of(&whole, FOUR));
    assert_eq!(reason(&whole[..whole.len() - 2]), Reason::Truncated);
}

#[test]
fn other_content_is_named() {
    let reason = reason(b"a text in a file named .jpg");
    let text = "unreadable: expected a PNG, JPEG, TIFF, BMP, WebP, GIF or PNM picture, found other content";
    assert_eq!(reason.to_string(), text);
    let error = decode(b"text", Path::new("a.jpg"), FOUR, Fit::Stretch).unwrap_err().to_string();
    assert_eq!(error, format!("a.jpg: {text}"));
    let error = read(Path::new("absent.jpg"), FOUR, Fit::Stretch).unwrap_err().to_string();
    assert!(error.starts_with("absent.jpg: cannot be opened: "), "{error}");
}

#[test]
fn transparency_is_laid_over_white() {
    let picture = RgbaImage::from_fn(4, 4, |x, _| match x {
        0 => Rgba([10, 20, 30, 255]),
        1 => Rgba([10, 20, 30, 0]),
        _ => Rgba([0, 100, 255, 51]), // a fifth
    });
    let pixels = pixels_of(&encode(picture, ImageFormat::Png), FOUR);
    assert_eq!(pixels[..9], [10, 20, 30, 255, 255, 255, 204, 224, 255]);
    let grey = image::GrayAlphaImage::from_pixel(4, 4, LumaA([0, 51]));
    let bytes = encode(grey, ImageFormat::Png);
    assert_eq!(pixels_of(&bytes, Shape { side: 4, channels: 1 }), [204; 16]);
    assert_eq!(pixels_of(&bytes, FOUR), [204; 48]);
    let greys = image::GrayAlphaImage::from_fn(16, 16, |x, y| LumaA([(16 * y + x) as u8, 255]));
    let pixels = pixels_of(&encode(greys, ImageFormat::Png), Shape { side: 16, channels: 1 });
    assert!(pixels.into_iter().eq(0..=255));
}

/// EXIF data with nothing but an orientation.
fn exif(orientation: u8) -> Vec<u8> {
    let entry = [1, 18, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0];
    [b"MM\0\x2a\0\0\0\x08\0\x01", &entry[..], &[0; 4]].concat()
}

#[test]
fn pictures_are_turned_as_their_exif_data_says() {
    // Two by one, in steps of 8 pixels since JPEG works on blocks: dark to the left.
    let picture = GrayImage::from_fn(16, 8, |x, _| Luma([if x < 8 { 50 } else { 200 }]));
    let turned = |orientation| {
        let mut file = Vec::new();
        let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 100);
        encoder.set_exif_metadata(exif(orientation)).unwrap();
        encoder.encode_image(&picture).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jpg");
        std::fs::write(&path, &file).unwrap();
        let header = header(&path).unwrap();
        let pixels = read(&path, Shape { side: 2, channels: 1 }, Fit::Stretch).unwrap();
        let dark: Vec<bool> = pixels.iter().map(|&value| value < 128).collect();
        (header.width, header.height, header.grey, dark)
    };
    assert_eq!(turned(1), (16, 8, true, vec![true, false, true, false]));
    assert_eq!(turned(2), (16, 8, true, vec![false, true, false, true]));
    // 6: turn by 90 degrees clockwise, so that left becomes top. 8: the other way round.
    assert_eq!(turned(6), (8, 16, true, vec![true, true, false, false]));
    assert_eq!(turned(8), (8, 16, true, vec![false, false, true, true]));
    assert_eq!(turned(77), turned(1));
}

#[test]
fn grey_follows_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.png");
    std::fs::write(&path, encode(GrayImage::new(3, 5), ImageFormat::Png)).unwrap();
    assert_eq!(header(&path).unwrap(), Header { width: 3, height: 5, grey: true });
    std::fs::write(&path, encode(GrayImage::new(3, 5), ImageFormat::WebP)).unwrap();
    assert_eq!(header(&path).unwrap(), Header { width: 3, height: 5, grey: false });
}

/// A grey PNG of one colour, made without its pixels in memory.
fn plain_scan(width: u32, height: u32) -> Vec<u8> {
    use flate2::{Compression, Crc, write::ZlibEncoder};
    use std::io::Write;
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let mut crc = Crc::new();
        crc.update(name);
        crc.update(data);
        let length = (data.len() as u32).to_be_bytes();
        [&length[..], name, data, &crc.sum().to_be_bytes()].concat()
    };
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, 0, 0, 0, 0]);
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::best());
    let row = [&[0][..], &vec![77; width as usize]].concat();
    (0..height).for_each(|_| rows.write_all(&row).unwrap());
    let start = b"\x89PNG\r\n\x1a\n";
    let rows = rows.finish().unwrap();
    [&start[..], &chunk(b"IHDR", &header), &chunk(b"IDAT", &rows), &chunk(b"IEND", b"")].concat()
}

#[test]
fn plain_scans_and_wide_pictures_are_read() {
    let shape = Shape { side: 3, channels: 1 };
    let scan = plain_scan(4000, 3000);
    assert!(scan.len() < 100_000, "{}", scan.len());
    assert_eq!(pixels_of(&scan, shape), [77; 9]);
    assert_eq!(pixels_of(&plain_scan(20_000, 2), shape), [77; 9]);
    assert_eq!(reason(&plain_scan(65_536, 2)), Reason::TooLarge { width: 65_536, height: 2 });
    assert_eq!(reason(&plain_scan(1, 1)), Reason::TooSmall { width: 1, height: 1 });
}

#[test]
fn announced_sizes_beyond_the_limit_are_refused() {
    let mut bytes = encode(noise(16), ImageFormat::Jpeg);
    // The frame header: its marker, its length, the bits of a sample, height and width.
    let at = bytes.windows(2).position(|window| window == [0xff, 0xc0]).unwrap();
    assert_eq!(bytes[at + 5..at + 9], [0, 16, 0, 16]);
    bytes[at + 5..at + 9].copy_from_slice(&[0x40, 0, 0x40, 0]);
    assert_eq!(
        reason(&bytes).to_string(),
        "too large: expected at most 100 megapixels and 65535 pixels per side, found 16384 x \
         16384 pixels"
    );
}

#[test]
fn sixteen_bits_become_the_upper_eight() {
    let grey = Shape { side: 16, channels: 1 };
    let wide = ImageBuffer::<Luma<u16>, Vec<u16>>::from_fn(16, 16, |x, y| {
        Luma([257 * (16 * y + x) as u16])
    });
    for format in [ImageFormat::Png, ImageFormat::Tiff, ImageFormat::Pnm] {
        let file = encode(wide.clone(), format);
        assert!(pixels_of(&file, grey).into_iter().eq(0..=255), "{format:?}");
        assert_eq!(reason(&file[..file.len() / 2]), Reason::Truncated, "{format:?}");
    }
    let colour = ImageBuffer::<Rgb<u16>, Vec<u16>>::from_pixel(4, 4, Rgb([0x1212, 0x80ff, 0xffff]));
    for format in [ImageFormat::Png, ImageFormat::Tiff, ImageFormat::Pnm] {
        assert_eq!(pixels_of(&encode(colour.clone(), format), FOUR), [0x12, 0x80, 0xff].repeat(16));
    }
}

#[test]
fn plain_and_packed_pnm_files_are_read() {
    let two = Shape { side: 2, channels: 1 };
    // The largest value is white, and in bitmaps 1 is black.
    for (file, expected) in [
        (&b"P2\n# by hand\n2 2\n4\n0 1 2 4\n"[..], [0, 64, 128, 255]),
        (b"P5 2 2 4\n\x00\x01\x02\x04", [0, 64, 128, 255]),
        (b"P5 2 2 4095\n\x00\x00\x04\x00\x08\x00\x0f\xff", [0, 64, 128, 255]),
        (b"P1\n2 2\n0 1\n1 0\n", [255, 0, 0, 255]),
        (b"P4 2 2\n\x40\x80", [255, 0, 0, 255]),
    ] {
        assert_eq!(pixels_of(file, two), expected, "{file:?}");
        // Without white space after it, the last number is complete too.
        let cut =
            file.len() - if file.starts_with(b"P2") || file.starts_with(b"P1") { 2 } else { 1 };
        try_decode(&file[..cut], two, Fit::Stretch).unwrap_err();
    }
    assert_eq!(
        pixels_of(b"P3 2 2 255 1 2 3 1 2 3 1 2 3 1 2 3", Shape { side: 2, channels: 3 }),
        [1, 2, 3].repeat(4)
    );
    let reason = reason(b"P5 70000 2 255\n");
    assert_eq!(reason, Reason::TooLarge { width: 70_000, height: 2 });
}

/// A TIFF file with one strip of these bytes after its directory.
fn tiff(width: u32, height: u32, entries: &[(u16, u32)], strip: &[u8]) -> Vec<u8> {
    let mut tags = vec![(256, width), (257, height), (278, height), (279, strip.len() as u32)];
    tags.extend(entries);
    let start = 8 + 2 + 12 * (tags.len() + 1) + 4;
    tags.push((273, start as u32));
    tags.sort_unstable();
    let mut file = [&b"II*\0\x08\0\0\0"[..], &(tags.len() as u16).to_le_bytes()].concat();
    for (tag, value) in tags {
        file.extend([&tag.to_le_bytes()[..], &[4, 0, 1, 0, 0, 0], &value.to_le_bytes()].concat());
    }
    [&file[..], &[0; 4], strip].concat()
}

#[test]
fn tiff_files_of_scanners_are_read() {
    // Bits per sample, compression, meaning of 0, orientation.
    let tags = |bits, white_is_zero: u32, turned| {
        [(258, bits), (259, 1), (262, 1 - white_is_zero), (274, turned)]
    };
    let two = Shape { side: 2, channels: 1 };
    let file = tiff(2, 2, &tags(8, 0, 1), &[1, 2, 3, 4]);
    assert_eq!(pixels_of(&file, two), [1, 2, 3, 4]);
    for length in 0..file.len() {
        assert!(try_decode(&file[..length], two, Fit::Stretch).is_err(), "{length} bytes");
    }
    assert_eq!(reason(&file[..file.len() - 1]), Reason::Truncated);
    assert_eq!(pixels_of(&tiff(2, 2, &tags(8, 1, 1), &[1, 2, 3, 4]), two), [254, 253, 252, 251]);
    assert_eq!(pixels_of(&tiff(2, 2, &tags(1, 0, 1), &[0x40, 0x80]), two), [0, 255, 255, 0]);
    // Turned by 90 degrees clockwise, also if the picture is larger than other content may be.
    assert_eq!(pixels_of(&tiff(2, 2, &tags(8, 0, 6), &[1, 2, 3, 4]), two), [3, 1, 4, 2]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    std::fs::write(&path, tiff(10_000, 7000, &tags(8, 0, 6), &[])).unwrap();
    assert_eq!(header(&path).unwrap(), Header { width: 7000, height: 10_000, grey: true });
    let palette = tiff(2, 2, &[(258, 8), (259, 1), (262, 3)], &[1, 2, 3, 4]);
    let text = reason(&palette).to_string();
    assert!(
        text.starts_with("unreadable: ") && text.ends_with(": convert it, for example to PNG"),
        "{text}"
    );
}

#[test]
fn tiff_files_that_are_no_pictures_of_pixels_are_refused() {
    let values = image::Rgb32FImage::from_pixel(4, 4, Rgb([0.5, 7.0, -1.0]));
    let text = "unreadable: expected whole numbers, found 32-bit floating-point values: convert them to 8 or 16 bits";
    assert_eq!(reason(&encode(values, ImageFormat::Tiff)).to_string(), text);
    // The preview in a camera raw file is not the picture.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.NEF");
    std::fs::write(&path, encode(noise(4), ImageFormat::Tiff)).unwrap();
    let error = read(&path, FOUR, Fit::Stretch).unwrap_err().to_string();
    assert!(error.contains("a.NEF: camera raw is not supported: convert it to PNG"), "{error}");
}
