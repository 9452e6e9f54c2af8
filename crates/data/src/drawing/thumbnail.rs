//! Single images as files of their own.

use crate::{DataError, Result, Shape};
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;
use std::path::Path;

/// Good enough for a person to recognise what is shown.
const QUALITY: u8 = 85;

/// An image of a shape as the bytes of a JPEG file.
pub fn jpeg(shape: Shape, pixels: &[u8]) -> Result<Vec<u8>> {
    let colour = if shape.channels == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    let (mut bytes, side) = (Vec::new(), shape.side as u32);
    JpegEncoder::new_with_quality(&mut bytes, QUALITY).encode(pixels, side, side, colour).map_err(
        |error| {
            DataError::malformed(
                Path::new("thumbnail"),
                "image",
                "pixels of its shape",
                error.to_string(),
            )
        },
    )?;
    Ok(bytes)
}

/// Writes an image of a shape as a PNG file.
pub fn write_png(shape: Shape, pixels: &[u8], path: &Path) -> Result<()> {
    let colour = if shape.channels == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    let side = shape.side as u32;
    image::save_buffer_with_format(path, pixels, side, side, colour, image::ImageFormat::Png)
        .map_err(|error| DataError::io(path, std::io::Error::other(error)))
}
