//! bfloat16 activations: coarse agreement with single precision, and parameters that stay in it.

use crate::filling::{filled, labels, noise};
use crate::{assert_close, context};
use fedanchor::Result;
use fedanchor::engine::model::Statistics;
use fedanchor::engine::training::Learner;
use fedanchor::engine::training::Momentum;
use fedanchor::engine::training::losses::cross_entropy;
use tch::{Kind, Tensor};

/// Of the largest output. bfloat16 keeps 8 bits, a relative error of 2e-3 at each of up to 60
/// roundings on the way through WRN-28-2; as they are independent they add up to about 1e-2.
const TOLERANCE: f64 = 3e-2;

const NETWORKS: [&[&str]; 4] = [
    &["model.name=resnet18"],
    &["model.name=resnet18", "model.preactivation=true"],
    &["model.name=wrn28x2"],
    &["model.name=small"],
];

#[test]
fn outputs_agree_coarsely_with_single_precision() -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    let images = noise("images", &[3, 3, 16, 16]);
    for keys in NETWORKS {
        for norm in ["model.norm=batch", "model.norm=group"] {
            let keys = [keys, &[norm]].concat();
            let outputs = |precision: &str| -> Result<[Tensor; 3]> {
                let context = context(&[&keys[..], &[precision]].concat(), 16, 3)?;
                let params = filled(&context.network.layout, "0")?;
                let pass = context.pass(&params.tensors, Statistics::Running);
                let features = context.network.features(&images, &pass)?;
                let logits = context.network.logits(&features, &pass)?;
                let latents = context.network.latents(&features, &pass)?;
                Ok([logits, latents, features.pooled])
            };
            let (coarse, fine) = (outputs("precision=bf16")?, outputs("precision=f32")?);
            for (found, expected) in coarse.iter().zip(&fine) {
                assert_close(found, expected, TOLERANCE, &format!("{keys:?}"));
                assert!(found != expected, "{keys:?}: bf16 changed nothing");
            }
        }
    }
    Ok(())
}

#[test]
fn parameters_stay_in_single_precision() -> Result<()> {
    let context = context(&["model.name=small", "precision=bf16"], 16, 3)?;
    let start = filled(&context.network.layout, "0")?;
    let mut learner = Learner::new(&context, "test", start.copy()?, Momentum::default(), |_| true)?;
    learner.step(1, 0.1, |pass| {
        let images = noise("images", &[4, 3, 16, 16]);
        let logits = context.network.logits(&context.network.features(&images, pass)?, pass)?;
        Ok(vec![(1.0, cross_entropy(&logits, &labels("labels", 4))?)].into())
    })?;
    let now = learner.params.layout.iter().zip(&learner.params.tensors);
    for ((entry, now), before) in now.zip(&start.tensors) {
        assert_eq!(now.kind(), Kind::Float, "{}", entry.name);
        if entry.name.starts_with("anchor") {
            continue; // not reached by this loss
        }
        // A change smaller than bfloat16 can show beside its weight: it must not have been lost.
        assert!(now != before, "{} did not move", entry.name);
        let as_bf16 = now.to_kind(Kind::BFloat16).to_kind(Kind::Float);
        assert!(*now != as_bf16, "{} holds bfloat16 numbers only", entry.name);
    }
    Ok(())
}
