//! SemiFL, FedMatch and (FL)^2 against independent PyTorch implementations.

use crate::filling::{filled, labels, noise};
use crate::steps::{CHANGE, STATISTIC, check_change, terms};
use crate::{CLASSES, Fixture, assert_close, context, experiment};
use fedanchor::Result;
use fedanchor::aggregation::WeightedMean;
use fedanchor::engine::model::Statistics;
use fedanchor::engine::tensors::Params;
use fedanchor::engine::training::Context;
use fedanchor::engine::training::Learner;
use fedanchor::engine::training::Momentum;
use fedanchor::engine::training::losses::cross_entropy;
use fedanchor::labels::LabelledImages;
use fedanchor::methods::fedmatch::{FedMatch, client_terms, summed, vote};
use fedanchor::methods::fl2;
use fedanchor::methods::read_settings;
use fedanchor::server::Server;
use fedanchor_data::{ImageSet, Shape};
use tch::{Kind, Tensor};

const SMALL: [&str; 2] = ["model.name=small", "batch_norm.statistics=static-all"];

fn one(value: f64) -> Tensor {
    Tensor::from_slice(&[value])
}

#[test]
fn semifls_labels_agree() -> Result<()> {
    let fixture = Fixture::methods();
    let context = context(&SMALL, 16, 3)?;
    let params = filled(&context.network.layout, "0")?;
    let pass = context.pass(&params.tensors, Statistics::Running);
    let images = noise("semifl images", &[32, 3, 16, 16]);
    let logits = context.network.logits(&context.network.features(&images, &pass)?, &pass)?;
    let (score, class) = logits.softmax(-1, Kind::Float).max_dim(-1, false);
    assert_close(&score, &fixture.tensor("semifl/labels/score")?, STATISTIC, "score");
    assert_close(&class, &fixture.tensor("semifl/labels/class")?, 0.0, "class");
    Ok(())
}

/// Two rounds of a client: the model is replaced, the momentum stays.
#[test]
fn semifls_client_agrees() -> Result<()> {
    let fixture = Fixture::methods();
    let mut keys = SMALL.to_vec();
    keys.extend(["optimiser.nesterov=true", "optimiser.momentum=0.9", "optimiser.clip=1.0"]);
    keys.push("optimiser.weight_decay=0.0005");
    let context = context(&keys, 16, 3)?;
    let mut momentum = Momentum::default();
    for round in 1..=2 {
        let start = filled(&context.network.layout, if round == 1 { "0" } else { "1" })?;
        let lr = if round == 1 { 0.1 } else { 0.05 };
        let mut learner = Learner::new(&context, "test", start.copy()?, momentum, |_| true)?;
        let mut before = 0.0;
        for step in 2 * round - 2..2 * round {
            learner.step(1, lr, |pass| Ok(terms(&context, pass, step, 1.0)?.into()))?;
            let sum = learner.mean_losses(0, 1)?.iter().sum::<f64>();
            let name = format!("semifl/round{round}/loss/{step}");
            assert_close(&one(sum - before), &fixture.tensor(&name)?, STATISTIC, &name);
            before = sum;
        }
        let place = format!("semifl/round{round}");
        compare(&fixture, &place, &start, &learner.params, CHANGE)?;
        momentum = learner.momentum;
    }
    Ok(())
}

/// The step with momentum from the old global model to the clients' mean, twice.
#[test]
fn semifls_server_agrees() -> Result<()> {
    let fixture = Fixture::methods();
    let mut keys = SMALL.to_vec();
    keys.push("server.momentum=0.5");
    let (experiment, context) = (experiment(&keys)?, context(&keys, 16, 3)?);
    let layout = context.network.layout.clone();
    let shape = Shape { side: 16, channels: 3 };
    let images = ImageSet::new(shape, Vec::new(), None, Vec::new());
    let anchors = LabelledImages { images, labels: Vec::new() };
    let mut server = Server::new(&experiment, &context, &anchors)?;
    server.params = filled(&layout, "0")?;
    for clients in [["1", "2"], ["3", "4"]] {
        let mut mean = WeightedMean::default();
        for client in clients {
            mean.add(&filled(&layout, client)?.subset(|entry| !entry.statistic), 1.0)?;
        }
        server.take_mean(mean.finish()?.as_ref())?;
    }
    compare(&fixture, "semifl/server", &filled(&layout, "0")?, &server.params, CHANGE)
}

