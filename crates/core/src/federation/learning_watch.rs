//! Notices a run that fails to learn, by what can be known without labels, and names the likely cause and the
//! key to change. Every note is given once per run. The limits are such that no run of docs/results.md is
//! noted; docs/learning.md has the whole list.

use crate::labels::effective_classes;
use serde::{Deserialize, Serialize};

/// Anchors classified correctly after pre-training, in percent, below which they are not fitted.
const FITTED: f64 = 80.0;
/// Rounds from the first in which (nearly) every sample is kept. Preset `paper` keeps all for up to nine
/// rounds and learns all the same.
const ALL_KEPT_FOR: u32 = 15;
const ALL: f64 = 0.995;
/// The share of kept samples with which clients add nothing.
const HARDLY_ANY: f64 = 0.01;
/// Rounds over which labels and accuracies are averaged.
const OVER: usize = 5;
/// The pseudo-labels' effective number of classes, as a share of that of the anchors, that is too few.
const FEW: f64 = 1.0 / 3.0;
/// Points on the anchors by which aggregated models may stay behind the start.
const BEHIND: f64 = 30.0;
/// The mean cosine between class means at which classes are not separated, and the first round that counts:
/// before it the anchor head of preset `paper` is hardly trained.
const ALIKE: f64 = 0.9;
const ALIKE_FROM: u32 = 15;

#[derive(Debug, Default)]
pub(super) struct RoundFacts<'a> {
    /// The round, from 1.
    pub(super) round: u32,
    /// Samples seen and kept, where a threshold selects them.
    pub(super) selected: Option<(usize, usize)>,
    /// Pseudo-labels by class; empty if unknown.
    pub(super) labels: &'a [u32],
    /// The share of every class in the anchors.
    pub(super) shares: &'a [f64],
    /// Accuracy on the anchors before and after aggregation, in percent.
    pub(super) anchors: Option<(f64, f64)>,
    /// The mean cosine between the class means of different classes.
    pub(super) alike: Option<f64>,
}

/// The last rounds; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LearningWatch {
    /// Accuracy on the anchors that the first round started from.
    start: Option<f64>,
    /// Rounds so far, if every sample was kept in each of them.
    all_kept: Option<u32>,
    /// The share of kept samples.
    #[serde(default)]
    kept: Vec<f64>,
    labels: Vec<Vec<u32>>,
    aggregated: Vec<f64>,
    alike: Vec<f64>,
    noted: Vec<Note>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Note {
    AllKept,
    HardlyAnyKept,
    FewClasses,
    BehindStart,
    Alike,
}

impl LearningWatch {
    pub(super) fn notes(&mut self, observed: &RoundFacts) -> Vec<String> {
        let found = [
            (Note::AllKept, self.all_kept(observed)),
            (Note::HardlyAnyKept, self.hardly_any_kept(observed)),
            (Note::FewClasses, self.few_classes(observed)),
            (Note::BehindStart, self.behind_start(observed)),
            (Note::Alike, self.alike(observed)),
        ];
        let found = found.into_iter().filter_map(|(note, text)| Some((note, text?)));
        let new: Vec<(Note, String)> =
            found.filter(|(note, _)| !self.noted.contains(note)).collect();
        self.noted.extend(new.iter().map(|(note, _)| *note));
        new.into_iter().map(|(_, text)| text).collect()
    }

    fn all_kept(&mut self, observed: &RoundFacts) -> Option<String> {
        let (seen, kept) = observed.selected.filter(|(seen, _)| *seen > 0)?;
        let before = if observed.round == 1 { Some(0) } else { self.all_kept };
        let all = kept as f64 >= ALL * seen as f64;
        self.all_kept = before.filter(|_| all).map(|rounds| rounds + 1);
        (self.all_kept == Some(ALL_KEPT_FOR)).then(|| {
            format!(
                "the clients have kept every image in all {ALL_KEPT_FOR} rounds, so the threshold \
                 selects nothing and wrong labels are trained on: raise method.threshold, or train \
                 longer on the anchors (pretrain.epochs)"
            )
        })
    }

    fn hardly_any_kept(&mut self, observed: &RoundFacts) -> Option<String> {
        let (seen, kept) = observed.selected.filter(|(seen, _)| *seen > 0)?;
        push(&mut self.kept, kept as f64 / seen as f64);
        let most = self.kept.iter().copied().fold(0.0, f64::max);
        (self.kept.len() == OVER && most < HARDLY_ANY).then(|| {
            format!(
                "the clients have kept hardly any image in the last {OVER} rounds ({:.1} % at most), so they add \
                 nothing: lower method.threshold (of a rule that rises, `to`), or use method.threshold=softmatch, \
                 which weighs images instead",
                100.0 * most
            )
        })
    }

    fn few_classes(&mut self, observed: &RoundFacts) -> Option<String> {
        if observed.labels.iter().all(|&count| count == 0) {
            return None;
        }
        push(&mut self.labels, observed.labels.to_vec());
        let sums: Vec<f64> = (0..observed.shares.len())
            .map(|class| self.labels.iter().map(|counts| f64::from(counts[class])).sum())
            .collect();
        let (found, expected) = (effective(&sums), effective(observed.shares));
        (self.labels.len() == OVER && found < FEW * expected).then(|| {
            let total: f64 = sums.iter().sum();
            let many = sums.iter().filter(|&&count| count > 0.05 * total).count();
            format!(
                "nearly all pseudo-labels of the last {OVER} rounds are of {many} of {} classes: the \
                 model has collapsed or the clients' images are of few classes; add anchors of the \
                 classes it confuses, or lower optimiser.lr",
                sums.len()
            )
        })
    }

