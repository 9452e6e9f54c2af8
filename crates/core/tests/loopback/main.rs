//! Every method gives the same bytes, records and model alike, whether its clients are simulated or every
//! message is encoded and decoded on its way.

#![allow(clippy::unwrap_used)]

mod fleet;

use fedanchor::{RunClients, RunOptions, Simulation, methods, resolve};
use fedanchor_record::{RoundRecord, files};
use fleet::Loopback;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const BRIEF: &[&str] = &[
    "rounds=2",
    "data.name=sample",
    "model.name=small",
    "server.batch=10",
    "data.anchors=60",
    "data.clients=150",
    "client.per_round=3",
    "client.epochs=1",
    "client.batch=16",
    "client.keep_momentum=true",
    "pretrain.epochs=1",
    "optimiser.lr=0.05",
];

fn records(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join(files::ROUNDS)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The model that both give.
fn both(settings: &[&str], trains: bool) -> Vec<u8> {
    let keys: Vec<String> = BRIEF.iter().chain(settings).map(|&key| key.to_owned()).collect();
    let experiment = resolve("preset = \"paper\"", &keys).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (plain, encoded) = (folder.path().join("plain"), folder.path().join("encoded"));
    let stop = AtomicBool::new(false);
    fedanchor::run(
        &experiment,
        RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(&plain) },
        &mut (),
    )
    .unwrap();
    let wrap: &fedanchor::WrapFleet = &|clients| Ok(Box::new(Loopback::new(clients, 1)));
    let clients = RunClients::Simulated(wrap);
    fedanchor::run(
        &experiment,
        RunOptions { workers: Some(1), clients, ..RunOptions::new(&encoded) },
        &mut (),
    )
    .unwrap();
    let (plain_records, encoded_records) = (records(&plain), records(&encoded));
    let trained: u64 = plain_records.iter().map(|r| r["trained"].as_u64().unwrap()).sum();
    assert_eq!(trained > 0, trains, "{settings:?}");
    for (record, key) in
        plain_records.iter().flat_map(|record| [(record, "rejected"), (record, "failed")])
    {
        assert!(record[key].as_array().is_none_or(Vec::is_empty), "{settings:?}: {record}");
    }
    assert_eq!(plain_records, encoded_records, "{settings:?}");
    for name in [files::ROUNDS, files::MODEL] {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert!(read(&plain) == read(&encoded), "{settings:?}: {name} differs");
    }
    std::fs::read(plain.join(files::MODEL)).unwrap()
}

#[test]
fn every_method_gives_the_same_bytes() {
    for name in methods::names() {
        let name_key = format!("method.name={name}");
        let more: &[&str] = match name {
            "fedanchor" => &["method.send=latents", "method.threshold=anchor-relative"],
            "semifl" | "fedavg-fixmatch" => &["method.threshold=0.11"],
            "fedcon" => &["method.predictor=64"],
            "fedmatch" => &["method.threshold=0.11", "method.refresh=1"],
            _ => &[],
        };
        both(&[&[name_key.as_str()], more].concat(), name != "server-only");
    }
}

#[test]
fn settings_of_the_federation_give_the_same_bytes() {
    both(&["method.threshold=softmatch", "aggregation.rule=fltrust"], true);
    let krum = "aggregation.rule=multi-krum";
    both(&["batch_norm.statistics=static-all", krum, "server.momentum=0.5"], true);
    both(&["method.threshold=1", "aggregation.without_samples=unchanged"], false);
    both(&["method.warm_up.rounds=1", "method.logit_adjustment=1"], true);
    both(&["method.local_prior=1", "partition.alpha=0.1"], true);
}

#[test]
fn rounded_messages_give_the_same_bytes() {
    for precision in ["bf16", "int8"] {
        let precision = format!("messages.precision={precision}");
        for method in ["fedanchor", "fedcon", "supervised"] {
            let name = format!("method.name={method}");
            both(&[&precision, &name, "server.momentum=0.5"], true);
        }
        both(&[&precision, "aggregation.rule=fltrust", "checks.clip=1"], true);
        // In its warm-up nobody changes the classification head.
        both(&[&precision, "method.warm_up.rounds=1", "method.warm_up.predictor=64"], true);
    }
}

/// Records of private rounds do not tell how many trained.
#[test]
fn private_rounds_give_the_same_bytes() {
    let private = "privacy={noise=1.0, delta=1e-3, clip=1.0}";
    let found = both(&[private], false);
    let rounded = both(&[private, "messages.precision=int8"], false);
    assert!(found != rounded && found != both(&[private, "method.threshold=1"], false));
}

/// A network may deliver a message twice: that costs bytes and nothing else.
#[test]
fn repeated_messages_are_ignored() {
    let keys: Vec<String> = BRIEF.iter().map(|&key| key.to_owned()).collect();
    let experiment = resolve("preset = \"paper\"", &keys).unwrap();
    let data = fedanchor::simulation::load(&experiment).unwrap();
    let simulation = Simulation::new(experiment, data, Some(1)).unwrap();
    let play = |copies: usize| {
        let mut coordinator = simulation.coordinator().unwrap();
        let mut fleet = Loopback::new(simulation.fleet(), copies);
        coordinator.pretrain(&mut |_, _| true).unwrap();
        (1..=2)
            .map(|round| coordinator.round(&mut fleet, round).unwrap().record)
            .collect::<Vec<_>>()
    };
    for (once, twice) in play(1).into_iter().zip(play(2)) {
        assert_eq!(twice.bytes_up, 2 * once.bytes_up);
        assert_eq!(RoundRecord { bytes_up: once.bytes_up, ..twice }, once);
        assert!(once.trained > 0 && once.rejected.is_empty());
    }
}
