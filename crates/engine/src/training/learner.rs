//! Training a cohort as one network: steps of SGD for K clients at once, each by its own gradient.
//!
//! On a CPU a step runs as it is written here. On a GPU the same step is captured and replayed
//! (modules `gpu` and `steps`), with its inputs prepared ahead of it by another thread.

#[cfg(test)]
mod tests;

use super::context::Context;
use super::gpu::GpuState;
use super::loss::{Inputs, StepLoss, Terms, Weight};
use super::sgd::{Momentum, put_back, sgd_step, sgd_step_on_gpu};
use super::steps::StepKey;
use crate::batches::{Packing, write};
use crate::config::OptimiserConfig;
use crate::error::{Error, Result};
use crate::model::{Pass, Statistics};
use crate::tensors::{Entry, Params};
use fedanchor_cuda as cuda;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tch::{Kind, Tensor};

/// Parameters in training: K clients, their momentum and how steps are made.
pub struct Learner<'a> {
    context: &'a Context,
    name: &'static str,
    /// The cohort's parameters.
    pub params: Params,
    /// The cohort's momentum.
    pub momentum: Momentum,
    /// Further networks that the loss reads; their meaning is up to the loss.
    pub others: Vec<Params>,
    configuration: Configuration,
    /// The sum of every term of the loss over the steps, by client: `[K]` each.
    sums: Vec<Tensor>,
    gpu: Option<OnGpu>,
}

/// What a step computes: all that a captured step depends on except addresses, sizes and inputs.
struct StepKind {
    loss: Box<dyn StepLoss>,
    configuration: Configuration,
}

impl PartialEq for StepKind {
    fn eq(&self, other: &Self) -> bool {
        self.configuration == other.configuration && self.loss.equals(&*other.loss)
    }
}

/// Users know a kind of step by its loss.
impl fmt::Debug for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.loss.fmt(f)
    }
}

/// How steps are made, whatever the loss.
#[derive(Debug, Clone, PartialEq)]
struct Configuration {
    optimiser: OptimiserConfig,
    /// The entries that are trained.
    trained: Vec<usize>,
    statistics: Statistics,
    /// Whether the loss may tell a client to stay as it is.
    may_skip: bool,
    /// Which set of further networks the loss reads.
    others: usize,
    /// How many scalars it reads.
    scalars: usize,
}

/// The GPU memory of a cohort, except its parameters.
struct OnGpu {
    workspace: u64,
    /// Weights in the format of the activations.
    shadows: Vec<Option<Tensor>>,
    lr: Tensor,
}

