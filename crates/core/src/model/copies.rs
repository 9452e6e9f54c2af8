//! Pictures that show the same: saved again, brighter, cut, mirrored.
//!
//! Latents do not tell them: they are made to be alike within a class, and of 1.65 million pairs of different flowers,
//! 1,000 have a cosine above 0.999. So pictures are compared by their brightness on a grid of 16 x 16 without its mean,
//! and where the model has a frozen trunk, by its features, which know a picture again that was cut or mirrored.
//!
//! How alike two different pictures are depends on the pictures: digits are nearer to each other than photographs. So a
//! pair counts if its distance (1 - cosine) is below [`CLOSER`] of the distance to the fifth nearest picture, of the
//! one of both to which that is nearer; or if the cosine is at least [`EQUAL`] at once, as for more than four copies.
//! The figures behind the constants are in `docs/pictures.md`.

use super::Model;
use crate::error::Result;
use fedanchor_data::Shape;
use std::collections::BTreeSet;
use tch::{Kind, Tensor};

/// The most pictures that are compared: all pairs of them take a minute.
pub const MOST_COMPARED: usize = 30_000;

/// The side of the grid.
const GRID: usize = 16;
/// The nearest pictures of other groups that may be copies, and the neighbour that distances are measured by.
const NEIGHBOURS: usize = 5;
/// The largest share of the distance to that neighbour.
const CLOSER: f32 = 0.4;
/// The least cosine of a pair.
const ALIKE: f32 = 0.8;
/// A cosine that different pictures do not have.
const EQUAL: f32 = 0.98;
/// Rows of a block of cosines.
const BLOCK: usize = 512;

/// What a picture is compared by: vectors of length 1.
#[derive(Debug, Clone)]
pub struct Signature {
    pattern: Vec<f32>,
    /// Empty without a frozen trunk.
    features: Vec<f32>,
}

impl Model {
    /// The signature of a picture: `pixels` of this shape, and the input that the model reads of it, an image or, if it
    /// has a trunk, its features.
    pub fn signature(&self, shape: Shape, pixels: &[u8], input: &[u8]) -> Result<Signature> {
        // The figures were measured with vectors, not with what the last stage of a trunk reads.
        let features = match self.trunk.as_ref().filter(|trunk| trunk.output.side == 1) {
            None => Vec::new(),
            Some(trunk) if input.len() == self.description.shape.bytes() => {
                singles(&trunk.encode(input)?)?
            }
            // Of the picture as it is, before those of its views.
            Some(trunk) => singles(input.get(..2 * trunk.output.channels).unwrap_or_default())?,
        };
        Ok(Signature { pattern: unit(pattern(shape, pixels)), features: unit(features) })
    }
}

/// Numbers in half precision.
fn singles(half: &[u8]) -> Result<Vec<f32>> {
    let numbers = Tensor::f_from_data_size(half, &[half.len() as i64 / 2], Kind::Half)?;
    Ok(Vec::try_from(numbers.f_to_kind(Kind::Float)?)?)
}

/// The brightness of a picture on a grid, less its mean.
fn pattern(shape: Shape, pixels: &[u8]) -> Vec<f32> {
    let Shape { side, channels } = shape;
    let mut fields = vec![(0.0f32, 0.0f32); GRID * GRID]; // sum, pixels
    for (at, pixel) in pixels.chunks_exact(channels).enumerate() {
        let brightness: u32 = pixel.iter().map(|&value| u32::from(value)).sum();
        let [x, y] = [at % side, at / side].map(|position| position * GRID / side);
        let field = &mut fields[y * GRID + x];
        *field = (field.0 + brightness as f32, field.1 + 1.0);
    }
    let mut pattern: Vec<f32> =
        fields.into_iter().map(|(sum, count)| sum / count.max(1.0)).collect();
    let mean = pattern.iter().sum::<f32>() / pattern.len() as f32;
    pattern.iter_mut().for_each(|value| *value -= mean);
    pattern
}

/// Of length 1; zeros stay zeros, which are like nothing.
fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(1e-3);
    vector.iter_mut().for_each(|value| *value /= length);
    vector
}

/// Pairs of pictures of different groups that show the same, each with the smaller number first. Memory is bounded by
/// [`MOST_COMPARED`] pictures, of which there must not be more.
pub fn copies(signatures: &[Signature], groups: &[usize]) -> Result<Vec<[usize; 2]>> {
    let numbers: Vec<i64> = groups.iter().map(|&group| group as i64).collect();
    let groups = Tensor::f_from_slice(&numbers)?;
    let mut pairs = BTreeSet::new();
    for vectors in [by_pattern, by_features] {
        let width = signatures.first().map_or(0, |one| vectors(one).len());
        if width > 0 {
            let all: Vec<f32> = signatures.iter().flat_map(vectors).copied().collect();
            pairs.extend(close(&Tensor::f_from_slice(&all)?.f_view([-1, width as i64])?, &groups)?);
        }
    }
    Ok(pairs.into_iter().collect())
}

