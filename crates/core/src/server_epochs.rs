//! The server's training on the anchors (section 4.4 of the paper): supervised epochs, which every
//! method has, and label contrastive epochs.

use crate::config::{
    Augmentation, ContrastiveConfig, MixupConfig, MomentumOf, Order, Sampler, Trains, Views,
};
use crate::error::{InPhase, Result};
use crate::fix_mix::FixMix;
use crate::loss::{has_pairs, label_contrastive};
use crate::model::Pass;
use crate::packing::{Packing, write};
use crate::params::{Entry, Params, Part};
use crate::schedule::{Schedule, Task};
use crate::server::Server;
use crate::setting::View;
use crate::training::{Learner, StepLoss, check_finite};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_record::Losses;
use rand::seq::SliceRandom;
use std::ops::Range;
use tch::{Kind, Tensor};

/// What a method's server does with the anchors: supervised epochs (L_s on the classification head:
/// the clients' loss with all anchors as the fix set, their true labels, and a mix set only in
/// FedAnchor (mix)), and label contrastive epochs (L_c, eq. 1-2, on the anchor head and, by default,
/// the backbone).
#[derive(Debug, Clone, Copy)]
pub struct ServerEpochs<'a> {
    /// The mix loss on the anchors, or none of it.
    pub mixup: Option<&'a MixupConfig>,
    /// Whether batch norm sees the two views apart.
    pub views: Views,
    /// The label contrastive epochs, or none.
    pub contrastive: Option<&'a ContrastiveConfig>,
}

impl ServerEpochs<'static> {
    /// Cross entropy alone.
    pub const PLAIN: Self = Self { mixup: None, views: Views::Separate, contrastive: None };
}

impl ServerEpochs<'_> {
    /// An epoch before round 1. It is followed by a contrastive one, since round 1 already labels by
    /// the anchor head.
    pub fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        let pretrain = &server.setting.experiment.pretrain;
        let contrasts = pretrain.contrastive && self.contrastive.is_some_and(|c| c.epochs > 0);
        let epochs = (epoch..epoch + 1, epoch..epoch + u32::from(contrasts));
        self.run(server, 0, epochs, pretrain.lr)
    }

    /// The epochs of a round.
    pub fn round(&self, server: &mut Server, round: u32) -> Result<Losses> {
        let experiment = &server.setting.experiment;
        let contrastive = self.contrastive.map_or(0, |contrastive| contrastive.epochs);
        let epochs = (0..experiment.server.epochs, 0..contrastive);
        let losses = self.run(server, round, epochs, experiment.lr(round))?;
        server.end_round();
        Ok(losses)
    }

    fn run(
        &self,
        server: &mut Server,
        round: u32,
        (supervised, contrastive): (Range<u32>, Range<u32>),
        lr: f64,
    ) -> Result<Losses> {
        let mut losses = Losses::default();
        let first = self.contrastive.is_some_and(|c| c.order == Order::First);
        for contrast in [first, !first] {
            if !contrast {
                for epoch in supervised.clone() {
                    let setting = server.setting;
                    let loss = FixMix {
                        setting,
                        round,
                        batch: setting.experiment.server_batch(),
                        augment: setting.experiment.server.augment,
                        mixup: self.mixup,
                        views: self.views,
                        weighed: false,
                    };
                    let means = supervised_epoch(server, &loss, Vec::new(), round, epoch, lr)?;
                    (losses.server_fix, losses.server_mix) =
                        (means.first().copied(), means.get(1).copied());
                }
            } else if let Some(config) = self.contrastive {
                for epoch in contrastive.clone() {
                    losses.server_contrastive =
                        contrastive_epoch(server, config, round, epoch, lr)?;
                }
            }
        }
        Ok(losses)
    }
}

/// One epoch over the anchors with their labels; returns the means of the loss's terms. `others` are
/// further networks that the loss reads.
pub fn supervised_epoch(
    server: &mut Server,
    loss: &dyn StepLoss,
    others: Vec<Params>,
    round: u32,
    epoch: u32,
    lr: f64,
) -> Result<Vec<f64>> {
    let (setting, anchors) = (server.setting, server.anchors);
    let tasks = [Task {
        who: SERVER,
        images: anchors.images,
        local: anchors.local,
        labels: anchors.labels,
        weights: &[],
        fix: (0..anchors.local.len() as u32).collect(),
    }];
    let mut schedule = Schedule::new(&tasks, epoch..epoch + 1, loss.batch());
    let momentum = std::mem::take(&mut server.supervised_momentum);
    let params = server.params.first(1)?; // a view: the global model is trained in place
    let trains = |entry: &Entry| matches!(entry.part, Part::Backbone | Part::Classifier);
    let mut learner = Learner::new(setting, "supervised epoch", params, momentum, trains)?
        .with_others(others, None)?;
    let steps = schedule.steps(&tasks);
    let fill = |time: usize, bytes: &mut [u8]| {
        loss.fill(&tasks, &schedule.step(setting, round, &tasks, time), bytes);
        (1, loss.bytes(1))
    };
    learner
        .train(lr, steps, loss.bytes(1), fill, |x, pass| loss.loss(x, pass))
        .in_phase("training on the anchors")?;
    let losses = learner.mean_losses(0, loss.terms(), steps)?;
    server.supervised_momentum = server.take_back(learner)?;
    check_finite(round, "the supervised epoch", &losses, server.not_finite()?.as_deref())?;
    Ok(losses)
}

