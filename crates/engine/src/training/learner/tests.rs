//! Steps of SGD, and what a loss may and may not do in them.

use super::*;
use crate::config::*;
use crate::tensors::Part;
use crate::training::context::Settings;
use crate::training::loss::LossValue;
use fedanchor_data::augment::Strong;
use fedanchor_data::{Normalisation, Shape};
use tch::Device;

fn context() -> Context {
    let settings = Settings {
        seed: 0,
        device: Device::Cpu,
        precision: Precision::F32,
        model: ModelConfig { latent_dim: 8, ..ModelConfig::plain("small") },
        heads: Heads { anchor: true, predictor: None },
        batch_norm: BatchNormConfig {
            statistics: StatisticsSource::Average,
            momentum: 0.1,
            images: 0,
        },
        augment: AugmentConfig { strong: Strong::Fixmatch, flip: None, views: 2 },
        optimiser: OptimiserConfig {
            lr: 0.1,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.5,
            clip: 0.0,
            schedule: LrSchedule::Constant,
        },
        loss: None,
    };
    let shape = Shape { side: 16, channels: 1 };
    let normalisation = Normalisation { mean: vec![0.0], std: vec![1.0] };
    Context::new(settings, shape, 3, &normalisation, false, Some(1)).unwrap()
}

/// A client that skips a step stays as it is, momentum and statistics included; the other makes it.
#[test]
fn a_skipped_step_leaves_no_trace() {
    let context = context();
    let start = context.network.init(0, context.device).unwrap().broadcast(2).unwrap();
    let images = Tensor::ones([4, 2, 16, 16], (Kind::Float, context.device)) / 3.0;
    let mut learner =
        Learner::new(&context, "test", start.copy().unwrap(), Momentum::default(), |_| true)
            .unwrap()
            .with_skipped_steps();
    let mut step = |made: &[f32]| {
        let made = Tensor::from_slice(made);
        let loss = |pass: &Pass| {
            let features = context.network.features(&images, pass)?;
            let logits = context.network.logits(&features, pass)?;
            let sum = logits.f_square()?.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float)?;
            let made = Some(made.shallow_clone());
            Ok(Terms { made, ..vec![(1.0, sum)].into() })
        };
        learner.step(2, 0.1, loss).unwrap();
        let first = learner.momentum.copy().unwrap();
        (learner.params.copy().unwrap(), first)
    };
    let of = |params: &Params, client: i64| -> Vec<Tensor> {
        params.client(client).unwrap().copy().unwrap().tensors
    };
    let (one, _) = step(&[1.0, 0.0]);
    assert_eq!(of(&one, 1), of(&start, 1));
    assert_ne!(of(&one, 0), of(&start, 0));
    // The second client's first step is the first client's: no momentum was left behind.
    let (two, _) = step(&[0.0, 1.0]);
    assert_eq!(of(&two, 0), of(&one, 0));
    let close = of(&two, 1).iter().zip(of(&one, 0)).all(|(a, b)| a.allclose(&b, 1e-5, 1e-6, false));
    assert!(close);
}

/// Terms that a kernel has added up, with a further one and other weights: the step is the same, and so is what is
/// recorded.
#[test]
fn terms_that_were_added_up_count_as_they_would_apart() {
    let context = context();
    let start = context.network.init(0, context.device).unwrap();
    let images = Tensor::ones([4, 1, 16, 16], (Kind::Float, context.device)) / 3.0;
    let trained = |together: bool| {
        let params = start.copy().unwrap();
        let mut learner =
            Learner::new(&context, "test", params, Momentum::default(), |_| true).unwrap();
        let loss = |pass: &Pass| {
            let features = context.network.features(&images, pass)?;
            let logits = context.network.logits(&features, pass)?; // [1, 4, 3]
            let over = |x: Tensor| x.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float);
            let (first, second) = (over(logits.f_square()?)?, over(logits.f_exp()?)?);
            let penalty = over(logits.f_abs()?)?;
            let terms = if together {
                let total = first.f_add(&second.f_mul_scalar(0.5)?)?;
                let recorded = Some(vec![first.f_detach()?, second.f_detach()?]);
                Terms { recorded, ..vec![(1.0, total)].into() }
            } else {
                vec![(1.0, first), (0.5, second)].into()
            };
            Ok(terms.times(3.0).with(0.1, penalty))
        };
        learner.step(1, 0.1, loss).unwrap();
        let losses = learner.mean_losses(0, 1).unwrap();
        (learner.params.copy().unwrap(), losses)
    };
    let (together, apart) = (trained(true), trained(false));
    assert_eq!(together.1, apart.1);
    assert!(apart.1.iter().all(|loss| *loss > 0.0), "{:?}", apart.1);
    let both = together.0.tensors.iter().zip(&apart.0.tensors).zip(&start.tensors);
    let mut moved = 0.0;
    for ((together, apart), start) in both {
        assert!(together.allclose(apart, 1e-5, 1e-6, false));
        moved += (apart - start).abs().sum(Kind::Double).double_value(&[]);
    }
    assert!(moved > 0.0);
}

