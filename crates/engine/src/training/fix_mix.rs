//! The loss L_fix + b L_mix (appendix B of the paper) for a batch of a cohort. Clients train on it with
//! pseudo-labels; the server's supervised epoch is the same loss with true labels and all anchors as
//! the fix set.

use super::context::Context;
use super::loss::{Inputs, Objective, StepLoss, Terms};
use super::losses::{cross_entropy_each, mean_of_batch, mixed};
use crate::batches::{FixMixBatch, FixMixBatches, FixMixFormat};
use crate::config::{Augmentation, MixupConfig, Views};
use crate::error::Result;
use crate::model::Pass;
use cuda::{Labels, Losses, MixLabels};
use fedanchor_cuda as cuda;
use tch::Tensor;

/// Fix and mix batches of a round, and their loss.
#[derive(Debug, Clone, Copy)]
pub struct FixMix<'a> {
    context: &'a Context,
    /// The batches.
    pub batches: FixMixBatches<'a>,
    /// Whether batch norm sees the two views apart.
    pub views: Views,
}

impl<'a> FixMix<'a> {
    /// L_fix alone: cross entropy on batches of this size, with images augmented this way.
    pub fn plain(context: &'a Context, round: u32, batch: usize, augment: Augmentation) -> Self {
        let (images, streams) = (&context.images, context.streams(round));
        let format = FixMixFormat { batch, mixed: false, weighted: false, adjustments: 0 };
        let batches = FixMixBatches { images, streams, augment, mixup: None, format };
        Self { context, batches, views: Views::Separate }
    }

    /// The same with b L_mix, if there is any mixup.
    pub fn with_mixup(mut self, mixup: Option<&'a MixupConfig>, views: Views) -> Self {
        self.batches.mixup = mixup;
        self.batches.format.mixed = mixup.is_some();
        Self { views, ..self }
    }

    /// The same with weighted samples, if they have weights.
    pub fn with_weights(mut self, weighted: bool) -> Self {
        self.batches.format.weighted = weighted;
        self
    }

    /// The same with an adjustment of every client's logits, if there is any: what is added in training
    /// the network does not have to learn.
    pub fn with_adjustment(mut self, adjusted: bool) -> Self {
        self.batches.format.adjustments = if adjusted { self.context.classes } else { 0 };
        self
    }

    /// The loss as a value.
    pub fn loss(&self) -> FixMixLoss {
        let mix_weight = self.batches.mixup.map_or(0.0, |mixup| mixup.weight);
        FixMixLoss { format: self.batches.format, views: self.views, mix_weight }
    }

    /// Both together.
    pub fn objective(&self) -> Objective<'_> {
        Objective::new(&self.batches, self.loss())
    }
}

/// L_fix + b L_mix as a value: all that a step depends on except its batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixMixLoss {
    format: FixMixFormat,
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
    fn fused(&self, context: &Context, batch: &FixMixBatch, pass: &Pass) -> Result<Losses> {
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
    fn plain_terms(
        &self,
        context: &Context,
        batch: &FixMixBatch,
        pass: &Pass,
    ) -> Result<Vec<Tensor>> {
        let images = &context.images;
        let Some(mix) = &batch.mix else {
            let logits = logits(context, &images.input(&batch.fix)?, pass)?;
            let each = cross_entropy_each(&adjusted(logits, &batch.adjustment)?, &batch.labels)?;
            return Ok(vec![mean_of_batch(&weighted(each, &batch.weights)?)?]);
        };
        let (fix_logits, mix_logits) = match self.views {
            Views::Separate => (
                logits(context, &images.input(&batch.fix)?, pass)?,
                logits(context, &images.mixed_input(&mix.mixture())?, pass)?,
            ),
            Views::Joint => {
                let x = images.both_inputs(&batch.fix, &mix.mixture())?;
                let both = logits(context, &x, pass)?; // [K, 2 * batch, C]
                let size = self.format.batch as i64;
                (both.f_narrow(1, 0, size)?, both.f_narrow(1, size, size)?)
            }
        };
        let fix_logits = adjusted(fix_logits, &batch.adjustment)?;
        let mix_logits = adjusted(mix_logits, &batch.adjustment)?;
        let fix = weighted(cross_entropy_each(&fix_logits, &batch.labels)?, &batch.weights)?;
        let to_fix = weighted(cross_entropy_each(&mix_logits, &batch.labels)?, &batch.weights)?;
        let to_mix = weighted(cross_entropy_each(&mix_logits, &mix.labels)?, &mix.weights)?;
        Ok(vec![mean_of_batch(&fix)?, mean_of_batch(&mixed(&to_fix, &to_mix, &mix.lambda)?)?])
    }
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
