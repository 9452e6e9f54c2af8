//! Every method learns: after a few rounds on the embedded sample it is better than its own start by a stated margin.
//! Small on purpose; what the methods are worth beside one another is the table in the README. Those that take longest
//! run in `make test-slow`.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use fedanchor::{Simulation, resolve};
use fedanchor_data::sample;

const SETTING: &[&str] = &[
    "rounds=6",
    "model.name=small",
    "data.name=sample",
    "server.batch=10",
    "data.anchors=60",
    "data.clients=40",
    "client.per_round=5",
    "client.epochs=2",
    "client.batch=32",
    "batch_norm.statistics=static-server",
    "optimiser.lr=0.1",
    "optimiser.nesterov=true",
    "optimiser.schedule=cosine",
    "pretrain.epochs=10",
];

/// Methods that wait until the classifier is sure need a server that knows more.
const MORE: &[&str] = &["data.anchors=400"];

/// Methods that learn slowly need more rounds, and clients with more images.
const LONGER: &[&str] = &["rounds=8", "data.clients=20"];

/// Asserts that the last round's test accuracy is this many points above the start's, and that the
/// clients had a part in it.
fn learns(settings: &[&str], margin: f64) {
    learns_from_clients(settings, margin, None);
}

/// The same; and where `beyond` is given, that much above the same server without clients.
fn learns_from_clients(settings: &[&str], margin: f64, beyond: Option<f64>) {
    let keys: Vec<String> = SETTING.iter().chain(settings).map(|&key| key.to_owned()).collect();
    let experiment = resolve("preset = \"paper\"", &keys).unwrap();
    let simulation = Simulation::new(experiment.clone(), sample::load().unwrap(), Some(2)).unwrap();
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    let start = coordinator.pretrain(&mut |_, _| true).unwrap().record;
    let (mut last, mut trained) = (start.test_accuracy, 0);
    for round in 1..=experiment.rounds {
        let record = coordinator.round(&mut fleet, round).unwrap().record;
        (last, trained) = (record.test_accuracy, trained + record.trained);
        assert!(record.rejected.is_empty(), "{settings:?}: {:?}", record.rejected);
        assert!(record.failed.is_empty(), "{settings:?}: {:?}", record.failed);
    }
    eprintln!("{settings:?}: {:.1} -> {last:.1} %, {trained} updates", start.test_accuracy);
    assert!(
        last >= start.test_accuracy + margin,
        "{settings:?}: {:.1} -> {last:.1}",
        start.test_accuracy
    );
    assert_eq!(trained > 0, simulation.federation.method.properties().clients);
    if let Some(beyond) = beyond {
        let mut coordinator = simulation.federation.coordinator().unwrap();
        let alone = coordinator.train_alone(experiment.rounds, 0, &mut |_, _| true);
        let alone = alone.unwrap().unwrap();
        // Beside pre-training for longer: a run as short as this one cannot beat that.
        let alone = alone.iter().find(|trial| trial.rounds > 0).unwrap().test_accuracy;
        assert!(last >= alone + beyond, "{settings:?}: {alone:.1} without clients, {last:.1} with");
    }
}

#[test]
fn fedanchor_learns() {
    let settings = ["rounds=5", "data.clients=20", "method.contrastive.order=first"];
    learns_from_clients(&settings, 15.0, Some(5.0));
}

#[test]
#[ignore = "slow"]
fn adaptive_thresholds_learn() {
    for rule in ["anchor-relative", "rising", "client-mean", "softmatch", "quantile"] {
        let rule = format!("method.threshold={rule}");
        let settings = ["data.anchors=200", "method.contrastive.order=first", "rounds=3", &rule];
        learns(&[&settings[..], &["client.per_round=3"]].concat(), 8.0);
    }
}

#[test]
fn supervised_learns() {
    learns_from_clients(&["method.name=supervised", "rounds=4"], 25.0, Some(20.0));
}

#[test]
fn semifl_learns() {
    learns(&[MORE, &["method.name=semifl", "method.threshold=0.8"]].concat(), 10.0);
}

#[test]
fn fl2_learns() {
    learns(&[MORE, &["method.name=fl2", "rounds=4"]].concat(), 10.0);
}

#[test]
#[ignore = "slow"]
fn fedavg_fixmatch_learns() {
    learns(&[MORE, &["method.name=fedavg-fixmatch", "method.threshold=0.8"]].concat(), 10.0);
}

#[test]
#[ignore = "slow"]
fn fedcon_learns() {
    learns(&[LONGER, &["method.name=fedcon", "method.predictor=128"]].concat(), 10.0);
}

#[test]
fn fedmatch_learns() {
    learns(&["method.name=fedmatch", "method.refresh=2"], 5.0);
}

#[test]
fn the_server_alone_learns() {
    learns(&["method.name=server-only", "method.contrastive.order=first"], 5.0);
}
