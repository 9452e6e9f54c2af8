//! The operations of strong augmentation, each a pure function of pixels.
//!
//! Every operation gives the same bytes as Pillow for the same argument. Where Pillow's result does
//! not depend on rounding, integers replace its floating point (the smoothing filter, the mean
//! grey); where it does (blending two images, stretching contrast), the same precision is used in
//! the same order. The reference is Pillow without fused multiply-add, as on x86-64.

use super::check;
use super::geometry::{Filter, affine, cutout, rotation, translate};
use crate::Shape;

/// One operation with its argument. A `factor` of 0 gives the other image of a blend and 1 the image itself; more than 1
/// extrapolates.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub(super) enum Op {
    /// Changes nothing.
    Identity,
    /// Stretches each channel so that its darkest value becomes 0 and its brightest 255.
    AutoContrast,
    /// Maps each channel so that its values are distributed evenly.
    Equalize,
    /// Inverts each value.
    Invert,
    /// Keeps the highest 1 to 8 bits of each value.
    Posterize { bits: u8 },
    /// Inverts the values at or above a threshold: 0 inverts all, 256 none.
    Solarize { threshold: u16 },
    /// Blends the image with black.
    Brightness { factor: f32 },
    /// Blends the image with its grey version; no change to grey images.
    Color { factor: f32 },
    /// Blends the image with its mean grey.
    Contrast { factor: f32 },
    /// Blends the image with its smoothed version; the outermost pixels do not change.
    Sharpness { factor: f32 },
    /// Rotates the image counter-clockwise about its centre; nearest pixel.
    Rotate { degrees: f64 },
    /// Shifts each row to the left by `slope` pixels more than the row above it.
    ShearX { slope: f64, filter: Filter },
    /// Shifts each column upwards by `slope` pixels more than the column to its left.
    ShearY { slope: f64, filter: Filter },
    /// Shifts the image to the left.
    TranslateX { pixels: i32 },
    /// Shifts the image upwards.
    TranslateY { pixels: i32 },
    /// Paints a box gray (127), up to but excluding `right` and `bottom`, which may be outside the image.
    Cutout { left: usize, top: usize, right: usize, bottom: usize },
}

impl Op {
    /// Applies the operation in place. `scratch` is a buffer for a copy of the image. Panics unless `pixels` is an image
    /// of this shape.
    pub(super) fn apply(&self, shape: Shape, pixels: &mut [u8], scratch: &mut Vec<u8>) {
        check(shape, pixels);
        match shape.channels {
            _ if pixels.is_empty() => {}
            1 => self.apply_to::<1>(shape.side, pixels.as_chunks_mut().0, scratch),
            _ => self.apply_to::<3>(shape.side, pixels.as_chunks_mut().0, scratch),
        }
    }

    fn apply_to<const C: usize>(&self, side: usize, pixels: &mut [[u8; C]], scratch: &mut Vec<u8>) {
        let mut map = |matrix, filter| affine(matrix, filter, side, copy(pixels, scratch), pixels);
        match *self {
            Self::Identity => {}
            Self::AutoContrast => auto_contrast(pixels),
            Self::Equalize => equalize(pixels),
            Self::Invert => each_value(pixels, |v| !v),
            Self::Posterize { bits } => {
                let mask = (0xff00_u16 >> bits.min(8)) as u8;
                each_value(pixels, |v| v & mask);
            }
            Self::Solarize { threshold } => {
                each_value(pixels, |v| if u16::from(v) < threshold { v } else { !v });
            }
            Self::Brightness { factor } => blend_from(0, pixels, factor),
            // The grey version of a grey image is the image.
            Self::Color { .. } if C == 1 => {}
            Self::Color { factor } => {
                for pixel in pixels {
                    let grey = luma(pixel);
                    *pixel = pixel.map(|v| blend(grey, v, factor));
                }
            }
            Self::Contrast { factor } => blend_from(mean_luma(pixels), pixels, factor),
            Self::Sharpness { factor } => {
                let src = copy(pixels, scratch).as_flattened();
                sharpness(factor, side * C, C, src, pixels.as_flattened_mut());
            }
            Self::Rotate { degrees } => map(rotation(degrees, side), Filter::Nearest),
            Self::ShearX { slope, filter } => map([1.0, slope, 0.0, 0.0, 1.0, 0.0], filter),
            Self::ShearY { slope, filter } => map([1.0, 0.0, 0.0, slope, 1.0, 0.0], filter),
            Self::TranslateX { pixels: x } => translate(x, 0, side, copy(pixels, scratch), pixels),
            Self::TranslateY { pixels: y } => translate(0, y, side, copy(pixels, scratch), pixels),
            Self::Cutout { left, top, right, bottom } => {
                cutout([left, top, right, bottom], side, pixels);
            }
        }
    }
}

