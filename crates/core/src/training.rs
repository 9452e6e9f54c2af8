//! Local training of a cohort, as one network.
//!
//! Every batch is full: the last of an epoch wraps around to the start of the shuffled set, so
//! shapes never change and batch norm never sees a batch of one. Clients have different numbers of
//! steps; they are ordered by it, and the cohort shrinks to its first clients as the others finish:
//! parameters, momentum and statistics of a prefix are views of the whole. Masking finished clients
//! was rejected here: it computes what is then thrown away.

use crate::config::{MixSet, Precision};
use crate::engine::{AHEAD, StepKey, TERMS, Work};
use crate::error::{Error, Result};
use crate::model::{Pass, Statistics};
use crate::optimiser::{Momentum, sgd_step, sgd_step_on_gpu};
use crate::params::{Entry, Params};
use crate::setting::Setting;
use fedanchor_data::stream::SERVER;
use fedanchor_data::{ImageSet, Purpose};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::sync::mpsc;
use tch::{Kind, Tensor};

/// What one client (or the server) trains on: its images, a label for each, and the fix set.
#[derive(Debug)]
pub struct Task<'a> {
    /// Client number, or [`SERVER`].
    pub who: u32,
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are this client's.
    pub local: &'a [u32],
    /// A label for every local sample: pseudo-labels on a client, true ones on the server.
    pub labels: &'a [u16],
    /// Local numbers of the samples that are trained on directly (eq. 5).
    pub fix: Vec<u32>,
}

impl Task<'_> {
    /// The pixels of a local sample.
    pub fn image(&self, local: u32) -> &[u8] {
        self.images.image(self.local[local as usize] as usize)
    }

    fn steps_per_epoch(&self, batch: usize) -> usize {
        self.fix.len().div_ceil(batch)
    }
}

/// One sample of one step.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Which task, in the order given to [`Schedule::new`].
    pub task: usize,
    /// The client's own epoch.
    pub epoch: u32,
    /// The client's own step in that epoch.
    pub step: u64,
    /// Place in the epoch: what random draws about this sample are keyed by.
    pub position: u64,
    /// Local number of the fix sample.
    pub fix: u32,
}

/// Which client trains on which samples in which step.
#[derive(Debug)]
pub struct Schedule {
    batch: usize,
    epochs: std::ops::Range<u32>,
    /// Tasks by falling number of steps; those without steps are left out.
    order: Vec<usize>,
    /// The shuffled fix set of each ordered task in its current epoch.
    shuffled: Vec<Vec<u32>>,
}

impl Schedule {
    /// Plans these epochs in batches of this size.
    pub fn new(tasks: &[Task], epochs: std::ops::Range<u32>, batch: usize) -> Self {
        let mut order: Vec<usize> =
            (0..tasks.len()).filter(|&t| !tasks[t].fix.is_empty()).collect();
        order.sort_by_key(|&task| std::cmp::Reverse(tasks[task].steps_per_epoch(batch)));
        let shuffled = vec![Vec::new(); order.len()];
        Self { batch, epochs, order, shuffled }
    }

    /// The tasks that train, in the order in which the cohort holds them.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Steps of the client that has most.
    pub fn steps(&self, tasks: &[Task]) -> usize {
        self.order.first().map_or(0, |&task| self.steps_of(&tasks[task]))
    }

    /// Steps of one client in all its epochs.
    pub fn steps_of(&self, task: &Task) -> usize {
        task.steps_per_epoch(self.batch) * self.epochs.len()
    }

    /// The samples of step `time`, first sample of every active client first.
    pub fn step(
        &mut self,
        setting: &Setting,
        round: u32,
        tasks: &[Task],
        time: usize,
    ) -> Vec<Sample> {
        let active = self.order.iter().take_while(|&&t| self.steps_of(&tasks[t]) > time).count();
        let mut places = Vec::with_capacity(active);
        for (slot, &task) in self.order[..active].iter().enumerate() {
            let per_epoch = tasks[task].steps_per_epoch(self.batch);
            let (epoch, step) = (self.epochs.start + (time / per_epoch) as u32, time % per_epoch);
            if step == 0 {
                // A new epoch of this client.
                self.shuffled[slot].clone_from(&tasks[task].fix);
                let stream = setting.stream(Purpose::Shuffle, round, tasks[task].who).epoch(epoch);
                self.shuffled[slot].shuffle(&mut stream.rng());
            }
            places.push((task, epoch, step));
        }
        let mut samples = Vec::with_capacity(active * self.batch);
        for row in 0..self.batch {
            for (slot, &(task, epoch, step)) in places.iter().enumerate() {
                let position = step * self.batch + row;
                let shuffled = &self.shuffled[slot];
                let fix = shuffled[position % shuffled.len()]; // the last batch wraps around
                let (step, position) = (step as u64, position as u64);
                samples.push(Sample { task, epoch, step, position, fix });
            }
        }
        samples
    }
}

