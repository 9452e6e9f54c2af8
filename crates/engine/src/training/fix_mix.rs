//! The loss L_fix + b L_mix (appendix B of the paper) for a batch of a cohort. Clients train on it with
//! pseudo-labels; the server's supervised epoch is the same loss with true labels and all anchors as
//! the fix set.

use super::context::Context;
use super::learner::{StepLoss, Terms};
use super::losses::{cross_entropy_each, mean_of_batch, mixed};
use crate::batches::{Batches, FixMixBatch, FixMixBatches};
use crate::config::{Augmentation, MixupConfig, Views};
use crate::error::Result;
use crate::model::Pass;
use fedanchor_graph::{FixMixLoss, Labels, Losses, MixLabels};
use tch::Tensor;

/// The loss on fix and mix batches of a round.
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
        let (mixup, weighted, adjustments) = (None, false, 0);
        let batches =
            FixMixBatches { images, streams, batch, augment, mixup, weighted, adjustments };
        Self { context, batches, views: Views::Separate }
    }

    /// The same with b L_mix, if there is any mixup.
    pub fn with_mixup(mut self, mixup: Option<&'a MixupConfig>, views: Views) -> Self {
        self.batches.mixup = mixup;
        Self { views, ..self }
    }

    /// The same with weighted samples, if they have weights.
    pub fn with_weights(mut self, weighted: bool) -> Self {
        self.batches.weighted = weighted;
        self
    }

    /// The same with an adjustment of every client's logits, if there is any: what is added in training
    /// the network does not have to learn.
    pub fn with_adjustment(mut self, adjusted: bool) -> Self {
        self.batches.adjustments = if adjusted { self.context.classes } else { 0 };
        self
    }
}

impl StepLoss for FixMix<'_> {
    fn batches(&self) -> &dyn Batches {
        &self.batches
    }

    fn terms(&self) -> usize {
        1 + usize::from(self.batches.mixup.is_some())
    }

    fn only_through_layers(&self) -> bool {
        true
    }

    /// L_fix (eq. 7), and b with L_mix (eq. 9-10). A sample that has a weight counts by it, in the
    /// mixture each of the two by its own.
    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms> {
        let batch = self.batches.read(bytes, pass.clients())?;
        if pass.fused {
            let Losses { total, terms } = self.fused(&batch, pass)?;
            let recorded = Some(terms.f_unbind(1)?);
            return Ok(Terms { terms: vec![(1.0, total)], recorded, made: None });
        }
        let terms = [1.0, self.mix_weight()].into_iter().zip(self.plain_terms(&batch, pass)?);
        Ok(terms.collect::<Vec<_>>().into())
    }
}

impl FixMix<'_> {
    /// b of eq. 10.
    fn mix_weight(&self) -> f64 {
        self.batches.mixup.map_or(0.0, |mixup| mixup.weight)
    }

    fn logits(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let network = &self.context.network;
        network.logits(&network.features(x, pass)?, pass)
    }

    /// All views in one pass, with their losses in one kernel of the GPU.
    fn fused(&self, batch: &FixMixBatch, pass: &Pass) -> Result<Losses> {
        let images = &self.context.images;
        let logits = match &batch.mix {
            Some(mix) => {
                let views = if self.views == Views::Separate { 2 } else { 1 };
                let x = images.both_inputs(&batch.fix, &mix.mixture())?;
                self.logits(&x, &Pass { views, ..*pass })? // [K, 2 * batch, C]
            }
            None => self.logits(&images.input(&batch.fix)?, pass)?,
        };
        let loss = FixMixLoss {
            fix: Labels { labels: &batch.labels, weights: batch.weights.as_ref() },
            mix: batch.mix.as_ref().map(|mix| MixLabels {
                labels: Labels { labels: &mix.labels, weights: mix.weights.as_ref() },
                lambda: &mix.lambda,
                weight: self.mix_weight(),
            }),
            adjustment: batch.adjustment.as_ref(),
        };
        Ok(loss.forward(&logits)?)
    }

    /// The same by plain operations.
    fn plain_terms(&self, batch: &FixMixBatch, pass: &Pass) -> Result<Vec<Tensor>> {
        let images = &self.context.images;
        let Some(mix) = &batch.mix else {
            let logits =
                adjusted(self.logits(&images.input(&batch.fix)?, pass)?, &batch.adjustment)?;
            let each = cross_entropy_each(&logits, &batch.labels)?;
            return Ok(vec![mean_of_batch(&weighted(each, &batch.weights)?)?]);
        };
        let (fix_logits, mix_logits) = match self.views {
            Views::Separate => (
                self.logits(&images.input(&batch.fix)?, pass)?,
                self.logits(&images.mixed_input(&mix.mixture())?, pass)?,
            ),
            Views::Joint => {
                let both = self.logits(&images.both_inputs(&batch.fix, &mix.mixture())?, pass)?; // [K, 2 * batch, C]
                let size = self.batches.batch as i64;
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
