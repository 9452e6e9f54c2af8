//! Batches of the fix set and the mix set (appendix B of the paper): what is drawn, how the images are
//! made, and how a step reads them on the device.

use super::Batches;
use super::images::{ImagePipeline, View};
use super::packing::{Packing, write};
use super::plan::{Sample, Task, by_client, mix_partner};
use super::streams::RoundStreams;
use crate::config::{Augmentation, MixAugment, MixDraw, MixupConfig};
use crate::error::Result;
use fedanchor_cuda::Mixture;
use fedanchor_data::{Purpose, augment};
use tch::{Kind, Tensor};

/// How fix and mix batches are made in a round.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the types have comments
pub struct FixMixBatches<'a> {
    pub images: &'a ImagePipeline,
    pub streams: RoundStreams,
    /// Augmentation of the fix view.
    pub augment: Augmentation,
    pub mixup: Option<&'a MixupConfig>,
    pub format: FixMixFormat,
}

/// What a step must know to read such a batch: samples per client, whether there is a mixture, whether samples have weights,
/// and the numbers per client that are added to its logits, one per class; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FixMixFormat {
    pub batch: usize,
    pub mixed: bool,
    pub weighted: bool,
    pub adjustments: usize,
}

/// A batch on the device, with the labels and weights of the fix samples. Labels, weights and lambda are `[K, batch]`,
/// images 8-bit `[batch, K, H, W, C]`; the adjustment, `[K, 1, C]`, is added to the logits.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct FixMixBatch {
    pub labels: Tensor,
    pub weights: Option<Tensor>,
    pub adjustment: Option<Tensor>,
    pub fix: Tensor,
    pub mix: Option<Mix>,
}

/// The mixture of a batch on the device, with the labels and weights of the mix samples.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Mix {
    pub labels: Tensor,
    pub weights: Option<Tensor>,
    /// The share of the fix sample in each mixture.
    pub lambda: Tensor,
    /// Weak views of the fix samples.
    pub first: Tensor,
    /// Weak views of the mix samples.
    pub second: Tensor,
}

impl Mix {
    /// The mixture of both images.
    pub fn mixture(&self) -> Mixture<'_> {
        Mixture { first: &self.first, second: &self.second, lambda: &self.lambda }
    }
}

/// The parts of a batch, in their order; the last four only with mixup.
const FIX_LABELS: usize = 0;
const FIX_IMAGES: usize = 1;
const MIX_LABELS: usize = 2;
const LAMBDA: usize = 3;
const WEAK_FIX: usize = 4;
const WEAK_MIX: usize = 5;

impl FixMixFormat {
    fn packing(&self, images: &ImagePipeline, active: usize) -> Packing {
        let samples = active * self.batch;
        let (labels, images) = (samples * 8, samples * images.shape().bytes());
        let mut parts = vec![labels, images];
        if self.mixed {
            parts.extend([labels, samples * 4, images, images]);
        }
        if self.weighted {
            parts.extend(vec![samples * 4; 1 + usize::from(self.mixed)]);
        }
        if self.adjustments > 0 {
            parts.push(active * self.adjustments * 4);
        }
        Packing::new(&parts)
    }

    /// The parts with weights come after those, and the adjustment last.
    fn fix_weights(&self) -> usize {
        if self.mixed { WEAK_MIX + 1 } else { FIX_IMAGES + 1 }
    }

    fn mix_weights(&self) -> usize {
        self.fix_weights() + 1
    }

    fn adjustment(&self) -> usize {
        let weights = if self.weighted { 1 + usize::from(self.mixed) } else { 0 };
        self.fix_weights() + weights
    }

