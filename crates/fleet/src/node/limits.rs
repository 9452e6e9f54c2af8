//! Limits on what a coordinator may ask for: every number is checked before anything is read, computed or allocated
//! because of it. The settings of the experiment have their own limits, which are checked when they are parsed.

use super::queue::LONGEST_TASK;
use super::{Refusal, Site};
use crate::protocol::{CLIENTS, JoinRequest};
use fedanchor::Experiment;
use fedanchor::engine::model::{MIN_SIDE, Network};
use fedanchor::engine::tensors::Entry;
use fedanchor::engine::training::Settings;
use fedanchor_data::formats::{MAX_SIDE, free_memory};
use std::collections::BTreeSet;
use tch::Device;

/// Labels are numbers of 16 bits.
const MOST_CLASSES: usize = 1 << 16;
/// Numbers per vector of a trunk, and augmented views of a kind.
const MOST_NUMBERS: usize = 1 << 14;
/// Vectors per row of a view, where the last stage of a trunk is trained.
const MOST_VECTORS: usize = 64;
const MOST_VIEWS: usize = 16;
/// Limits the duration of a round.
const MOST_EPOCHS: u32 = 1000;
/// Copies of a model while it is trained: received, decoded, trained, gradients, momentum and the answer.
const COPIES: u64 = 6;
/// The factor by which a node's images may be enlarged: digits of 28 pixels to the 224 of photographs.
pub(super) const MOST_ENLARGED: usize = 8;

/// Refuses a run that this node cannot or should not train.
pub(super) fn check(
    run: &JoinRequest,
    experiment: &Experiment,
    training: &Settings,
) -> Result<(), Refusal> {
    let require = |holds: bool, problem: String| match holds {
        true => Ok(()),
        false => Err(Refusal::new(409, problem)),
    };
    let JoinRequest { classes, format, normalisation, trunk, .. } = run;
    let shape = format.shape;
    for (what, least, most, got) in [
        ("classes", 1, MOST_CLASSES, *classes),
        ("pixels per side", MIN_SIDE, MAX_SIDE, shape.side),
    ] {
        let problem = format!("expected {least} to {most} {what}, got {got}");
        require((least..=most).contains(&got), problem)?;
    }
    let channels = shape.channels;
    require([1, 3].contains(&channels), format!("expected 1 or 3 channels, got {channels}"))?;
    require(
        trunk.is_some() == format.features.is_some()
            && format.features.is_none_or(|features| {
                features.picture == shape
                    && (1..=MOST_NUMBERS).contains(&features.width)
                    && (1..=MOST_VECTORS).contains(&features.side)
                    && features.views <= MOST_VIEWS
            }),
        "the features do not fit the trunk of the run".to_owned(),
    )?;
    let channels = format.network().channels;
    let most = if trunk.is_some() { f32::from(u16::MAX) } else { 10.0 };
    let fits = |numbers: &[f32], least: f32, most: f32| {
        let is_within = |number| (least..=most).contains(number);
        numbers.len() == channels && numbers.iter().all(is_within)
    };
    require(
        fits(&normalisation.mean, -most, most) && fits(&normalisation.std, 1e-5, most),
        "the normalisation does not fit the images of the run".to_owned(),
    )?;
    let epochs = experiment.client.epochs;
    require(
        epochs <= MOST_EPOCHS,
        format!("client.epochs: must be at most {MOST_EPOCHS} on a node, got {epochs}"),
    )?;
    let network = Network::new(&training.model, training.heads, format.network(), *classes)
        .map_err(|error| Refusal::new(409, format!("cannot train this experiment: {error}")))?;
    let model = model_bytes(&network.layout);
    let (megabytes, most) = (model / 1_000_000, LONGEST_TASK / 1_000_000);
    require(
        model <= LONGEST_TASK as u64,
        format!("expected a model of at most {most} MB, got {megabytes} MB"),
    )?;
    let mut needed = COPIES * model;
    // A GPU reports when its memory is full.
    if training.device == Device::Cpu {
        let of_image = network.convolved.saturating_add(*classes as u64).saturating_mul(4);
        needed = needed.saturating_add(of_image.saturating_mul(experiment.client.batch as u64));
    }
    check_memory(needed, free_memory())
}

/// Refuses a run that needs more memory than is free, without revealing how much that is.
fn check_memory(needed: u64, free: Option<u64>) -> Result<(), Refusal> {
    if free.is_none_or(|free| needed <= free) {
        return Ok(());
    }
    let problem = format!(
        "training needs at least {} MB of memory, more than is free on this node: reduce the model, client.batch or \
         data.size",
        needed / 1_000_000
    );
    Err(Refusal::new(409, problem))
}

/// The size of a model in bytes.
fn model_bytes(layout: &[Entry]) -> u64 {
    layout.iter().map(|entry| 4 * entry.numel() as u64).sum()
}

/// Refuses to train unknown clients, one of them twice, or in a round that the run does not have. Returns the indices of
/// the clients' images.
pub(super) fn check_task<'a>(
    clients: &[(String, u32)],
    round: u32,
    site: &'a Site,
) -> Result<Vec<&'a [u32]>, Refusal> {
    let names: BTreeSet<&str> = clients.iter().map(|(name, _)| name.as_str()).collect();
    let numbers: BTreeSet<u32> = clients.iter().map(|(_, number)| *number).collect();
    if clients.is_empty() || names.len() < clients.len() || numbers.len() < clients.len() {
        return Err(Refusal::new(400, "a train request must list each client exactly once"));
    }
    let local = |(name, _): &(String, u32)| {
        let client = site.data.clients.iter().find(|(other, _)| other == name);
        client.map(|(_, local)| &local[..])
    };
    let local: Option<Vec<_>> = clients.iter().map(local).collect();
    let local = local.ok_or_else(|| Refusal::new(404, "unknown client in train request"))?;
    if let Some(number) = numbers.last().filter(|number| **number as usize >= CLIENTS) {
        return Err(Refusal::new(400, format!("client number {number} is not below {CLIENTS}")));
    }
    let rounds = site.experiment.rounds;
    if !(1..=rounds).contains(&round) {
        let problem = format!("round {round} is out of range: the run has {rounds} rounds");
        return Err(Refusal::new(400, problem));
    }
    // All answers leave together.
    let answers = model_bytes(&site.context.network.layout).saturating_mul(clients.len() as u64);
    check_memory(answers, free_memory())?;
    Ok(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_is_reported_without_the_amount() {
        assert!(check_memory(5_000_000, Some(5_000_000)).is_ok());
        assert!(check_memory(5_000_000, None).is_ok());
        let (status, text) = check_memory(5_000_001, Some(5_000_000)).err().unwrap().into_reply();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert_eq!(status, 409);
        assert!(text.starts_with("training needs at least 5 MB of memory, more than is free"));
    }
}
