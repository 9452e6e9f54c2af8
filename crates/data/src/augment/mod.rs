//! Weak and strong views of an image, and the coefficient of mixup.
//!
//! The compared recipes are defined by code that calls Pillow, and different rounding changes what
//! networks learn. So every operation here computes the same as Pillow, bit for bit, on 8-bit
//! pixels (tested against fixtures made with Pillow). Augmenting floating-point tensors on
//! the accelerator was rejected: faster per image, but a different augmentation, and the host
//! prepares the next batch while the accelerator trains.
//!
//! Drawing is separate from applying: random numbers become a description, and applying it is a pure
//! function of pixels. So the draws can be tested against the published probabilities.

mod geometry;
mod ops;
#[cfg(test)]
mod pillow_tests;
mod randaugment;

use crate::Shape;
use crate::stream::ChaCha8Rng;
use rand::RngExt;
use rand_distr::{Beta, Distribution};
pub use randaugment::Strong;
use std::cell::RefCell;

/// One draw of the weak augmentation: possibly a mirror image, then a crop of the image padded by
/// reflection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct WeakDraw {
    /// Whether the image is mirrored left to right, before the crop.
    mirror: bool,
    /// Pixel (x, y) of the result is pixel (x + dx, y + dy) of the (mirrored) image.
    dx: i32,
    dy: i32,
}

/// Draws a weak augmentation: with `flip`, a mirror image half of the time; then a crop after
/// padding by an eighth of the side (4 pixels at 32), with every crop equally likely.
fn draw_weak(shape: Shape, flip: bool, rng: &mut ChaCha8Rng) -> WeakDraw {
    let padding = i32::try_from(shape.side / 8).unwrap_or(i32::MAX);
    WeakDraw {
        mirror: flip && rng.random_bool(0.5),
        dx: rng.random_range(-padding..=padding),
        dy: rng.random_range(-padding..=padding),
    }
}

fn apply_weak(shape: Shape, draw: WeakDraw, src: &[u8], out: &mut [u8]) {
    check(shape, src);
    check(shape, out);
    match shape.channels {
        1 => crop::<1>(shape.side, draw, src.as_chunks().0, out.as_chunks_mut().0),
        _ => crop::<3>(shape.side, draw, src.as_chunks().0, out.as_chunks_mut().0),
    }
}

/// Writes a weak view of `src` to `out`.
///
/// # Panics
/// If the slices are not images of this shape, or the shape has neither 1 nor 3 channels.
pub fn weak(shape: Shape, flip: bool, src: &[u8], rng: &mut ChaCha8Rng, out: &mut [u8]) {
    apply_weak(shape, draw_weak(shape, flip, rng), src, out);
}

/// Writes a strong view of `src` to `out`: a weak view, then the operations drawn by the preset.
///
/// # Panics
/// As [`weak`].
pub fn strong(
    preset: Strong,
    shape: Shape,
    flip: bool,
    src: &[u8],
    rng: &mut ChaCha8Rng,
    out: &mut [u8],
) {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    weak(shape, flip, src, rng, out);
    let ops = preset.draw(shape, rng);
    SCRATCH.with_borrow_mut(|scratch| ops.iter().for_each(|op| op.apply(shape, out, scratch)));
}

/// A mixup coefficient from Beta(alpha, alpha); 1, which means no mixing, unless alpha is positive.
pub fn mixup_lambda(alpha: f64, rng: &mut ChaCha8Rng) -> f32 {
    Beta::new(alpha, alpha).map_or(1.0, |beta| beta.sample(rng) as f32)
}

/// Panics unless `pixels` is an image of this shape.
fn check(shape: Shape, pixels: &[u8]) {
    assert!(matches!(shape.channels, 1 | 3), "1 or 3 channels, not {}", shape.channels);
    assert_eq!(pixels.len(), shape.bytes(), "bytes of an image of {shape:?}");
}

fn crop<const C: usize>(side: usize, draw: WeakDraw, src: &[[u8; C]], out: &mut [[u8; C]]) {
    // Reflection commutes with mirroring: crop the row in the other direction, then reverse it.
    let dx = if draw.mirror { -i64::from(draw.dx) } else { i64::from(draw.dx) };
    // Columns whose source is inside the image are copied as one slice.
    let first = (-dx).clamp(0, side as i64) as usize;
    let last = (side as i64 - dx).clamp(first as i64, side as i64) as usize;
    for y in 0..side {
        let row = &src[reflect(y as i64 + i64::from(draw.dy), side) * side..][..side];
        let out = &mut out[y * side..][..side];
        if first < last {
            let start = (first as i64 + dx) as usize;
            out[first..last].copy_from_slice(&row[start..start + (last - first)]);
        }
        for x in (0..first).chain(last..side) {
            out[x] = row[reflect(x as i64 + dx, side)];
        }
        if draw.mirror {
            out.reverse();
        }
    }
}

