//! Every setting has the effect it must have.

use crate::workspace::{DRAWN, Workspace};
use fedanchor_record::files;
use std::collections::BTreeMap;

/// Runs every case and demands that it differs from the run without its last setting, which is
/// the one in question; those before it prepare the ground.
fn each_has_an_effect(cases: &[&[&str]]) {
    let workspace = Workspace::with_pictures(16);
    let mut known: BTreeMap<Vec<&str>, String> = BTreeMap::new();
    for (number, case) in cases.iter().enumerate() {
        let (_, ground) = case.split_last().unwrap();
        let plain = known.entry(ground.to_vec()).or_insert_with(|| {
            let out = format!("plain-{number}");
            workspace.run(&out, &[DRAWN, ground]);
            workspace.read(&out, files::ROUNDS)
        });
        let out = number.to_string();
        let records = workspace.run(&out, &[DRAWN, case]);
        assert_eq!(records.iter().map(|r| r.round).collect::<Vec<_>>(), [0, 1, 2], "{case:?}");
        assert!(workspace.read(&out, files::ROUNDS) != *plain, "{case:?} changes nothing");
    }
}

// Every value in brackets in the preset `paper`, and whatever else is a choice rather than a number,
// in the preset's order; `send`, `compare` and `server-only` have tests of their own below.

#[test]
fn every_choice_of_data_and_model_has_an_effect() {
    each_has_an_effect(&[
        &["precision=bf16"],
        &["data.choice=uniform"],
        &["model.norm=group"],
        &["model.latent_stage=2"],
        &["batch_norm.statistics=static-all"],
        &["batch_norm.statistics=static-server"],
        &["batch_norm.statistics=static-all", "batch_norm.images=40"],
        &["data.validation=10"],
        &["augment.strong=semifl"],
        &["augment.strong=torchvision"],
        &["augment.flip=false"],
        &["preset=semifl"],
    ]);
}

/// The large models, with as little to do as can be, each on another kind of partition.
#[test]
fn every_model_and_partition_runs() {
    let workspace = Workspace::with_pictures(16);
    let own = |setting: &&&str| !setting.starts_with("partition.");
    let settings: Vec<&str> = DRAWN.iter().filter(own).copied().collect();
    let brief = [
        "rounds=1",
        "data.anchors=6",
        "data.clients=10",
        "pretrain.epochs=0",
        "client.per_round=1",
        "client.epochs=1",
        "method.threshold=-1", // keeps everything
    ];
    for (model, others) in [
        ("resnet18", ["partition.kind=iid", "model.preactivation=false"]),
        ("resnet18", ["partition.kind=classes", "model.preactivation=true"]),
        ("wrn28x2", ["partition.kind=lda", "partition.alpha=1"]),
    ] {
        let (out, name) = (others.join(","), format!("model.name={model}"));
        let records = workspace.run(&out, &[&settings, &brief, &[&name], &others]);
        assert_eq!((records.len(), records[1].trained), (2, 1));
        assert_eq!(workspace.summary(&out).model, model);
    }
}

#[test]
fn every_choice_of_training_has_an_effect() {
    each_has_an_effect(&[
        &["optimiser.nesterov=true"],
        &["optimiser.clip=0"],
        &["optimiser.schedule=cosine"],
        &["pretrain.contrastive=false"],
        &["pretrain.epochs=30", "pretrain.fitted=1.0"],
        &["client.keep_momentum=true"],
        &["server.augment=weak"],
        &["server.augment=none"],
        &["server.keep_momentum=true"],
        &["server.momentum=0.5"],
        &["server.batch=20"],
        &["server.lr=0.01"],
        &["aggregation.weights=kept"],
        &["aggregation.weights=uniform"],
        &["messages.precision=bf16"],
        &["messages.precision=int8"],
        &["privacy={epsilon=8.0, delta=1e-2, clip=1.0}"],
        &["privacy={noise=1.0, delta=1e-2, clip=1.0}", "privacy.quantile=0.5"],
        // A threshold that some clients' images all fail.
        &["method.threshold=0.85", "aggregation.without_samples=unchanged"],
    ]);
}

#[test]
fn every_choice_of_the_method_has_an_effect() {
    each_has_an_effect(&[
        &["method.threshold=0.4", "method.score=softmax"],
        &["method.threshold=0.4", "method.score=softmax", "method.score_temperature=0.5"],
        &["method.latents=pooled"],
        &["method.anchor_views=weak"],
        &["method.anchor_views=batch"],
        &["method.local_prior=1"],
        &["method.logit_adjustment=1"],
        &["method.warm_up.rounds=1"],
        &["method.warm_up.rounds=1", "method.warm_up.predictor=16"],
        &["method.warm_up.rounds=1", "method.warm_up.target_decay=0.5"],
        &["method.label_views=2"],
        &["method.views=joint"],
        &["method.client_mixup=false"],
        &["method.server_mixup=true"],
        &["method.mixup.draw=sample"],
        &["method.mixup.augment=after"],
        &["method.mixup.mix_set=round"],
    ]);
}

#[test]
fn every_choice_of_the_contrastive_loss_has_an_effect() {
    each_has_an_effect(&[
        &["method.contrastive.epochs=0"],
        &["method.contrastive.sampler=balanced"],
        &["method.contrastive.augment=strong"],
        &["method.contrastive.augment=none"],
        &["method.contrastive.trains=head"],
        &["method.contrastive.self_pairs=true"],
        &["method.contrastive.denominator=class"],
        // Of four anchors in three classes, two classes have no pair.
        &["data.anchors=4", "method.contrastive.divide_by=all"],
        &["method.contrastive.order=first"],
        &["method.contrastive.momentum=shared"],
    ]);
}
