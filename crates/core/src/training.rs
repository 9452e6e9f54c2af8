//! Training a cohort as one network: steps of SGD for K clients at once, each by its own gradient.
//!
//! On a CPU a step runs as it is written here. On a GPU the same step is captured and replayed
//! (module `engine`), with its inputs prepared ahead of it by another thread.

use crate::engine::{StepKey, TERMS, Work};
use crate::error::{Error, Result};
use crate::model::{Pass, Statistics};
use crate::optimiser::{Momentum, per_client, sgd_step, sgd_step_on_gpu};
use crate::params::{Entry, Params};
use crate::schedule::{Sample, Task};
use crate::setting::Setting;
use tch::{Kind, Tensor};

/// Parameters in training: K clients, their momentum and how steps are made.
#[derive(Debug)]
pub struct Learner<'a> {
    setting: &'a Setting,
    name: &'static str,
    /// The cohort's parameters.
    pub params: Params,
    /// The cohort's momentum.
    pub momentum: Momentum,
    trained: Vec<usize>,
    /// Further networks that the loss reads; what it is to them, the loss knows.
    pub others: Vec<Params>,
    /// Share of the first of them that stays in a step: it follows what is trained.
    follow: Option<f64>,
    statistics: Statistics,
    /// The sum of every term of the loss over the steps, by client: `[K]` each.
    sums: Vec<Tensor>,
    /// On a GPU: weights in the format of the activations, and the learning rate.
    shadows: Vec<Option<Tensor>>,
    lr: Option<Tensor>,
    /// Whether the loss may tell a client to stay as it is.
    may_skip: bool,
}

/// A loss of a step.
#[derive(Debug)]
pub struct Terms {
    /// Its terms with their weights, one value a client: `[active]` each.
    pub terms: Vec<(f64, Tensor)>,
    /// 1 for a client that makes the step and 0 for one that stays as it is, `[active]`; all make it
    /// if left out.
    pub made: Option<Tensor>,
}

impl From<Vec<(f64, Tensor)>> for Terms {
    fn from(terms: Vec<(f64, Tensor)>) -> Self {
        Self { terms, made: None }
    }
}

/// What is trained on: how a step's inputs are made on the host, and the loss of them. Nothing in
/// `fill` may depend on the parameters, so that it can run ahead of the training.
pub trait StepLoss: Sync {
    /// Samples of a client in a step.
    fn batch(&self) -> usize;
    /// Number of terms.
    fn terms(&self) -> usize;
    /// Bytes of a step in which this many clients take part.
    fn bytes(&self, active: usize) -> usize;
    /// Draws and renders one step's inputs.
    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]);
    /// The terms of the loss.
    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms>;
}

impl<'a> Learner<'a> {
    /// Prepares to train the weights that `trains` accepts. Running statistics follow the batches
    /// unless the experiment measures them apart. `name` says what is trained: learners of one name
    /// use the same place on a GPU, one after the other.
    pub fn new(
        setting: &'a Setting,
        name: &'static str,
        params: Params,
        momentum: Momentum,
        trains: impl Fn(&Entry) -> bool,
    ) -> Result<Self> {
        let chosen = |(_, entry): &(usize, &Entry)| !entry.statistic && trains(entry);
        let trained: Vec<usize> =
            params.layout.iter().enumerate().filter(chosen).map(|(index, _)| index).collect();
        let batch_norm = &setting.experiment.batch_norm;
        let statistics = match batch_norm.statistics {
            crate::config::StatisticsSource::Average => Statistics::Update(batch_norm.momentum),
            _ => Statistics::Batch,
        };
        let mut learner = Self {
            setting,
            name,
            params,
            momentum,
            trained,
            others: Vec::new(),
            follow: None,
            statistics,
            sums: Vec::new(),
            shadows: Vec::new(),
            lr: None,
            may_skip: false,
        };
        if setting.experiment.optimiser.momentum > 0.0 {
            learner.momentum.fill(&learner.trained, &learner.params.tensors)?;
        }
        if let Some(engine) = &setting.engine {
            learner.move_in(&mut engine.lock())?;
        }
        Ok(learner)
    }

    /// Copies parameters and momentum to their place on the GPU and goes on with that.
    fn move_in(&mut self, work: &mut Work) -> Result<()> {
        let clients = self.params.clients();
        let place = work.move_in(self.name, &self.params, self.setting.half())?;
        for shadow in &place.shadows {
            let mine = shadow.as_ref().map(|shadow| shadow.f_narrow(0, 0, clients));
            self.shadows.push(mine.transpose()?);
        }
        self.momentum = place.momentum.take_over(&self.momentum, &place.params.tensors, clients)?;
        self.params = place.params.first(clients)?;
        for sum in &mut place.sums {
            self.sums.push(sum.f_zero_()?);
        }
        self.lr = Some(place.lr.shallow_clone());
        Ok(())
    }

    /// Further networks for the loss to read, as many clients each; the first of them follows the
    /// trained one as a moving average, if `follow` says how slowly.
    pub fn with_others(mut self, others: Vec<Params>, follow: Option<f64>) -> Result<Self> {
        self.others = match &self.setting.engine {
            Some(engine) => engine.lock().move_others_in(self.name, &others)?,
            None => others,
        };
        self.follow = follow;
        Ok(self)
    }

    /// Leaves the running statistics alone whatever the experiment says: where only a head is
    /// trained, the backbone stays as it is.
    pub fn keeping_statistics(self) -> Self {
        Self { statistics: Statistics::Batch, ..self }
    }

