//! The loss L_fix + b L_mix (appendix B of the paper): batches of the fix set and the mix set, how a step reads them on
//! the device, and their loss. Clients train on it with pseudo-labels; the server's supervised epoch is the same loss with
//! true labels and all anchors as the fix set.

use super::context::Context;
use super::loss::{Inputs, Objective, StepLoss, Terms};
use super::losses::{cross_entropy_each, mean_of_batch, mixed};
use crate::batches::{
    Batches, ImagePipeline, Packing, RoundStreams, Sample, Task, View, by_client, mix_partner,
    write,
};
use crate::config::{Augmentation, MixAugment, MixDraw, MixupConfig, Views};
use crate::error::Result;
use crate::model::{Features, Pass};
use cuda::{Labels, Losses, MixLabels, Mixture};
use fedanchor_cuda as cuda;
use fedanchor_data::{Purpose, augment};
use tch::{Kind, Tensor};

/// Fix and mix batches of a round, and their loss.
#[derive(Debug, Clone, Copy)]
pub struct FixMix<'a> {
    pub(super) context: &'a Context,
    pub(super) streams: RoundStreams,
    /// Augmentation of the fix view.
    augment: Augmentation,
    mixup: Option<&'a MixupConfig>,
    views: Views,
    /// How a step reads a batch.
    pub format: FixMixFormat,
}

impl<'a> FixMix<'a> {
    /// L_fix alone: cross entropy on batches of this size, with images augmented this way.
    pub fn plain(context: &'a Context, round: u32, batch: usize, augment: Augmentation) -> Self {
        let format = FixMixFormat { batch, mixed: false, weighted: false, adjustments: 0 };
        let (streams, mixup, views) = (context.streams(round), None, Views::Separate);
        Self { context, streams, augment, mixup, views, format }
    }

    /// The same with b L_mix, if there is any mixup.
    pub fn with_mixup(mut self, mixup: Option<&'a MixupConfig>, views: Views) -> Self {
        self.format.mixed = mixup.is_some();
        Self { mixup, views, ..self }
    }

    /// The same with weighted samples, if they have weights.
    pub fn with_weights(mut self, weighted: bool) -> Self {
        self.format.weighted = weighted;
        self
    }

    /// The same with an adjustment of every client's logits, if there is any: what is added in training
    /// the network does not have to learn.
    pub fn with_adjustment(mut self, adjusted: bool) -> Self {
        self.format.adjustments = if adjusted { self.context.classes } else { 0 };
        self
    }

    /// The loss as a value.
    pub fn loss(&self) -> FixMixLoss {
        let mix_weight = self.mixup.map_or(0.0, |mixup| mixup.weight);
        FixMixLoss { format: self.format, views: self.views, mix_weight }
    }

    /// Both together.
    pub fn objective(&self) -> Objective<'_> {
        Objective::new(self, self.loss())
    }
}

/// What a step must know to read such a batch: samples per client, whether there is a mixture, whether samples have weights,
/// and the numbers per client that are added to its logits, one per class; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the comment above describes the fields
pub struct FixMixFormat {
    pub batch: usize,
    pub mixed: bool,
    pub weighted: bool,
    pub adjustments: usize,
}

/// A batch on the device, with the labels and weights of the fix samples. Labels, weights and lambda are `[K, batch]`,
/// images 8-bit `[batch, K, H, W, C]`; the adjustment, `[K, 1, C]`, is added to the logits.
#[derive(Debug)]
pub struct Batch {
    pub labels: Tensor,
    pub weights: Option<Tensor>,
    pub adjustment: Option<Tensor>,
    pub fix: Tensor,
    pub mix: Option<Mix>,
}

/// The mixture of a batch on the device, with the labels and weights of the mix samples.
#[derive(Debug)]
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

/// The parts of a batch, in their order; a part that the format lacks is empty, and nothing is written to it.
const FIX_LABELS: usize = 0;
const FIX_IMAGES: usize = 1;
const FIX_WEIGHTS: usize = 2;
const MIX_LABELS: usize = 3;
const MIX_WEIGHTS: usize = 4;
const LAMBDA: usize = 5;
const WEAK_FIX: usize = 6;
const WEAK_MIX: usize = 7;
const ADJUSTMENT: usize = 8;

