//! Reading one picture: of a data set, of a folder to predict, or sent over a network.
//!
//! The content of a file decides its format, not its name. A picture is turned as its EXIF data
//! says, transparency is laid over white, and 16 bits per channel become the upper 8. Of files with several pictures,
//! GIF and TIFF, the first is read. A truncated file
//! is refused, although most decoders fill the rest with grey: half a photograph is
//! a wrong sample that nobody would notice.
//!
//! A header may announce up to `MAX_PIXELS` pixels. No limit depends on the size of the file, since
//! a plain scan compresses a thousand times and more. Memory is bounded by `budget` instead, which
//! all pictures share that are decoded at the same time.

mod budget;
mod finding;
mod fit;
mod foreign;
mod jpeg;
mod tiff;

pub(crate) use finding::visible;
pub use finding::{Found, find};
pub(crate) use fit::fit;
pub use fit::{FILTER, Fit};

use crate::skipped::{FORMATS, MAX_PICTURE_SIDE, MAX_PIXELS, MIN_PICTURE_SIDE, Reason};
use crate::{DataError, Result, Shape};
use image::error::ImageError;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, Rgba};
use std::io::{BufRead, BufReader, Cursor, ErrorKind, Seek};
use std::path::Path;

/// The most bytes of a file: a little more than 100 megapixels need without compression.
const MAX_FILE: u64 = 1 << 30;

/// Memory for the content of a file other than pixels: profiles, comments, palettes.
const MAX_METADATA: u64 = 64 << 20;

/// The header of a picture. Width and height are those after turning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub width: u32,
    pub height: u32,
    /// Whether the file stores grey values. Formats that always store colours (GIF, WebP and BMP)
    /// count as colour.
    pub grey: bool,
}

/// Whether a file has the name of a picture in a format that can be read.
pub(crate) fn is_picture(path: &Path) -> bool {
    by_name(path).is_ok()
}

