//! What a coordinator asks for, against what this node has: every number is checked before anything is read, computed or
//! allocated because of it. The settings of the experiment have their own limits, which are checked when they are read.

use super::Site;
use super::desk::LONGEST_TASK;
use super::refusal::Refusal;
use crate::protocol::{CLIENTS, Terms};
use fedanchor::Experiment;
use fedanchor::config::within;
use fedanchor::engine::model::{MIN_SIDE, Network};
use fedanchor::engine::tensors::Entry;
use fedanchor::engine::training::Settings;
use fedanchor_data::formats::{MAX_SIDE, free_memory};
use std::collections::BTreeSet;
use tch::Device;

/// Labels are numbers of 16 bits.
const MOST_CLASSES: usize = 1 << 16;
/// A round's training shall end some day.
const MOST_EPOCHS: u32 = 1000;
/// Copies of a model while it is trained: as it arrived, decoded, trained, with gradients, momentum and the answer.
const COPIES: u64 = 6;
/// By how much a node's images may be enlarged: digits of 28 pixels to the 224 of photographs.
pub(super) const MOST_ENLARGED: usize = 8;

/// Refuses a run that this node cannot or should not train.
pub(super) fn check(
    terms: &Terms,
    experiment: &Experiment,
    training: &Settings,
) -> Result<(), Refusal> {
    let refuse = |problem: String| Err(Refusal::new(409, problem));
    let Terms { classes, shape, normalisation, .. } = terms;
    if !(1..=MOST_CLASSES).contains(classes) {
        return refuse(format!(
            "the run has {classes} classes, expected between 1 and {MOST_CLASSES}"
        ));
    }
    if !(MIN_SIDE..=MAX_SIDE).contains(&shape.side) {
        let side = shape.side;
        return refuse(format!(
            "its images have {side} pixels per side, expected between {MIN_SIDE} and {MAX_SIDE}"
        ));
    }
    if ![1, 3].contains(&shape.channels) {
        return refuse(format!("its images have {} channels, expected 1 or 3", shape.channels));
    }
    let (mean, std) = (&normalisation.mean, &normalisation.std);
    let is_one_per_channel = [mean, std].iter().all(|numbers| numbers.len() == shape.channels);
    let is_within = |numbers: &[f32], least, most| {
        numbers.iter().all(|&number| within("", f64::from(number), least, most).is_ok())
    };
    if !is_one_per_channel || !is_within(mean, -10.0, 10.0) || !is_within(std, 1e-4, 10.0) {
        return refuse("the normalisation does not fit the images of the run".to_owned());
    }
    let epochs = experiment.client.epochs;
    if epochs > MOST_EPOCHS {
        return refuse(format!(
            "client.epochs: must be at most {MOST_EPOCHS} on a node, got {epochs}"
        ));
    }
    let network = Network::new(&training.model, training.heads, *shape, *classes);
    let network = network
        .map_err(|error| Refusal::new(409, format!("cannot train this experiment: {error}")))?;
    let model = model_bytes(&network.layout);
    if model > LONGEST_TASK as u64 {
        return refuse(format!(
            "the model has {} MB, expected at most {} MB",
            model / 1_000_000,
            LONGEST_TASK / 1_000_000
        ));
    }
    let mut needed = COPIES * model;
    // A GPU says itself when its memory is full.
    if training.device == Device::Cpu {
        let of_image = network.convolved.saturating_add(*classes as u64).saturating_mul(4);
        needed = needed.saturating_add(of_image.saturating_mul(experiment.client.batch as u64));
    }
    check_memory(needed, free_memory())
}

/// Refuses what does not fit into the memory that is free; how much that is stays here.
fn check_memory(needed: u64, free: Option<u64>) -> Result<(), Refusal> {
    match free {
        Some(free) if needed > free => {
            let problem = format!(
                "training needs at least {} MB of memory, more than is free on this node: expected a smaller model, \
                 client.batch or data.size",
                needed / 1_000_000
            );
            Err(Refusal::new(409, problem))
        }
        _ => Ok(()),
    }
}

/// The bytes of a model.
fn model_bytes(layout: &[Entry]) -> u64 {
    let numbers = |entry: &Entry| {
        entry.shape.iter().fold(1u64, |product, &size| product.saturating_mul(size as u64))
    };
    layout.iter().fold(0, |sum: u64, entry| sum.saturating_add(numbers(entry).saturating_mul(4)))
}

/// Refuses to train other clients than those here, one of them twice, or in a round that the run does not have.
pub(super) fn check_task(
    clients: &[(String, u32)],
    round: u32,
    site: &Site,
) -> Result<(), Refusal> {
    let names: BTreeSet<&str> = clients.iter().map(|(name, _)| name.as_str()).collect();
    let numbers: BTreeSet<u32> = clients.iter().map(|(_, number)| *number).collect();
    if clients.is_empty() || names.len() < clients.len() || numbers.len() < clients.len() {
        return Err(Refusal::new(400, "a train request must list each client exactly once"));
    }
    let here: BTreeSet<&str> = site.data.clients.iter().map(|(name, _)| name.as_str()).collect();
    if !names.is_subset(&here) {
        return Err(Refusal::new(404, "unknown client in train request"));
    }
    if let Some(number) = numbers.last().filter(|number| **number as usize >= CLIENTS) {
        let problem = format!("client number {number}: expected a number below {CLIENTS}");
        return Err(Refusal::new(400, problem));
    }
    let rounds = site.experiment.rounds;
    if !(1..=rounds).contains(&round) {
        return Err(Refusal::new(
            400,
            format!("round {round} is out of range: the run has {rounds} rounds"),
        ));
    }
    // All answers leave together.
    let answers = model_bytes(&site.context.network.layout).saturating_mul(clients.len() as u64);
    check_memory(answers, free_memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_into_memory_is_refused_without_telling_how_much_there_is() {
        assert!(check_memory(5_000_000, Some(5_000_000)).is_ok());
        assert!(check_memory(5_000_000, None).is_ok());
        let (status, words) = check_memory(5_000_001, Some(5_000_000)).err().unwrap().tell();
        let words = String::from_utf8(words.to_vec()).unwrap();
        assert_eq!(status, 409);
        assert!(words.starts_with("training needs at least 5 MB of memory, more than is free"));
    }
}