impl FixMixFormat {
    fn packing(&self, images: &ImagePipeline, active: usize) -> Packing {
        let samples = active * self.batch;
        let (labels, images) = (samples * 8, samples * images.format.bytes());
        let weights = if self.weighted { samples * 4 } else { 0 };
        let mix = [labels, weights, samples * 4, images, images];
        let mix = mix.map(|size| if self.mixed { size } else { 0 });
        let adjustment = active * self.adjustments * 4;
        Packing::new(&[&[labels, images, weights], &mix[..], &[adjustment]].concat())
    }

    /// One step's inputs on the device.
    pub fn read(&self, images: &ImagePipeline, bytes: &Tensor, active: usize) -> Result<Batch> {
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
                weights: weights(MIX_WEIGHTS)?,
                lambda: packing.view(bytes, LAMBDA, Kind::Float, &by_client)?,
                first: images(WEAK_FIX)?,
                second: images(WEAK_MIX)?,
            })
        };
        let adjustment = || {
            let shape = [active as i64, 1, self.adjustments as i64];
            packing.view(bytes, ADJUSTMENT, Kind::Float, &shape)
        };
        Ok(Batch {
            labels: labels(FIX_LABELS)?,
            weights: weights(FIX_WEIGHTS)?,
            adjustment: (self.adjustments > 0).then(adjustment).transpose()?,
            fix: images(FIX_IMAGES)?,
            mix: self.mixed.then(mix).transpose()?,
        })
    }
}

impl Batches for FixMix<'_> {
    fn batch(&self) -> usize {
        self.format.batch
    }

    fn bytes(&self, active: usize) -> usize {
        self.format.packing(&self.context.images, active).total()
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        let (format, images) = (self.format, &self.context.images);
        let active = samples.len() / format.batch;
        let mut parts = format.packing(images, active).split(out);
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
        weights(parts[FIX_WEIGHTS], &|s| s.fix);
        let numbers = samples[..active].iter().flat_map(|s| tasks[s.task].adjustment);
        write(parts[ADJUSTMENT], numbers.map(|number| number.to_ne_bytes()));
        images.render(&fix_view.collect::<Vec<_>>(), parts[FIX_IMAGES]);
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
            images.render(&samples.iter().map(view).collect::<Vec<_>>(), part);
        };
        labels(parts[MIX_LABELS], &partner);
        weights(parts[MIX_WEIGHTS], &partner);
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

/// L_fix + b L_mix as a value: all that a step depends on except its batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixMixLoss {
    pub(super) format: FixMixFormat,
    views: Views,
    /// b of eq. 10.
    mix_weight: f64,
}

impl StepLoss for FixMixLoss {
    fn terms(&self) -> usize {
        1 + usize::from(self.format.mixed)
    }

    fn reads_weights(&self) -> bool {
        false
    }

    /// L_fix (eq. 7), and b with L_mix (eq. 9-10). A sample that has a weight counts by it, in the
    /// mixture each of the two by its own.
    fn loss(&self, inputs: &Inputs, pass: &Pass) -> Result<Terms> {
        let Inputs { context, bytes, .. } = *inputs;
        let batch = self.format.read(&context.images, bytes, pass.clients())?;
        if pass.fused {
            let Losses { total, terms } = self.fused(context, &batch, pass)?;
            let recorded = Some(terms.f_unbind(1)?);
            return Ok(Terms { recorded, ..vec![(1.0, total)].into() });
        }
        let terms = self.plain_terms(context, &batch, pass)?;
        Ok([1.0, self.mix_weight].into_iter().zip(terms).collect::<Vec<_>>().into())
    }
}

fn logits(context: &Context, x: &Tensor, pass: &Pass) -> Result<Tensor> {
    let network = &context.network;
    network.logits(&network.features(x, pass)?, pass)
}

