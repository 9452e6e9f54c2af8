//! A warm-up before FedAnchor's rounds: clients learn without labels from two views of each image. Unlike FedCon's,
//! the predictor is averaged with the backbone, and the target starts from the broadcast model.

use super::two_views::{TwoViewLoss, two_views};
use super::{Client, ClientReport, ClientTrainer, Cohort, Contribution, Method, losses};
use crate::config::{Augmentation, at_most, ensure, within};
use crate::error::Result;
use fedanchor_engine::tensors::{Params, Part};
use fedanchor_engine::training::Objective;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The first rounds, in which clients learn without labels from two views of each image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUpConfig {
    /// Number of such rounds; 0 for none.
    pub rounds: u32,
    /// Hidden width of the predictor.
    pub predictor: usize,
    /// Share of the target network that stays in each step.
    pub target_decay: f64,
}

/// FedAnchor's losses, and that of the warm-up.
const LOSSES: &[&str] = &["fix", "mix", "two_views"];

impl WarmUpConfig {
    pub(super) fn includes(&self, round: u32) -> bool {
        round <= self.rounds
    }

    pub(super) fn predictor(&self) -> Option<usize> {
        (self.rounds > 0).then_some(self.predictor)
    }

    /// The part of the model that clients receive in this round: the predictor only in a warm-up.
    pub(super) fn sent(&self, model: &Params, round: u32) -> Params {
        model.subset(|entry| self.includes(round) || entry.part != Part::Predictor)
    }

    pub(super) fn client_losses(&self) -> Vec<String> {
        losses(if self.rounds > 0 { LOSSES } else { &LOSSES[..2] })
    }

    pub(super) fn check(&self) -> Result<()> {
        at_most("method.warm_up.rounds", self.rounds as usize, 1_000_000)?;
        within("method.warm_up.predictor", self.predictor as f64, 1.0, 65_536.0)?;
        within("method.warm_up.target_decay", self.target_decay, 0.0, 1.0)
    }

    /// Checks that rounds with labels are left.
    pub(super) fn check_rounds(&self, rounds: u32) -> Result<()> {
        let problem = format!("must be less than `rounds` ({rounds}), got {}", self.rounds);
        ensure(self.rounds == 0 || self.rounds < rounds, "method.warm_up.rounds", problem)
    }

    pub(super) fn train(
        &self,
        method: &dyn Method,
        cohort: Cohort,
        model: &Params,
    ) -> Result<Vec<ClientReport>> {
        let contributes = |_: &Client| {
            let target = model.subset(|entry| entry.part == Part::Backbone);
            Ok(Contribution { entries: None, others: vec![target.copy()?] })
        };
        let views = two_views(&cohort, Augmentation::Strong);
        let loss = TwoViewLoss { format: views.format(), target_decay: self.target_decay };
        let trainer = ClientTrainer {
            keeps_momentum: false, // of another loss
            trains: |part| matches!(part, Part::Backbone | Part::Predictor),
            contributes: Some(&contributes),
            first_loss: LOSSES.len() - 1,
            ..ClientTrainer::new(method, model, Objective::new(&views, loss))
        };
        trainer.train_on_all(cohort)
    }
}
