//! Training a cohort as one network: steps of SGD for K clients at once, each by its own gradient.
//!
//! On a CPU a step runs as it is written here. On a GPU the same step is captured and replayed
//! (module `gpu`), with its inputs prepared ahead of it by another thread.

use super::context::Context;
use super::gpu::{GpuState, StepKey, TERMS};
use super::sgd::{Momentum, put_back, sgd_step, sgd_step_on_gpu};
use crate::batches::Batches;
use crate::error::Result;
use crate::model::{Pass, Statistics};
use crate::tensors::{Entry, Params};
use fedanchor_graph as graph;
use tch::{Kind, Tensor};

/// Parameters in training: K clients, their momentum and how steps are made.
pub struct Learner<'a> {
    context: &'a Context,
    name: &'static str,
    /// The cohort's parameters.
    pub params: Params,
    /// The cohort's momentum.
    pub momentum: Momentum,
    trained: Vec<usize>,
    /// Further networks that the loss reads; what it is to them, the loss knows.
    pub others: Vec<Params>,
    after_step: Option<Box<AfterStep<'a>>>,
    statistics: Statistics,
    /// The sum of every term of the loss over the steps, by client: `[K]` each.
    sums: Vec<Tensor>,
    /// On a GPU: weights in the format of the activations, and the learning rate.
    shadows: Vec<Option<Tensor>>,
    lr: Option<Tensor>,
    /// Whether the loss may tell a client to stay as it is.
    may_skip: bool,
    /// Whether a GPU computes the gradients of convolutions' weights beside the others.
    weights_beside: bool,
}

/// What happens after a step, given the trained parameters and the further networks.
pub type AfterStep<'a> = dyn Fn(&Params, &[Params]) -> Result<()> + 'a;

/// A loss of a step.
#[derive(Debug, Default)]
pub struct Terms {
    /// Its terms with their weights, one value per client: `[active]` each. The gradient is that of their weighted sum.
    pub terms: Vec<(f64, Tensor)>,
    /// What is recorded in place of the terms: where a kernel has added them up, they are one.
    pub recorded: Option<Vec<Tensor>>,
    /// 1 for a client that makes the step and 0 for one that stays as it is, `[active]`; all make it
    /// if left out.
    pub made: Option<Tensor>,
}

impl Terms {
    /// With one more term.
    pub fn with(mut self, weight: f64, term: Tensor) -> Self {
        if let Some(recorded) = &mut self.recorded {
            recorded.push(term.shallow_clone());
        }
        self.terms.push((weight, term));
        self
    }

    /// With weights that are so many times as large.
    pub fn times(mut self, factor: f64) -> Self {
        self.terms.iter_mut().for_each(|(weight, _)| *weight *= factor);
        self
    }
}

impl From<Vec<(f64, Tensor)>> for Terms {
    fn from(terms: Vec<(f64, Tensor)>) -> Self {
        Self { terms, ..Self::default() }
    }
}

/// What is trained on: batches, and the loss of them.
pub trait StepLoss: Sync {
    /// How the inputs of a step are made.
    fn batches(&self) -> &dyn Batches;
    /// Number of terms.
    fn terms(&self) -> usize;
    /// The terms of the loss.
    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms>;
    /// Whether it depends on the trained weights through the network's layers alone, so that nothing else adds to their
    /// gradients: a GPU then computes these beside the rest of the backward pass. Not so for a penalty on the weights.
    fn only_through_layers(&self) -> bool {
        false
    }
    /// Updates the further networks after a step; most losses have nothing to do.
    fn after_step(&self, _trained: &Params, _others: &[Params]) -> Result<()> {
        Ok(())
    }
}

