//! A drawing surface for rectangles, images and text.
//!
//! Text uses a small bitmap font made for this crate. A font library would add outlines, shaping
//! and a font file for a few dozen labels in ASCII.

use super::Colour;
use crate::{DataError, Result};
use image::{ImageError, ImageFormat, Rgb, RgbImage};
use std::io;
use std::path::Path;

/// Height of a capital letter in font pixels.
const CAPITAL: u32 = 7;
/// Width of a character including the space after it, in font pixels.
const ADVANCE: u32 = 6;

/// The characters ' ' to '~', 5 pixels wide and 9 high (the last two rows are below the baseline),
/// as bit `5 * row + column` from the top left.
#[rustfmt::skip]
const GLYPHS: [u64; 95] = [
    0x000000000000, 0x000100421084, 0x00000000014a, 0x000295f57d4a, 0x00011f4717c4, 0x000672222273,
    0x000593511526, 0x000000000084, 0x000208210888, 0x000088842082, 0x000009575480, 0x0000084f9080,
    0x001108000000, 0x000000070000, 0x000100000000, 0x000042222210, 0x0003a318c62e, 0x0003884210c4,
    0x0007c444422e, 0x0003a306422e, 0x000211f4a988, 0x0003a3083c3f, 0x0003a317844c, 0x00010844221f,
    0x0003a317462e, 0x0001910f462e, 0x000008001000, 0x001108001000, 0x000208208888, 0x000001f07c00,
    0x000088882082, 0x00010044422e, 0x000383daf62e, 0x0004631fc62e, 0x0003e317c62f, 0x0003a210862e,
    0x0003e318c62f, 0x0007c217843f, 0x00004217843f, 0x0003a31e862e, 0x0004631fc631, 0x00038842108e,
    0x00019284211c, 0x000452519531, 0x0007c2108421, 0x0004631ad771, 0x0004631cd671, 0x0003a318c62e,
    0x00004217c62f, 0x00059358c62e, 0x00045257c62f, 0x0003e107043e, 0x00010842109f, 0x0003a318c631,
    0x000114a8c631, 0x0004775ac631, 0x000462a22a31, 0x000108422a31, 0x0007c222221f, 0x00038421084e,
    0x000420820821, 0x00039084210e, 0x000000004544, 0x00f800000000, 0x000000000082, 0x0007a3e83800,
    0x0003e318bc21, 0x0003a218b800, 0x0007a318fa10, 0x000383f8b800, 0x000084238a4c, 0x0e87a318f800,
    0x00046318bc21, 0x000388421804, 0x064210843008, 0x00024a32a421, 0x000388421086, 0x00056b5aac00,
    0x00046318bc00, 0x0003a318b800, 0x010be318bc00, 0x1087a318f800, 0x00004219b400, 0x0003e0e0f800,
    0x000324211c42, 0x0007a318c400, 0x00011518c400, 0x0002ab58c400, 0x000454454400, 0x0e87a318c400,
    0x0007c4447c00, 0x00030841108c, 0x000108421084, 0x000188441086, 0x0000008a8800,
];

/// A white picture to draw on. Drawing is clipped to it.
pub(super) struct Canvas(RgbImage);

impl Canvas {
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self(RgbImage::from_pixel(width, height, Rgb([255; 3])))
    }

    pub(super) fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, colour: Colour) {
        let right = x.saturating_add(width).min(self.0.width());
        let bottom = y.saturating_add(height).min(self.0.height());
        for y in y..bottom {
            for x in x..right {
                self.0.put_pixel(x, y, Rgb(colour));
            }
        }
    }

    /// Draws a square image of `[side, side, channels]` bytes, every pixel `scale` wide.
    pub(super) fn image(&mut self, x: u32, y: u32, pixels: &[u8], side: usize, scale: u32) {
        let channels = pixels.len() / (side * side);
        for (index, pixel) in pixels.chunks_exact(channels).enumerate() {
            let colour = match *pixel {
                [red, green, blue] => [red, green, blue],
                _ => [pixel[0]; 3],
            };
            let (column, row) = ((index % side) as u32, (index / side) as u32);
            self.rectangle(x + column * scale, y + row * scale, scale, scale, colour);
        }
    }

    /// Writes text with its top left corner at x, y. Characters outside ASCII become '?'.
    pub(super) fn text(&mut self, x: u32, y: u32, scale: u32, colour: Colour, text: &str) {
        for (position, character) in text.chars().enumerate() {
            let known = if (' '..='~').contains(&character) { character } else { '?' };
            let glyph = GLYPHS[known as usize - ' ' as usize];
            for bit in (0..45).filter(|bit| glyph >> bit & 1 == 1) {
                let x = x + (position as u32 * ADVANCE + bit % 5) * scale;
                self.rectangle(x, y + bit / 5 * scale, scale, scale, colour);
            }
        }
    }

    pub(super) fn save(&self, path: &Path) -> Result<()> {
        self.0.save_with_format(path, ImageFormat::Png).map_err(|error| match error {
            ImageError::IoError(error) => DataError::io(path, error),
            other => DataError::io(path, io::Error::other(other)),
        })
    }
}

/// Width of a text in pixels.
pub(super) fn text_width(scale: u32, text: &str) -> u32 {
    (text.chars().count() as u32 * ADVANCE).saturating_sub(1) * scale
}

/// Height of a line of text in pixels, without descenders.
pub(super) fn text_height(scale: u32) -> u32 {
    CAPITAL * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_drawn_with_descenders() {
        let mut canvas = Canvas::new(11, 9);
        canvas.text(0, 0, 1, [0; 3], "Lg");
        let rows: Vec<String> = (0..9)
            .map(|y| {
                (0..11).map(|x| if canvas.0[(x, y)].0 == [0; 3] { '#' } else { '.' }).collect()
            })
            .collect();
        assert_eq!(
            rows,
            [
                "#..........",
                "#..........",
                "#......####",
                "#.....#...#",
                "#.....#...#",
                "#.....#...#",
                "#####..####",
                "..........#",
                ".......###.",
            ]
        );
        assert_eq!((text_width(2, "Lg"), text_height(2)), (22, 14));
    }

    #[test]
    fn drawing_is_clipped_at_the_edge() {
        let mut canvas = Canvas::new(4, 4);
        canvas.rectangle(2, 2, u32::MAX, 9, [1; 3]);
        canvas.text(3, 3, 2, [0; 3], "\u{e9}W");
        assert_eq!(canvas.0[(2, 2)].0, [1; 3]);
        assert_eq!(canvas.0[(1, 1)].0, [255; 3]);
    }
}
