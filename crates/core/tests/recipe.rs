//! What a recipe adds to the method: pre-training that ends by itself, the server's own learning rate, adjusted logits.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::batches::Task;
use fedanchor::engine::batches::{Batches, StepPlan};
use fedanchor::engine::model::Statistics;
use fedanchor::engine::training::losses::cross_entropy;
use fedanchor::engine::training::{FixMix, Inputs, StepLoss};
use fedanchor::labels::Anchors;
use fedanchor::{Simulation, resolve};
use fedanchor_data::sample;
use tch::{Kind, Tensor};

const BRIEF: &[&str] = &[
    "rounds=4",
    "data.name=sample",
    "model.name=small",
    "data.anchors=60",
    "data.clients=60",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=16",
    "pretrain.epochs=1",
    "optimiser.lr=0.05",
];

fn simulation(settings: &[&str]) -> Simulation {
    let keys: Vec<String> = BRIEF.iter().chain(settings).map(|&key| key.to_owned()).collect();
    Simulation::new(resolve("preset = \"paper\"", &keys).unwrap(), sample::load().unwrap(), Some(1))
        .unwrap()
}

#[test]
fn pre_training_ends_when_the_anchors_are_fitted() {
    let epochs = |settings: &[&str]| {
        let simulation = simulation(settings);
        let mut coordinator = simulation.coordinator().unwrap();
        coordinator.pretrain(&mut |_, _| true).unwrap().record.pretrain_epochs
    };
    assert_eq!(epochs(&["pretrain.epochs=3"]), None);
    assert_eq!(epochs(&["pretrain.epochs=12", "pretrain.fitted=0.001"]), Some(12));
    // A model that knows nothing has ln 10, which is below 3.
    assert_eq!(epochs(&["pretrain.epochs=12", "pretrain.fitted=3"]), Some(10));
    let fitted = epochs(&["pretrain.epochs=60", "pretrain.fitted=2"]).unwrap();
    assert!((11..60).contains(&fitted), "{fitted}");
}

/// Warm-up rounds are not what the first labelled round is judged by, and their momentum is not kept.
#[test]
fn a_run_goes_on_after_its_warm_up() {
    let simulation = simulation(&[
        "method.warm_up.rounds=2",
        "client.keep_momentum=true",
        "client.per_round=8",
        "data.clients=60",
        "checks.anchor_margin=0.001",
        "optimiser.lr=0.2",
    ]);
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&mut |_, _| true).unwrap();
    for round in 1..=3 {
        let record = coordinator.round(&mut fleet, round).unwrap().record;
        assert!(record.failed.is_empty() && record.rejected.is_empty(), "{record:?}");
        if round == 3 {
            assert_eq!(record.outcome, fedanchor_record::Outcome::Applied);
        }
    }
}

/// What is broadcast of the anchors follows how their latents are computed, and repeats itself.
#[test]
fn latents_of_the_anchors_are_computed_as_asked() {
    let means = |views: &str, round: u32| {
        let simulation = simulation(&[&format!("method.anchor_views={views}"), "rounds=1"]);
        let mut coordinator = simulation.coordinator().unwrap();
        coordinator.pretrain(&mut |_, _| true).unwrap();
        let method = &simulation.federation.method;
        let sent = method.broadcast(&coordinator.server, round, &[]).unwrap().unwrap();
        let Anchors::ClassMeans(means) = Anchors::take_from(&sent.arrays, 10).unwrap().unwrap()
        else {
            panic!("expected class means")
        };
        means
    };
    let apart = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
    let plain = means("plain", 1);
    assert_eq!(apart(&plain, &means("plain", 2)), 0.0);
    let (weak, batch) = (means("weak", 1), means("batch", 1));
    assert_eq!(apart(&weak, &means("weak", 1)), 0.0);
    for other in [&weak, &batch, &means("weak", 2)] {
        assert!(apart(&plain, other) > 1e-3, "{}", apart(&plain, other));
    }
    assert!(apart(&weak, &means("weak", 2)) > 1e-3);
}