/// An error for a file whose name is not that of a picture.
pub(crate) fn by_name(path: &Path) -> Result<(), Reason> {
    let ending = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let known =
        ["png", "jpg", "jpeg", "tif", "tiff", "bmp", "webp", "gif", "pnm", "ppm", "pgm", "pbm"];
    if known.iter().any(|known| ending.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    Err(match foreign::by_name(path) {
        Some(format) => Reason::Unsupported { format: format.to_owned() },
        None => Reason::NotAPicture,
    })
}

/// Reads a picture file as an image of a shape: `[side, side, channels]`.
pub fn read(path: &Path, shape: Shape, fit: Fit) -> Result<Vec<u8>> {
    try_read(path, shape, fit).map_err(|reason| DataError::picture(path, reason))
}

/// Decodes the content of a picture file, called `name` in errors.
pub fn decode(bytes: &[u8], name: &Path, shape: Shape, fit: Fit) -> Result<Vec<u8>> {
    try_decode(bytes, shape, fit).map_err(|reason| DataError::picture(name, reason))
}

/// [`decode`] with an error that lacks the path.
pub(crate) fn try_decode(bytes: &[u8], shape: Shape, fit: Fit) -> Result<Vec<u8>, Reason> {
    let (header, ..) = open(Cursor::new(bytes))?;
    let _share = budget::take(pixels(&header));
    unpack(bytes, shape, fit)
}

/// Whether a picture file stores colours. GIF, WebP and BMP always do.
pub fn is_coloured(path: &Path) -> bool {
    header(path).is_ok_and(|header| !header.grey)
}

pub(crate) fn header(path: &Path) -> Result<Header, Reason> {
    // Most camera raw files are TIFF files of a small preview, followed by the picture.
    if foreign::by_name(path) == Some(foreign::RAW) {
        return Err(Reason::Unsupported { format: foreign::RAW.to_owned() });
    }
    let length = length(path)?;
    let _share = budget::take(budget::of_file(length));
    let file = fedanchor_disk::open(path).map_err(|error| io(&error))?;
    open(BufReader::new(file)).map(|(header, _, _)| header)
}

/// The bytes of a picture file.
pub(crate) fn content(path: &Path) -> Result<Vec<u8>, Reason> {
    let length = length(path)?;
    let _share = budget::take(budget::of_file(length));
    fedanchor_disk::read(path, u64::MAX).map_err(|error| io(&error))
}

/// [`read`] with an error that lacks the path.
pub(crate) fn try_read(path: &Path, shape: Shape, fit: Fit) -> Result<Vec<u8>, Reason> {
    try_read_and(path, shape, fit, |_| ()).map(|((), pixels)| pixels)
}

/// The same with the result of a function of the file's bytes.
pub(crate) fn try_read_and<T>(
    path: &Path,
    shape: Shape,
    fit: Fit,
    also: impl FnOnce(&[u8]) -> T,
) -> Result<(T, Vec<u8>), Reason> {
    let header = header(path)?;
    let _share = budget::take(pixels(&header).max(budget::of_file(length(path)?)));
    let bytes = fedanchor_disk::read(path, u64::MAX).map_err(|error| io(&error))?;
    let pixels = unpack(&bytes, shape, fit)?;
    Ok((also(&bytes), pixels))
}

/// Decodes within the caller's share of the budget.
fn unpack(bytes: &[u8], shape: Shape, fit: Fit) -> Result<Vec<u8>, Reason> {
    let (_, decoder, orientation) = open(Cursor::new(bytes))?;
    let truncated = match bytes {
        [0xff, 0xd8, ..] => !jpeg::is_complete(bytes),
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => !tiff::is_complete(bytes),
        [b'R', b'I', b'F', b'F', a, b, c, d, rest @ ..] => {
            (rest.len() as u64) < u64::from(u32::from_le_bytes([*a, *b, *c, *d]))
        }
        _ => false, // the decoders of the other formats notice it
    };
    if truncated {
        return Err(Reason::Truncated);
    }
    let picture = DynamicImage::from_decoder(decoder).map_err(|error| unreadable(&error))?;
    let picture = opaque(picture);
    // Turned last, when a pixel takes the fewest bytes.
    let mut picture = match shape.channels {
        1 => DynamicImage::from(picture.into_luma8()),
        _ => DynamicImage::from(picture.into_rgb8()),
    };
    picture.apply_orientation(orientation);
    let (width, height) = (picture.width(), picture.height());
    Ok(self::fit::fit(shape, fit, width, height, picture.into_bytes()))
}

/// Reads a header; returns also the decoder for the pixels, and how the picture is to be turned.
fn open<'a>(
    mut content: impl BufRead + Seek + 'a,
) -> Result<(Header, impl ImageDecoder + 'a, Orientation), Reason> {
    let foreign = foreign::by_content(content.fill_buf().map_err(|error| io(&error))?);
    let mut reader = ImageReader::new(content).with_guessed_format().map_err(|error| io(&error))?;
    if foreign.is_some() || reader.format().is_none() {
        let found = foreign.map_or("other content".to_owned(), |format| {
            format!("a {format} picture, which is not supported: convert it")
        });
        let why = format!("expected a {FORMATS} picture, found {found}");
        return Err(Reason::Unreadable { why });
    }
    let is_tiff = reader.format() == Some(ImageFormat::Tiff);
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_METADATA);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| unreadable(&error))?;
    let (width, height) = decoder.dimensions();
    let most = u64::from(width) * u64::from(height);
    if width.max(height) > MAX_PICTURE_SIDE || most > MAX_PIXELS {
        return Err(Reason::TooLarge { width, height });
    }
    if width.min(height) < MIN_PICTURE_SIDE {
        return Err(Reason::TooSmall { width, height });
    }
    if matches!(decoder.color_type(), ColorType::Rgb32F | ColorType::Rgba32F) {
        let why = "expected whole numbers, found 32-bit floating-point values: convert them to 8 or 16 bits";
        return Err(Reason::Unreadable { why: why.to_owned() });
    }
    // A TIFF file is first decoded into a buffer of its own, with more channels if it is CMYK, and then copied; a strip of
    // it may be as large as the picture. Without room for the pixels, its decoder does not even read the orientation.
    let copies = if is_tiff { 2 } else { 1 };
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(copies * decoder.total_bytes() + MAX_METADATA);
    decoder.set_limits(limits).map_err(|error| unreadable(&error))?;
    // Damaged EXIF data is no reason to refuse the pixels.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let (width, height) = match orientation {
        Orientation::Rotate90
        | Orientation::Rotate270
        | Orientation::Rotate90FlipH
        | Orientation::Rotate270FlipH => (height, width),
        _ => (width, height),
    };
    let grey = matches!(
        decoder.color_type(),
        ColorType::L8 | ColorType::La8 | ColorType::L16 | ColorType::La16
    );
    Ok((Header { width, height, grey }, decoder, orientation))
}

/// The picture over white, with 8 bits per channel if it was transparent.
fn opaque(picture: DynamicImage) -> DynamicImage {
    if !picture.color().has_alpha() {
        return picture;
    }
    let mut picture = picture.into_rgba8();
    for Rgba([colours @ .., opacity]) in picture.pixels_mut() {
        let opacity = u32::from(std::mem::replace(opacity, u8::MAX));
        for colour in colours {
            let mixed = u32::from(*colour) * opacity + 255 * (255 - opacity);
            *colour = ((mixed + 127) / 255) as u8;
        }
    }
    picture.into()
}

fn pixels(header: &Header) -> u64 {
    u64::from(header.width) * u64::from(header.height)
}

/// The length of a file, if it is not too long.
fn length(path: &Path) -> Result<u64, Reason> {
    let length = std::fs::metadata(path).map_err(|error| io(&error))?.len();
    if length > MAX_FILE {
        let why = format!("expected a file of at most {MAX_FILE} bytes, found {length}");
        return Err(Reason::Unreadable { why });
    }
    Ok(length)
}

fn io(error: &std::io::Error) -> Reason {
    Reason::NotOpened { why: error.to_string() }
}

fn unreadable(error: &ImageError) -> Reason {
    match error {
        ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Reason::Truncated,
        ImageError::Unsupported(_) => {
            Reason::Unreadable { why: format!("{error}: convert it, for example to PNG") }
        }
        _ => Reason::Unreadable { why: error.to_string() },
    }
}

#[cfg(test)]
mod tests;