impl<'a> Learner<'a> {
    /// Prepares to train the weights that `trains` accepts. Running statistics follow the batches
    /// unless they are measured separately. `name` says what is trained: learners of one name use the
    /// same workspace on a GPU, one after the other.
    pub fn new(
        context: &'a Context,
        name: &'static str,
        params: Params,
        momentum: Momentum,
        trains: impl Fn(&Entry) -> bool,
    ) -> Result<Self> {
        let chosen = |(_, entry): &(usize, &Entry)| !entry.statistic && trains(entry);
        let trained: Vec<usize> =
            params.layout.iter().enumerate().filter(chosen).map(|(index, _)| index).collect();
        let statistics = match context.averages_statistics() {
            true => Statistics::Update(context.batch_norm.momentum),
            false => Statistics::Batch,
        };
        let mut learner = Self {
            context,
            name,
            params,
            momentum,
            trained,
            others: Vec::new(),
            after_step: None,
            statistics,
            sums: Vec::new(),
            shadows: Vec::new(),
            lr: None,
            may_skip: false,
            weights_beside: false,
        };
        if context.optimiser.momentum > 0.0 {
            learner.momentum.fill(&learner.trained, &learner.params.tensors)?;
        }
        if let Some(gpu) = &context.gpu {
            learner.move_in(&mut gpu.lock())?;
        }
        Ok(learner)
    }

    /// Copies parameters and momentum to their workspace on the GPU and trains there.
    fn move_in(&mut self, state: &mut GpuState) -> Result<()> {
        let clients = self.params.clients();
        let space = state.move_in(self.name, &self.params, self.context.half())?;
        for shadow in &space.shadows {
            let mine = shadow.as_ref().map(|shadow| shadow.f_narrow(0, 0, clients));
            self.shadows.push(mine.transpose()?);
        }
        self.momentum = space.momentum.take_over(&self.momentum, &space.params.tensors, clients)?;
        self.params = space.params.first(clients)?;
        for sum in &mut space.sums {
            self.sums.push(sum.f_zero_()?);
        }
        self.lr = Some(space.lr.shallow_clone());
        Ok(())
    }

    /// Further networks for the loss to read, as many clients each.
    pub fn with_others(mut self, others: Vec<Params>) -> Result<Self> {
        self.others = match &self.context.gpu {
            Some(gpu) => gpu.lock().move_others_in(self.name, &others)?,
            None => others,
        };
        Ok(self)
    }

    /// Calls this after every step, with the trained parameters and the further networks. On a GPU it
    /// is captured with the step.
    pub fn with_after_step(
        mut self,
        after: impl Fn(&Params, &[Params]) -> Result<()> + 'a,
    ) -> Self {
        self.after_step = Some(Box::new(after));
        self
    }

    /// Leaves the running statistics alone: where only a head is trained, the backbone stays as it is.
    pub fn keeping_statistics(self) -> Self {
        Self { statistics: Statistics::Batch, ..self }
    }

    /// Lets the loss tell clients to skip a step, which costs a copy of everything.
    pub fn with_skipped_steps(self) -> Self {
        Self { may_skip: true, ..self }
    }

    /// Lets a GPU compute the gradients of weights beside the others, where the loss depends on weights through the
    /// network's layers alone ([`StepLoss::only_through_layers`]).
    pub fn with_weights_beside(self, beside: bool) -> Self {
        Self { weights_beside: beside, ..self }
    }

    /// The mean of each term of the loss over a client's steps.
    pub fn mean_losses(&self, client: usize, terms: usize, steps: usize) -> Result<Vec<f64>> {
        let mean = |sum: &Tensor| Ok(sum.f_double_value(&[client as i64])? / steps.max(1) as f64);
        self.sums.iter().take(terms).map(mean).collect()
    }

    /// Makes `steps` steps. `fill` prepares the bytes of a step on the host and says how many clients
    /// take part and how many bytes they are; at most `room`. It runs ahead of the training on a GPU.
    pub fn train(
        &mut self,
        lr: f64,
        steps: usize,
        room: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> (usize, usize) + Send,
        loss: impl Fn(&Tensor, &Pass) -> Result<Terms>,
    ) -> Result<()> {
        let Some(gpu) = &self.context.gpu else {
            let mut bytes = vec![0; room];
            for time in 0..steps {
                let (active, used) = fill(time, &mut bytes);
                let input =
                    Tensor::f_from_slice(&bytes[..used])?.f_to_device(self.context.device)?;
                self.step(active, lr, |pass| loss(&input, pass))?;
            }
            return Ok(());
        };
        self.set_lr(lr)?;
        gpu.run_steps(steps, room, fill, |state, active, input| {
            let key = StepKey { name: self.name, active, bytes: input.size1()? as usize };
            state.run(key, || self.forward_backward(active, None, |pass| loss(&input, pass)))
        })
    }