fn by_pattern(one: &Signature) -> &[f32] {
    &one.pattern
}

fn by_features(one: &Signature) -> &[f32] {
    &one.features
}

/// The close pairs of rows `[N, D]` of different groups `[N]`.
fn close(rows: &Tensor, groups: &Tensor) -> Result<Vec<[usize; 2]>> {
    let count = rows.size()[0];
    let nearest = (NEIGHBOURS as i64).min(count - 1).max(1);
    let (mut reach, mut found) = (Vec::new(), Vec::new());
    for start in (0..count).step_by(BLOCK) {
        let length = (BLOCK as i64).min(count - start);
        let mut cosines = rows.f_narrow(0, start, length)?.f_matmul(&rows.f_tr()?)?;
        let _ = cosines.f_narrow(1, start, length)?.f_fill_diagonal_(-1.0, false)?;
        let (values, _) = cosines.f_topk(nearest, 1, true, true)?;
        reach.extend(Vec::<f32>::try_from(values.f_select(1, nearest - 1)?.f_contiguous()?)?);
        let group = groups.f_narrow(0, start, length)?.f_unsqueeze(1)?;
        let _ = cosines.f_masked_fill_(&group.f_eq_tensor(groups)?, -1.0)?;
        let (values, others) = cosines.f_topk(nearest, 1, true, true)?;
        let values: Vec<f32> = Vec::try_from(values.f_flatten(0, -1)?)?;
        let others: Vec<i64> = Vec::try_from(others.f_flatten(0, -1)?)?;
        let pairs = values.into_iter().zip(others).enumerate();
        let alike = pairs.filter(|(_, (cosine, _))| *cosine >= ALIKE);
        let row = |at: usize| start as usize + at / nearest as usize;
        found.extend(alike.map(|(at, (cosine, other))| (row(at), other as usize, cosine)));
    }
    let is_close = |&(one, other, cosine): &(usize, usize, f32)| {
        let usual = reach[one].max(reach[other]);
        cosine >= EQUAL || 1.0 - cosine < CLOSER * (1.0 - usual)
    };
    Ok(found
        .into_iter()
        .filter(is_close)
        .map(|(one, other, _)| [one.min(other), one.max(other)])
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(pattern: &[f32]) -> Signature {
        Signature { pattern: unit(pattern.to_vec()), features: Vec::new() }
    }

    #[test]
    fn a_pair_counts_if_it_is_much_closer_than_others() {
        // Different pictures have a cosine of 0.8 by what they share, the first number.
        let of = |parts: &[(usize, f32)]| {
            let mut vector = vec![0.0; 12];
            vector[0] = 2.0;
            parts.iter().for_each(|&(at, value)| vector[at] = value);
            signature(&vector)
        };
        let mut all: Vec<Signature> = (1..=8).map(|at| of(&[(at, 1.0)])).collect();
        all.push(of(&[(1, 1.0), (9, 0.5)])); // a cosine of 0.976 with the first
        all.push(of(&[(2, 0.5), (10, 0.85)])); // 0.9 with the second
        assert_eq!(copies(&all, &[0, 1, 0, 0, 0, 0, 0, 0, 1, 0]).unwrap(), [[0, 8]]);
        assert_eq!(copies(&all, &[0; 10]).unwrap(), [[0usize; 2]; 0]);
        // Six copies: each is near to the five others.
        let same: Vec<Signature> = (0..6).map(|_| all[0].clone()).collect();
        assert_eq!(copies(&same, &[0, 0, 0, 0, 0, 1]).unwrap().len(), 5);
        assert_eq!(copies(&[], &[]).unwrap(), [[0usize; 2]; 0]);
        assert_eq!(copies(&same[..1], &[0]).unwrap(), [[0usize; 2]; 0]);
    }

    #[test]
    fn brightness_does_not_matter_and_blank_pictures_are_like_nothing() {
        let shape = Shape { side: 20, channels: 3 };
        let picture = |scale: usize| -> Vec<u8> {
            (0..1200).map(|at| ((at / 60 + at % 60 / 9) * scale % 256) as u8).collect()
        };
        let of = |pixels: &[u8]| signature(&pattern(shape, pixels));
        let all = [of(&picture(3)), of(&picture(6)), of(&[7; 1200]), of(&[9; 1200])];
        assert_eq!(copies(&all, &[0, 1, 2, 3]).unwrap(), [[0, 1]]);
    }
}
