//! Whole training steps of one client: two views through batch norm, one after the other, L_fix and
//! b L_mix, backward, clipping, SGD.

use crate::filling::{filled, labels, lambda, noise, places};
use crate::{Fixture, assert_close, context};
use fedanchor::Result;
use fedanchor::engine::Result as EngineResult;
use fedanchor::engine::model::Pass;
use fedanchor::engine::training::Context;
use fedanchor::engine::training::Learner;
use fedanchor::engine::training::Momentum;
use fedanchor::engine::training::losses::{cross_entropy, mix_loss};
use tch::{Kind, Tensor};

/// Of the largest change in an entry. The weights of norms are near 1, are rounded to 6e-8 and move
/// by 1e-3, so their change is known to about 1e-4, which is what is seen. A weight decay that is
/// off by a tenth, or a gradient clipped to 1.001, differs by more.
pub const CHANGE: f64 = 3e-4;
/// Of the largest running statistic of a layer, and of the loss.
pub const STATISTIC: f64 = 1e-5;

/// b of eq. 10, other than 1 so that it is seen.
const MIX_WEIGHT: f64 = 0.5;

/// The terms of the loss on the fix and the mix view of a step.
pub fn terms(
    context: &Context,
    pass: &Pass,
    step: usize,
    mix_weight: f64,
) -> EngineResult<Vec<(f64, Tensor)>> {
    let of = |what: &str| format!("{what} of step {step}");
    let logits = |what: &str| {
        let images = noise(&of(what), &[4, 3, 16, 16]);
        context.network.logits(&context.network.features(&images, pass)?, pass)
    };
    let (fix, mix) = (labels(&of("fix"), 4), labels(&of("mix"), 4));
    let fix_loss = cross_entropy(&logits("fix view")?, &fix)?;
    let mix_loss = mix_loss(&logits("mix view")?, &fix, &mix, &lambda(&of("lambda"), 4))?;
    Ok(vec![(1.0, fix_loss), (mix_weight, mix_loss)])
}

/// Compares how far an entry has moved with what the fixture holds under `place`.
pub fn check_change(
    fixture: &Fixture,
    place: &str,
    entry: &str,
    before: &Tensor,
    now: &Tensor,
    tolerance: f64,
) -> Result<()> {
    let name = |what: &str| format!("{place}/{what}/{entry}");
    let change = (now.to_kind(Kind::Double) - before.to_kind(Kind::Double)).flatten(0, -1);
    let length = change.norm().unsqueeze(0);
    assert_close(&length, &fixture.tensor(&name("length"))?, tolerance, &name("length"));
    let count = change.numel();
    let change = if count > 256 {
        change.index_select(0, &places(&format!("places/{entry}"), count))
    } else {
        change
    };
    assert_close(&change, &fixture.tensor(&name("change"))?, tolerance, &name("change"));
    Ok(())
}

fn check(rule: &str, nesterov: bool) -> Result<()> {
    let fixture = Fixture::read();
    let nesterov = format!("optimiser.nesterov={nesterov}");
    let keys = [
        "model.name=small",
        "batch_norm.momentum=0.1",
        "optimiser.momentum=0.9",
        "optimiser.weight_decay=0.0005",
        "optimiser.clip=1.0",
        &nesterov,
    ];
    let context = context(&keys, 16, 3)?;
    let start = filled(&context.network.layout, "0")?;
    // Everything may train, the anchor head too: it is the loss that does not reach it.
    let mut learner = Learner::new(&context, "test", start.copy()?, Momentum::default(), |_| true)?;
    let mut before = vec![0.0; 2];
    for step in 0..2 {
        learner.step(1, 0.1, |pass| Ok(terms(&context, pass, step, MIX_WEIGHT)?.into()))?;
        let sums = learner.mean_losses(0, 1)?;
        let loss = sums[0] - before[0] + MIX_WEIGHT * (sums[1] - before[1]);
        let loss = Tensor::from_slice(&[loss]);
        before = sums;
        let name = format!("steps/{rule}/loss/{step}");
        assert_close(&loss, &fixture.tensor(&name)?, STATISTIC, &name);
    }
    let mut used = 2;
    let now = learner.params.layout.iter().zip(&learner.params.tensors);
    for ((entry, now), before) in now.zip(&start.tensors) {
        let name = |what: &str| format!("steps/{rule}/{what}/{}", entry.name);
        if entry.statistic {
            let name = name("statistic");
            assert_close(now, &fixture.tensor(&name)?, STATISTIC, &name);
            used += 1;
            continue;
        }
        // For the anchor head zero is expected, and then nothing but zero is allowed: no decay.
        let place = format!("steps/{rule}");
        check_change(&fixture, &place, &entry.name, before, now, CHANGE)?;
        used += 2;
    }
    assert_eq!(used, fixture.count(&format!("steps/{rule}/")));
    Ok(())
}

#[test]
fn two_steps_with_momentum_agree() -> Result<()> {
    check("plain", false)
}

#[test]
fn two_nesterov_steps_agree() -> Result<()> {
    check("nesterov", true)
}
