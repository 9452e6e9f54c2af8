//! From a picture of any size to a square one.

use crate::{DataError, DataSet, ImageSet, Result, Shape, Unlabelled};
use image::imageops::{FilterType, crop_imm, overlay, resize};
use image::{ImageBuffer, Luma, Pixel, Rgb};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the filter that pictures are resized with, for those who use a model elsewhere. It is widened where a side
/// becomes shorter (antialiasing), and only the result is rounded.
pub const FILTER: &str = "lanczos3";

/// How a picture that is not square becomes square. Square pictures are the same under all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// All of it, stretched out of proportion.
    #[default]
    Stretch,
    /// The middle, without the ends of the longer side.
    Crop,
    /// All of it in proportion, in the middle of a square of the mean colour of its border.
    Pad,
}

impl std::str::FromStr for Fit {
    type Err = DataError;

    fn from_str(word: &str) -> Result<Self> {
        let fits = [Self::Stretch, Self::Crop, Self::Pad];
        fits.into_iter().find(|fit| fit.to_string() == word).ok_or_else(|| {
            DataError::Unusable(format!("expected `stretch`, `crop` or `pad`, got `{word}`"))
        })
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// The 8-bit pixels of a picture as an image of a shape with the same number of channels.
pub(crate) fn fit(shape: Shape, fit: Fit, width: u32, height: u32, bytes: Vec<u8>) -> Vec<u8> {
    let side = shape.side as u32;
    if (width, height) == (side, side) {
        return bytes;
    }
    match shape.channels {
        1 => square::<Luma<u8>>(side, fit, width, height, bytes),
        _ => square::<Rgb<u8>>(side, fit, width, height, bytes),
    }
}

impl ImageSet {
    /// The same images in another shape.
    pub fn fitted(self, shape: Shape) -> Self {
        let mut set = self.with_channels(shape.channels);
        let side = set.shape.side as u32;
        if set.shape != shape {
            let images = set.pixels.par_chunks_exact(set.shape.bytes());
            let fitted =
                images.flat_map_iter(|image| fit(shape, Fit::Stretch, side, side, image.to_vec()));
            set.pixels = fitted.collect();
            set.shape = shape;
        }
        set
    }
}

impl DataSet {
    /// The same images in another shape.
    pub fn fitted(self, shape: Shape) -> Self {
        let of = |part: Unlabelled| Unlabelled { images: part.images.fitted(shape), ..part };
        Self {
            train: self.train.fitted(shape),
            test: self.test.fitted(shape),
            unlabelled: self.unlabelled.map(of),
            ..self
        }
    }
}

fn square<P: Pixel<Subpixel = u8> + 'static>(
    side: u32,
    fit: Fit,
    width: u32,
    height: u32,
    bytes: Vec<u8>,
) -> Vec<u8> {
    let picture = ImageBuffer::<P, Vec<u8>>::from_raw(width, height, bytes)
        .expect("the bytes of a picture match its size");
    let filter = FilterType::Lanczos3;
    match fit {
        Fit::Crop if width != height => {
            let shorter = width.min(height);
            let (left, top) = ((width - shorter) / 2, (height - shorter) / 2);
            let middle = crop_imm(&picture, left, top, shorter, shorter);
            resize(&*middle, side, side, filter).into_raw()
        }
        Fit::Pad if width != height => {
            let longer = u64::from(width.max(height));
            // Rounded to the nearest pixel, and at least one.
            let scaled = |length: u32| {
                ((2 * u64::from(length) * u64::from(side) + longer) / (2 * longer)).max(1) as u32
            };
            let mut canvas = ImageBuffer::from_pixel(side, side, border(&picture));
            let small = resize(&picture, scaled(width), scaled(height), filter);
            let (left, top) = ((side - small.width()) / 2, (side - small.height()) / 2);
            overlay(&mut canvas, &small, i64::from(left), i64::from(top));
            canvas.into_raw()
        }
        _ => resize(&picture, side, side, filter).into_raw(),
    }
}

/// The mean colour of the outermost pixels.
fn border<P: Pixel<Subpixel = u8>>(picture: &ImageBuffer<P, Vec<u8>>) -> P {
    let (right, bottom) = (picture.width() - 1, picture.height() - 1);
    let ends = (0..=right).flat_map(|x| [(x, 0), (x, bottom)]);
    let sides = (1..bottom).flat_map(|y| [(0, y), (right, y)]);
    let (mut sums, mut count) = ([0u64; 4], 0);
    for (x, y) in ends.chain(sides) {
        for (sum, &value) in sums.iter_mut().zip(picture.get_pixel(x, y).channels()) {
            *sum += u64::from(value);
        }
        count += 1;
    }
    let mean = sums.map(|sum| ((sum + count / 2) / count) as u8);
    *P::from_slice(&mean[..usize::from(P::CHANNEL_COUNT)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREY: Shape = Shape { side: 2, channels: 1 };

    #[test]
    fn square_pictures_are_only_resized() {
        let bytes: Vec<u8> = (0..48).map(|value| value * 5).collect();
        let shape = Shape { side: 3, channels: 3 };
        let stretched = fit(shape, Fit::Stretch, 4, 4, bytes.clone());
        for other in [Fit::Crop, Fit::Pad] {
            assert_eq!(fit(shape, other, 4, 4, bytes.clone()), stretched);
        }
        let same = Shape { side: 4, channels: 3 };
        assert_eq!(fit(same, Fit::Pad, 4, 4, bytes.clone()), bytes);
    }

    #[test]
    fn crops_keep_the_middle() {
        // Three rows of 4: the first and the last of four columns are cut off, and one of three rows.
        let bytes = vec![9, 10, 20, 9, 9, 30, 40, 9];
        assert_eq!(fit(GREY, Fit::Crop, 4, 2, bytes), [10, 20, 30, 40]);
        let bytes = vec![10, 20, 30, 40, 9, 9];
        assert_eq!(fit(GREY, Fit::Crop, 2, 3, bytes), [10, 20, 30, 40]);
    }

    #[test]
    fn padding_has_the_mean_colour_of_the_border() {
        // Two rows of 4 become 4 x 4, with a row above and a row below. All pixels are the border.
        let four = Shape { side: 4, channels: 1 };
        let bytes = vec![10, 20, 30, 40, 50, 60, 70, 80];
        let padded = fit(four, Fit::Pad, 4, 2, bytes.clone());
        assert_eq!(padded, [&[45; 4], &bytes[..], &[45; 4]].concat());
        // The inner pixel of 3 x 5 does not count.
        let mut bytes = [7, 8, 9].repeat(15);
        bytes[21..24].copy_from_slice(&[255; 3]);
        let five = Shape { side: 5, channels: 3 };
        let padded = fit(five, Fit::Pad, 3, 5, bytes);
        assert_eq!(padded[..6], [7, 8, 9, 7, 8, 9]);
        assert_eq!(padded[36..39], [255; 3]);
    }

    #[test]
    fn a_line_is_still_there_when_padded() {
        let eight = Shape { side: 8, channels: 1 };
        let padded = fit(eight, Fit::Pad, 1000, 2, [vec![0; 1000], vec![200; 1000]].concat());
        assert_eq!(padded.len(), 64);
        assert_eq!(padded[24..32], [100; 8]);
    }
}