impl<'a> Learner<'a> {
    /// Prepares to train the weights that `trains` accepts. Running statistics follow the batches
    /// unless they are measured separately. Learners of one name and layout use the same workspace on a GPU, one after
    /// the other.
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
        let optimiser = context.optimiser.clone();
        let (may_skip, others, scalars) = Default::default();
        let configuration =
            Configuration { optimiser, trained, statistics, may_skip, others, scalars };
        let (others, sums, gpu) = (Vec::new(), Vec::new(), None);
        let mut learner =
            Self { context, name, params, momentum, others, configuration, sums, gpu };
        if context.optimiser.momentum > 0.0 {
            let trained = &learner.configuration.trained;
            learner.momentum.fill(trained, &learner.params.tensors)?;
        }
        if let Some(gpu) = &context.gpu {
            learner.move_in(&mut gpu.lock())?;
        }
        Ok(learner)
    }

    /// Copies parameters and momentum to their workspace on the GPU and trains there.
    fn move_in(&mut self, state: &mut GpuState) -> Result<()> {
        let clients = self.params.clients();
        let space = state.move_in(self.name, &self.params, self.context.half)?;
        let mut shadows = Vec::new();
        for shadow in &space.shadows {
            let mine = shadow.as_ref().map(|shadow| shadow.f_narrow(0, 0, clients));
            shadows.push(mine.transpose()?);
        }
        self.momentum = space.momentum.take_over(&self.momentum, &space.params.tensors, clients)?;
        self.params = space.params.first(clients)?;
        self.gpu = Some(OnGpu { workspace: space.number, shadows, lr: space.lr.shallow_clone() });
        Ok(())
    }

    /// Further networks of the same clients for the loss to read.
    pub fn with_others(mut self, others: Vec<Params>) -> Result<Self> {
        (self.others, self.configuration.others) = match (&self.context.gpu, &self.gpu) {
            (Some(gpu), Some(here)) => gpu.lock().move_others_in(here.workspace, &others)?,
            _ => {
                let count = others.len();
                (others, count)
            }
        };
        Ok(self)
    }

    /// Leaves the running statistics unchanged: where only a head is trained, the backbone stays as it is.
    pub fn keeping_statistics(mut self) -> Self {
        self.configuration.statistics = Statistics::Batch;
        self
    }

    /// Lets the loss tell clients to skip a step, which costs a copy of everything.
    pub fn with_skipped_steps(mut self) -> Self {
        self.configuration.may_skip = true;
        self
    }

    /// The mean of each term of the loss over a client's steps.
    pub fn mean_losses(&self, client: usize, steps: usize) -> Result<Vec<f64>> {
        let mean = |sum: &Tensor| Ok(sum.f_double_value(&[client as i64])? / steps.max(1) as f64);
        self.sums.iter().map(mean).collect()
    }

    /// Makes `steps` steps with this loss and these scalars. `fill` prepares the batch of a step on the host and says
    /// how many clients take part and how many bytes they are; at most `room`. It runs ahead of the training on a GPU.
    pub fn train(
        &mut self,
        lr: f64,
        steps: usize,
        room: usize,
        (loss, scalars): (&dyn StepLoss, &[f32]),
        mut fill: impl FnMut(usize, &mut [u8]) -> (usize, usize) + Send,
    ) -> Result<()> {
        // Scalars come first in the input, then the batch.
        let batch_start = Packing::new(&[4 * scalars.len(), 0]).total();
        let room = batch_start + room;
        let mut fill = |time: usize, bytes: &mut [u8]| {
            let (head, batch) = bytes.split_at_mut(batch_start);
            write(head, scalars.iter().map(|scalar| scalar.to_ne_bytes()));
            let (active, used) = fill(time, batch);
            (active, batch_start + used)
        };
        self.sums = self.new_sums(loss.terms())?;
        let configuration = Configuration { scalars: scalars.len(), ..self.configuration.clone() };
        let asked = Arc::new(StepKind { loss: loss.boxed(), configuration });
        let step = |kind: &StepKind, active: usize, lr: Option<f64>, input: &Tensor| {
            let scalar = |index| input.f_narrow(0, 4 * index, 4)?.f_view_dtype(Kind::Float);
            let count = kind.configuration.scalars as i64;
            let scalars = (0..count).map(scalar).collect::<Result<Vec<_>, _>>()?;
            let start = batch_start as i64;
            let bytes = &input.f_narrow(0, start, input.size1()? - start)?;
            let inputs = Inputs { context: self.context, bytes, scalars: &scalars };
            self.make(kind, active, lr, &inputs)
        };
        if let (Some(gpu), Some(here)) = (&self.context.gpu, &self.gpu) {
            let _ = here.lr.shallow_clone().f_fill_(lr)?;
            let workspace = here.workspace;
            let kind = gpu.lock().steps.kind(workspace, asked.clone());
            return gpu.run_steps(steps, room, fill, |state, active, input| {
                let key = StepKey { workspace, kind, active, bytes: input.size1()? as usize };
                state.run(key, || step(&asked, active, None, &input))
            });
        }
        let layout = &self.params.layout;
        let mut bytes = vec![0; room];
        for time in 0..steps {
            let (active, used) = fill(time, &mut bytes);
            let input = Tensor::f_from_slice(&bytes[..used])?.f_to_device(self.context.device)?;
            let recorder = self.context.recorder();
            let chosen: Arc<dyn Any> = match recorder {
                Some(mut all) => all.choose(self.name, layout, (active, used), asked.clone()),
                None => asked.clone(),
            };
            let kind = chosen.downcast_ref().expect("kinds of this run are of one type");
            step(kind, active, Some(lr), &input)?;
        }
        Ok(())
    }

    /// Sums of this many terms, at 0.
    fn new_sums(&self, terms: usize) -> Result<Vec<Tensor>> {
        if let (Some(gpu), Some(here)) = (&self.context.gpu, &self.gpu) {
            return gpu.lock().numbered(here.workspace)?.zeroed_sums(terms);
        }
        let options = (Kind::Float, self.context.device);
        let zeros = (0..terms).map(|_| Tensor::f_zeros([self.params.clients()], options));
        Ok(zeros.collect::<Result<_, _>>()?)
    }

    /// One step of a kind, as a GPU captures it: nothing here may depend on values that change and are not in
    /// `inputs`.
    fn make(&self, kind: &StepKind, active: usize, lr: Option<f64>, inputs: &Inputs) -> Result<()> {
        let StepKind { loss, configuration } = kind;
        let reads = loss.reads_weights();
        let terms =
            self.update(configuration, reads, active, lr, |pass| loss.loss(inputs, pass))?;
        let clients = active as i64;
        let others = self.others.iter().map(|other| other.first(clients));
        loss.after_step(&self.params.first(clients)?, &others.collect::<Result<Vec<_>>>()?)?;
        if terms.len() != self.sums.len() {
            let (declared, found) = (self.sums.len(), terms.len());
            let problem = format!(
                "the loss returned {found} terms, but its `terms` declares {declared}: {loss:?}"
            );
            return Err(Error::tensors(problem));
        }
        self.add(active, &terms)
    }

    /// One step of SGD for the first `active` clients, which is never captured. `loss` gives the terms of the loss with
    /// their weights, each `[active]`; their values are added up.
    pub fn step(
        &mut self,
        active: usize,
        lr: f64,
        loss: impl FnOnce(&Pass) -> Result<Terms>,
    ) -> Result<()> {
        if let Some(here) = &self.gpu {
            let _ = here.lr.shallow_clone().f_fill_(lr)?;
        }
        let terms = self.update(&self.configuration, true, active, Some(lr), loss)?;
        if self.sums.len() != terms.len() {
            self.sums = self.new_sums(terms.len())?;
        }
        self.add(active, &terms)
    }

    /// Adds the values of a step to the sums.
    fn add(&self, active: usize, terms: &[Tensor]) -> Result<()> {
        for (sum, term) in self.sums.iter().zip(terms) {
            let _ = sum.f_narrow(0, 0, active as i64)?.f_add_(&term.f_detach()?)?;
        }
        Ok(())
    }

    /// Gradients and a step of SGD; returns the terms to record. On a GPU the learning rate is read on the device.
    fn update(
        &self,
        configuration: &Configuration,
        reads_weights: bool,
        active: usize,
        lr: Option<f64>,
        loss: impl FnOnce(&Pass) -> Result<Terms>,
    ) -> Result<Vec<Tensor>> {
        let Configuration { optimiser, trained, statistics, may_skip, .. } = configuration;
        let params = self.params.first(active as i64)?;
        let momentum = self.momentum.first(active as i64)?;
        let shadow = |index: usize| -> Result<Option<Tensor>> {
            let shadow = self.gpu.as_ref().and_then(|here| here.shadows[index].as_ref());
            Ok(shadow.map(|shadow| shadow.f_narrow(0, 0, active as i64)).transpose()?)
        };
        // Leaves that share memory with the parameters: gradients for them, updates for those. Where the loss reads
        // weights, it and the layers share leaves in single precision; elsewhere the shadows are leaves themselves.
        let mut weights: Vec<Tensor> = params.tensors.iter().map(Tensor::shallow_clone).collect();
        let leaf = |tensor: &Tensor| tensor.f_detach()?.f_set_requires_grad(true);
        for &index in trained {
            weights[index] = leaf(&weights[index])?;
        }
        let mut tensors = Vec::with_capacity(weights.len());
        for (index, weight) in weights.iter().enumerate() {
            let is_trained = trained.binary_search(&index).is_ok();
            tensors.push(match shadow(index)? {
                None => weight.shallow_clone(),
                Some(_) if is_trained && reads_weights => weight.f_to_kind(Kind::BFloat16)?,
                Some(shadow) if is_trained => leaf(&shadow)?,
                Some(shadow) => shadow,
            });
        }
        let others: Vec<Params> =
            self.others.iter().map(|o| o.first(active as i64)).collect::<Result<_>>()?;
        let weights = reads_weights.then_some(&weights[..]);
        let pass = Pass { others: &others, weights, ..self.context.pass(&tensors, *statistics) };
        // Statistics change during the pass: what may have to be put back is kept before it.
        let before = || -> Result<_> { Ok((params.copy()?, momentum.copy()?)) };
        let before = may_skip.then(before).transpose()?;
        let Terms { terms, recorded, made } = loss(&pass)?;
        let total = [self.weighted_sum(&terms, active)?]; // of each client: gradients are those of the sum
        if !total[0].requires_grad() {
            return Err(Error::tensors("no trained weight changes the loss of this batch"));
        }
        let leaves: Vec<&Tensor> =
            trained.iter().map(|&index| &weights.unwrap_or(&tensors)[index]).collect();
        let backward = || -> Result<Vec<Tensor>> {
            Ok(Tensor::f_run_backward(&total, &leaves, false, false)?)
        };
        // On a side stream only where nothing is added to these gradients.
        let gradients = if self.gpu.is_some() && !reads_weights {
            cuda::overlap_weight_grads(backward)?
        } else {
            backward()?
        };
        let gradients: Vec<(usize, Tensor)> = trained
            .iter()
            .copied()
            .zip(gradients)
            // An entry that the loss does not reach is left alone: no decay, no momentum.
            .filter(|(_, gradient)| gradient.defined())
            .collect();
        let _no_grad = tch::no_grad_guard();
        match &self.gpu {
            Some(OnGpu { lr, .. }) => {
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
            for (index, (now, before)) in params.tensors.iter().zip(&values.tensors).enumerate() {
                put_back(now, before, &made)?;
                if let Some(mut shadow) = shadow(index)? {
                    shadow.f_copy_(now)?;
                }
            }
            momentum.put_back(&buffers, &made)?;
        }
        Ok(recorded.unwrap_or_else(|| terms.into_iter().map(|(_, term)| term).collect()))
    }

    /// The terms of a loss by their weights, `[active]`.
    fn weighted_sum(&self, terms: &[(Weight, Tensor)], active: usize) -> Result<Tensor> {
        if let [(Weight { constant: 1.0, scalar: None }, term)] = terms {
            return Ok(term.shallow_clone());
        }
        let mut total = Tensor::f_zeros([active as i64], (Kind::Float, self.context.device))?;
        for (weight, term) in terms {
            total = total.f_add(&weight.of(term)?)?;
        }
        Ok(total)
    }
}