/// Two steps of a client with some confident samples, and with none.
#[test]
fn fl2s_client_agrees() -> Result<()> {
    let fixture = Fixture::methods();
    for case in ["some", "none"] {
        let place = |what: &str| format!("fl2/{case}/{what}");
        let radius = numbers(&fixture, &place("radius"))?[0];
        let optimiser = numbers(&fixture, &place("optimiser"))?;
        let mut keys: Vec<String> = SMALL.iter().map(|&key| key.to_owned()).collect();
        keys.extend(["method.name=fl2", "optimiser.clip=0"].map(str::to_owned));
        keys.push(format!("optimiser.momentum={}", optimiser[1]));
        keys.push(format!("optimiser.weight_decay={}", optimiser[2]));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let context = context(&keys, 16, 3)?;
        let start = filled(&context.network.layout, "0")?;
        let mut learner =
            Learner::new(&context, "test", start.copy()?, Momentum::default(), |_| true)?;
        let mut before = [0.0; 2];
        for step in 0..2 {
            let images = noise(&format!("fix view of step {step}"), &[4, 3, 16, 16]);
            let label = labels(&format!("fix of step {step}"), 4);
            let confident = fixture.tensor(&place(&format!("confident/{step}")))?.unsqueeze(0);
            learner.step(1, optimiser[0], |pass| {
                let labels = (&label, &confident);
                let terms = fl2::client_terms(&context.network, &images, labels, radius, pass)?;
                Ok(terms.map(|term| (1.0, term)).into_iter().collect::<Vec<_>>().into())
            })?;
            let sums = learner.mean_losses(0, 1)?;
            // The consistency is a small difference of logarithms.
            let tolerances = [("fix", STATISTIC), ("consistency", 1e-3)];
            for (at, (name, tolerance)) in tolerances.into_iter().enumerate() {
                let name = place(&format!("{name}/{step}"));
                let expected = fixture.tensor(&name)?;
                assert_close(&one(sums[at] - before[at]), &expected, tolerance, &name);
                before[at] = sums[at];
            }
        }
        compare(&fixture, &format!("fl2/{case}"), &start, &learner.params, CHANGE)?;
    }
    Ok(())
}

/// Every weight's change, and as many as the fixture has.
fn compare(
    fixture: &Fixture,
    place: &str,
    before: &Params,
    now: &Params,
    tolerance: f64,
) -> Result<()> {
    let mut compared = 0;
    let pairs = before.tensors.iter().zip(&now.tensors);
    for (entry, (before, now)) in before.layout.iter().zip(pairs) {
        if entry.statistic {
            assert_eq!(before, now, "{}", entry.name); // static batch norm: nobody touches them
            continue;
        }
        check_change(fixture, place, &entry.name, before, now, tolerance)?;
        compared += 1;
    }
    assert_eq!(compared, fixture.count(&format!("{place}/change/")));
    Ok(())
}

/// Numbers that the fixture was made with.
fn numbers(fixture: &Fixture, name: &str) -> Result<Vec<f64>> {
    Ok(Vec::<f64>::try_from(fixture.tensor(name)?.to_kind(Kind::Double))?)
}

