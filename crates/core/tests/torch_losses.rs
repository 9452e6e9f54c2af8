//! Losses written in PyTorch (`client.loss`), from the files in `examples/python`.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::tensors::Params;
use fedanchor::{Result, Simulation, resolve};
use fedanchor_data::sample;
use fedanchor_record::RoundRecord;

const BRIEF: &[&str] = &[
    "preset=best",
    "rounds=2",
    "data.name=sample",
    "model.name=small",
    "data.anchors=60",
    "data.clients=50",
    "partition.alpha=1",
    "client.per_round=3",
    "client.epochs=1",
    "client.batch=16",
    "pretrain.epochs=2",
];

fn example(name: &str) -> String {
    format!("client.loss.file={}/../../examples/python/{name}.loss", env!("CARGO_MANIFEST_DIR"))
}

fn simulation(settings: &[&str]) -> Result<Simulation> {
    let keys: Vec<String> = BRIEF.iter().chain(settings).map(|&key| key.to_owned()).collect();
    Simulation::new(resolve("", &keys)?, sample::load().unwrap(), Some(1))
}

fn play(settings: &[&str]) -> (Params, RoundRecord) {
    let simulation = simulation(settings).unwrap();
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&mut |_, _| true).unwrap();
    coordinator.round(&mut fleet, 1).unwrap();
    let record = coordinator.round(&mut fleet, 2).unwrap().record;
    (coordinator.server.params.copy().unwrap(), record)
}

/// The largest difference between the weights of two models.
fn apart(a: &Params, b: &Params) -> f64 {
    let pairs = a.tensors.iter().zip(&b.tensors);
    pairs.map(|(a, b)| (a - b).abs().max().double_value(&[])).fold(0.0, f64::max)
}

/// L_fix + b L_mix in PyTorch trains the model of the loss in Rust, with weighted samples and adjusted logits.
#[test]
fn fedanchors_loss_in_pytorch_trains_the_same_model() {
    let method = ["method.threshold=softmatch", "method.logit_adjustment=0.5"];
    let (rust, expected) = play(&method);
    let loss = example("fix_mix");
    let own = |b: &str| {
        let argument = format!("client.loss.arguments.b={b}");
        play(&[&method[..], &[&loss, &argument]].concat())
    };
    let (torch, record) = own("1");
    let differ = apart(&rust, &torch);
    assert!(differ < 1e-4, "{differ}");
    for name in ["client_fix", "client_mix", "server_fix", "server_contrastive"] {
        let (rust, torch) = (expected.losses.get(name).unwrap(), record.losses.get(name).unwrap());
        assert!((rust - torch).abs() < 1e-4, "{name}: {rust} {torch}");
    }
    // The comparison notices another loss.
    let other = apart(&rust, &own("0.5").0);
    assert!(other > 10.0 * differ.max(1e-4), "{other} {differ}");
}

/// The hash identifies a loss: it is part of the settled experiment, and checked where it is given.
#[test]
fn a_loss_is_known_by_the_hash_of_its_file() {
    let (file, b) = (example("fix_mix"), "client.loss.arguments.b=1");
    let settled = simulation(&[&file, b]).unwrap().federation.settled().unwrap();
    let hash = settled.client.loss.unwrap().hash.unwrap();
    let given = format!("client.loss.hash={hash}");
    assert!(simulation(&[&file, b, &given]).is_ok());
    let error = simulation(&[&file, b, "client.loss.hash=abc"]).err().unwrap().to_string();
    assert!(error.starts_with("client.loss.hash: "), "{error}");
    let change = format!("has changed: expected the blake3 hash abc, found {hash}: ");
    assert!(error.contains(&change), "{error}");
}

#[test]
fn what_cannot_be_trained_is_refused_before_the_first_round() {
    let (fix_mix, prox) = (example("fix_mix"), example("fedprox"));
    let not_a_loss = format!("client.loss.file={}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let b = "client.loss.arguments.b=1";
    for (settings, problem) in [
        (
            &[&*fix_mix][..],
            "client.loss.arguments: the loss has an argument `b`: set client.loss.arguments.b",
        ),
        (
            &[&fix_mix, b, "client.loss.arguments.c=1"],
            "client.loss.arguments: the loss has no argument of its own called `c`: only `b`",
        ),
        (
            &[&prox, "client.loss.arguments.mu=1", "method.name=fedcon"],
            "client.loss: the clients of `fedcon` minimise a loss of their own",
        ),
        (
            &[&prox, "client.loss.arguments.mu=1", "method.warm_up.rounds=1"],
            "method.warm_up.rounds: ",
        ),
        (&[&not_a_loss], "Cargo.toml: not a loss that `fedanchor.save_loss` wrote: "),
        (&["client.loss.file=/nowhere"], "client.loss.file: /nowhere: "),
        (
            &[&fix_mix, b, "method.client_mixup=false"],
            "client.loss.file: the loss reads mixtures, but the clients train on none",
        ),
        (
            &[&fix_mix, "client.loss.arguments.b=1e300"],
            "client.loss.arguments.b: expected a finite number, got 1e300",
        ),
        (
            &[&fix_mix, b, "client.loss.arguments.labels=1"],
            "no argument of its own called `labels`: only `b`",
        ),
        (&["client.loss.arguments.b=1"], "client.loss: missing field `file`"),
    ] {
        let error = simulation(settings).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(problem), "{settings:?}: {error}");
    }
}
