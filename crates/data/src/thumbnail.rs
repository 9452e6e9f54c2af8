//! Single images as files.

use crate::{DataError, Result, Shape};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::path::Path;

/// An image of a shape as the bytes of a JPEG file, of a quality that suffices for a person.
pub fn jpeg(shape: Shape, pixels: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    encode(shape, pixels, JpegEncoder::new_with_quality(&mut bytes, 85))?;
    Ok(bytes)
}

/// An image of a shape as the bytes of a PNG file.
pub fn png(shape: Shape, pixels: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    encode(shape, pixels, PngEncoder::new(&mut bytes))?;
    Ok(bytes)
}

/// Writes an image of a shape as a PNG file.
pub fn write_png(shape: Shape, pixels: &[u8], path: &Path) -> Result<()> {
    let png = png(shape, pixels)?;
    fedanchor_disk::write(path, &[&png]).map_err(|error| DataError::io(path, error))
}

fn encode(shape: Shape, pixels: &[u8], encoder: impl ImageEncoder) -> Result<()> {
    let colour = if shape.channels == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    let side = shape.side as u32;
    encoder
        .write_image(pixels, side, side, colour)
        .map_err(|error| DataError::malformed("thumbnail", "image", "pixels of its shape", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_png_has_the_very_pixels() {
        for channels in [1, 3] {
            let shape = Shape { side: 3, channels };
            let pixels: Vec<u8> = (0..shape.bytes() as u8).map(|at| at * 9).collect();
            let picture = image::load_from_memory(&png(shape, &pixels).unwrap()).unwrap();
            assert_eq!(usize::from(picture.color().channel_count()), channels);
            assert_eq!(picture.into_bytes(), pixels);
        }
    }
}
