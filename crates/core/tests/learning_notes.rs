//! A run that fails to learn says so: each note has a run that triggers it.

#![allow(clippy::unwrap_used)]

use fedanchor::{Simulation, resolve};
use fedanchor_data::{DataSet, Unlabelled, sample};

const BRIEF: &[&str] = &[
    "data.anchors=0",
    "data.clients=2",
    "partition.kind=iid",
    "model.name=small",
    "pretrain.epochs=40",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=32",
    "server.epochs=1",
    "optimiser.schedule=constant",
];

/// 30 labelled images of the sample, 50 to test on, and unlabelled ones of these classes.
fn data(classes: &[u16]) -> DataSet {
    let mut data = sample::load().unwrap();
    let labels = data.train.labels.clone().unwrap();
    let by_class = |class: u16| {
        (0..).zip(&labels).filter(move |(_, label)| **label == class).map(|(at, _): (u32, _)| at)
    };
    let labelled: Vec<u32> = (0..10).flat_map(|class| by_class(class).take(3)).collect();
    let others: Vec<u32> = classes
        .iter()
        .flat_map(|&class| by_class(class).skip(3).take(60 / classes.len()))
        .collect();
    let mut images = data.train.select(&others);
    images.labels = None;
    data.unlabelled = Some(Unlabelled { images, clients: vec![], client_names: vec![] });
    data.train = data.train.select(&labelled);
    data.test = data.test.select(&(0..50).collect::<Vec<_>>());
    data
}

const ALL: [u16; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

/// All notes of a run.
fn notes(rounds: u32, settings: &[&str], classes: &[u16]) -> Vec<String> {
    let rounds_key = format!("rounds={rounds}");
    let settings = BRIEF.iter().chain(settings).map(|setting| (*setting).to_owned());
    let settings: Vec<String> = settings.chain([rounds_key]).collect();
    let experiment = resolve("preset = \"best\"", &settings).unwrap();
    let simulation = Simulation::new(experiment, data(classes), None).unwrap();
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    let mut notes = coordinator.pretrain(&mut |_, _| true).unwrap().record.notes;
    for round in 1..=rounds {
        notes.extend(coordinator.round(&mut fleet, round).unwrap().record.notes);
    }
    notes
}

fn one(notes: &[String], beginning: &str) {
    let count = notes.iter().filter(|note| note.starts_with(beginning)).count();
    assert_eq!(count, 1, "{beginning}: {notes:#?}");
}

#[test]
fn anchors_that_are_not_fitted() {
    let found = notes(1, &["pretrain.epochs=1", "pretrain.lr=0.0001"], &ALL);
    one(&found, "the anchors are not fitted: ");
}

#[test]
fn a_threshold_that_keeps_everything() {
    one(&notes(15, &["method.threshold=-1"], &ALL), "the clients have kept every image in all 15");
}

#[test]
fn labels_of_few_classes() {
    let found = notes(5, &["method.threshold=0.2"], &[1]);
    one(&found, "nearly all pseudo-labels of the last 5 rounds are of 1 of 10 classes");
}

#[test]
fn clients_that_make_the_model_worse() {
    let settings = ["optimiser.lr=1", "server.lr=0.05", "client.epochs=5", "method.threshold=-1"];
    let found = notes(5, &[&settings[..], &["checks.anchor_margin=100"]].concat(), &ALL);
    one(&found, "the clients make the model worse than it was at the start");
}

#[test]
fn scores_that_do_not_separate() {
    let settings = [
        "method.contrastive.epochs=0",
        "pretrain.contrastive=false",
        "pretrain.epochs=1",
        "optimiser.lr=0.0001",
    ];
    one(&notes(19, &settings, &ALL), "the scores do not separate the classes");
}

#[test]
fn a_run_that_learns_has_no_notes() {
    assert_eq!(notes(20, &["pretrain.epochs=200"], &ALL), Vec::<String>::new());
}