    fn set_lr(&mut self, lr: f64) -> Result<()> {
        if let Some(place) = &mut self.lr {
            let _ = place.f_fill_(lr)?;
        }
        Ok(())
    }

    /// One step of SGD for the first `active` clients. `loss` gives the terms of the loss with
    /// their weights, each `[active]`; their values are added up.
    pub fn step(
        &mut self,
        active: usize,
        lr: f64,
        loss: impl FnOnce(&Pass) -> Result<Terms>,
    ) -> Result<()> {
        self.set_lr(lr)?;
        if self.sums.is_empty() {
            let options = (Kind::Float, self.context.device);
            let zeros = (0..TERMS).map(|_| Tensor::f_zeros([self.params.clients()], options));
            self.sums = zeros.collect::<Result<_, _>>()?;
        }
        self.forward_backward(active, Some(lr), loss)
    }

    /// The step itself, as a GPU captures it: nothing here may depend on values that change.
    fn forward_backward(
        &self,
        active: usize,
        lr: Option<f64>,
        loss: impl FnOnce(&Pass) -> Result<Terms>,
    ) -> Result<()> {
        let params = self.params.first(active as i64)?;
        let momentum = self.momentum.first(active as i64)?;
        let shadow = |index: usize| -> Result<Option<Tensor>> {
            let shadow = self.shadows.get(index).and_then(Option::as_ref);
            Ok(shadow.map(|shadow| shadow.f_narrow(0, 0, active as i64)).transpose()?)
        };
        // Leaves that share memory with the parameters: gradients for them, updates for those.
        let mut tensors = Vec::with_capacity(params.tensors.len());
        for (index, tensor) in params.tensors.iter().enumerate() {
            tensors.push(shadow(index)?.unwrap_or_else(|| tensor.shallow_clone()));
        }
        for &index in &self.trained {
            tensors[index] = tensors[index].f_detach()?.f_set_requires_grad(true)?;
        }
        let others: Vec<Params> =
            self.others.iter().map(|o| o.first(active as i64)).collect::<Result<_>>()?;
        let pass = Pass { others: &others, ..self.context.pass(&tensors, self.statistics) };
        // Statistics change during the pass: what may have to be put back is kept before it.
        let keep = |tensor: &Tensor| tensor.f_detach_copy();
        let before = if self.may_skip {
            Some((
                params.tensors.iter().map(keep).collect::<Result<Vec<_>, _>>()?,
                momentum.copy()?,
            ))
        } else {
            None
        };
        let Terms { terms, recorded, made } = loss(&pass)?;
        let total = self.weighted_sum(&terms, active)?;
        let leaves: Vec<&Tensor> = self.trained.iter().map(|&index| &tensors[index]).collect();
        let total = [total]; // of each client: gradients are those of the sum
        let backward = || -> Result<Vec<Tensor>> {
            Ok(Tensor::f_run_backward(&total, &leaves, false, false)?)
        };
        let gradients = if self.weights_beside && self.context.gpu.is_some() {
            graph::with_weights_beside(backward)?
        } else {
            backward()?
        };
        let gradients: Vec<(usize, Tensor)> = self
            .trained
            .iter()
            .copied()
            .zip(gradients)
            // An entry that the loss does not reach is left alone: no decay, no momentum.
            .filter(|(_, gradient)| gradient.defined())
            .collect();
        let _no_grad = tch::no_grad_guard();
        let optimiser = &self.context.optimiser;
        match &self.lr {
            Some(lr) => {
                let shadows: Vec<Option<Tensor>> =
                    gradients.iter().map(|(index, _)| shadow(*index)).collect::<Result<_>>()?;
                sgd_step_on_gpu(optimiser, lr, &params.tensors, &gradients, &momentum, &shadows)?;
            }
            None => {
                let lr = lr.unwrap_or_default();
                sgd_step(optimiser, lr, &params.tensors, &gradients, &momentum)?;
            }
        }
        if let (Some((values, buffers)), Some(made)) = (before, made) {
            for (index, (now, before)) in params.tensors.iter().zip(&values).enumerate() {
                put_back(now, before, &made)?;
                if let Some(mut shadow) = shadow(index)? {
                    shadow.f_copy_(now)?;
                }
            }
            momentum.put_back(&buffers, &made)?;
        }
        if let Some(after) = &self.after_step {
            after(&params, &others)?;
        }
        let recorded =
            recorded.unwrap_or_else(|| terms.into_iter().map(|(_, term)| term).collect());
        for (sum, term) in self.sums.iter().zip(&recorded) {
            let _ = sum.f_narrow(0, 0, active as i64)?.f_add_(&term.f_detach()?)?;
        }
        Ok(())
    }

