//! FedAvg with FixMatch (Sohn et al., 2020) on the clients and supervised epochs on the server: the
//! paper's plain baseline.
//!
//! Every batch is labelled by the client's current model: the weak view's largest probability must reach the
//! threshold, and the strong view is trained on that label. A client that keeps none of a batch skips that step, and
//! one that keeps nothing in all its steps sends no update.
//!
//! Differences from the sources:
//!
//! - The mean is over the kept samples, as in SemiFL's code for this baseline; FixMatch proper divides by
//!   the whole batch.
//! - All strong views of a batch are forwarded, so that batches of a cohort have one shape, and batch norm
//!   takes its statistics from all of them. SemiFL's code forwards only those that are kept.
//! - Labels are computed with running statistics where the model has them
//!   (`batch_norm.statistics = "average"`), otherwise with the batch's, which is what SemiFL's code does.
//! - FixMatch proper trains on labelled and unlabelled images in one step and tests a moving average of the
//!   weights. Here the labels are on the server, and the settings are those of the preset.

use super::two_views::two_views;
use super::{ClientReport, ClientTrainer, Cohort, Method, Properties, losses, read_settings};
use crate::config::{Augmentation, within};
use crate::error::Result;
use crate::labels::{PseudoLabels, evaluation_statistics};
use crate::messages::Broadcast;
use fedanchor_engine::Result as EngineResult;
use fedanchor_engine::batches::TwoViewFormat;
use fedanchor_engine::model::Pass;
use fedanchor_engine::training::losses::cross_entropy_each;
use fedanchor_engine::training::{Inputs, Objective, StepLoss, Terms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use toml::Table;

/// FedAvg with FixMatch: clients label every batch with their own classifier (Sohn et al., 2020).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FedAvgFixMatch {
    /// A sample of a batch is trained on if its largest probability, with the client's own model, is at least
    /// this.
    threshold: f64,
}

impl Method for FedAvgFixMatch {
    fn name(&self) -> &'static str {
        "fedavg-fixmatch"
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let views = two_views(&cohort, Augmentation::Strong);
        let loss = FixMatchLoss { format: views.format(), threshold: self.threshold };
        let trainer = ClientTrainer {
            may_skip: true,
            ..ClientTrainer::new(self, &broadcast.params, Objective::new(&views, loss))
        };
        trainer.train_on_all(cohort)
    }

    /// Training labels every batch separately.
    fn measure(&self, cohort: &Cohort, sent: &Broadcast) -> Result<Option<Vec<PseudoLabels>>> {
        cohort.label(&sent.params, self.threshold).map(Some)
    }

    fn properties(&self) -> Properties {
        Properties {
            client_losses: losses(&["fixmatch"]),
            server_losses: losses(&["fix"]),
            ..Properties::default()
        }
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: FedAvgFixMatch = read_settings(settings)?;
    within("method.threshold", method.threshold, 0.0, 1.0)?;
    Ok(Box::new(method))
}

#[derive(Debug, Clone, PartialEq)]
struct FixMatchLoss {
    format: TwoViewFormat,
    threshold: f64,
}

impl StepLoss for FixMatchLoss {
    fn terms(&self) -> usize {
        2
    }

    fn reads_weights(&self) -> bool {
        false
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        let Inputs { context, bytes, .. } = *inputs;
        let network = &context.network;
        let batch = self.format.read(&context.images, bytes, pass.clients())?;
        let logits = |x: &Tensor, pass: &Pass| network.logits(&network.features(x, pass)?, pass);
        let evaluation = pass.with_statistics(evaluation_statistics(context));
        let weak = tch::no_grad(|| logits(&batch.first, &evaluation))?;
        let strong = logits(&batch.second, pass)?;
        fixmatch_terms(&weak, &strong, self.threshold)
    }
}

/// Cross entropy of the strong views' logits with the weak views' labels, `[K, batch, C]` each, over
/// the samples whose weak view reaches the threshold; and which clients have any.
fn fixmatch_terms(weak: &Tensor, strong: &Tensor, threshold: f64) -> EngineResult<Terms> {
    let (score, label) = weak.f_detach()?.f_softmax(-1, Kind::Float)?.f_max_dim(-1, false)?;
    let kept = score.f_ge(threshold)?.f_to_kind(Kind::Float)?; // [K, batch]
    let count = kept.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?; // [K]
    let each = cross_entropy_each(strong, &label)?.f_mul(&kept)?;
    let sum = each.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?;
    let made = count.f_gt(0)?.f_to_kind(Kind::Float)?;
    let loss = sum.f_div(&count.f_clamp_min(1)?)?;
    let terms = vec![(1.0, loss), (0.0, made.shallow_clone())];
    Ok(Terms { made: Some(made), ..terms.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_confident_samples_are_trained_on() {
        // Probabilities (1/4, 3/4), (1/2, 1/2) for client 0 and (1/2, 1/2) twice for client 1.
        let ln3 = 3f32.ln();
        let weak = Tensor::from_slice(&[0.0, ln3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).view([2, 2, 2]);
        let strong = Tensor::from_slice(&[ln3, 0.0, ln3, 0.0, ln3, 0.0, ln3, 0.0]).view([2, 2, 2]);
        let Terms { terms, made, .. } = fixmatch_terms(&weak, &strong, 0.75).unwrap();
        let losses = Vec::<f64>::try_from(&terms[0].1).unwrap();
        // Client 0: label 1 of its first sample, whose strong view gives it 1/4. Client 1: nothing.
        assert!((losses[0] - 4f64.ln()).abs() < 1e-6 && losses[1] == 0.0, "{losses:?}");
        assert_eq!(Vec::<f64>::try_from(made.unwrap()).unwrap(), [1.0, 0.0]);
        let all = fixmatch_terms(&weak, &strong, 0.5).unwrap();
        // Ties go to class 0: client 0's mean of ln 4 and ln 4/3, client 1's ln 4/3.
        let losses = Vec::<f64>::try_from(&all.terms[0].1).unwrap();
        let (quarter, three) = (4f64.ln(), (4.0f64 / 3.0).ln());
        assert!((losses[0] - (quarter + three) / 2.0).abs() < 1e-6, "{losses:?}");
        assert!((losses[1] - three).abs() < 1e-6, "{losses:?}");
    }
}