/// Supervised training with the losses of FedAnchor's clients: on all samples, by their true labels.
#[test]
fn true_labels_may_have_the_recipe_of_pseudo_labels() {
    let losses = |settings: &[&str]| {
        let simulation = simulation(&[&["method.name=supervised", "rounds=1"], settings].concat());
        let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
        coordinator.pretrain(&mut |_, _| true).unwrap();
        let record = coordinator.round(&mut fleet, 1).unwrap().record;
        assert_eq!(record.kept, record.seen);
        ["client_fix", "client_mix", "server_mix"].map(|name| record.losses.get(name))
    };
    let plain = losses(&[]);
    assert!(matches!(plain, [Some(_), None, None]), "{plain:?}");
    let mixed = losses(&["method.client_mixup=true", "method.server_mixup=true"]);
    assert!(matches!(mixed, [Some(_), Some(_), Some(_)]), "{mixed:?}");
    // Clients with few classes: their logits are helped by what is added to them.
    let few = ["partition.kind=classes", "partition.per_client=2"];
    let (plain, adjusted) =
        (losses(&few), losses(&[&few[..], &["method.logit_adjustment=1"]].concat()));
    assert!(adjusted[0].unwrap() < plain[0].unwrap(), "{adjusted:?} {plain:?}");
}

#[test]
fn the_servers_rate_is_its_own_under_the_same_schedule() {
    let keys = |keys: &[&str]| -> Vec<String> { keys.iter().map(|&key| key.to_owned()).collect() };
    let shared = resolve("preset = \"paper\"", &keys(&["optimiser.lr=0.2"])).unwrap();
    assert_eq!((shared.lr(3), shared.server_lr(3)), (0.2, 0.2));
    let own = ["optimiser.lr=0.2", "server.lr=0.1", "optimiser.schedule=cosine", "rounds=4"];
    let own = resolve("preset = \"paper\"", &keys(&own)).unwrap();
    assert!((own.server_lr(3) - 0.05).abs() < 1e-12 && (own.lr(3) - 0.1).abs() < 1e-12);
}

/// The loss of a cohort with adjusted logits is cross entropy of logits plus the client's own adjustment.
#[test]
fn adjusted_logits_are_logits_plus_the_clients_own_numbers() {
    let simulation = simulation(&[]);
    let context = &simulation.federation.context;
    let images = sample::load().unwrap().train;
    let labels: Vec<u16> = images.labels.clone().unwrap();
    let local: Vec<u32> = (0..24).collect();
    let adjustments: [Vec<f32>; 2] = [
        (0..10).map(|c| c as f32 / 3.0).collect(),
        (0..10).map(|c| (c * c) as f32 / -9.0).collect(),
    ];
    let task = |client: u32| Task {
        client,
        images: &images,
        local: &local,
        labels: &labels[..24],
        weights: &[],
        adjustment: &adjustments[client as usize],
        fix: (0..24).collect(),
    };
    let tasks = [task(0), task(1)];
    let augment = fedanchor::config::Augmentation::None;
    let plain = FixMix::plain(context, 1, 8, augment);
    let adjusted = plain.with_adjustment(true);
    let model = context.network.init(0, context.device).unwrap().broadcast(2).unwrap();
    let pass = context.pass(&model.tensors, Statistics::Batch);
    let mut plan = StepPlan::new(&tasks, 0..1, 8);
    let samples = plan.step(context.streams(1), &tasks, 0);
    let bytes = |batches: &dyn Batches| {
        let mut bytes = vec![0; batches.bytes(2)];
        batches.fill(&tasks, &samples, &mut bytes);
        Tensor::from_slice(&bytes)
    };
    let loss = |fix: &FixMix| {
        let inputs = Inputs { context, bytes: &bytes(fix), scalars: &[] };
        fix.loss().loss(&inputs, &pass).unwrap()
    };
    let found = loss(&adjusted);
    let batch = plain.format.read(&context.images, &bytes(&plain), 2).unwrap();
    let x = context.images.input(&batch.fix).unwrap();
    let features = context.network.features(&x, &pass).unwrap();
    let logits = context.network.logits(&features, &pass).unwrap();
    let numbers = Tensor::from_slice(&adjustments.concat()).view([2, 1, 10]);
    let expected = cross_entropy(&(logits + numbers), &batch.labels).unwrap();
    let difference = (&found.terms[0].1 - &expected).abs().max().double_value(&[]);
    assert!(difference < 1e-6, "{difference}");
    let without = loss(&plain);
    assert!(
        (&without.terms[0].1 - &expected).abs().min().to_kind(Kind::Double).double_value(&[]) > 0.1
    );
}