impl FixMixLoss {
    /// All views in one pass, with their losses in one kernel of the GPU.
    fn fused(&self, context: &Context, batch: &Batch, pass: &Pass) -> Result<Losses> {
        let images = &context.images;
        let logits = match &batch.mix {
            Some(mix) => {
                let views = if self.views == Views::Separate { 2 } else { 1 };
                let x = images.both_inputs(&batch.fix, &mix.mixture())?;
                logits(context, &x, &Pass { views, ..*pass })? // [K, 2 * batch, C]
            }
            None => logits(context, &images.input(&batch.fix)?, pass)?,
        };
        let loss = cuda::FixMixLoss {
            fix: Labels { labels: &batch.labels, weights: batch.weights.as_ref() },
            mix: batch.mix.as_ref().map(|mix| MixLabels {
                labels: Labels { labels: &mix.labels, weights: mix.weights.as_ref() },
                lambda: &mix.lambda,
                weight: self.mix_weight,
            }),
            adjustment: batch.adjustment.as_ref(),
        };
        Ok(loss.forward(&logits)?)
    }

    /// The same by plain operations.
    fn plain_terms(&self, context: &Context, batch: &Batch, pass: &Pass) -> Result<Vec<Tensor>> {
        let Outputs { logits, mix_logits, .. } = self.outputs(context, batch, pass)?;
        let fix = weighted(cross_entropy_each(&logits, &batch.labels)?, &batch.weights)?;
        let (Some(mix), Some(mix_logits)) = (&batch.mix, mix_logits) else {
            return Ok(vec![mean_of_batch(&fix)?]);
        };
        let to_fix = weighted(cross_entropy_each(&mix_logits, &batch.labels)?, &batch.weights)?;
        let to_mix = weighted(cross_entropy_each(&mix_logits, &mix.labels)?, &mix.weights)?;
        Ok(vec![mean_of_batch(&fix)?, mean_of_batch(&mixed(&to_fix, &to_mix, &mix.lambda)?)?])
    }

    /// The network's outputs for a batch, which it was read from by [`FixMixFormat::read`].
    pub(super) fn outputs(&self, context: &Context, batch: &Batch, pass: &Pass) -> Result<Outputs> {
        let (images, network) = (&context.images, &context.network);
        let size = self.format.batch as i64;
        let (features, logits, mix_logits) = match &batch.mix {
            None => {
                let features = network.features(&images.input(&batch.fix)?, pass)?;
                let logits = network.logits(&features, pass)?;
                (features, logits, None)
            }
            Some(mix) if pass.fused || self.views == Views::Joint => {
                let views = if self.views == Views::Separate { 2 } else { 1 };
                let x = images.both_inputs(&batch.fix, &mix.mixture())?;
                let pass = &Pass { views, ..*pass };
                let both = network.features(&x, pass)?;
                let logits = network.logits(&both, pass)?; // [K, 2 * batch, C]
                let mix_logits = logits.f_narrow(1, size, size)?;
                (both.first(self.format.batch)?, logits.f_narrow(1, 0, size)?, Some(mix_logits))
            }
            Some(mix) => {
                let features = network.features(&images.input(&batch.fix)?, pass)?;
                let logits = network.logits(&features, pass)?;
                let mixture = images.mixed_input(&mix.mixture())?;
                let mix_logits = network.logits(&network.features(&mixture, pass)?, pass)?;
                (features, logits, Some(mix_logits))
            }
        };
        let adjusted = |logits| adjusted(logits, &batch.adjustment);
        let mix_logits = mix_logits.map(adjusted).transpose()?;
        Ok(Outputs { features, logits: adjusted(logits)?, mix_logits })
    }
}

/// What a network computes for a batch: features and logits of the fix view, and logits of the mixture if there is one,
/// both with the clients' adjustments.
pub(super) struct Outputs {
    pub(super) features: Features,
    pub(super) logits: Tensor,
    pub(super) mix_logits: Option<Tensor>,
}

/// Logits `[K, batch, C]` plus the clients' adjustments, where there are any.
fn adjusted(logits: Tensor, adjustment: &Option<Tensor>) -> Result<Tensor> {
    Ok(match adjustment {
        Some(adjustment) => logits.f_add(adjustment)?,
        None => logits,
    })
}

/// Losses `[K, batch]` times the samples' weights, where they have any.
fn weighted(each: Tensor, weights: &Option<Tensor>) -> Result<Tensor> {
    Ok(match weights {
        Some(weights) => each.f_mul(weights)?,
        None => each,
    })
}
