//! FedCon: Long, Che, Wang, Ye, Luo, Wu, Xiao and Ma, "FedCon: A Contrastive Framework for Federated
//! Semi-Supervised Learning", 2021.
//!
//! Clients learn without labels: the backbone followed by a predictor must predict, from one view of an
//! image, the features that a slowly following target network computes from another view (as in BYOL).
//! Predictor and target are the client's own and stay with it from round to round; backbones are
//! averaged, and only the server has the classification head. The server learns from its labels on two
//! views and also trains their predictions to agree, with a weight that rises over the rounds.
//!
//! This is the method as the paper describes it. The published script evaluates the live network in place of
//! its moving average, confuses the clients' states, and restarts a warm-up of ten epochs in every round of
//! one epoch, so that clients hardly learn. Other differences from the script, since all methods here share
//! `[client]`, `[server]` and `[optimiser]`, with the values of preset `paper`:
//!
//! - Clients train with SGD instead of LARS, in batches of 10 instead of 50, for five epochs instead of one.
//! - The server trains with a learning rate of 0.03 and momentum 0.9 instead of 0.01 and 0.5.
//! - The server trains for `pretrain.epochs` before the first round, as for every other method, instead of
//!   for one epoch.
//! - The predictor is 4,096 wide (`method.predictor`) instead of 12,288.

use super::two_views::{TwoViewLoss, two_views};
use super::{Client, ClientReport, ClientTrainer, Cohort, Contribution, MeanLosses, Method};
use super::{Properties, losses, read_settings};
use crate::config::{Augmentation, Heads, at_most, within};
use crate::error::Result;
use crate::labels::PseudoLabels;
use crate::messages::Broadcast;
use crate::server::{Server, supervised_epoch};
use fedanchor_engine::Result as EngineResult;
use fedanchor_engine::batches::{TwoViewFormat, TwoViews};
use fedanchor_engine::model::Pass;
use fedanchor_engine::tensors::{Params, Part};
use fedanchor_engine::training::losses::{cross_entropy, mean_of_batch};
use fedanchor_engine::training::{Inputs, Objective, StepLoss, Terms};
use fedanchor_record::ClientLabels;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};
use toml::Table;

// Names in a client's state.
const PREDICTOR: &str = "predictor";
const TARGET: &str = "target";

/// FedCon: clients learn without labels, from the consistency of two views (Long et al., 2021).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FedCon {
    /// Hidden width of the predictor.
    predictor: usize,
    /// Share of the client's target network that stays in each step.
    target_decay: f64,
    /// Rounds until the server's consistency loss reaches its full weight.
    ramp_up: u32,
}

impl Method for FedCon {
    fn name(&self) -> &'static str {
        "fedcon"
    }

    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<MeanLosses> {
        self.server_epoch(server, 0, epoch)
    }

    fn broadcast(&self, server: &Server, round: u32, _: &[u32]) -> Result<Option<Broadcast>> {
        let sent = server.params.subset(|entry| entry.part != Part::Predictor);
        Ok(Some(Broadcast::new(self.name(), round, sent.copy()?)))
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let (context, model) = (cohort.context, &broadcast.params);
        let contributes = |client: &Client| {
            let models = &client.state.models;
            if let (Some(predictor), Some(target)) = (models.get(PREDICTOR), models.get(TARGET)) {
                let others = vec![target.copy()?];
                return Ok(Contribution { entries: Some(predictor.copy()?), others });
            }
            // Its first round: a new predictor, and the broadcast backbone as the target.
            let drawn = context.network.init_client(context.seed, client.id, context.device)?;
            let target = model.subset(|entry| entry.part == Part::Backbone);
            let entries = Some(drawn.subset(|entry| entry.part == Part::Predictor));
            Ok(Contribution { entries, others: vec![target.copy()?] })
        };
        let keeps = |trained: &Params, others: &[Params]| {
            let predictor = trained.subset(|entry| entry.part == Part::Predictor);
            let target = others[0].copy()?;
            let kept = [(PREDICTOR.to_owned(), predictor.copy()?), (TARGET.to_owned(), target)];
            Ok(BTreeMap::from(kept))
        };
        let views = two_views(&cohort, Augmentation::Weak);
        let target_decay = self.target_decay;
        let loss = TwoViewLoss { format: views.format(), target_decay };
        let trainer = ClientTrainer {
            trains: |part| matches!(part, Part::Backbone | Part::Predictor),
            contributes: Some(&contributes),
            keeps: Some(&keeps),
            ..ClientTrainer::new(self, model, Objective::new(&views, loss))
        };
        trainer.train_on_all(cohort)
    }

    /// Training uses no labels.
    fn measure(&self, cohort: &Cohort, sent: &Broadcast) -> Result<Option<Vec<PseudoLabels>>> {
        cohort.label(&sent.params, 0.0).map(Some)
    }

    fn server_update(
        &self,
        server: &mut Server,
        aggregate: Option<Params>,
        round: u32,
    ) -> Result<MeanLosses> {
        server.take_mean(aggregate.as_ref())?;
        let mut losses = Vec::new();
        for epoch in 0..server.experiment.server.epochs {
            losses = self.server_epoch(server, round, epoch)?;
        }
        server.end_round();
        Ok(losses)
    }

    fn properties(&self) -> Properties {
        Properties {
            labels: ClientLabels::None,
            selects: false,
            client_losses: losses(&["consistency"]),
            server_losses: losses(&["fix"]),
            heads: Heads { anchor: false, predictor: Some(self.predictor) },
            uploads: &[Part::Backbone],
            ..Properties::default()
        }
    }
}

