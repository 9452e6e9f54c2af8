//! Which client trains on which samples in which step, for clients with different numbers of samples.
//!
//! Every batch is full: the last of an epoch wraps around to the start of the shuffled set, so
//! shapes never change and batch norm never sees a batch of one. Clients have different numbers of
//! steps; they are ordered by that number, and the cohort shrinks to its first clients as the others finish:
//! parameters, momentum and statistics of a prefix are views of the whole. Masking finished clients
//! was rejected: it computes what is then thrown away.

use crate::config::MixSet;
use fedanchor_data::{ImageSet, Purpose, Stream};
use rand::RngExt;
use rand::seq::SliceRandom;

/// Names the streams of one run and round; what is left to name is the purpose and the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundStreams {
    /// The seed of the run.
    pub seed: u64,
    /// The round, from 1; 0 is pre-training.
    pub round: u32,
}

impl RoundStreams {
    /// The stream for a purpose and a client.
    pub fn of(&self, purpose: Purpose, client: u32) -> Stream {
        Stream::new(self.seed, purpose, self.round, client)
    }
}

/// What one client (or the server) trains on: its images, a label for each, and the fix set.
#[derive(Debug)]
pub struct Task<'a> {
    /// Client number, or [`fedanchor_data::stream::SERVER`].
    pub client: u32,
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are this client's.
    pub local: &'a [u32],
    /// A label for every local sample: pseudo-labels on a client, true ones on the server.
    pub labels: &'a [u16],
    /// A weight for every local sample, or none where all count alike.
    pub weights: &'a [f32],
    /// A number for every class that is added to the logits in training, or none.
    pub adjustment: &'a [f32],
    /// Local numbers of the samples that are trained on directly (eq. 5).
    pub fix: Vec<u32>,
}

impl Task<'_> {
    /// What a network reads of a local sample.
    pub fn image(&self, local: u32) -> &[u8] {
        self.images.input(self.local[local as usize] as usize)
    }

    fn steps_per_epoch(&self, batch: usize) -> usize {
        self.fix.len().div_ceil(batch)
    }
}

/// One sample of one step.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Which task, in the order given to [`StepPlan::new`].
    pub task: usize,
    /// The client's own epoch.
    pub epoch: u32,
    /// The client's own step in that epoch.
    pub step: u64,
    /// Position in the epoch: random draws about this sample are keyed by it.
    pub position: u64,
    /// Local number of the fix sample.
    pub fix: u32,
}

/// Which client trains on which samples in which step.
#[derive(Debug)]
pub struct StepPlan {
    batch: usize,
    epochs: std::ops::Range<u32>,
    /// Tasks by falling number of steps; those without steps are left out.
    order: Vec<usize>,
    /// The shuffled fix set of each ordered task in its current epoch.
    shuffled: Vec<Vec<u32>>,
}

impl StepPlan {
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

    /// Steps of the client with the most.
    pub fn steps(&self, tasks: &[Task]) -> usize {
        self.order.first().map_or(0, |&task| self.steps_of(&tasks[task]))
    }

    /// Steps of one client in all its epochs.
    pub fn steps_of(&self, task: &Task) -> usize {
        task.steps_per_epoch(self.batch) * self.epochs.len()
    }

