//! Learning without labels from two views of an image, as in BYOL: the backbone followed by a predictor must
//! predict, from one view, the features that a slowly following target network computes from the other.

use super::Cohort;
use crate::config::Augmentation;
use fedanchor_engine::Result;
use fedanchor_engine::batches::{TwoViewFormat, TwoViews};
use fedanchor_engine::model::{Pass, Statistics};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::losses::{mean_of_batch, unit};
use fedanchor_engine::training::{Inputs, StepLoss, Terms};
use tch::{Kind, Tensor};

/// Batches of two views of each image: a weakly augmented one, and a second one with this augmentation.
pub(super) fn two_views<'a>(cohort: &Cohort<'a>, second: Augmentation) -> TwoViews<'a> {
    let Cohort { experiment, context, round, .. } = *cohort;
    let (streams, batch) = (context.streams(round), experiment.client.batch);
    TwoViews { images: &context.images, streams, batch, second }
}

/// -cos of the network's prediction from one view with the target's features of the other, both ways.
/// The target is the first of the further networks and holds the backbone's entries.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TwoViewLoss {
    pub(super) format: TwoViewFormat,
    /// Share of the target that stays in a step.
    pub(super) target_decay: f64,
}

impl StepLoss for TwoViewLoss {
    fn reads_weights(&self) -> bool {
        false
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> Result<Terms> {
        let (network, images) = (&inputs.context.network, &inputs.context.images);
        let batch = self.format.read(images, inputs.bytes, pass.clients())?;
        // The target has the backbone's entries, which come first in the layout.
        let target = pass.with_tensors(&pass.others[0].tensors).with_statistics(Statistics::Batch);
        let predicted = |x: &Tensor| network.predictions(&network.features(x, pass)?, pass);
        let seen = |x: &Tensor| -> Result<Tensor> {
            tch::no_grad(|| Ok(network.features(x, &target)?.pooled))
        };
        let loss = consistency(&predicted(&batch.first)?, &seen(&batch.second)?)?
            .f_add(&consistency(&predicted(&batch.second)?, &seen(&batch.first)?)?)?;
        Ok(vec![(1.0, loss.f_mul_scalar(0.5)?)].into())
    }

    /// The target follows the backbone as a moving average.
    fn after_step(&self, trained: &Params, others: &[Params]) -> Result<()> {
        others[0].follow(trained, self.target_decay)
    }
}

/// -cos of predictions with targets, `[K, batch, F]` each, mean over the batch.
fn consistency(predicted: &Tensor, seen: &Tensor) -> Result<Tensor> {
    let cosine = unit(predicted)?.f_mul(&unit(seen)?)?;
    mean_of_batch(&cosine.f_sum_dim_intlist(&[-1i64][..], false, Kind::Float)?.f_neg()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consistency_by_hand() {
        // Client 0: cosines 1 and 0; client 1: -1 and 0.6.
        let foreseen = [2f32, 0.0, 0.0, 3.0, 1.0, 0.0, 3.0, 4.0];
        let seen = [5f32, 0.0, 1.0, 0.0, -2.0, 0.0, 1.0, 0.0];
        let of = |values: &[f32]| Tensor::from_slice(values).view([2, 2, 2]);
        let loss = Vec::<f64>::try_from(consistency(&of(&foreseen), &of(&seen)).unwrap()).unwrap();
        assert!((loss[0] + 0.5).abs() < 1e-6 && (loss[1] - 0.2).abs() < 1e-6, "{loss:?}");
    }
}
