//! What only a simulation can measure: its clients' pseudo-labels, by the true labels where there are any.

use super::samples::{Picked, Picker};
use crate::federation::Accuracy;
use crate::labels::PseudoLabels;
use crate::messages::{Answer, ClientOutcome};
use fedanchor_record::RoundRecord;
use std::collections::{BTreeMap, BTreeSet};

/// The measurements of a round.
#[derive(Debug)]
pub(super) struct Measurements {
    classes: usize,
    anchor_head: Accuracy,
    classifier_head: Accuracy,
    /// Pseudo-labels by class.
    labels: Vec<u32>,
    /// What each client kept, and its pseudo-labels by class.
    clients: BTreeMap<u32, (usize, Vec<u32>)>,
    /// Whether its answers do not say so, since training does not use the labels.
    only_measured: bool,
    picker: Picker,
    /// The samples that were picked in the last round.
    pub(super) picked: Option<Picked>,
}

impl Measurements {
    /// Picks up to `samples` of either kind.
    pub(super) fn new(classes: usize, samples: usize) -> Self {
        Self {
            classes,
            anchor_head: Accuracy::default(),
            classifier_head: Accuracy::default(),
            labels: vec![0; classes],
            clients: BTreeMap::new(),
            only_measured: false,
            picker: Picker::new(samples),
            picked: None,
        }
    }

    /// Measures the labels that a client gave its images. `truth` holds the labels of all images.
    pub(super) fn add(
        &mut self,
        answer: &Answer,
        local: &[u32],
        labels: &PseudoLabels,
        truth: Option<&[u16]>,
    ) {
        let client = answer.client;
        let kept = match &answer.outcome {
            ClientOutcome::Update(_) if labels.only_measured => labels.kept_count(),
            ClientOutcome::Update(update) => update.kept,
            _ => 0,
        };
        self.only_measured |= labels.only_measured;
        let counts = labels.counts(self.classes);
        self.labels.iter_mut().zip(&counts).for_each(|(sum, count)| *sum += count);
        self.clients.insert(client, (kept, counts));
        self.picker.add(client, local, labels, truth);
        let Some(truth) = truth else { return };
        let heads = [
            (&mut self.anchor_head, &labels.anchor),
            (&mut self.classifier_head, &labels.classifier),
        ];
        for (head, labelled) in heads {
            for ((&index, &label), &kept) in local.iter().zip(labelled).zip(&labels.kept) {
                head.add(label == truth[index as usize], kept);
            }
        }
    }

    /// Adds the measurements of a round to its record; returns the pseudo-labels by class. With `label_counts` the
    /// record has them, too.
    pub(super) fn complete(&mut self, record: &mut RoundRecord, label_counts: bool) -> Vec<u32> {
        let next = Self::new(self.classes, self.picker.most());
        let mut round = std::mem::replace(self, next);
        if record.clients.is_empty() {
            return Vec::new();
        }
        record.anchor_head = round.anchor_head.percent();
        record.classifier_head = round.classifier_head.percent();
        if round.only_measured {
            let notes = record.rejected.iter().chain(&record.failed).map(|note| note.client);
            let without: BTreeSet<u32> = notes.chain(record.absent.iter().copied()).collect();
            round.clients.retain(|client, _| !without.contains(client));
            let kept: Vec<usize> = round.clients.values().map(|(kept, _)| *kept).collect();
            record.kept = kept.iter().sum();
            record.kept_deviation = deviation(&kept);
            if label_counts {
                let mut sums = vec![0; self.classes];
                let counts =
                    round.clients.values().flat_map(|(_, counts)| counts.iter().enumerate());
                counts.for_each(|(class, count)| sums[class] += count);
                record.label_counts = sums;
            }
        }
        let samples = round.picker.take();
        self.picked = samples.map(|samples| Picked { round: record.round, samples });
        round.labels
    }
}

/// Standard deviation, dividing by n - 1.
fn deviation(kept: &[usize]) -> Option<f64> {
    let count = kept.len() as f64;
    let mean = kept.iter().sum::<usize>() as f64 / count;
    let squares = kept.iter().map(|&kept| (kept as f64 - mean).powi(2));
    (kept.len() > 1).then(|| (squares.sum::<f64>() / (count - 1.0)).sqrt())
}