    /// The samples of step `time`, first sample of every active client first.
    pub fn step(&mut self, streams: RoundStreams, tasks: &[Task], time: usize) -> Vec<Sample> {
        let active = self.order.iter().take_while(|&&t| self.steps_of(&tasks[t]) > time).count();
        let mut positions = Vec::with_capacity(active);
        for (slot, &task) in self.order[..active].iter().enumerate() {
            let per_epoch = tasks[task].steps_per_epoch(self.batch);
            let (epoch, step) = (self.epochs.start + (time / per_epoch) as u32, time % per_epoch);
            if step == 0 {
                // A new epoch of this client.
                self.shuffled[slot].clone_from(&tasks[task].fix);
                let stream = streams.of(Purpose::Shuffle, tasks[task].client).epoch(epoch);
                self.shuffled[slot].shuffle(&mut stream.rng());
            }
            positions.push((task, epoch, step));
        }
        let mut samples = Vec::with_capacity(active * self.batch);
        for row in 0..self.batch {
            for (slot, &(task, epoch, step)) in positions.iter().enumerate() {
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

/// The samples of a step client by client; [`StepPlan::step`] gives them row by row, one of every client.
pub(crate) fn by_client(samples: &[Sample], active: usize) -> impl Iterator<Item = &Sample> {
    (0..active).flat_map(move |slot| samples[slot..].iter().step_by(active))
}

/// The partner of a fix sample in the mix set (eq. 6): a draw with replacement from all local
/// samples, fresh for every place of every epoch, or from a set drawn once per round.
pub fn mix_partner(streams: RoundStreams, task: &Task, sample: &Sample, mix_set: MixSet) -> u32 {
    let stream = streams.of(Purpose::MixSet, task.client);
    let local = task.local.len() as u32;
    match mix_set {
        MixSet::Epoch => stream.epoch(sample.epoch).at(sample.position).random_range(0..local),
        MixSet::Kept => {
            let at = stream.epoch(sample.epoch).at(sample.position).random_range(0..task.fix.len());
            task.fix[at]
        }
        MixSet::Round => {
            // Element j of the set is a fixed draw; each epoch walks the set from another start.
            let size = task.fix.len() as u64;
            let start = stream.epoch(sample.epoch + 1).rng().random_range(0..size);
            stream.at((start + sample.position) % size).random_range(0..local)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_data::Shape;
    use std::collections::BTreeSet;

    const STREAMS: RoundStreams = RoundStreams { seed: 3, round: 2 };

    fn images() -> ImageSet {
        let shape = Shape { side: 1, channels: 1 };
        ImageSet::new(shape, (0..100).collect(), None, Vec::new())
    }

    fn task(images: &ImageSet, client: u32, fix: Vec<u32>) -> Task<'_> {
        const LOCAL: [u32; 9] = [10, 11, 12, 13, 14, 15, 16, 17, 18];
        Task { client, images, local: &LOCAL, labels: &[0; 9], weights: &[], adjustment: &[], fix }
    }

    /// The fix samples of one task over all its steps, batch by batch.
    fn batches(plan: &mut StepPlan, tasks: &[Task], of: usize) -> Vec<Vec<u32>> {
        let all = (0..plan.steps(tasks)).map(|time| {
            let samples = plan.step(STREAMS, tasks, time);
            samples.iter().filter(|sample| sample.task == of).map(|sample| sample.fix).collect()
        });
        all.filter(|batch: &Vec<u32>| !batch.is_empty()).collect()
    }

    #[test]
    fn the_cohort_holds_the_longest_first_and_shrinks() {
        let images = images();
        let tasks = [
            task(&images, 0, vec![0, 1]),
            task(&images, 1, vec![]),
            task(&images, 2, vec![0, 1, 2, 3, 4]),
            task(&images, 3, vec![5, 6, 7]),
        ];
        let mut plan = StepPlan::new(&tasks, 0..2, 2);
        assert_eq!(plan.order(), [2, 3, 0]); // a client without samples is not there
        assert_eq!(plan.steps(&tasks), 6);
        let active: Vec<usize> =
            (0..6).map(|time| plan.step(STREAMS, &tasks, time).len() / 2).collect();
        assert_eq!(active, [3, 3, 2, 2, 1, 1]); // 6, 4 and 2 steps
    }

    #[test]
    fn every_batch_is_full_and_every_sample_is_seen_in_every_epoch() {
        let images = images();
        let tasks = [task(&images, 7, vec![0, 2, 4, 6, 8])];
        let mut plan = StepPlan::new(&tasks, 0..3, 2);
        let all = batches(&mut plan, &tasks, 0);
        assert!(all.iter().all(|batch| batch.len() == 2));
        for epoch in all.chunks(3) {
            let flat: Vec<u32> = epoch.concat();
            assert_eq!(flat[..5].iter().copied().collect::<BTreeSet<_>>(), [0, 2, 4, 6, 8].into());
            assert_eq!(flat[5], flat[0]); // the last batch wraps around
        }
        assert_ne!(all[..3], all[3..6], "epochs are shuffled differently");
    }

    /// What a client draws depends on no other client of its cohort.
    #[test]
    fn a_client_draws_the_same_alone_and_in_a_cohort() {
        let images = images();
        let both = [task(&images, 4, vec![0, 1, 2]), task(&images, 5, vec![3, 4, 5, 6, 7])];
        let alone = [task(&images, 4, vec![0, 1, 2])];
        let together = batches(&mut StepPlan::new(&both, 0..2, 2), &both, 0);
        assert_eq!(together, batches(&mut StepPlan::new(&alone, 0..2, 2), &alone, 0));
    }

    #[test]
    fn partners_come_from_all_local_samples() {
        let images = images();
        let task = task(&images, 4, vec![0, 1, 2]);
        let sample = |epoch, position| Sample { task: 0, epoch, step: 0, position, fix: 0 };
        let draw = |set, epoch| -> Vec<u32> {
            (0..200).map(|at| mix_partner(STREAMS, &task, &sample(epoch, at), set)).collect()
        };
        let fresh = draw(MixSet::Epoch, 0);
        assert_eq!(fresh.iter().copied().collect::<BTreeSet<_>>(), (0..9).collect());
        assert_ne!(fresh, draw(MixSet::Epoch, 1));
        // A set as large as the fix set, drawn once: every epoch walks the same three samples.
        let once: Vec<BTreeSet<u32>> =
            (0..3).map(|epoch| draw(MixSet::Round, epoch).into_iter().collect()).collect();
        assert!(once[0].len() <= 3 && once[0] == once[1] && once[1] == once[2]);
    }
}