    /// The terms of a loss by their weights, `[active]`.
    fn weighted_sum(&self, terms: &[(f64, Tensor)], active: usize) -> Result<Tensor> {
        if let [(weight, term)] = terms
            && *weight == 1.0
        {
            return Ok(term.shallow_clone());
        }
        let mut total = Tensor::f_zeros([active as i64], (Kind::Float, self.context.device))?;
        for (weight, term) in terms {
            total = total.f_add(&term.f_mul_scalar(*weight)?)?;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::Settings;
    use super::*;
    use crate::config::*;
    use crate::tensors::Part;
    use fedanchor_data::augment::Strong;
    use fedanchor_data::{Normalisation, Shape};
    use tch::Device;

    fn context() -> Context {
        let settings = Settings {
            seed: 0,
            device: Device::Cpu,
            precision: Precision::F32,
            model: ModelConfig { latent_dim: 8, ..ModelConfig::plain(ModelName::Small) },
            heads: Heads { anchor: true, predictor: None },
            batch_norm: BatchNormConfig {
                statistics: StatisticsSource::Average,
                momentum: 0.1,
                images: 0,
            },
            augment: AugmentConfig { strong: Strong::Fixmatch, flip: None },
            optimiser: OptimiserConfig {
                lr: 0.1,
                momentum: 0.9,
                nesterov: false,
                weight_decay: 0.5,
                clip: 0.0,
                schedule: LrSchedule::Constant,
            },
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
                let sum =
                    logits.f_square()?.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float)?;
                let made = Some(made.shallow_clone());
                Ok(Terms { terms: vec![(1.0, sum)], made, recorded: None })
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
        let close =
            of(&two, 1).iter().zip(of(&one, 0)).all(|(a, b)| a.allclose(&b, 1e-5, 1e-6, false));
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
                    Terms { terms: vec![(1.0, total)], recorded, made: None }
                } else {
                    vec![(1.0, first), (0.5, second)].into()
                };
                Ok(terms.times(3.0).with(0.1, penalty))
            };
            learner.step(1, 0.1, loss).unwrap();
            let losses = learner.mean_losses(0, 3, 1).unwrap();
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

    /// A network that follows as a moving average after every step: d of it and 1 - d of the trained one.
    #[test]
    fn a_follower_keeps_its_share() {
        let context = context();
        let start = context.network.init(0, context.device).unwrap();
        let target = start.subset(|entry| entry.part == Part::Backbone);
        let images = Tensor::ones([4, 1, 16, 16], (Kind::Float, context.device)) / 3.0;
        let mut learner =
            Learner::new(&context, "test", start.copy().unwrap(), Momentum::default(), |_| true)
                .unwrap()
                .with_others(vec![target.copy().unwrap()])
                .unwrap()
                .with_after_step(|trained, others| others[0].follow(trained, 0.75));
        let loss = |pass: &Pass| {
            let logits = context.network.logits(&context.network.features(&images, pass)?, pass)?;
            let sum = logits.f_square()?.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float)?;
            Ok(vec![(1.0, sum)].into())
        };
        learner.step(1, 0.1, loss).unwrap();
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
}
