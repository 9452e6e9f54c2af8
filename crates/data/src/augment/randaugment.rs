//! Three published recipes for strong augmentation.
//!
//! Each draws two operations with replacement from a pool; they differ in pool, strength and
//! probability. They are kept as published, mistakes included, because the published accuracies
//! depend on them: SemiFL's constants, made for 224-pixel images, turn about one small image in
//! seven black or gray. One pool with adjustable strength was rejected for that reason.

use rand::RngExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::geometry::Filter;
use super::ops::Op;
use crate::Shape;
use crate::stream::ChaCha8Rng;

/// A recipe for strong views, applied after the weak augmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Strong {
    /// FixMatch's RandAugment: two of 14 operations, each with a random strength of 1 to 9 out of 10 and
    /// skipped half of the time; then always a grey box of half the side.
    Fixmatch,
    /// SemiFL's RandAugment: two of 15 operations, always at full strength, skipped half of the time.
    Semifl,
    /// RandAugment with torchvision's default arguments: two of 14 operations, strength 9 out of 30, never
    /// skipped.
    Torchvision,
}

impl Strong {
    /// Draws the operations for one image, in order; [`Op::Identity`] for a skipped one.
    pub(super) fn draw(self, shape: Shape, rng: &mut ChaCha8Rng) -> [Op; 3] {
        match self {
            Self::Fixmatch => [
                half_the_time(fixmatch, shape, rng),
                half_the_time(fixmatch, shape, rng),
                centred_box(shape.side, rng),
            ],
            // The published code draws the probability of each operation from U(0.2, 0.8), which is
            // equivalent to 0.5.
            Self::Semifl => {
                [half_the_time(semifl, shape, rng), half_the_time(semifl, shape, rng), Op::Identity]
            }
            Self::Torchvision => [torchvision(shape, rng), torchvision(shape, rng), Op::Identity],
        }
    }
}

fn half_the_time(pool: fn(Shape, &mut ChaCha8Rng) -> Op, shape: Shape, rng: &mut ChaCha8Rng) -> Op {
    if rng.random_bool(0.5) { pool(shape, rng) } else { Op::Identity }
}

fn either_sign(value: f64, rng: &mut ChaCha8Rng) -> f64 {
    if rng.random_bool(0.5) { value } else { -value }
}

fn fixmatch(shape: Shape, rng: &mut ChaCha8Rng) -> Op {
    let strength = f64::from(rng.random_range(1..=9_u8));
    let factor = (strength * 0.9 / 10.0 + 0.05) as f32;
    let slope = strength * 0.3 / 10.0;
    let distance = slope * shape.side as f64; // a fraction of the side equal to the slope
    let filter = Filter::Nearest;
    match rng.random_range(0..14_u8) {
        0 => Op::AutoContrast,
        1 => Op::Brightness { factor },
        2 => Op::Color { factor },
        3 => Op::Contrast { factor },
        4 => Op::Equalize,
        5 => Op::Identity,
        6 => Op::Posterize { bits: (strength * 4.0 / 10.0) as u8 + 4 },
        7 => Op::Rotate { degrees: either_sign(strength * 3.0, rng) },
        8 => Op::Sharpness { factor },
        9 => Op::ShearX { slope: either_sign(slope, rng), filter },
        10 => Op::ShearY { slope: either_sign(slope, rng), filter },
        11 => Op::Solarize { threshold: 256 - (strength * 256.0 / 10.0) as u16 },
        12 => Op::TranslateX { pixels: either_sign(distance, rng) as i32 },
        _ => Op::TranslateY { pixels: either_sign(distance, rng) as i32 },
    }
}

/// A box of half the side, with its centre uniform over the image.
fn centred_box(side: usize, rng: &mut ChaCha8Rng) -> Op {
    let size = side / 2;
    // The box is clipped at the left and top here, at the right and bottom when it is painted.
    let mut span = || {
        let end = rng.random_range(0..side.max(1) as u32) as usize + size - size / 2;
        (end.saturating_sub(size), end)
    };
    let ((left, right), (top, bottom)) = (span(), span());
    Op::Cutout { left, top, right, bottom }
}

