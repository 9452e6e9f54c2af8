//! Forward passes without gradients over many images: labels, anchors' latents, statistics, tests.
//!
//! On a GPU the backbone's pass is a captured step like those of training, with its batches prepared
//! ahead by another thread. A captured pass has a fixed number of images, so the last batch is padded
//! with images whose results are not read. Where batch norm statistics are measured every image counts:
//! full batches are captured, and a last one that is not full runs as it is.

use super::context::Context;
use super::gpu::Gpu;
use super::steps::{FORWARD, StepKey};
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
        let mut pixels = vec![0; BATCH.min(views.len()) * self.images.format.bytes()];
        for (index, batch) in views.chunks(BATCH).enumerate() {
            let pixels = &mut pixels[..batch.len() * self.images.format.bytes()];
            self.images.render(batch, pixels);
            let bytes = Tensor::f_from_slice(pixels)?.f_to_device(self.device)?;
            let pass = self.pass(&params.tensors, statistics(index));
            let features = self.features_of(&bytes, batch.len(), &pass)?;
            let start = index * BATCH;
            take(start..start + batch.len(), &pass, features)?;
        }
        Ok(())
    }

    /// Measures batch norm's statistics of a plain network: the cumulative average over batches of these
    /// images.
    pub fn measure_statistics(&self, params: &Params, views: &[View]) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let share = |batch: usize| Statistics::Update(1.0 / (batch + 1) as f64);
        let Some(gpu) = &self.gpu else {
            return self.for_each_batch(params, share, views, |_, _, _| Ok(()));
        };
        let (full, rest) = views.split_at(views.len() - views.len() % BATCH);
        if !full.is_empty() {
            self.measure_captured(gpu, params, full)?;
        }
        let done = full.len() / BATCH;
        self.for_each_batch(params, |batch| share(done + batch), rest, |_, _, _| Ok(()))
    }

    /// The same for full batches: a captured pass leaves a batch's own statistics, which are added up.
    fn measure_captured(&self, gpu: &Gpu, params: &Params, views: &[View]) -> Result<()> {
        let bytes = BATCH * self.images.format.bytes();
        let batches: Vec<&[View]> = views.chunks(BATCH).collect();
        let (tensors, workspace) = {
            let mut state = gpu.lock();
            let space = state.move_in("statistics", params, self.half)?;
            (space.tensors(), space.number)
        };
        let statistic = |at: &usize| params.layout[*at].statistic;
        let statistics: Vec<usize> = (0..params.layout.len()).filter(statistic).collect();
        let sums = statistics.iter().map(|&at| tensors[at].f_zeros_like());
        let mut sums: Vec<Tensor> = sums.collect::<Result<_, _>>()?;
        let pass = self.pass(&tensors, Statistics::Update(1.0));
        let key = StepKey { workspace, kind: FORWARD, active: 1, bytes };
        let fill = |time: usize, memory: &mut [u8]| {
            self.images.render(batches[time], memory);
            (1, bytes)
        };
        gpu.run_steps(batches.len(), bytes, fill, |state, _, input| {
            state.run(key, || self.features_of(&input, BATCH, &pass).map(drop))?;
            for (sum, &at) in sums.iter_mut().zip(&statistics) {
                let _ = sum.f_add_(&tensors[at])?;
            }
            Ok(())
        })?;
        for (sum, &at) in sums.iter().zip(&statistics) {
            let mean = sum.f_div_scalar(batches.len() as f64)?;
            params.tensors[at].shallow_clone().f_copy_(&mean)?;
        }
        Ok(())
    }

    fn features_of(&self, bytes: &Tensor, count: usize, pass: &Pass) -> Result<Features> {
        let packing = Packing::new(&[count * self.images.format.bytes()]);
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
        let most = (GPU_BYTES / self.images.format.bytes()).clamp(1, GPU_BATCH);
        let size = views.len().next_power_of_two().min(most);
        let bytes = size * self.images.format.bytes();
        let batches: Vec<&[View]> = views.chunks(size).collect();
        let (tensors, workspace) = {
            let mut state = gpu.lock();
            let space = state.move_in("forward", params, self.half)?;
            (space.tensors(), space.number)
        };
        let pass = self.pass(&tensors, Statistics::Running);
        let key = StepKey { workspace, kind: FORWARD, active: 1, bytes };
        let fill = |time: usize, memory: &mut [u8]| {
            self.images.render(batches[time], memory);
            (1, bytes)
        };
        let mut start = 0;
        gpu.run_steps(batches.len(), bytes, fill, |state, _, input| {
            let out = match state.outputs.get(&key) {
                Some(out) => out.first(size)?,
                None => {
                    let out = self.features_of(&input, size, &pass)?;
                    state.outputs.insert(key, out.first(size)?);
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