/// The sum of the squared logits; the further network follows as a moving average after every step.
#[derive(Debug, Clone, PartialEq)]
struct Following(f64);

impl StepLoss for Following {
    fn terms(&self) -> usize {
        1
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> Result<Terms> {
        let Inputs { context, bytes, .. } = *inputs;
        let images = bytes.f_view([4, 1, 16, 16])?.f_to_kind(Kind::Float)?;
        let logits = context.network.logits(&context.network.features(&images, pass)?, pass)?;
        let sum = logits.f_square()?.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float)?;
        Ok(vec![(1.0, sum)].into())
    }

    fn after_step(&self, trained: &Params, others: &[Params]) -> Result<()> {
        others[0].follow(trained, self.0)
    }
}

/// A network that follows keeps d of itself in a step and takes 1 - d of the trained one.
#[test]
fn a_follower_keeps_its_share() {
    let context = context();
    let start = context.network.init(0, context.device).unwrap();
    let target = start.subset(|entry| entry.part == Part::Backbone);
    let mut learner =
        Learner::new(&context, "test", start.copy().unwrap(), Momentum::default(), |_| true)
            .unwrap()
            .with_others(vec![target.copy().unwrap()])
            .unwrap();
    let fill = |_: usize, bytes: &mut [u8]| {
        bytes.fill(1);
        (1, bytes.len())
    };
    learner.train(0.1, 1, 4 * 16 * 16, (&Following(0.75), &[]), fill).unwrap();
    let trained = learner.params.subset(|entry| entry.part == Part::Backbone);
    let all = learner.others[0].tensors.iter().zip(&target.tensors).zip(&trained.tensors);
    let mut moved = 0.0;
    for ((now, before), trained) in all {
        let expected = before * 0.75 + trained * 0.25;
        assert!(now.allclose(&expected, 1e-5, 1e-6, false));
        moved += (now - before).abs().sum(Kind::Double).double_value(&[]);
    }
    assert!(moved > 0.0);
}

/// Counts terms, more than it declares.
#[derive(Debug, Clone, PartialEq)]
struct Miscounted(usize);

impl StepLoss for Miscounted {
    fn terms(&self) -> usize {
        self.0
    }

    fn reads_weights(&self) -> bool {
        self.0 > 5
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> Result<Terms> {
        let sum = pass.weights()?[0].f_flatten(1, -1)?;
        let sum = sum.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?;
        let term = |index: usize| Ok((1.0, sum.f_mul(inputs.scalar(index % 2)?)?));
        Ok((0..6).map(term).collect::<Result<Vec<_>>>()?.into())
    }
}

/// Losses of one type and equal fields are equal; nothing else is.
#[test]
fn losses_are_compared_as_values() {
    let (loss, same) = (Following(0.5), Following(0.5));
    assert!(loss.equals(&same) && loss.equals(&*loss.boxed()));
    assert!(!loss.equals(&Following(0.25)) && !loss.equals(&Miscounted(5)));
    let kind = |loss: &dyn StepLoss, trained: &[usize]| StepKind {
        loss: loss.boxed(),
        configuration: Configuration {
            trained: trained.to_vec(),
            optimiser: context().optimiser,
            statistics: Statistics::Batch,
            may_skip: false,
            others: 0,
            scalars: 0,
        },
    };
    assert_eq!(kind(&loss, &[0, 1]), kind(&same, &[0, 1]));
    assert_ne!(kind(&loss, &[0, 1]), kind(&loss, &[0]));
    assert_ne!(kind(&loss, &[0]), kind(&Following(0.25), &[0]));
}

/// As many terms as a loss has are recorded; a wrong number of them, weights that were said not to be read and
/// scalars that are not there are errors.
#[test]
fn a_loss_does_what_it_declares() {
    let context = context();
    let train = |loss: Miscounted, scalars: &[f32]| {
        let start = context.network.init(0, context.device).unwrap();
        let mut learner =
            Learner::new(&context, "test", start, Momentum::default(), |_| true).unwrap();
        let fill = |_: usize, _: &mut [u8]| (1, 0);
        learner.train(0.0, 2, 0, (&loss, scalars), fill).map(|()| learner.mean_losses(0, 2))
    };
    let losses = train(Miscounted(6), &[2.0, -1.0]).unwrap().unwrap();
    assert_eq!(losses.len(), 6);
    assert!(losses[5] != 0.0 && (losses[4] + 2.0 * losses[5]).abs() < 1e-6, "{losses:?}");
    let error = |loss, scalars: &[f32]| train(loss, scalars).unwrap_err().to_string();
    let wrong = error(Miscounted(7), &[1.0, 1.0]);
    assert!(wrong.contains("returned 6 terms, but its `terms` declares 7"), "{wrong}");
    let wrong = error(Miscounted(5), &[1.0, 1.0]);
    assert!(wrong.contains("`reads_weights` says that it does not"), "{wrong}");
    let wrong = error(Miscounted(6), &[1.0]);
    assert!(wrong.contains("the loss reads scalar 1, but its objective has 1"), "{wrong}");
}