    /// Lets the loss tell clients to leave a step out, which costs a copy of everything.
    pub fn with_skipped_steps(self) -> Self {
        Self { may_skip: true, ..self }
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
        let Some(engine) = &self.setting.engine else {
            let mut bytes = vec![0; room];
            for time in 0..steps {
                let (active, used) = fill(time, &mut bytes);
                let input =
                    Tensor::f_from_slice(&bytes[..used])?.f_to_device(self.setting.device)?;
                self.step(active, lr, |pass| loss(&input, pass))?;
            }
            return Ok(());
        };
        self.set_lr(lr)?;
        engine.run_steps(steps, room, fill, |work, active, input| {
            let key = StepKey { name: self.name, active, bytes: input.size1()? as usize };
            work.run(key, || self.forward_backward(active, None, |pass| loss(&input, pass)))
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
            let options = (Kind::Float, self.setting.device);
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
        let pass = Pass { others: &others, ..self.setting.pass(&tensors, self.statistics) };
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
        let Terms { terms, made } = loss(&pass)?;
        let mut total = Tensor::f_zeros([active as i64], (Kind::Float, self.setting.device))?;
        for (weight, term) in &terms {
            total = total.f_add(&term.f_mul_scalar(*weight)?)?;
        }
        let leaves: Vec<&Tensor> = self.trained.iter().map(|&index| &tensors[index]).collect();
        let gradients =
            Tensor::f_run_backward(&[total.f_sum(Kind::Float)?], &leaves, false, false)?;
        let gradients: Vec<(usize, Tensor)> = self
            .trained
            .iter()
            .copied()
            .zip(gradients)
            // An entry that the loss does not reach is left alone: no decay, no momentum.
            .filter(|(_, gradient)| gradient.defined())
            .collect();
        let _no_grad = tch::no_grad_guard();
        let optimiser = &self.setting.experiment.optimiser;
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
        if let (Some(decay), Some(follower)) = (self.follow, others.first()) {
            follower.follow(&params, decay)?;
        }
        for (sum, (_, term)) in self.sums.iter().zip(&terms) {
            let _ = sum.f_narrow(0, 0, active as i64)?.f_add_(&term.f_detach()?)?;
        }
        Ok(())
    }
}

/// Puts the clients back that did not make the step: those with 0 in `made`.
pub(crate) fn put_back(now: &Tensor, before: &Tensor, made: &Tensor) -> Result<()> {
    let made = per_client(made, now)?.f_to_kind(Kind::Bool)?;
    now.shallow_clone().f_copy_(&now.f_where_self(&made, before)?)?;
    Ok(())
}

/// An error if the server ended with a loss or a parameter that is not finite; `parameter` is its name.
pub fn check_finite(
    round: u32,
    phase: &'static str,
    losses: &[f64],
    parameter: Option<&str>,
) -> Result<()> {
    let not_finite = |what: String| Error::NotFinite { round, phase, what };
    if losses.iter().any(|loss| !loss.is_finite()) {
        return Err(not_finite("the loss".to_owned()));
    }
    match parameter {
        Some(name) => Err(not_finite(format!("parameter `{name}`"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;
    use fedanchor_data::{Normalisation, Shape};

    fn setting() -> Setting {
        let keys = ["model.name=small", "optimiser.clip=0", "optimiser.weight_decay=0.5"];
        let experiment = resolve("", &keys.map(str::to_owned)).unwrap();
        let shape = Shape { side: 16, channels: 1 };
        let normalisation = Normalisation { mean: vec![0.0], std: vec![1.0] };
        Setting::new(experiment, shape, 3, &normalisation, false, Some(1)).unwrap()
    }

    /// A client that leaves a step out stays as it is, momentum and statistics included; the other
    /// makes it.
    #[test]
    fn a_step_that_is_left_out_leaves_no_trace() {
        let setting = setting();
        let start = setting.network.init(0, setting.device).unwrap().broadcast(2).unwrap();
        let images = Tensor::ones([4, 2, 16, 16], (Kind::Float, setting.device)) / 3.0;
        let mut learner =
            Learner::new(&setting, "test", start.copy().unwrap(), Momentum::default(), |_| true)
                .unwrap()
                .with_skipped_steps();
        let mut step = |made: &[f32]| {
            let made = Tensor::from_slice(made);
            let loss = |pass: &Pass| {
                let features = setting.network.features(&images, pass)?;
                let logits = setting.network.logits(&features, pass)?;
                let sum =
                    logits.f_square()?.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float)?;
                Ok(Terms { terms: vec![(1.0, sum)], made: Some(made.shallow_clone()) })
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

    /// The first of the other networks follows as a moving average: d of it and 1 - d of the trained one.
    #[test]
    fn a_follower_keeps_its_share() {
        let setting = setting();
        let start = setting.network.init(0, setting.device).unwrap();
        let target = start.subset(|entry| entry.part == crate::params::Part::Backbone);
        let images = Tensor::ones([4, 1, 16, 16], (Kind::Float, setting.device)) / 3.0;
        let mut learner =
            Learner::new(&setting, "test", start.copy().unwrap(), Momentum::default(), |_| true)
                .unwrap()
                .with_others(vec![target.copy().unwrap()], Some(0.75))
                .unwrap();
        let loss = |pass: &Pass| {
            let logits = setting.network.logits(&setting.network.features(&images, pass)?, pass)?;
            let sum = logits.f_square()?.f_sum_dim_intlist(&[1i64, 2][..], false, Kind::Float)?;
            Ok(vec![(1.0, sum)].into())
        };
        learner.step(1, 0.1, loss).unwrap();
        let trained = learner.params.subset(|entry| entry.part == crate::params::Part::Backbone);
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