fn semifl(shape: Shape, rng: &mut ChaCha8Rng) -> Op {
    let factor = 1.9;
    let filter = Filter::Bilinear;
    match rng.random_range(0..15_u8) {
        0 => Op::AutoContrast,
        1 => Op::Brightness { factor },
        2 => Op::Color { factor },
        3 => Op::Contrast { factor },
        4 => forty_pixel_box(shape.side, rng),
        5 => Op::Equalize,
        6 => Op::Invert,
        7 => Op::Posterize { bits: 4 },
        8 => Op::Rotate { degrees: either_sign(30.0, rng) },
        9 => Op::Sharpness { factor },
        10 => Op::ShearX { slope: either_sign(0.3, rng), filter },
        11 => Op::ShearY { slope: either_sign(0.3, rng), filter },
        12 => Op::Solarize { threshold: 0 },
        13 => Op::TranslateX { pixels: either_sign(100.0, rng) as i32 },
        _ => Op::TranslateY { pixels: either_sign(100.0, rng) as i32 },
    }
}

/// SemiFL's gray box: its upper left corner is moved into the image before the 40 pixels are
/// measured from it, and the far edge is included.
fn forty_pixel_box(side: usize, rng: &mut ChaCha8Rng) -> Op {
    let mut start = || (rng.random::<f64>() * side as f64 - 20.0).max(0.0) as usize;
    let (left, top) = (start(), start());
    Op::Cutout { left, top, right: left + 41, bottom: top + 41 }
}

