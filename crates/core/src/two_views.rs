//! Batches of two views of the same samples: a weakly augmented one, and a second one of some kind.
//! What FixMatch, FedCon and FedMatch train on.

use crate::config::Augmentation;
use crate::error::Result;
use crate::packing::{Packing, write};
use crate::schedule::{Sample, Task};
use crate::setting::{Setting, View};
use fedanchor_data::Purpose;
use tch::{Kind, Tensor};

/// How the batches of a round are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TwoViews<'a> {
    pub(crate) setting: &'a Setting,
    pub(crate) round: u32,
    pub(crate) batch: usize,
    /// Augmentation of the second view.
    pub(crate) second: Augmentation,
    /// A number for the loss that may differ from round to round; a captured step cannot know it
    /// otherwise.
    pub(crate) number: f32,
}

/// A batch on the device.
pub(crate) struct Batch {
    /// `[K, batch]`.
    pub(crate) labels: Tensor,
    /// `[batch, K*C, H, W]`, normalised.
    pub(crate) first: Tensor,
    pub(crate) second: Tensor,
    /// `[1]`.
    pub(crate) number: Tensor,
}

impl TwoViews<'_> {
    fn packing(&self, active: usize) -> Packing {
        let samples = active * self.batch;
        let images = samples * self.setting.image_bytes();
        Packing::new(&[samples * 8, images, images, 4])
    }

    pub(crate) fn bytes(&self, active: usize) -> usize {
        self.packing(active).total()
    }

    pub(crate) fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        let active = samples.len() / self.batch;
        let mut parts = self.packing(active).split(out);
        let by_client =
            (0..active).flat_map(|slot| (0..self.batch).map(move |row| row * active + slot));
        let label = |at: usize| {
            let sample = &samples[at];
            i64::from(tasks[sample.task].labels[sample.fix as usize])
        };
        write(parts[0], by_client.map(|at| label(at).to_ne_bytes()));
        for (part, purpose, augment) in
            [(1, Purpose::Weak, Augmentation::Weak), (2, second_purpose(self.second), self.second)]
        {
            let views = samples.iter().map(|sample| {
                let task = &tasks[sample.task];
                let stream = self.setting.stream(purpose, self.round, task.who).epoch(sample.epoch);
                let image = task.image(sample.fix);
                match augment {
                    Augmentation::None => View::Raw(image),
                    Augmentation::Weak => View::Weak(image, stream, sample.position),
                    Augmentation::Strong => View::Strong(image, stream, sample.position),
                }
            });
            self.setting.render(&views.collect::<Vec<_>>(), parts[part]);
        }
        write(parts[3], std::iter::once(self.number.to_ne_bytes()));
    }

    pub(crate) fn read(&self, bytes: &Tensor, active: usize) -> Result<Batch> {
        let packing = self.packing(active);
        let input = |part| {
            let images = self.setting.view_images(bytes, &packing, part, self.batch, active)?;
            self.setting.network_input(&images)
        };
        let by_client = [active as i64, self.batch as i64];
        Ok(Batch {
            labels: packing.view(bytes, 0, Kind::Int64, &by_client)?,
            first: input(1)?,
            second: input(2)?,
            number: packing.view(bytes, 3, Kind::Float, &[1])?,
        })
    }
}

/// A second weak view needs draws of its own.
fn second_purpose(second: Augmentation) -> Purpose {
    if second == Augmentation::Strong { Purpose::Strong } else { Purpose::MixWeak }
}