/// The partner of a fix sample in the mix set (eq. 6): a draw with replacement from all local
/// samples, fresh for every place of every epoch, or from a set drawn once a round.
pub fn mix_partner(
    setting: &Setting,
    round: u32,
    task: &Task,
    sample: &Sample,
    mix_set: MixSet,
) -> u32 {
    let stream = setting.stream(Purpose::MixSet, round, task.who);
    let local = task.local.len() as u32;
    match mix_set {
        MixSet::Epoch => stream.epoch(sample.epoch).at(sample.position).random_range(0..local),
        MixSet::Round => {
            // Element j of the set is a fixed draw; each epoch walks the set from another start.
            let size = task.fix.len() as u64;
            let start = stream.epoch(sample.epoch + 1).rng().random_range(0..size);
            stream.at((start + sample.position) % size).random_range(0..local)
        }
    }
}

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
    statistics: Statistics,
    /// The sum of every term of the loss over the steps, by client: `[K]` each.
    sums: Vec<Tensor>,
    /// On a GPU: weights in the format of the activations, and the learning rate.
    shadows: Vec<Option<Tensor>>,
    lr: Option<Tensor>,
}

/// The terms of a loss with their weights, one value a client: `[active]` each.
pub type Terms = Vec<(f64, Tensor)>;

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
            statistics,
            sums: Vec::new(),
            shadows: Vec::new(),
            lr: None,
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
        let half = self.setting.experiment.precision == Precision::Bf16;
        let clients = self.params.clients();
        let place = work.place(self.name, &self.params, half)?;
        let here = place.params.first(clients)?;
        for (index, (to, from)) in here.tensors.iter().zip(&self.params.tensors).enumerate() {
            to.shallow_clone().f_copy_(from)?;
            self.shadows.push(match &place.shadows[index] {
                Some(shadow) => {
                    let mut shadow = shadow.f_narrow(0, 0, clients)?;
                    shadow.f_copy_(from)?;
                    Some(shadow)
                }
                None => None,
            });
        }
        self.momentum = place.momentum.take_over(&self.momentum, &place.params.tensors, clients)?;
        self.params = here;
        for sum in &mut place.sums {
            self.sums.push(sum.f_zero_()?);
        }
        self.lr = Some(place.lr.shallow_clone());
        Ok(())
    }

    /// Leaves the running statistics alone whatever the experiment says: where only a head is
    /// trained, the backbone stays as it is.
    pub fn keeping_statistics(self) -> Self {
        Self { statistics: Statistics::Batch, ..self }
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
        let mut work = engine.lock();
        self.set_lr(lr)?;
        let uploads = work.take_uploads(room)?;
        let (full, prepared) = mpsc::sync_channel(AHEAD);
        let (give_back, free) = mpsc::channel();
        for upload in uploads {
            let _ = give_back.send(upload); // `free` listens
        }
        std::thread::scope(|scope| {
            let feeder = scope.spawn(move || {
                for time in 0..steps {
                    let Ok(mut upload) = free.recv() else { break };
                    let filled = upload.memory().map(|memory| fill(time, memory));
                    if full.send(filled.map(|filled| (filled, upload))).is_err() {
                        break;
                    }
                }
                free // with what was not used again
            });
            let trained = (|| {
                for filled in prepared {
                    let ((active, used), mut upload) = filled?;
                    let input = work.feed(&mut upload, used)?;
                    let key = StepKey { name: self.name, active, bytes: used };
                    work.run(key, || {
                        self.forward_backward(active, None, |pass| loss(&input, pass))
                    })?;
                    let _ = give_back.send(upload); // nobody waits for it after the last step
                }
                Ok(())
            })();
            drop(give_back);
            match feeder.join() {
                Ok(free) => work.keep_uploads(free),
                Err(panic) => std::panic::resume_unwind(panic),
            }
            trained
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
        let terms = loss(&self.setting.pass(&tensors, self.statistics))?;
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
        for (sum, (_, term)) in self.sums.iter().zip(&terms) {
            let _ = sum.f_narrow(0, 0, active as i64)?.f_add_(&term.f_detach()?)?;
        }
        Ok(())
    }
}

/// An error if someone ended with a loss or a parameter that is not finite; `parameter` is its name.
pub fn check_finite(
    round: u32,
    who: u32,
    phase: &'static str,
    losses: &[f64],
    parameter: Option<&str>,
) -> Result<()> {
    let not_finite = |what: String| {
        let who = if who == SERVER { "server".to_owned() } else { format!("client {who}") };
        Error::NotFinite { round, who, phase, what }
    };
    if losses.iter().any(|loss| !loss.is_finite()) {
        return Err(not_finite("the loss".to_owned()));
    }
    match parameter {
        Some(name) => Err(not_finite(format!("parameter `{name}`"))),
        None => Ok(()),
    }
}
