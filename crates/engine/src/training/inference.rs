//! Forward passes without gradients over many images: labels, anchors' latents, statistics, tests.
//!
//! On a GPU the backbone's pass is a captured step like those of training, with its batches prepared
//! ahead by another thread. A captured pass has a fixed number of images, so the last batch is padded
//! with images whose results are not read; passes that measure batch norm statistics, where every
//! image counts, are not captured.

use super::context::Context;
use super::gpu::{Gpu, StepKey};
use crate::batches::{Packing, View};
use crate::error::Result;
use crate::model::{Features, Pass, Statistics};
use crate::tensors::Params;
use std::ops::Range;
use tch::Tensor;

/// Images in a forward pass without gradients (SemiFL's 250).
const BATCH: usize = 250;
/// On a GPU, which needs more to stay busy: the most images, and about the most bytes.
const GPU_BATCH: usize = 1000;
const GPU_BYTES: usize = 8 << 20;

impl Context {
    /// Runs a plain network over many images, in batches of a fixed size, and hands each batch's range
    /// and features to `take`. The features are gone when it returns.
    pub fn for_each_batch(
        &self,
        params: &Params,
        statistics: impl Fn(usize) -> Statistics,
        views: &[View],
        mut take: impl FnMut(Range<usize>, &Pass, Features) -> Result<()>,
    ) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        if let (Some(gpu), Statistics::Running) = (&self.gpu, statistics(0)) {
            return self.for_each_captured(gpu, params, views, take);
        }
        let mut pixels = vec![0; BATCH.min(views.len()) * self.images.image_bytes()];
        for (index, batch) in views.chunks(BATCH).enumerate() {
            let pixels = &mut pixels[..batch.len() * self.images.image_bytes()];
            self.images.render(batch, pixels);
            let bytes = Tensor::f_from_slice(pixels)?.f_to_device(self.device)?;
            let pass = self.pass(&params.tensors, statistics(index));
            let features = self.features_of(&bytes, batch.len(), &pass)?;
            let start = index * BATCH;
            take(start..start + batch.len(), &pass, features)?;
        }
        Ok(())
    }

    fn features_of(&self, bytes: &Tensor, count: usize, pass: &Pass) -> Result<Features> {
        let packing = Packing::new(&[count * self.images.image_bytes()]);
        let images = self.images.view(bytes, &packing, 0, count, 1)?;
        self.network.features(&self.images.input(&images)?, pass)
    }

    fn for_each_captured(
        &self,
        gpu: &Gpu,
        params: &Params,
        views: &[View],
        mut take: impl FnMut(Range<usize>, &Pass, Features) -> Result<()>,
    ) -> Result<()> {
        // Few sizes, since each is captured by itself.
        let most = (GPU_BYTES / self.images.image_bytes()).clamp(1, GPU_BATCH);
        let size = views.len().next_power_of_two().min(most);
        let bytes = size * self.images.image_bytes();
        let batches: Vec<&[View]> = views.chunks(size).collect();
        let tensors = gpu.lock().move_in("forward", params, self.half())?.tensors();
        let pass = self.pass(&tensors, Statistics::Running);
        let key = StepKey { name: "forward", active: 1, bytes };
        let fill = |time: usize, memory: &mut [u8]| {
            self.images.render(batches[time], memory);
            (1, bytes)
        };
        let mut start = 0;
        gpu.run_steps(batches.len(), bytes, fill, |state, _, input| {
            let out = match state.outputs.get(&bytes) {
                Some(out) => out.share(),
                None => {
                    let out = self.features_of(&input, size, &pass)?;
                    state.outputs.insert(bytes, out.share());
                    out
                }
            };
            state.run(key, || self.features_of(&input, size, &pass)?.copy_to(&out))?;
            let count = size.min(views.len() - start);
            take(start..start + count, &pass, out.first(count)?)?;
            start += count;
            Ok(())
        })
    }
}
