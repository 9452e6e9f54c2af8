//! Training a cohort as one network: steps of SGD for K clients at once, each by its own gradient.
//!
//! On a CPU a step runs as it is written here. On a GPU the same step is captured and replayed
//! (modules `gpu` and `steps`), with its inputs prepared ahead of it by another thread.

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
use fedanchor_graph as graph;
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
    /// Further networks that the loss reads; what it is to them, the loss knows.
    pub others: Vec<Params>,
    configuration: Configuration,
    /// The sum of every term of the loss over the steps, by client: `[K]` each.
    sums: Vec<Tensor>,
    gpu: Option<OnGpu>,
}

/// What a step computes: all that a captured one depends on beside addresses, sizes and inputs.
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

/// What a GPU keeps of the cohort beside its parameters.
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
        let configuration = Configuration {
            optimiser: context.optimiser.clone(),
            trained,
            statistics,
            may_skip: false,
            others: 0,
            scalars: 0,
        };
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
        let space = state.move_in(self.name, &self.params, self.context.half())?;
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

    /// Further networks for the loss to read, as many clients each.
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

    /// Leaves the running statistics alone: where only a head is trained, the backbone stays as it is.
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
        let key = |workspace, kind, active, input: &Tensor| {
            Ok::<_, Error>(StepKey { workspace, kind, active, bytes: input.size1()? as usize })
        };
        if let (Some(gpu), Some(here)) = (&self.context.gpu, &self.gpu) {
            let _ = here.lr.shallow_clone().f_fill_(lr)?;
            let kind = gpu.lock().steps.kind(here.workspace, asked.clone());
            return gpu.run_steps(steps, room, fill, |state, active, input| {
                let key = key(here.workspace, kind, active, &input)?;
                state.run(key, || step(&asked, active, None, &input))
            });
        }
        let recorded = self.context.recorder().map(|mut recorder| {
            let workspace = recorder.workspace(self.name, &self.params.layout);
            (workspace, recorder.kind(workspace, asked.clone()))
        });
        let mut bytes = vec![0; room];
        for time in 0..steps {
            let (active, used) = fill(time, &mut bytes);
            let input = Tensor::f_from_slice(&bytes[..used])?.f_to_device(self.context.device)?;
            match (self.context.recorder(), recorded) {
                (Some(mut recorder), Some((workspace, kind))) => {
                    let key = key(workspace, kind, active, &input)?;
                    let chosen: Arc<dyn Any> = recorder.choose(key, asked.clone());
                    drop(recorder);
                    let kind = chosen.downcast_ref().expect("kinds of this run are of one type");
                    step(kind, active, Some(lr), &input)?;
                }
                _ => step(&asked, active, Some(lr), &input)?,
            }
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
        let keep = |tensor: &Tensor| tensor.f_detach_copy();
        let before = if *may_skip {
            Some((
                params.tensors.iter().map(keep).collect::<Result<Vec<_>, _>>()?,
                momentum.copy()?,
            ))
        } else {
            None
        };
        let Terms { terms, recorded, made } = loss(&pass)?;
        let total = [self.weighted_sum(&terms, active)?]; // of each client: gradients are those of the sum
        let leaves: Vec<&Tensor> =
            trained.iter().map(|&index| &weights.unwrap_or(&tensors)[index]).collect();
        let backward = || -> Result<Vec<Tensor>> {
            Ok(Tensor::f_run_backward(&total, &leaves, false, false)?)
        };
        // Beside the rest of the pass only where nothing is added to these gradients.
        let gradients = if self.gpu.is_some() && !reads_weights {
            graph::with_weights_beside(backward)?
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
            for (index, (now, before)) in params.tensors.iter().zip(&values).enumerate() {
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
        if let [(weight @ Weight::Constant(1.0), term)] = terms {
            return weight.of(term);
        }
        let mut total = Tensor::f_zeros([active as i64], (Kind::Float, self.context.device))?;
        for (weight, term) in terms {
            total = total.f_add(&weight.of(term)?)?;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::Settings;
    use super::super::loss::LossValue;
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
}