    /// One step's inputs on the device.
    pub fn read(
        &self,
        images: &ImagePipeline,
        bytes: &Tensor,
        active: usize,
    ) -> Result<FixMixBatch> {
        let packing = self.packing(images, active);
        let by_client = [active as i64, self.batch as i64];
        let images = |part| images.view(bytes, &packing, part, self.batch, active);
        let labels = |part| packing.view(bytes, part, Kind::Int64, &by_client);
        let weights = |part| {
            let view = || packing.view(bytes, part, Kind::Float, &by_client);
            self.weighted.then(view).transpose()
        };
        let mix = || -> Result<Mix> {
            Ok(Mix {
                labels: labels(MIX_LABELS)?,
                weights: weights(self.mix_weights())?,
                lambda: packing.view(bytes, LAMBDA, Kind::Float, &by_client)?,
                first: images(WEAK_FIX)?,
                second: images(WEAK_MIX)?,
            })
        };
        let adjustment = || {
            let shape = [active as i64, 1, self.adjustments as i64];
            packing.view(bytes, self.adjustment(), Kind::Float, &shape)
        };
        Ok(FixMixBatch {
            labels: labels(FIX_LABELS)?,
            weights: weights(self.fix_weights())?,
            adjustment: (self.adjustments > 0).then(adjustment).transpose()?,
            fix: images(FIX_IMAGES)?,
            mix: self.mixed.then(mix).transpose()?,
        })
    }
}

impl Batches for FixMixBatches<'_> {
    fn batch(&self) -> usize {
        self.format.batch
    }

    fn bytes(&self, active: usize) -> usize {
        self.format.packing(self.images, active).total()
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        let format = self.format;
        let active = samples.len() / format.batch;
        let mut parts = format.packing(self.images, active).split(out);
        let stream = |purpose, sample: &Sample| {
            self.streams.of(purpose, tasks[sample.task].client).epoch(sample.epoch)
        };
        let by_client = || by_client(samples, active);
        let labels = |part: &mut [u8], of: &dyn Fn(&Sample) -> u32| {
            let label = |s: &Sample| i64::from(tasks[s.task].labels[of(s) as usize]);
            write(part, by_client().map(|s| label(s).to_ne_bytes()));
        };
        let fix_view = samples.iter().map(|s| {
            let image = tasks[s.task].image(s.fix);
            View::new(self.augment, image, stream(Purpose::Strong, s), s.position)
        });
        let weights = |part: &mut [u8], of: &dyn Fn(&Sample) -> u32| {
            let weight = |s: &Sample| tasks[s.task].weights[of(s) as usize];
            write(part, by_client().map(|s| weight(s).to_ne_bytes()));
        };
        labels(parts[FIX_LABELS], &|s| s.fix);
        if format.weighted {
            weights(parts[format.fix_weights()], &|s| s.fix);
        }
        if format.adjustments > 0 {
            let numbers = samples[..active].iter().flat_map(|s| tasks[s.task].adjustment);
            write(parts[format.adjustment()], numbers.map(|number| number.to_ne_bytes()));
        }
        self.images.render(&fix_view.collect::<Vec<_>>(), parts[FIX_IMAGES]);
        let Some(mixup) = self.mixup else { return };

        let partner = |s: &Sample| mix_partner(self.streams, &tasks[s.task], s, mixup.mix_set);
        // Flip and crop only move pixels, so augmenting the mixture is augmenting both images alike.
        let mix_purpose = match mixup.augment {
            MixAugment::Before => Purpose::MixWeak,
            MixAugment::After => Purpose::Weak,
        };
        let weak = |part: &mut [u8], of: &dyn Fn(&Sample) -> u32, purpose| {
            let view =
                |s: &Sample| View::Weak(tasks[s.task].image(of(s)), stream(purpose, s), s.position);
            self.images.render(&samples.iter().map(view).collect::<Vec<_>>(), part);
        };
        labels(parts[MIX_LABELS], &partner);
        if format.weighted {
            weights(parts[format.mix_weights()], &partner);
        }
        let lambda = |s: &Sample| {
            let at = match mixup.draw {
                MixDraw::Batch => s.step,
                MixDraw::Sample => s.position,
            };
            augment::mixup_lambda(mixup.alpha, &mut stream(Purpose::MixLambda, s).at(at))
        };
        write(parts[LAMBDA], by_client().map(|s| lambda(s).to_ne_bytes()));
        weak(parts[WEAK_FIX], &|s| s.fix, Purpose::Weak);
        weak(parts[WEAK_MIX], &partner, mix_purpose);
    }
}
