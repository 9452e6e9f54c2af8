//! Forward passes of every network: logits, latents, pooled features and running statistics.

use crate::filling::{filled, noise};
use crate::{Fixture, assert_close, context};
use fedanchor::Result;
use fedanchor::engine::model::Statistics;
use fedanchor::engine::tensors::Entry;

/// Single precision through at most 26 convolutions, against double: four times what is seen.
const TOLERANCE: f64 = 1e-5;

/// The network's name in the fixture and the keys that choose it.
const NETWORKS: [(&str, &[&str]); 4] = [
    ("resnet18", &["model.name=resnet18"]),
    ("resnet18-pre", &["model.name=resnet18", "model.preactivation=true"]),
    ("wrn28x2", &["model.name=wrn28x2"]),
    ("small", &["model.name=small"]),
];

/// Compares one case in both modes; returns how many tensors of the fixture it used.
fn check(
    fixture: &Fixture,
    case: &str,
    keys: &[&str],
    side: usize,
    channels: usize,
) -> Result<usize> {
    let _no_grad = tch::no_grad_guard();
    let context = context(keys, side, channels)?;
    let params = filled(&context.network.layout, "0")?;
    let images = noise("images", &[3, channels as i64, side as i64, side as i64]);
    let mut used = 0;
    // The last pass moves the running statistics, which the other two must find as they were.
    for (mode, statistics) in [
        ("running", Statistics::Running),
        ("batch", Statistics::Batch),
        ("batch", Statistics::Update(context.batch_norm.momentum)),
    ] {
        if statistics == Statistics::Batch && side > 16 {
            continue; // the same arithmetic as `Update`: once a network is enough
        }
        let pass = context.pass(&params.tensors, statistics);
        let features = context.network.features(&images, &pass)?;
        for (what, found) in [
            ("logits", context.network.logits(&features, &pass)?),
            ("latents", context.network.latents(&features, &pass)?),
            ("pooled", features.pooled.shallow_clone()),
        ] {
            let name = format!("{case}/{mode}/{what}");
            assert_close(&found, &fixture.tensor(&name)?, TOLERANCE, &name);
            used += usize::from(statistics != Statistics::Batch);
        }
        if statistics == Statistics::Batch {
            let start = filled(&context.network.layout, "0")?;
            assert!(params.tensors.iter().zip(&start.tensors).all(|(a, b)| a == b), "{case}");
        }
    }
    if fixture.count(&format!("{case}/after/")) > 0 {
        let moved = |(entry, _): &(&Entry, _)| entry.statistic;
        for (entry, tensor) in params.layout.iter().zip(&params.tensors).filter(moved) {
            let name = format!("{case}/after/{}", entry.name);
            assert_close(tensor, &fixture.tensor(&name)?, TOLERANCE, &name);
            used += 1;
        }
    }
    Ok(used)
}

/// All cases of one network, with batch norm and group norm.
fn check_network(index: usize) -> Result<()> {
    let (fixture, (network, keys)) = (Fixture::read(), NETWORKS[index]);
    let mut used = 0;
    for norm in ["batch", "group"] {
        let norm_key = format!("model.norm={norm}");
        let keys = [keys, &[&norm_key, "model.groups=8"]].concat();
        for (side, channels) in [(16, 3), (28, 1), (32, 3)] {
            let case = format!("networks/{network}/{norm}/{side}x{channels}");
            used += check(&fixture, &case, &keys, side, channels)?;
            // The anchor head on an earlier stage: its output before the next block's norm.
            let early = format!("{case}/stage2");
            if fixture.count(&early) > 0 {
                let keys = [&keys[..], &["model.latent_stage=2"]].concat();
                used += check(&fixture, &early, &keys, side, channels)?;
            }
        }
    }
    assert_eq!(used, fixture.count(&format!("networks/{network}/")));
    Ok(())
}

#[test]
fn resnet18_agrees() -> Result<()> {
    check_network(0)
}

#[test]
fn preactivation_resnet18_agrees() -> Result<()> {
    check_network(1)
}

#[test]
fn wrn28x2_agrees() -> Result<()> {
    check_network(2)
}

#[test]
fn small_agrees() -> Result<()> {
    check_network(3)
}
