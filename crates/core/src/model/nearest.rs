//! The labelled images nearest to others in the latent space.

use super::Model;
use crate::error::Result;
use tch::Tensor;

/// Labelled images by their latents.
#[derive(Debug)]
pub struct Nearest {
    /// `[N, D]`, unit length.
    latents: Tensor,
}

impl Nearest {
    /// For these images.
    pub fn new(model: &Model, images: &[&[u8]]) -> Result<Self> {
        Ok(Self { latents: model.latents(images)? })
    }

    /// For each of these images the nearest `count`: number and cosine, the nearest first.
    pub fn find(
        &self,
        model: &Model,
        images: &[&[u8]],
        count: usize,
    ) -> Result<Vec<Vec<(usize, f32)>>> {
        let count = count.min(self.latents.size()[0] as usize);
        if images.is_empty() || count == 0 {
            return Ok(vec![Vec::new(); images.len()]);
        }
        let cosines = model.latents(images)?.f_matmul(&self.latents.f_tr()?)?;
        let (values, indices) = cosines.f_topk(count as i64, 1, true, true)?;
        let values: Vec<f32> = Vec::try_from(values.f_flatten(0, -1)?)?;
        let indices: Vec<i64> = Vec::try_from(indices.f_flatten(0, -1)?)?;
        let pairs = indices.into_iter().zip(values);
        let pairs: Vec<(usize, f32)> = pairs.map(|(at, value)| (at as usize, value)).collect();
        Ok(pairs.chunks_exact(count).map(<[_]>::to_vec).collect())
    }
}
