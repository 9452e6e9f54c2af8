//! The server's two kinds of epoch on the anchors (section 4.4 of the paper).

use crate::config::{
    Augmentation, FedAnchorConfig, MixupConfig, MomentumOf, Sampler, Trains, Views,
};
use crate::error::{InPhase, Result};
use crate::fix_mix::FixMix;
use crate::loss::{has_pairs, label_contrastive};
use crate::model::Pass;
use crate::packing::{Packing, write};
use crate::params::{Entry, Part};
use crate::schedule::{Schedule, Task};
use crate::server::Server;
use crate::setting::View;
use crate::training::{Learner, check_finite};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use rand::seq::SliceRandom;
use tch::{Kind, Tensor};

/// One supervised epoch, with mixup where it is given; returns the means of L_fix and, with mixup, L_mix.
pub fn supervised_epoch(
    server: &mut Server,
    mixup: Option<&MixupConfig>,
    views: Views,
    round: u32,
    epoch: u32,
    lr: f64,
) -> Result<Vec<f64>> {
    let (setting, anchors) = (server.setting, server.anchors);
    let config = &setting.experiment.server;
    let batch = setting.experiment.server_batch();
    let tasks = [Task {
        who: SERVER,
        images: anchors.images,
        local: anchors.local,
        labels: anchors.labels,
        fix: (0..anchors.local.len() as u32).collect(),
    }];
    let fix_mix = FixMix { setting, round, batch, augment: config.augment, mixup, views };
    let mut schedule = Schedule::new(&tasks, epoch..epoch + 1, batch);
    let momentum = std::mem::take(&mut server.supervised_momentum);
    let params = server.params.first(1)?; // a view: the global model is trained in place
    let trains = |entry: &Entry| entry.part != Part::Anchor;
    let mut learner = Learner::new(setting, "supervised epoch", params, momentum, trains)?;
    let steps = schedule.steps(&tasks);
    let fill = |time: usize, bytes: &mut [u8]| {
        fix_mix.fill(&tasks, &schedule.step(setting, round, &tasks, time), bytes);
        (1, fix_mix.bytes(1))
    };
    learner
        .train(lr, steps, fix_mix.bytes(1), fill, |x, pass| fix_mix.loss(x, pass))
        .in_phase("training on the anchors")?;
    let losses = learner.mean_losses(0, fix_mix.terms(), steps)?;
    server.supervised_momentum = server.take_back(learner)?;
    check_finite(round, SERVER, "the supervised epoch", &losses, server.not_finite()?.as_deref())?;
    Ok(losses)
}

/// One label contrastive epoch; returns the mean of L_c, `None` if no batch had a pair.
pub fn contrastive_epoch(
    server: &mut Server,
    method: &FedAnchorConfig,
    round: u32,
    epoch: u32,
    lr: f64,
) -> Result<Option<f64>> {
    let (setting, anchors, config) = (server.setting, server.anchors, &method.contrastive);
    let batch = method.contrastive_batch(setting.classes, anchors.local.len())?;
    let batches = contrastive_batches(server, config.sampler, batch, round, epoch);
    let shared = config.momentum == MomentumOf::Shared;
    let momentum =
        if shared { &mut server.supervised_momentum } else { &mut server.contrastive_momentum };
    let trains = |part: Part| match config.trains {
        Trains::All => part != Part::Classifier,
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
        Ok(vec![(1.0, label_contrastive(&latents, &labels, setting.classes, config)?)])
    };
    let steps = batches.len();
    learner.train(lr, steps, packing.total(), fill, loss).in_phase("the contrastive epoch")?;
    let losses = learner.mean_losses(0, 1, steps)?;
    let momentum = server.take_back(learner)?;
    *(if shared { &mut server.supervised_momentum } else { &mut server.contrastive_momentum }) =
        momentum;
    check_finite(round, SERVER, "the contrastive epoch", &losses, server.not_finite()?.as_deref())?;
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
