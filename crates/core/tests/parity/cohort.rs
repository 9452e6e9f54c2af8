//! A cohort of three is three cohorts of one, also while it shrinks.
//!
//! Not bit for bit: a grouped convolution over three clients sums in another order than a plain
//! one, and each step carries the difference on. The change of every weight over all steps is
//! compared within a tolerance. A client that has finished is compared bit for bit.

use crate::filling::{filled, labels, noise};
use crate::{assert_close, context};
use fedanchor::Result;
use fedanchor::engine::Result as EngineResult;
use fedanchor::engine::model::Pass;
use fedanchor::engine::tensors::Params;
use fedanchor::engine::training::Context;
use fedanchor::engine::training::Learner;
use fedanchor::engine::training::Momentum;
use fedanchor::engine::training::losses::cross_entropy;
use tch::{Kind, Tensor};

/// Of the largest change in an entry over all steps; see `steps` for why not less. Weights move by
/// a few thousandths, so beside the weights themselves this is below 1e-6.
const CHANGE: f64 = 3e-4;
const LR: f64 = 0.1;
const CLIENTS: usize = 3;

/// Cross entropy of these clients' batches in this step, each client its own images and labels.
fn loss(
    context: &Context,
    pass: &Pass,
    clients: std::ops::Range<usize>,
    step: usize,
) -> EngineResult<Vec<(f64, Tensor)>> {
    let of = |what: &str, client: usize| format!("{what} of client {client} in step {step}");
    let images: Vec<Tensor> =
        clients.clone().map(|k| noise(&of("images", k), &[4, 3, 16, 16])).collect();
    let labels: Vec<Tensor> = clients.map(|k| labels(&of("labels", k), 4)).collect();
    let images = Tensor::f_cat(&images, 1)?; // [batch, K * C, H, W]
    let labels = Tensor::f_cat(&labels, 0)?; // [K, batch]
    let logits = context.network.logits(&context.network.features(&images, pass)?, pass)?;
    Ok(vec![(1.0, cross_entropy(&logits, &labels)?)])
}

fn learner(context: &Context, params: Params) -> EngineResult<Learner<'_>> {
    Learner::new(context, "test", params, Momentum::default(), |_| true)
}

/// Trains with `active[t]` clients in step t and compares with each client alone.
fn check(norm: &str, active: &[usize]) -> Result<()> {
    let norm = format!("model.norm={norm}");
    let context = context(&["model.name=small", &norm, "optimiser.clip=1.0"], 16, 3)?;
    let start: Vec<Params> = (0..CLIENTS)
        .map(|client| filled(&context.network.layout, &client.to_string()))
        .collect::<Result<_>>()?;

    let mut cohort = learner(&context, Params::stack(&start.iter().collect::<Vec<_>>())?)?;
    for (step, &active) in active.iter().enumerate() {
        let before = cohort.params.copy()?;
        cohort.step(active, LR, |pass| Ok(loss(&context, pass, 0..active, step)?.into()))?;
        for client in active..CLIENTS {
            let (now, before) =
                (cohort.params.client(client as i64)?, before.client(client as i64)?);
            for ((entry, now), before) in now.layout.iter().zip(&now.tensors).zip(&before.tensors) {
                assert!(now == before, "client {client} had finished, {} moved", entry.name);
            }
        }
    }

    for (client, start) in start.iter().enumerate() {
        let steps = active.iter().filter(|&&active| active > client).count();
        let mut alone = learner(&context, start.copy()?)?;
        for step in 0..steps {
            let clients = client..client + 1;
            alone.step(1, LR, |pass| Ok(loss(&context, pass, clients, step)?.into()))?;
        }
        let together = cohort.mean_losses(client, steps)?[0];
        let alone_loss = alone.mean_losses(0, steps)?[0];
        let what = format!("loss of client {client}");
        let as_tensor = |loss: f64| Tensor::from_slice(&[loss]);
        assert_close(&as_tensor(together), &as_tensor(alone_loss), CHANGE, &what);
        let together = cohort.params.client(client as i64)?;
        for (index, entry) in start.layout.iter().enumerate() {
            let change = |params: &Params| {
                let as_double = |params: &Params| params.tensors[index].to_kind(Kind::Double);
                as_double(params) - as_double(start)
            };
            let what = format!("{norm}, client {client}, {}", entry.name);
            let expected = change(&alone.params);
            let moved = expected.abs().max().double_value(&[]) > 0.0;
            assert_eq!(moved, !entry.name.starts_with("anchor"), "{what}");
            assert_close(&change(&together), &expected, CHANGE, &what);
        }
    }
    Ok(())
}

#[test]
fn three_clients_train_as_if_alone() -> Result<()> {
    check("batch", &[3, 3, 3])?;
    check("group", &[3, 3, 3])
}

#[test]
fn a_shrinking_cohort_leaves_finished_clients_alone() -> Result<()> {
    check("batch", &[3, 2, 1])?;
    check("group", &[3, 2, 1])
}
