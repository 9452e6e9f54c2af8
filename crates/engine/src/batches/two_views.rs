//! Batches of two views of the same samples: a weakly augmented one, and a second one of any kind.

use super::Batches;
use super::images::{ImagePipeline, View};
use super::packing::{Packing, write};
use super::plan::{RoundStreams, Sample, Task, by_client};
use crate::config::Augmentation;
use crate::error::Result;
use fedanchor_data::Purpose;
use tch::{Kind, Tensor};

/// How the batches of a round are made.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the types have comments
pub struct TwoViews<'a> {
    pub images: &'a ImagePipeline,
    pub streams: RoundStreams,
    /// Samples per client in a batch.
    pub batch: usize,
    /// Augmentation of the second view.
    pub second: Augmentation,
}

/// What a step must know to read such a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TwoViewFormat {
    /// Samples per client.
    pub batch: usize,
}

/// A batch on the device.
#[derive(Debug)]
pub struct Batch {
    /// Labels: `[K, batch]`.
    pub labels: Tensor,
    /// The weak view, normalised: `[batch, K*C, H, W]`.
    pub first: Tensor,
    /// The second view.
    pub second: Tensor,
}

impl TwoViewFormat {
    fn packing(&self, images: &ImagePipeline, active: usize) -> Packing {
        let samples = active * self.batch;
        let images = samples * images.format.bytes();
        Packing::new(&[samples * 8, images, images])
    }

    /// One step's inputs on the device.
    pub fn read(&self, images: &ImagePipeline, bytes: &Tensor, active: usize) -> Result<Batch> {
        let packing = self.packing(images, active);
        let input = |part| images.input(&images.view(bytes, &packing, part, self.batch, active)?);
        let by_client = [active as i64, self.batch as i64];
        Ok(Batch {
            labels: packing.view(bytes, 0, Kind::Int64, &by_client)?,
            first: input(1)?,
            second: input(2)?,
        })
    }
}

impl TwoViews<'_> {
    /// How a step reads them.
    pub fn format(&self) -> TwoViewFormat {
        TwoViewFormat { batch: self.batch }
    }
}

impl Batches for TwoViews<'_> {
    fn batch(&self) -> usize {
        self.batch
    }

    fn bytes(&self, active: usize) -> usize {
        self.format().packing(self.images, active).total()
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        let active = samples.len() / self.batch;
        let mut parts = self.format().packing(self.images, active).split(out);
        let label = |s: &Sample| i64::from(tasks[s.task].labels[s.fix as usize]);
        write(parts[0], by_client(samples, active).map(|s| label(s).to_ne_bytes()));
        // A second weak view needs separate draws.
        let strong = self.second == Augmentation::Strong;
        let second = if strong { Purpose::Strong } else { Purpose::MixWeak };
        for (part, purpose, augment) in
            [(1, Purpose::Weak, Augmentation::Weak), (2, second, self.second)]
        {
            let views = samples.iter().map(|sample| {
                let task = &tasks[sample.task];
                let stream = self.streams.of(purpose, task.client).epoch(sample.epoch);
                View::new(augment, task.image(sample.fix), stream, sample.position)
            });
            self.images.render(&views.collect::<Vec<_>>(), parts[part]);
        }
    }
}