fn copy<'a, const C: usize>(pixels: &[[u8; C]], scratch: &'a mut Vec<u8>) -> &'a [[u8; C]] {
    scratch.clear();
    scratch.extend_from_slice(pixels.as_flattened());
    scratch.as_chunks().0
}

fn each_value<const C: usize>(pixels: &mut [[u8; C]], map: impl Fn(u8) -> u8) {
    for value in pixels.as_flattened_mut() {
        *value = map(*value);
    }
}

/// Interpolates from one value (factor 0) to another (factor 1) or beyond, truncated to 0..=255.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let (from, to) = (f32::from(from), f32::from(to));
    (from + factor * (to - from)) as u8
}

/// Blends the image with a single grey value.
fn blend_from<const C: usize>(grey: u8, pixels: &mut [[u8; C]], factor: f32) {
    let table = identity_table().map(|value| blend(grey, value, factor));
    each_value(pixels, |value| table[usize::from(value)]);
}

/// The grey value of a pixel: ITU-R 601-2 luma in 16-bit fixed point.
fn luma<const C: usize>(pixel: &[u8; C]) -> u8 {
    match pixel.as_slice() {
        &[red, green, blue] => {
            let [red, green, blue] = [red, green, blue].map(u32::from);
            ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16) as u8
        }
        _ => pixel[0],
    }
}

fn mean_luma<const C: usize>(pixels: &[[u8; C]]) -> u8 {
    let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(pixel))).sum();
    let count = pixels.len() as u64;
    ((2 * sum + count) / (2 * count)) as u8 // rounded half up
}

/// Replaces each value by its entry in the table of its channel.
fn look_up<const C: usize>(pixels: &mut [[u8; C]], tables: &[[u8; 256]; C]) {
    for pixel in pixels {
        for (value, table) in pixel.iter_mut().zip(tables) {
            *value = table[usize::from(*value)];
        }
    }
}

fn auto_contrast<const C: usize>(pixels: &mut [[u8; C]]) {
    let (mut low, mut high) = ([u8::MAX; C], [u8::MIN; C]);
    for pixel in pixels.iter() {
        for channel in 0..C {
            low[channel] = low[channel].min(pixel[channel]);
            high[channel] = high[channel].max(pixel[channel]);
        }
    }
    let tables = std::array::from_fn(|channel| {
        let (low, high) = (f64::from(low[channel]), f64::from(high[channel]));
        if low == high {
            return identity_table();
        }
        let scale = 255.0 / (high - low);
        let offset = -low * scale;
        std::array::from_fn(|value| (value as f64 * scale + offset) as u8)
    });
    look_up(pixels, &tables);
}

fn equalize<const C: usize>(pixels: &mut [[u8; C]]) {
    let mut histograms = [[0_usize; 256]; C];
    for pixel in pixels.iter() {
        for (histogram, value) in histograms.iter_mut().zip(pixel) {
            histogram[usize::from(*value)] += 1;
        }
    }
    let tables = histograms.map(|histogram| {
        let brightest = histogram.iter().rfind(|count| **count > 0).unwrap_or(&0);
        // Pixels per grey level; if it is 0 the image is left unchanged.
        let step = (pixels.len() - brightest) / 255;
        if step == 0 {
            return identity_table();
        }
        let mut darker = step / 2;
        histogram.map(|count| {
            let level = (darker / step).min(255) as u8;
            darker += count;
            level
        })
    });
    look_up(pixels, &tables);
}

