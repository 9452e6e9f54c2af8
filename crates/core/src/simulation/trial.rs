//! Which start suits some pictures: cross-validation on the labelled ones, and how long a run would take.

use crate::config::Experiment;
use crate::error::Result;
use crate::federation::Federation;
use fedanchor_data::stream::SERVER;
use fedanchor_data::{DataSet, Purpose, Stream};
use rand::seq::SliceRandom;
use std::time::{Duration, Instant};

/// What pre-training on a part of the labelled pictures predicts about a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Accuracy in percent on labelled pictures that were held out.
    pub accuracy: f64,
    /// How many they were.
    pub held_out: usize,
    /// Epochs of pre-training, of the experiment's `pretrain.epochs`.
    pub epochs: u32,
    /// Seconds that one epoch on all labelled pictures takes.
    pub epoch: f64,
}

/// With fewer epochs a trial says nothing.
const LEAST: u32 = 10;

/// Pre-trains on all but a part of the labelled pictures and tests on that part, for each of `folds` parts, in about
/// `time` altogether. The method of the experiment should be one without clients.
pub fn cross_validate(
    experiment: &Experiment,
    data: &DataSet,
    folds: usize,
    time: Duration,
) -> Result<Trial> {
    let labels = data.train.require_labels("a trial")?;
    let parts = deal(labels, data.train.classes.len(), folds, experiment.seed);
    let fold = |part: usize| {
        let others = (0..folds).filter(|&other| other != part).flat_map(|other| &parts[other]);
        let mut others: Vec<u32> = others.copied().collect();
        others.sort_unstable();
        let (train, test) = (data.train.select(&others), data.train.select(&parts[part]));
        let (normalisation, trunk) = (data.normalisation.clone(), data.trunk.clone());
        let fold = DataSet::new(data.name.as_str(), train, test);
        DataSet { normalisation, trunk, flip: data.flip, ..fold }
    };
    let mut experiment = experiment.clone();
    let most = experiment.pretrain.epochs;
    let mut seconds = |epochs: u32, part: usize| -> Result<(f64, f64)> {
        experiment.pretrain.epochs = epochs;
        let federation = Federation::new(&experiment, fold(part), None)?;
        let mut coordinator = federation.coordinator()?;
        let start = Instant::now();
        let accuracy = coordinator.pretrain(&mut |_, _| true)?.evaluation.accuracy;
        Ok((start.elapsed().as_secs_f64(), accuracy))
    };
    let (one, three) = (seconds(1, 0)?.0, seconds(3, 0)?.0);
    // On a busy machine three epochs may seem as fast as one.
    let epoch = ((three - one) / 2.0).max(three / 10.0);
    let affordable = time.as_secs_f64() / folds as f64 / epoch;
    let epochs = (affordable as u32).clamp(LEAST.min(most), most.max(1));
    let (mut right, mut held_out) = (0.0, 0);
    for (part, members) in parts.iter().enumerate() {
        right += seconds(epochs, part)?.1 * members.len() as f64;
        held_out += members.len();
    }
    let accuracy = right / held_out.max(1) as f64;
    let share = 1.0 - 1.0 / folds as f64;
    Ok(Trial { accuracy, held_out, epochs, epoch: epoch / share })
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
        let trial = cross_validate(&experiment, &data, 2, Duration::from_secs(60)).unwrap();
        assert_eq!((trial.held_out, trial.epochs), (80, 12));
        assert!(trial.accuracy > 25.0, "{trial:?}");
        assert!(trial.epoch > 0.0);
    }
}
