//! The server's training on the anchors (section 4.4 of the paper): supervised epochs, which every method
//! has, and label contrastive epochs.

use super::contrastive::{ContrastiveConfig, Order, SUPERVISED, contrastive_epoch};
use super::{STEADIER, Server};
use crate::config::{Augmentation, MixupConfig, Views};
use crate::error::Result;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::InPhase;
use fedanchor_engine::batches::{StepPlan, Task};
use fedanchor_engine::tensors::{Entry, Params, Part};
use fedanchor_engine::training::{FixMix, Objective};
use std::ops::Range;

/// The epochs of a method's server: supervised ones (L_s on the classification head: the clients' loss with all anchors
/// as the fix set, their true labels, and a mix set only in FedAnchor (mix)), and label contrastive ones (L_c,
/// eq. 1-2, on the anchor head and, by default, the backbone).
#[derive(Debug, Clone, Copy)]
pub struct ServerEpochs<'a> {
    /// Augmentation of the anchors in place of `server.augment`.
    pub augment: Option<Augmentation>,
    /// The mix loss on the anchors, or none.
    pub mixup: Option<&'a MixupConfig>,
    /// Whether batch norm sees the two views apart.
    pub views: Views,
    /// The label contrastive epochs, or none.
    pub contrastive: Option<&'a ContrastiveConfig>,
}

impl ServerEpochs<'static> {
    /// Cross entropy alone.
    pub const PLAIN: Self =
        Self { augment: None, mixup: None, views: Views::Separate, contrastive: None };
}

impl ServerEpochs<'_> {
    /// An epoch before round 1; returns the losses `fix`, `mix` and `contrastive`. It is followed by a contrastive
    /// epoch, since round 1 already labels by the anchor head.
    pub fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Vec<Option<f64>>> {
        let contrasts = server.experiment.pretrain.contrastive
            && self.contrastive.is_some_and(|contrastive| contrastive.epochs > 0);
        let epochs = (epoch..epoch + 1, epoch..epoch + u32::from(contrasts));
        self.run(server, 0, epochs)
    }

    /// The epochs of a round; returns the same losses.
    pub fn round(&self, server: &mut Server, round: u32) -> Result<Vec<Option<f64>>> {
        let contrastive = self.contrastive.map_or(0, |contrastive| contrastive.epochs);
        let epochs = (0..server.experiment.server.epochs, 0..contrastive);
        let losses = self.run(server, round, epochs)?;
        server.end_round();
        Ok(losses)
    }

    fn run(
        &self,
        server: &mut Server,
        round: u32,
        (supervised, contrastive): (Range<u32>, Range<u32>),
    ) -> Result<Vec<Option<f64>>> {
        let augment = self.augment.unwrap_or(server.experiment.server.augment);
        let batch = server.experiment.server.batch;
        let loss =
            FixMix::plain(server.context, round, batch, augment).with_mixup(self.mixup, self.views);
        let (mut fix, mut mix, mut contrasted) = (None, None, None);
        let first = self.contrastive.is_some_and(|c| c.order == Order::First);
        for contrast in [first, !first] {
            if !contrast {
                for epoch in supervised.clone() {
                    let objective = loss.objective();
                    let means = supervised_epoch(server, &objective, Vec::new(), round, epoch)?;
                    (fix, mix) = (means.first().copied(), means.get(1).copied());
                }
            } else if let Some(config) = self.contrastive {
                for epoch in contrastive.clone() {
                    contrasted = contrastive_epoch(server, config, round, epoch)?;
                }
            }
        }
        Ok(vec![fix, mix, contrasted])
    }
}

/// One epoch over the anchors; returns the means of the loss's terms. The loss also reads `others`.
pub fn supervised_epoch(
    server: &mut Server,
    objective: &Objective,
    others: Vec<Params>,
    round: u32,
    epoch: u32,
) -> Result<Vec<f64>> {
    let lr = server.experiment.server_lr(round);
    let (context, anchors) = (server.context, server.anchors);
    let all: Vec<u32> = (0..anchors.labels.len() as u32).collect();
    let tasks = [Task {
        client: SERVER,
        images: &anchors.images,
        local: &all,
        labels: &anchors.labels,
        weights: &[],
        adjustment: &[],
        fix: all.clone(),
    }];
    let Objective { batches, loss, scalars, .. } = objective;
    let mut plan = StepPlan::new(&tasks, epoch..epoch + 1, batches.batch());
    let trains = |entry: &Entry| matches!(entry.part, Part::Backbone | Part::Classifier);
    let mut learner =
        server.learner("supervised epoch", SUPERVISED, trains)?.with_others(others)?;
    let (steps, streams) = (plan.steps(&tasks), context.streams(round));
    let fill = |time: usize, bytes: &mut [u8]| {
        batches.fill(&tasks, &plan.step(streams, &tasks, time), bytes);
        (1, batches.bytes(1))
    };
    learner
        .train(lr, steps, batches.bytes(1), (&**loss, scalars), fill)
        .in_phase("training on the anchors")?;
    let losses = learner.mean_losses(0, steps)?;
    server.take_back(learner, SUPERVISED)?;
    server.check_finite(round, ("the supervised epoch", STEADIER), &losses)?;
    Ok(losses)
}