fn fedmatch(fixture: &Fixture, side: &str, case: &str) -> Result<(Context, FedMatch, f64)> {
    let place = |what: &str| format!("fedmatch/{side}/{case}/{what}");
    let weights = numbers(fixture, &place("weights"))?;
    let optimiser = numbers(fixture, &place("optimiser"))?;
    let mut keys: Vec<String> = SMALL.iter().map(|&key| key.to_owned()).collect();
    keys.extend(["method.name=fedmatch", "optimiser.clip=0"].map(str::to_owned));
    keys.push(format!("optimiser.momentum={}", optimiser[1]));
    keys.push(format!("optimiser.weight_decay={}", optimiser[2]));
    if side == "client" {
        let threshold = numbers(fixture, &place("threshold"))?[0];
        keys.push(format!("method.threshold={threshold}"));
        assert_eq!(weights[0], weights[1]); // one key for both
        keys.push(format!("method.consistency={}", weights[0]));
        keys.push(format!("method.sparsity={}", weights[2]));
        keys.push(format!("method.distance={}", weights[3]));
    } else {
        keys.push(format!("method.supervised={}", weights[0]));
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let config = read_settings(&experiment(&keys)?.method.settings)?;
    Ok((context(&keys, 16, 3)?, config, optimiser[0]))
}

/// sigma and psi of the fixture.
fn halves(context: &Context) -> Result<(Params, Params)> {
    let layout = &context.network.layout;
    let mut psi = filled(layout, "1")?;
    for tensor in &mut psi.tensors {
        let _ = tensor.f_mul_scalar_(0.1)?;
    }
    Ok((filled(layout, "0")?, psi))
}

#[test]
fn fedmatchs_client_agrees() -> Result<()> {
    let fixture = Fixture::methods();
    for case in ["published", "visible"] {
        let (context, config, lr) = fedmatch(&fixture, "client", case)?;
        let place = |what: &str| format!("fedmatch/client/{case}/{what}");
        let (sigma, psi) = halves(&context)?;
        let mut others = vec![sigma];
        for helper in numbers(&fixture, &place("helpers"))? {
            others.push(filled(&context.network.layout, &format!("{helper}"))?);
        }
        let mut learner =
            Learner::new(&context, "test", psi.copy()?, Momentum::default(), |_| true)?
                .with_others(others)?;
        let mut before = vec![0.0; 4];
        for step in 0..2 {
            let view = |kind: &str| noise(&format!("{kind} view of step {step}"), &[8, 3, 16, 16]);
            let (weak, strong) = (view("weak"), view("strong"));
            learner.step(1, lr, |pass| {
                Ok(client_terms(&context.network, &config, &weak, &strong, pass)?.into())
            })?;
            let sums = learner.mean_losses(0, 1)?;
            for (index, term) in ["agreement", "consistency", "l1", "l2"].into_iter().enumerate() {
                let name = place(&format!("{term}/{step}"));
                let found = one(sums[index] - before[index]);
                assert_close(&found, &fixture.tensor(&name)?, STATISTIC, &name);
            }
            before = sums;
        }
        let place = format!("fedmatch/client/{case}");
        compare(&fixture, &place, &psi, &learner.params, CHANGE)?;
    }
    Ok(())
}

#[test]
fn fedmatchs_vote_agrees() -> Result<()> {
    let theirs: Vec<Tensor> =
        (0..4).map(|helper| labels(&format!("vote of helper {helper}"), 256)).collect();
    let found = vote(&labels("own vote", 256), &theirs, CLASSES as i64)?;
    let expected = Fixture::methods().tensor("fedmatch/votes/label")?;
    assert_close(&found, &expected, 0.0, "votes");
    Ok(())
}

#[test]
fn fedmatchs_server_agrees() -> Result<()> {
    let fixture = Fixture::methods();
    for case in ["published", "visible"] {
        let (context, config, lr) = fedmatch(&fixture, "server", case)?;
        let (sigma, psi) = halves(&context)?;
        let mut learner =
            Learner::new(&context, "test", sigma.copy()?, Momentum::default(), |_| true)?
                .with_others(vec![psi])?;
        let mut before = 0.0;
        for step in 0..2 {
            let images = noise(&format!("server view of step {step}"), &[8, 3, 16, 16]);
            let labels = labels(&format!("server of step {step}"), 8);
            learner.step(1, lr, |pass| {
                let w = summed(&pass.others[0], pass.weights()?)?;
                let pass = pass.with_tensors(&w);
                let features = context.network.features(&images, &pass)?;
                let logits = context.network.logits(&features, &pass)?;
                Ok(vec![(config.supervised, cross_entropy(&logits, &labels)?)].into())
            })?;
            let sum = learner.mean_losses(0, 1)?[0];
            let name = format!("fedmatch/server/{case}/loss/{step}");
            let found = one(config.supervised * (sum - before));
            assert_close(&found, &fixture.tensor(&name)?, STATISTIC, &name);
            before = sum;
        }
        compare(&fixture, &format!("fedmatch/server/{case}"), &sigma, &learner.params, CHANGE)?;
    }
    Ok(())
}