fn identity_table() -> [u8; 256] {
    std::array::from_fn(|value| value as u8)
}

/// Blends with the image smoothed by a 3 x 3 kernel of weights 1 with 5 in the centre. `row` and
/// `step` are the distances, in values, to the neighbours below and to the right.
fn sharpness(factor: f32, row: usize, step: usize, src: &[u8], out: &mut [u8]) {
    let columns = row.saturating_sub(2 * step); // without the outermost pixels
    for start in (row..src.len().saturating_sub(row)).step_by(row) {
        // Three adjacent neighbours each for the line above, this line and the line below.
        let [above, line, below] = [start - row, start, start + row]
            .map(|start| [0, step, 2 * step].map(|shift| &src[start + shift..][..columns]));
        for (i, out) in out[start + step..][..columns].iter_mut().enumerate() {
            let sum: u16 = [above, line, below].iter().flatten().map(|v| u16::from(v[i])).sum();
            let sum = sum + 4 * u16::from(line[1][i]);
            let smooth = (2 * sum + 13) / 26; // sum / 13, rounded
            *out = blend(smooth as u8, line[1][i], factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(op: Op, pixels: &[u8]) -> Vec<u8> {
        let mut out = pixels.to_vec();
        let shape = Shape { side: pixels.len().isqrt(), channels: 1 };
        op.apply(shape, &mut out, &mut Vec::new());
        out
    }

    #[test]
    fn values_match_hand_computed_ones() {
        let image = [0, 100, 200, 255];
        assert_eq!(grey(Op::Invert, &image), [255, 155, 55, 0]);
        assert_eq!(grey(Op::Posterize { bits: 4 }, &image), [0, 96, 192, 240]);
        assert_eq!(grey(Op::Posterize { bits: 8 }, &image), image);
        assert_eq!(grey(Op::Solarize { threshold: 128 }, &image), [0, 100, 55, 0]);
        assert_eq!(grey(Op::Solarize { threshold: 256 }, &image), image);
        assert_eq!(grey(Op::Brightness { factor: 0.5 }, &image), [0, 50, 100, 127]);
        assert_eq!(grey(Op::Brightness { factor: 1.5 }, &image), [0, 150, 255, 255]);
        assert_eq!(grey(Op::Contrast { factor: 0.0 }, &image), [139; 4]); // 555 / 4 = 138.75
        assert_eq!(grey(Op::Color { factor: 0.0 }, &image), image);
        assert_eq!(grey(Op::AutoContrast, &[50, 51, 52, 55]), [0, 51, 102, 255]);
    }

    #[test]
    fn smoothing_matches_a_hand_computed_value() {
        let image = [0, 0, 0, 0, 130, 0, 0, 0, 26];
        // (5 * 130 + 26) / 13 = 52 in the centre; border pixels lack neighbours.
        let smooth = [0, 0, 0, 0, 52, 0, 0, 0, 26];
        assert_eq!(grey(Op::Sharpness { factor: 0.0 }, &image), smooth);
        assert_eq!(grey(Op::Sharpness { factor: 1.0 }, &image), image);
        assert_eq!(grey(Op::Sharpness { factor: 2.0 }, &image)[4], 208);
    }

    #[test]
    fn every_op_handles_the_smallest_images() {
        let ops = [
            Op::AutoContrast,
            Op::Equalize,
            Op::Contrast { factor: 1.9 },
            Op::Sharpness { factor: 0.1 },
            Op::Rotate { degrees: 30.0 },
            Op::ShearX { slope: 0.3, filter: Filter::Bilinear },
            Op::TranslateY { pixels: 1 },
            Op::Cutout { left: 0, top: 0, right: 1, bottom: 1 },
        ];
        for (op, side) in ops.iter().flat_map(|op| [0, 1, 2].map(|side| (op, side))) {
            for channels in [1, 3] {
                let shape = Shape { side, channels };
                op.apply(shape, &mut vec![7; shape.bytes()], &mut Vec::new());
            }
        }
    }
}