    fn behind_start(&mut self, observed: &RoundFacts) -> Option<String> {
        let (before, after) = observed.anchors?;
        let start = *self.start.get_or_insert(before);
        push(&mut self.aggregated, after);
        let mean = self.aggregated.iter().sum::<f64>() / self.aggregated.len() as f64;
        (self.aggregated.len() == OVER && mean < start - BEHIND).then(|| {
            format!(
                "the clients make the model worse than it was at the start: {mean:.0} % on the anchors \
                 after aggregation over the last {OVER} rounds, {start:.0} % before round 1; lower \
                 optimiser.lr or client.epochs, and set augment.flip=false if mirrored images are of \
                 another class"
            )
        })
    }

    fn alike(&mut self, observed: &RoundFacts) -> Option<String> {
        let alike = observed.alike.filter(|_| observed.round >= ALIKE_FROM)?;
        push(&mut self.alike, alike);
        let least = self.alike.iter().copied().fold(f64::INFINITY, f64::min);
        (self.alike.len() == OVER && least > ALIKE).then(|| {
            format!(
                "the scores do not separate the classes: the anchors of different classes have a mean \
                 cosine of {alike:.2}; raise method.contrastive.epochs, or train longer on the anchors \
                 (pretrain.epochs)"
            )
        })
    }
}

/// A note on pre-training that ended after this number of epochs without fitting the anchors.
pub(super) fn not_fitted(epochs: u32, accuracy: f64) -> Option<String> {
    (accuracy < FITTED).then(|| {
        format!(
            "the anchors are not fitted: {accuracy:.0} % of them are classified correctly after {epochs} \
             epochs of pre-training; raise pretrain.epochs, or check their labels and data.size"
        )
    })
}

/// Adds to the last [`OVER`] values.
fn push<T>(values: &mut Vec<T>, value: T) {
    values.push(value);
    if values.len() > OVER {
        values.remove(0);
    }
}

fn effective(counts: &[f64]) -> f64 {
    let total: f64 = counts.iter().sum();
    effective_classes(&counts.iter().map(|count| count / total).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_everything_counts_only_from_the_start() {
        let rounds = |kept: &dyn Fn(u32) -> usize| {
            let mut watch = LearningWatch::default();
            let notes = (1..=20).map(|round| {
                let selected = Some((1000, kept(round)));
                watch.notes(&RoundFacts { round, selected, ..RoundFacts::default() }).len()
            });
            notes.collect::<Vec<_>>()
        };
        let noted = rounds(&|_| 995);
        assert_eq!((noted[14], noted.iter().sum::<usize>()), (1, 1));
        assert_eq!(rounds(&|_| 994).iter().sum::<usize>(), 0);
        assert_eq!(rounds(&|round| if round == 9 { 900 } else { 1000 }).iter().sum::<usize>(), 0);
    }

    #[test]
    fn keeping_hardly_anything_is_noted_after_five_rounds() {
        let noted = |kept: &[usize]| {
            let mut watch = LearningWatch::default();
            let notes = (1..).zip(kept).map(|(round, &kept)| {
                let selected = Some((1000, kept));
                watch.notes(&RoundFacts { round, selected, ..RoundFacts::default() }).len()
            });
            notes.collect::<Vec<_>>()
        };
        assert_eq!(noted(&[338, 9, 0, 0, 0, 0, 0]), [0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(noted(&[338, 9, 0, 10, 0, 0, 0]), [0; 7]);
    }

    #[test]
    fn few_classes_are_judged_by_the_anchors() {
        assert!((effective(&[1.0; 4]) - 4.0).abs() < 1e-9);
        assert!((effective(&[5.0, 0.0]) - 1.0).abs() < 1e-9);
        let noted = |labels: &[u32], shares: &[f64]| {
            let mut watch = LearningWatch::default();
            let observed = |round| RoundFacts { round, labels, shares, ..RoundFacts::default() };
            (1..=6).map(|round| watch.notes(&observed(round)).len()).sum::<usize>()
        };
        let even = [0.25; 4];
        assert_eq!(noted(&[100, 0, 0, 0], &even), 1);
        assert_eq!(noted(&[50, 50, 0, 0], &even), 0);
        // Where the anchors are of one class, so may the labels be.
        assert_eq!(noted(&[100, 0, 0, 0], &[0.97, 0.01, 0.01, 0.01]), 0);
        assert_eq!(noted(&[0; 4], &even), 0);
    }

    #[test]
    fn aggregated_models_are_compared_with_the_start() {
        let noted = |after: f64| {
            let mut watch = LearningWatch::default();
            let observed =
                |round| RoundFacts { round, anchors: Some((98.0, after)), ..RoundFacts::default() };
            (1..=6).map(|round| watch.notes(&observed(round)).len()).sum::<usize>()
        };
        assert_eq!((noted(67.0), noted(69.0)), (1, 0));
    }

    #[test]
    fn classes_that_stay_alike_are_noted_after_the_first_rounds() {
        let mut watch = LearningWatch::default();
        let mut at = |round, alike| {
            watch.notes(&RoundFacts { round, alike: Some(alike), ..RoundFacts::default() }).len()
        };
        assert_eq!((1..=18).map(|round| at(round, 0.95)).sum::<usize>(), 0);
        assert_eq!((at(19, 0.95), at(20, 0.95)), (1, 0));
    }

    #[test]
    fn anchors_are_fitted_or_not() {
        assert_eq!(not_fitted(10, 80.0), None);
        assert!(not_fitted(10, 79.0).unwrap().contains("79 % of them"));
    }
}