fn torchvision(shape: Shape, rng: &mut ChaCha8Rng) -> Op {
    let strength = 9.0 / 30.0; // of slopes to 0.3, 150 / 331 of the side, factors of 1 +- 0.9
    let slope = 0.3 * strength;
    let distance = 150.0 / 331.0 * shape.side as f64 * strength;
    let factor = |rng| (1.0 + either_sign(0.9 * strength, rng)) as f32;
    let filter = Filter::Nearest;
    match rng.random_range(0..14_u8) {
        0 => Op::Identity,
        1 => Op::ShearX { slope: either_sign(slope, rng), filter },
        2 => Op::ShearY { slope: either_sign(slope, rng), filter },
        3 => Op::TranslateX { pixels: either_sign(distance, rng) as i32 },
        4 => Op::TranslateY { pixels: either_sign(distance, rng) as i32 },
        5 => Op::Rotate { degrees: either_sign(9.0, rng) },
        6 => Op::Brightness { factor: factor(rng) },
        7 => Op::Color { factor: factor(rng) },
        8 => Op::Contrast { factor: factor(rng) },
        9 => Op::Sharpness { factor: factor(rng) },
        10 => Op::Posterize { bits: 7 },       // 8 - round(9 / 7.5)
        11 => Op::Solarize { threshold: 179 }, // 255 - 8.5 * 9 = 178.5
        12 => Op::AutoContrast,
        _ => Op::Equalize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Purpose, Stream};

    const SHAPE: Shape = Shape { side: 32, channels: 3 };
    const DRAWS: usize = 60_000;

    fn draws(preset: Strong) -> Vec<[Op; 3]> {
        let mut rng = Stream::new(7, Purpose::Strong, 0, 0).rng();
        (0..DRAWS).map(|_| preset.draw(SHAPE, &mut rng)).collect()
    }

    /// The first two operations of every draw.
    fn drawn_ops(preset: Strong) -> Vec<Op> {
        draws(preset).into_iter().flat_map(|[first, second, _]| [first, second]).collect()
    }

    /// Asserts that a share is as expected within five standard errors.
    fn assert_share(count: usize, of: usize, expected: f64, what: &str) {
        let share = count as f64 / of as f64;
        let error = (expected * (1.0 - expected) / of as f64).sqrt();
        assert!((share - expected).abs() < 5.0 * error, "{what}: {share}, expected {expected}");
    }

    fn name(op: &Op) -> String {
        let text = format!("{op:?}");
        text.split(' ').next().unwrap().to_owned()
    }

    /// How often each operation was drawn, by arguments.
    fn frequencies(ops: &[Op]) -> Vec<(Op, usize)> {
        let mut found: Vec<(Op, usize)> = Vec::new();
        for op in ops {
            match found.iter_mut().find(|(known, _)| known == op) {
                Some((_, count)) => *count += 1,
                None => found.push((*op, 1)),
            }
        }
        found
    }

    #[test]
    fn fixmatch_draws_every_strength_of_every_operation_equally() {
        let ops = drawn_ops(Strong::Fixmatch);
        let (pool, nine) = (1.0 / 28.0, 1.0 / 9.0);
        let found = frequencies(&ops);
        let expect = |op: Op, share: f64| {
            let count = found.iter().find(|(known, _)| *known == op).map_or(0, |(_, count)| *count);
            assert_share(count, ops.len(), share, &format!("{op:?}"));
        };
        expect(Op::Identity, 0.5 + pool);
        expect(Op::AutoContrast, pool);
        expect(Op::Equalize, pool);
        for v in 1..=9_u8 {
            let factor = (f64::from(v) * 0.9 / 10.0 + 0.05) as f32;
            expect(Op::Brightness { factor }, pool * nine);
            expect(Op::Color { factor }, pool * nine);
            expect(Op::Contrast { factor }, pool * nine);
            expect(Op::Sharpness { factor }, pool * nine);
            expect(Op::Solarize { threshold: 256 - u16::from(v) * 256 / 10 }, pool * nine);
            for sign in [-1.0, 1.0] {
                let (strength, filter) = (sign * f64::from(v), Filter::Nearest);
                let (slope, degrees) = (strength * 0.3 / 10.0, strength * 3.0);
                expect(Op::Rotate { degrees }, pool * nine / 2.0);
                expect(Op::ShearX { slope, filter }, pool * nine / 2.0);
                expect(Op::ShearY { slope, filter }, pool * nine / 2.0);
            }
        }
        for (bits, strengths) in [(4, 2.0), (5, 2.0), (6, 3.0), (7, 2.0)] {
            expect(Op::Posterize { bits }, pool * nine * strengths);
        }
        // 0.96 v pixels at side 32: 0, 1, ..., 8, in both directions.
        expect(Op::TranslateX { pixels: 0 }, pool * nine);
        expect(Op::TranslateX { pixels: -4 }, pool * nine / 2.0);
        expect(Op::TranslateY { pixels: 8 }, pool * nine / 2.0);
        // The above, and the other distances of both translations.
        assert_eq!(found.len(), 3 + 5 * 9 + 3 * 18 + 4 + 2 * 17);
    }

    #[test]
    fn fixmatch_ends_with_a_box_of_half_the_side() {
        let (mut whole, mut corner) = (0, 0);
        for [.., last] in draws(Strong::Fixmatch) {
            let Op::Cutout { left, top, right, bottom } = last else { panic!("{last:?}") };
            assert!((1..=16).contains(&(right - left)) && (1..=16).contains(&(bottom - top)));
            assert!((8..40).contains(&right) && (8..40).contains(&bottom));
            whole += usize::from(right - left == 16 && right <= 32);
            corner += usize::from(right == 8 && bottom == 8);
        }
        // Centres 8 to 24 keep the full width; one centre in 32 x 32 is the corner.
        assert_share(whole, DRAWS, 17.0 / 32.0, "full width");
        assert_share(corner, DRAWS, 1.0 / 1024.0, "centre in the corner");
    }

    #[test]
    fn semifl_draws_the_largest_arguments() {
        let ops = drawn_ops(Strong::Semifl);
        let (factor, filter, pool) = (1.9, Filter::Bilinear, 1.0 / 30.0);
        let cutouts: Vec<_> = ops.iter().filter(|op| name(op) == "Cutout").collect();
        assert_share(cutouts.len(), ops.len(), pool, "cutout");
        // The box starts at 0 if the centre is below 21 of 32, and always reaches the far edge.
        let all = cutouts.iter().filter(|op| matches!(op, Op::Cutout { left: 0, top: 0, .. }));
        assert_share(all.count(), cutouts.len(), (21.0_f64 / 32.0).powi(2), "all gray");
        assert!(cutouts.iter().all(|op| match **op {
            Op::Cutout { left, top, right, bottom } =>
                left < 12 && top < 12 && right == left + 41 && bottom == top + 41,
            _ => false,
        }));

        let others: Vec<Op> = ops.iter().copied().filter(|op| name(op) != "Cutout").collect();
        let found = frequencies(&others);
        let mut expected = vec![(Op::Identity, 0.5)];
        let single = [
            Op::AutoContrast,
            Op::Brightness { factor },
            Op::Color { factor },
            Op::Contrast { factor },
            Op::Equalize,
            Op::Invert,
            Op::Posterize { bits: 4 },
            Op::Sharpness { factor },
            Op::Solarize { threshold: 0 },
        ];
        expected.extend(single.map(|op| (op, pool)));
        for sign in [-1, 1] {
            let slope = 0.3 * f64::from(sign);
            let signed = [
                Op::Rotate { degrees: 30.0 * f64::from(sign) },
                Op::ShearX { slope, filter },
                Op::ShearY { slope, filter },
                Op::TranslateX { pixels: 100 * sign },
                Op::TranslateY { pixels: 100 * sign },
            ];
            expected.extend(signed.map(|op| (op, pool / 2.0)));
        }
        assert_eq!(found.len(), expected.len());
        for (op, share) in expected {
            let (_, count) = found.iter().find(|(known, _)| *known == op).unwrap();
            assert_share(*count, ops.len(), share, &format!("{op:?}"));
        }
    }

    #[test]
    fn torchvision_always_draws_strength_nine() {
        let ops = drawn_ops(Strong::Torchvision);
        let found = frequencies(&ops);
        let filter = Filter::Nearest;
        let mut expected = vec![
            (Op::Identity, 1.0),
            (Op::AutoContrast, 1.0),
            (Op::Equalize, 1.0),
            (Op::Posterize { bits: 7 }, 1.0),
            (Op::Solarize { threshold: 179 }, 1.0),
        ];
        for sign in [-1, 1] {
            let slope = 0.09 * f64::from(sign);
            let factor = if sign > 0 { 1.27 } else { 0.73 };
            let signed = [
                Op::Rotate { degrees: 9.0 * f64::from(sign) },
                Op::ShearX { slope, filter },
                Op::ShearY { slope, filter },
                Op::TranslateX { pixels: 4 * sign }, // 150 / 331 * 32 * 9 / 30 = 4.35
                Op::TranslateY { pixels: 4 * sign },
                Op::Brightness { factor },
                Op::Color { factor },
                Op::Contrast { factor },
                Op::Sharpness { factor },
            ];
            expected.extend(signed.map(|op| (op, 0.5)));
        }
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (op, share) in expected {
            let (_, count) = found.iter().find(|(known, _)| *known == op).unwrap();
            assert_share(*count, ops.len(), share / 14.0, &format!("{op:?}"));
        }
        assert!(draws(Strong::Torchvision).iter().all(|[.., last]| *last == Op::Identity));
    }

    #[test]
    fn names_in_configs() {
        let presets = [Strong::Fixmatch, Strong::Semifl, Strong::Torchvision];
        let text = serde_json::to_string(&presets).unwrap();
        assert_eq!(text, r#"["fixmatch","semifl","torchvision"]"#);
        assert_eq!(serde_json::from_str::<[Strong; 3]>(&text).unwrap(), presets);
    }
}
