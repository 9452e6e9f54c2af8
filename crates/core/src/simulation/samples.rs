//! Pseudo-labels that a person should see: labels that are wrong and trained on nevertheless, and labels that are
//! right and not trained on. If the true labels are unknown, those with scores next to the threshold.

use super::Simulation;
use crate::error::Result;
use crate::labels::PseudoLabels;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fedanchor_data::thumbnail::png;
use fedanchor_record::{Sample, SampleKind, Samples};
use serde::{Deserialize, Serialize};

/// The samples of a round that a person should see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // of what the name says
pub struct Picked {
    pub round: u32,
    /// The samples, by kind, the most telling first.
    pub samples: Vec<PickedSample>,
}

/// A sample that a person should see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // of what the name says
pub struct PickedSample {
    pub kind: SampleKind,
    pub client: u32,
    /// Its index among the training images.
    pub image: u32,
    /// Its pseudo-label.
    pub label: u16,
    pub score: f32,
    pub threshold: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct Picker {
    /// The most samples of each kind; 0 for none.
    pub(super) most: usize,
    kept: Vec<PickedSample>,
    left_out: Vec<PickedSample>,
    /// Whether any client has labelled its images.
    labelled: bool,
}

impl Picker {
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Picks from a client's images. `truth` holds the labels of all training images.
    pub(super) fn add(
        &mut self,
        client: u32,
        local: &[u32],
        labels: &PseudoLabels,
        truth: Option<&[u16]>,
    ) {
        if self.most == 0 || labels.score.is_empty() {
            return; // true labels have no score
        }
        self.labelled = true;
        let scored = local.iter().zip(&labels.label).zip(&labels.score).zip(&labels.kept);
        for (((&image, &label), &score), &kept) in scored {
            if !score.is_finite() {
                continue; // of a model that diverged: JSON has no such number
            }
            let right = truth.map(|truth| truth[image as usize] == label);
            let kind = match (kept, right) {
                (true, Some(false)) => SampleKind::Wrong,
                (true, None) => SampleKind::KeptDoubtful,
                (false, Some(true) | None) => SampleKind::LeftOut,
                (true, Some(true)) | (false, Some(false)) => continue,
            };
            let threshold = labels.threshold(label);
            let sample = PickedSample { kind, client, image, label, score, threshold };
            if kept { &mut self.kept } else { &mut self.left_out }.push(sample);
        }
        // Whether the highest score comes first; equal ones in the order of clients and images.
        for (samples, highest) in [(&mut self.kept, truth.is_some()), (&mut self.left_out, true)] {
            samples.sort_unstable_by(|a, b| {
                let rising = a.score.total_cmp(&b.score);
                let by_score = if highest { rising.reverse() } else { rising };
                by_score.then((a.client, a.image).cmp(&(b.client, b.image)))
            });
            samples.truncate(self.most);
        }
    }

    /// The picked samples; `None` if no client has labelled its images.
    pub(super) fn finish(self) -> Option<Vec<PickedSample>> {
        self.labelled.then(|| [self.kept, self.left_out].concat())
    }
}

impl Simulation {
    /// Picked samples with their images and the names of their classes.
    pub(crate) fn samples(&self, picked: &Picked) -> Result<Samples> {
        let name = |label: u16| self.federation.classes[usize::from(label)].clone();
        let samples = picked.samples.iter().map(|sample| {
            let at = sample.image as usize;
            Ok(Sample {
                kind: sample.kind,
                client: sample.client,
                image: sample.image,
                label: name(sample.label),
                truth: self.true_labels.as_ref().map(|labels| name(labels[at])),
                score: sample.score,
                threshold: sample.threshold.map(|threshold| threshold as f32),
                png: STANDARD.encode(png(self.images.shape, self.images.image(at))?),
            })
        });
        Ok(Samples { round: picked.round, samples: samples.collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(label: &[u16], score: &[f32], threshold: f64) -> PseudoLabels {
        PseudoLabels {
            label: label.to_vec(),
            score: score.to_vec(),
            kept: score.iter().map(|&score| f64::from(score) > threshold).collect(),
            thresholds: vec![threshold],
            ..PseudoLabels::default()
        }
    }

    fn picked(picker: Picker) -> Vec<(SampleKind, u32, u32)> {
        let picked = picker.finish().unwrap();
        picked.iter().map(|sample| (sample.kind, sample.client, sample.image)).collect()
    }

    const TRUTH: &[u16] = &[0, 0, 0, 0, 1, 1, 1, 1];

    #[test]
    fn what_is_wrong_and_kept_and_what_is_right_and_left_out() {
        use SampleKind::{LeftOut, Wrong};
        let mut picker = Picker::new(2);
        // In the other order of the clients: the outcome is the same.
        picker.add(
            2,
            &[4, 5, 6, 7],
            &labels(&[0, 0, 1, 1], &[0.9, 0.7, 0.3, 0.9], 0.5),
            Some(TRUTH),
        );
        picker.add(
            1,
            &[0, 1, 2, 3],
            &labels(&[1, 0, 1, 0], &[0.9, 0.4, 0.1, 0.2], 0.5),
            Some(TRUTH),
        );
        let expected = [(Wrong, 1, 0), (Wrong, 2, 4), (LeftOut, 1, 1), (LeftOut, 2, 6)];
        assert_eq!(picked(picker), expected);
        assert_eq!(Picker::new(2).finish(), None);
    }

    #[test]
    fn without_the_truth_what_is_near_the_threshold() {
        use SampleKind::{KeptDoubtful, LeftOut};
        let mut picker = Picker::new(2);
        picker.add(1, &[0, 1, 2, 3, 4], &labels(&[0; 5], &[0.9, 0.4, 0.6, 0.2, 0.7], 0.5), None);
        let expected =
            [(KeptDoubtful, 1, 2), (KeptDoubtful, 1, 4), (LeftOut, 1, 1), (LeftOut, 1, 3)];
        assert_eq!(picked(picker), expected);
    }

    #[test]
    fn nothing_is_picked_unless_asked_for_or_where_labels_are_true() {
        let mut picker = Picker::new(0);
        picker.add(1, &[0], &labels(&[1], &[0.9], 0.5), Some(TRUTH));
        assert_eq!(picker.finish(), None);
        let mut picker = Picker::new(5);
        picker.add(1, &[0], &PseudoLabels::known(vec![0]), Some(TRUTH));
        assert_eq!(picker.finish(), None);
        let mut picker = Picker::new(5);
        picker.add(1, &[0], &labels(&[0], &[0.9], 0.5), Some(TRUTH));
        assert_eq!(picker.finish(), Some(vec![])); // labelled, and nothing wrong
    }
}
