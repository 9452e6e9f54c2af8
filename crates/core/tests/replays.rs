//! On a GPU a training step is captured once and replayed from then on. Here the same rule runs on a CPU, where a replay
//! repeats the loss as it was captured: every method must end with the model of plain execution, bit for bit, over
//! rounds in which losses, cohorts and further networks change.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::tensors::Params;
use fedanchor::{Simulation, methods, resolve};
use fedanchor_data::sample;
use fedanchor_record::RoundRecord;

const BRIEF: &[&str] = &[
    "preset=paper",
    "rounds=3",
    "data.name=sample",
    "model.name=small",
    "data.anchors=60",
    "data.clients=100",
    "partition.alpha=1", // clients of unequal classes
    "client.per_round=3",
    "client.epochs=1",
    "client.batch=16",
    "client.keep_momentum=true",
    "server.batch=20",
    "pretrain.epochs=1",
];

fn play(settings: &[&str], replayed: bool) -> (Params, Vec<RoundRecord>) {
    let keys: Vec<String> = BRIEF.iter().chain(settings).map(|&key| key.to_owned()).collect();
    let experiment = resolve("", &keys).unwrap();
    let mut simulation = Simulation::new(experiment, sample::load().unwrap(), Some(1)).unwrap();
    if replayed {
        simulation.federation.context.record_steps();
    }
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    let mut records = vec![coordinator.pretrain(&mut |_, _| true).unwrap().record];
    for round in 1..=3 {
        records.push(coordinator.round(&mut fleet, round).unwrap().record);
    }
    let params = coordinator.server.params.copy().unwrap();
    assert_eq!(simulation.federation.context.replayed_steps() > 0, replayed, "{settings:?}");
    assert_eq!(simulation.federation.context.take_notice(), None, "{settings:?}");
    (params, records)
}

fn is_plain_execution(settings: &[&str]) {
    let (plain, replayed) = (play(settings, false), play(settings, true));
    for ((entry, plain), replayed) in
        plain.0.layout.iter().zip(&plain.0.tensors).zip(&replayed.0.tensors)
    {
        assert!(plain == replayed, "{settings:?}: {} differs", entry.name);
    }
    assert_eq!(plain.1, replayed.1, "{settings:?}");
}

#[test]
fn every_method_replays_the_steps_that_it_asks_for() {
    for name in methods::names() {
        let name_key = format!("method.name={name}");
        let more: &[&str] = match name {
            "fedanchor" => &["method.server_mixup=true", "method.threshold=0.3"],
            "semifl" | "fedavg-fixmatch" => &["method.threshold=0.11"],
            // A weight that grows with the rounds.
            "fedcon" => &["method.predictor=32", "method.ramp_up=4"],
            // Helpers from the second round on: the loss reads more networks than before.
            "fedmatch" => &["method.threshold=0", "method.refresh=1", "method.distance=0.1"],
            _ => &[],
        };
        is_plain_execution(&[&[name_key.as_str()], more].concat());
    }
}

/// A loss that was written in PyTorch is one by its file, and reads a number of the round.
#[test]
fn a_loss_from_a_file_is_replayed_for_itself() {
    let file = concat!("client.loss.file=", env!("CARGO_MANIFEST_DIR"), "/../../examples/python/");
    let prox = format!("{file}fedprox.loss");
    is_plain_execution(&["method.name=supervised", &prox, "client.loss.arguments.mu=0.5"]);
    let fix_mix = format!("{file}fix_mix.loss");
    is_plain_execution(&["method.threshold=softmatch", &fix_mix, "client.loss.arguments.b=1"]);
}

/// The server's own update is trained where the clients are, with the same number of bytes as one of them.
#[test]
fn a_root_update_is_not_a_clients() {
    is_plain_execution(&[
        "aggregation.rule=fltrust",
        "method.client_mixup=false",
        "method.threshold=softmatch",
    ]);
    is_plain_execution(&[
        "method.name=supervised",
        "aggregation.rule=fltrust",
        "client.per_round=1",
    ]);
}

/// Rounds without labels train another loss on a network with a predictor, the later ones do not.
#[test]
fn warm_up_rounds_are_followed_by_others() {
    is_plain_execution(&["method.warm_up.rounds=1", "method.warm_up.predictor=32"]);
}