impl FedCon {
    fn server_epoch(&self, server: &mut Server, round: u32, epoch: u32) -> Result<MeanLosses> {
        let context = server.context;
        let (batch, second) = (server.experiment.server.batch, Augmentation::Weak);
        let (images, streams) = (&context.images, context.streams(round));
        let views = TwoViews { images, streams, batch, second };
        let weight = ramp(round, self.ramp_up) as f32;
        let objective = Objective::new(&views, ServerLoss { format: views.format() });
        let objective = objective.with_scalars([weight]);
        let means = supervised_epoch(server, &objective, Vec::new(), round, epoch)?;
        Ok(vec![means.first().copied()])
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: FedCon = read_settings(settings)?;
    within("method.predictor", method.predictor as f64, 1.0, 65_536.0)?;
    at_most("method.ramp_up", method.ramp_up as usize, 1_000_000)?;
    within("method.target_decay", method.target_decay, 0.0, 1.0)?;
    Ok(Box::new(method))
}

/// exp(-5 (1 - t/T)^2), 1 from round T on.
fn ramp(round: u32, over: u32) -> f64 {
    let left = 1.0 - f64::from(round) / f64::from(over.max(1));
    (-5.0 * left.max(0.0).powi(2)).exp()
}

/// Cross entropy of both views, and their agreement by a weight that grows with the rounds: its scalar.
#[derive(Debug, Clone, PartialEq)]
struct ServerLoss {
    format: TwoViewFormat,
}

impl StepLoss for ServerLoss {
    fn terms(&self) -> usize {
        2
    }

    fn reads_weights(&self) -> bool {
        false
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        let network = &inputs.context.network;
        let batch = self.format.read(&inputs.context.images, inputs.bytes, pass.clients())?;
        let logits = |x: &Tensor| network.logits(&network.features(x, pass)?, pass);
        let (first, second) = (logits(&batch.first)?, logits(&batch.second)?);
        let supervised = cross_entropy(&first, &batch.labels)?
            .f_add(&cross_entropy(&second, &batch.labels)?)?
            .f_mul_scalar(0.5)?;
        let agreement = divergence(&second, &first)?.f_add(&divergence(&first, &second)?)?;
        let agreement = agreement.f_mul_scalar(0.5)?;
        Ok(Terms::from(vec![(1.0, supervised)]).with(inputs.scalar(0)?, agreement))
    }
}

/// KL(other || this) of two views' predictions, without a gradient for the other; mean over the batch.
fn divergence(other: &Tensor, this: &Tensor) -> EngineResult<Tensor> {
    let other = other.f_detach()?.f_log_softmax(-1, Kind::Float)?;
    let this = this.f_log_softmax(-1, Kind::Float)?;
    let each = other.f_exp()?.f_mul(&other.f_sub(&this)?)?;
    mean_of_batch(&each.f_sum_dim_intlist(&[-1i64][..], false, Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_by_hand() {
        // Other (3/4, 1/4), this (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2.
        let other = Tensor::from_slice(&[3f32.ln(), 0.0]).view([1, 1, 2]).set_requires_grad(true);
        let this = Tensor::from_slice(&[0f32, 0.0]).view([1, 1, 2]).set_requires_grad(true);
        let loss = divergence(&other, &this).unwrap();
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((loss.double_value(&[0]) - expected).abs() < 1e-6);
        loss.sum(Kind::Float).backward();
        // The gradient for this view is its probabilities less the other's; the other has none.
        let gradient = Vec::<f64>::try_from(this.grad().flatten(0, -1)).unwrap();
        assert!((gradient[0] + 0.25).abs() < 1e-6 && (gradient[1] - 0.25).abs() < 1e-6);
        assert!(!other.grad().defined());
    }

    #[test]
    fn the_servers_consistency_rises_to_its_full_weight() {
        assert!((ramp(0, 100) - (-5f64).exp()).abs() < 1e-12);
        assert!((ramp(50, 100) - (-1.25f64).exp()).abs() < 1e-12);
        assert_eq!((ramp(100, 100), ramp(300, 100)), (1.0, 1.0));
    }
}
