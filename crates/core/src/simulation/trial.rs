//! Which start suits some pictures: cross-validation on the labelled ones, and how long a run would take.

use crate::config::Experiment;
use crate::error::Result;
use crate::federation::Federation;
use fedanchor_data::stream::SERVER;
use fedanchor_data::{DataSet, Purpose, Stream};
use rand::seq::SliceRandom;
use std::time::{Duration, Instant};

/// The folds of a cross-validation, and how long an epoch takes.
pub struct Folds<'a> {
    experiment: &'a Experiment,
    data: &'a DataSet,
    /// The labelled pictures in parts.
    parts: Vec<Vec<u32>>,
    /// Seconds that an epoch of pre-training on all labelled pictures takes.
    pub epoch: f64,
}

/// What pre-training on a part of the labelled pictures predicts about a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// For each part of the labelled pictures that was held out: the share recognised, in percent, and their number.
    pub parts: Vec<(f64, usize)>,
    /// Epochs of pre-training, of the experiment's `pretrain.epochs`.
    pub epochs: u32,
}

impl Trial {
    /// Accuracy in percent on the first parts, and the number of their pictures.
    pub fn accuracy(&self, parts: usize) -> (f64, usize) {
        let parts = &self.parts[..parts.min(self.parts.len())];
        let count: usize = parts.iter().map(|(_, count)| count).sum();
        let right: f64 = parts.iter().map(|(share, count)| share * *count as f64).sum();
        (right / count.max(1) as f64, count)
    }
}

/// With fewer epochs a trial says nothing.
const LEAST: u32 = 10;
/// With fewer epochs, one that takes longer to learn looks worse than it is: then fewer parts are tested on.
const ENOUGH: u32 = 100;

impl<'a> Folds<'a> {
    /// Deals the labelled pictures and times a few epochs. The method of the experiment should be one without clients.
    pub fn new(experiment: &'a Experiment, data: &'a DataSet, folds: usize) -> Result<Self> {
        let labels = data.train.require_labels("a trial")?;
        let parts = deal(labels, data.train.classes.len(), folds, experiment.seed);
        let mut new = Self { experiment, data, parts, epoch: 0.0 };
        let (one, three) = (new.pretrain(1, 0)?.0, new.pretrain(3, 0)?.0);
        // On a busy machine three epochs may seem as fast as one.
        let epoch = ((three - one) / 2.0).max(three / 10.0);
        new.epoch = epoch / new.share();
        Ok(new)
    }

    /// The share of the pictures that is trained on.
    fn share(&self) -> f64 {
        1.0 - 1.0 / self.parts.len() as f64
    }

    /// Pre-trains on all but this part and tests on it: seconds and accuracy.
    fn pretrain(&self, epochs: u32, part: usize) -> Result<(f64, f64)> {
        let Self { data, parts, .. } = self;
        let others = parts.iter().enumerate().filter(|(other, _)| *other != part);
        let mut others: Vec<u32> = others.flat_map(|(_, members)| members).copied().collect();
        others.sort_unstable();
        let (train, test) = (data.train.select(&others), data.train.select(&parts[part]));
        let (normalisation, trunk) = (data.normalisation.clone(), data.trunk.clone());
        let fold = DataSet::new(data.name.as_str(), train, test);
        let fold = DataSet { normalisation, trunk, flip: data.flip, ..fold };
        let mut experiment = self.experiment.clone();
        experiment.pretrain.epochs = epochs;
        let federation = Federation::new(&experiment, fold, None)?;
        let mut coordinator = federation.coordinator()?;
        let start = Instant::now();
        let accuracy = coordinator.pretrain(&mut |_, _| true)?.evaluation.accuracy;
        Ok((start.elapsed().as_secs_f64(), accuracy))
    }

    /// Tests on as many parts as `time` allows.
    pub fn validate(&self, time: Duration) -> Result<Trial> {
        let most = self.experiment.pretrain.epochs;
        let affordable = time.as_secs_f64() / (self.epoch * self.share()); // epochs in all
        let folds = affordable / f64::from(ENOUGH.min(most.max(1)));
        let folds = (folds as usize).clamp(1, self.parts.len());
        let epochs = ((affordable / folds as f64) as u32).clamp(LEAST.min(most), most.max(1));
        let parts = self.parts[..folds].iter().enumerate();
        let parts =
            parts.map(|(part, members)| Ok((self.pretrain(epochs, part)?.1, members.len())));
        Ok(Trial { parts: parts.collect::<Result<_>>()?, epochs })
    }
}

/// The pictures in parts, every class as evenly as possible.
fn deal(labels: &[u16], classes: usize, folds: usize, seed: u64) -> Vec<Vec<u32>> {
    let stream = Stream::new(seed, Purpose::Trial, 0, SERVER);
    let mut parts = vec![Vec::new(); folds];
    let mut next = 0;
    for class in 0..classes {
        let of_class = (0..).zip(labels).filter(|(_, label)| usize::from(**label) == class);
        let mut members: Vec<u32> = of_class.map(|(image, _)| image).collect();
        members.shuffle(&mut stream.at(class as u64));
        // One picture of every class remains in each training part, if it has two.
        for image in members {
            parts[next % folds].push(image);
            next += 1;
        }
    }
    parts.iter_mut().for_each(|part| part.sort_unstable());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;
    use fedanchor_data::sample;

    #[test]
    fn held_out_pictures_are_dealt_by_class() {
        let labels = [vec![0; 7], vec![1; 4], vec![2; 1]].concat();
        let parts = deal(&labels, 3, 3, 1);
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, (0..12).collect::<Vec<u32>>());
        for part in &parts {
            let zeros = part.iter().filter(|&&image| labels[image as usize] == 0).count();
            assert!(part.len() == 4 && [2, 3].contains(&zeros), "{parts:?}");
        }
        assert_ne!(deal(&labels, 3, 3, 2), parts);
    }

    /// Half of 40 pictures and a few epochs are enough to be far better than chance.
    #[test]
    fn a_trial_learns_and_is_timed() {
        let keys =
            ["data.name=sample", "model.name=small", "method.name=server-only", "data.anchors=0"];
        let more = ["pretrain.epochs=12", "pretrain.fitted=0", "optimiser.lr=0.1"];
        let keys: Vec<String> = keys.iter().chain(&more).map(|&key| key.to_owned()).collect();
        let experiment = resolve("", &keys).unwrap();
        let data = sample::load().unwrap();
        let few: Vec<u32> =
            data.train.by_class().iter().flat_map(|class| &class[..8]).copied().collect();
        let data = DataSet { train: data.train.select(&few), ..data };
        let folds = Folds::new(&experiment, &data, 2).unwrap();
        let trial = folds.validate(Duration::from_secs(60)).unwrap();
        let (accuracy, held_out) = trial.accuracy(2);
        assert_eq!((held_out, trial.epochs, trial.accuracy(1).1), (80, 12, 40));
        assert!(accuracy > 25.0, "{trial:?}");
        assert!(folds.epoch > 0.0);
    }
}
