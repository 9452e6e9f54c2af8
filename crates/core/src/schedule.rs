//! Who trains on what and when: the steps of a cohort whose clients have different numbers of samples.
//!
//! Every batch is full: the last of an epoch wraps around to the start of the shuffled set, so
//! shapes never change and batch norm never sees a batch of one. Clients have different numbers of
//! steps; they are ordered by it, and the cohort shrinks to its first clients as the others finish:
//! parameters, momentum and statistics of a prefix are views of the whole. Masking finished clients
//! was rejected here: it computes what is then thrown away.

use crate::config::MixSet;
use crate::setting::Setting;
use fedanchor_data::{ImageSet, Purpose};
use rand::RngExt;
use rand::seq::SliceRandom;

/// What one client (or the server) trains on: its images, a label for each, and the fix set.
#[derive(Debug)]
pub struct Task<'a> {
    /// Client number, or [`fedanchor_data::stream::SERVER`].
    pub who: u32,
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are this client's.
    pub local: &'a [u32],
    /// A label for every local sample: pseudo-labels on a client, true ones on the server.
    pub labels: &'a [u16],
    /// A weight for every local sample, or none where all count alike.
    pub weights: &'a [f32],
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