/// One label contrastive epoch; returns the mean of L_c, `None` if no batch had a pair.
pub fn contrastive_epoch(
    server: &mut Server,
    config: &ContrastiveConfig,
    round: u32,
    epoch: u32,
    lr: f64,
) -> Result<Option<f64>> {
    let (setting, anchors) = (server.setting, server.anchors);
    let batch = config.batch_for(setting.classes, anchors.local.len())?;
    let batches = contrastive_batches(server, config.sampler, batch, round, epoch);
    let shared = config.momentum == MomentumOf::Shared;
    let momentum =
        if shared { &mut server.supervised_momentum } else { &mut server.contrastive_momentum };
    let trains = |part: Part| match config.trains {
        Trains::All => matches!(part, Part::Backbone | Part::Anchor),
        Trains::Head => part == Part::Anchor,
    };
    let momentum = std::mem::take(momentum);
    let params = server.params.first(1)?;
    let mut learner =
        Learner::new(setting, "contrastive epoch", params, momentum, |e| trains(e.part))?;
    if config.trains == Trains::Head {
        learner = learner.keeping_statistics();
    }
    let stream = setting.stream(Purpose::ContrastiveAugment, round, SERVER).epoch(epoch);
    let label = |anchor: u32| anchors.labels[anchor as usize];
    // A batch without a pair of one label and one of two has no loss.
    let batches: Vec<(usize, &Vec<u32>)> = batches
        .iter()
        .enumerate()
        .filter(|(_, chosen)| {
            let labels: Vec<u16> = chosen.iter().map(|&anchor| label(anchor)).collect();
            has_pairs(&labels, config.self_pairs)
        })
        .collect();
    let packing = Packing::new(&[batch * 8, batch * setting.image_bytes()]);
    let fill = |time: usize, bytes: &mut [u8]| {
        let (number, chosen) = batches[time];
        let mut parts = packing.split(bytes);
        write(parts[0], chosen.iter().map(|&anchor| i64::from(label(anchor)).to_ne_bytes()));
        let views = chosen.iter().enumerate().map(|(row, &anchor)| {
            let image = anchors.images.image(anchors.local[anchor as usize] as usize);
            let position = (number * batch + row) as u64;
            match config.augment {
                Augmentation::None => View::Raw(image),
                Augmentation::Weak => View::Weak(image, stream, position),
                Augmentation::Strong => View::Strong(image, stream, position),
            }
        });
        setting.render(&views.collect::<Vec<_>>(), parts[1]);
        (1, packing.total())
    };
    let loss = |bytes: &Tensor, pass: &Pass| {
        let labels = packing.view(bytes, 0, Kind::Int64, &[1, batch as i64])?;
        let x = setting.network_input(&setting.view_images(bytes, &packing, 1, batch, 1)?)?;
        let latents = setting.network.latents(&setting.network.features(&x, pass)?, pass)?;
        Ok(vec![(1.0, label_contrastive(&latents, &labels, setting.classes, config)?)].into())
    };
    let steps = batches.len();
    learner.train(lr, steps, packing.total(), fill, loss).in_phase("the contrastive epoch")?;
    let losses = learner.mean_losses(0, 1, steps)?;
    let momentum = server.take_back(learner)?;
    *(if shared { &mut server.supervised_momentum } else { &mut server.contrastive_momentum }) =
        momentum;
    check_finite(round, "the contrastive epoch", &losses, server.not_finite()?.as_deref())?;
    Ok(losses.first().copied().filter(|_| steps > 0))
}

/// The anchors of every batch of an epoch. All batches are full: the last one wraps around.
fn contrastive_batches(
    server: &Server,
    sampler: Sampler,
    batch: usize,
    round: u32,
    epoch: u32,
) -> Vec<Vec<u32>> {
    let anchors = server.anchors;
    let stream = server.setting.stream(Purpose::ContrastiveShuffle, round, SERVER).epoch(epoch);
    let mut rng = stream.rng();
    let mut order: Vec<u32> = (0..anchors.local.len() as u32).collect();
    order.shuffle(&mut rng);
    if sampler == Sampler::Balanced {
        // Deal the shuffled anchors class by class in turn: every stretch holds each class alike.
        let mut seen = vec![0u32; server.setting.classes];
        let mut turn: Vec<(u32, u32)> = order
            .iter()
            .map(|&anchor| {
                let count = &mut seen[anchors.labels[anchor as usize] as usize];
                *count += 1;
                (*count, anchor)
            })
            .collect();
        turn.sort_by_key(|&(count, _)| count); // stable: the shuffled order within a turn
        order = turn.into_iter().map(|(_, anchor)| anchor).collect();
    }
    let batches = order.len().div_ceil(batch);
    (0..batches)
        .map(|b| (0..batch).map(|row| order[(b * batch + row) % order.len()]).collect())
        .collect()
}