/// The index of `i` when 0, 1, ..., side-1 is extended by reflection without repeating the edge: -1
/// is 1, side is side-2.
fn reflect(i: i64, side: usize) -> usize {
    let period = (2 * side as i64 - 2).max(1);
    let i = i.rem_euclid(period);
    i.min(period - i) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Purpose, Stream};

    const GREY4: Shape = Shape { side: 4, channels: 1 };

    fn rng(index: u64) -> ChaCha8Rng {
        Stream::new(1, Purpose::Strong, 0, 0).at(index)
    }

    #[test]
    fn reflection_does_not_repeat_the_edge() {
        let around: Vec<usize> = (-4..8).map(|i| reflect(i, 4)).collect();
        assert_eq!(around, [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
        assert_eq!(reflect(-3, 1), 0);
    }

    #[test]
    fn crops_match_hand_computed_values() {
        #[rustfmt::skip]
        let src = [
            0, 1, 2, 3,
            10, 11, 12, 13,
            20, 21, 22, 23,
            30, 31, 32, 33,
        ];
        let mut out = [0; 16];
        apply_weak(GREY4, WeakDraw { mirror: false, dx: -1, dy: 2 }, &src, &mut out);
        #[rustfmt::skip]
        assert_eq!(out, [
            21, 20, 21, 22,
            31, 30, 31, 32,
            21, 20, 21, 22,
            11, 10, 11, 12,
        ]);
        // The first mirrored row is 3 2 1 0; reflection puts a 2 to the left of it.
        apply_weak(GREY4, WeakDraw { mirror: true, dx: -1, dy: 0 }, &src, &mut out);
        assert_eq!(out[..8], [2, 3, 2, 1, 12, 13, 12, 11]);
    }

    #[test]
    fn extreme_offsets_are_reflected() {
        let src: Vec<u8> = (0..16).collect();
        let mut out = [0; 16];
        for extreme in [i32::MIN, -7, 7, i32::MAX] {
            for mirror in [false, true] {
                let draw = WeakDraw { mirror, dx: extreme, dy: extreme };
                apply_weak(GREY4, draw, &src, &mut out);
                assert!(out.iter().all(|v| *v < 16));
            }
        }
    }

    #[test]
    fn every_weak_draw_is_equally_likely() {
        let shape = Shape { side: 32, channels: 3 };
        let mut counts = [[0_u32; 9]; 2];
        let mut mirrored = 0;
        let (draws, mut rng) = (90_000, rng(0));
        for _ in 0..draws {
            let draw = draw_weak(shape, true, &mut rng);
            mirrored += u32::from(draw.mirror);
            counts[0][(draw.dx + 4) as usize] += 1;
            counts[1][(draw.dy + 4) as usize] += 1;
        }
        // Five standard errors: sqrt(90000 / 4) = 150 and sqrt(90000 * 8 / 81) = 94.
        assert!(mirrored.abs_diff(draws / 2) < 750, "{mirrored}");
        assert!(counts.as_flattened().iter().all(|n| n.abs_diff(draws / 9) < 470), "{counts:?}");
        assert!((0..100).all(|_| !draw_weak(shape, false, &mut rng).mirror));
        let digits = Shape { side: 28, channels: 1 };
        assert!((0..1000).all(|_| draw_weak(digits, false, &mut rng).dx.abs() <= 3));
    }

    #[test]
    fn the_same_stream_gives_the_same_bytes() {
        for shape in [Shape { side: 32, channels: 3 }, Shape { side: 28, channels: 1 }] {
            let src: Vec<u8> = (0..shape.bytes()).map(|i| (i * 37 % 251) as u8).collect();
            let view = |preset, index| {
                let mut out = vec![0; shape.bytes()];
                strong(preset, shape, true, &src, &mut rng(index), &mut out);
                out
            };
            for preset in [Strong::Fixmatch, Strong::Semifl, Strong::Torchvision] {
                let views: Vec<_> = (0..50).map(|index| view(preset, index)).collect();
                assert!((0..50).all(|index| views[index as usize] == view(preset, index)));
                assert!((1..50).any(|index| views[index] != views[0]));
            }
        }
    }

    #[test]
    fn mixup_coefficients_follow_the_beta_distribution() {
        let mut rng = rng(0);
        let draws: Vec<f64> = (0..40_000).map(|_| mixup_lambda(0.75, &mut rng).into()).collect();
        let mean = draws.iter().sum::<f64>() / 40_000.0;
        let variance = draws.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / 40_000.0;
        // Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)) = 0.1 at a = 0.75.
        assert!((mean - 0.5).abs() < 0.008, "{mean}");
        assert!((variance - 0.1).abs() < 0.002, "{variance}");
        assert!(draws.iter().all(|l| (0.0..=1.0).contains(l)));
        assert_eq!(mixup_lambda(0.0, &mut rng), 1.0);
    }
}
