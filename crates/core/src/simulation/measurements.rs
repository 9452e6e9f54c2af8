//! Measurements that only a simulation can make: of its clients' pseudo-labels, by the true labels if there are any.

use super::samples::{Picked, Picker};
use crate::federation::kept_deviation;
use crate::labels::PseudoLabels;
use crate::messages::{Answer, ClientOutcome};
use fedanchor_record::{LabelAccuracy, RoundRecord};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Measurements {
    classes: usize,
    anchor_head: Accuracy,
    classifier_head: Accuracy,
    labels: Vec<u32>,
    /// The number of kept samples and the pseudo-labels by class of each client.
    clients: BTreeMap<u32, (usize, Vec<u32>)>,
    /// Whether training does not use the labels, so that answers do not count them.
    only_measured: bool,
    picker: Picker,
    /// The samples that were picked in the last round.
    pub(super) picked: Option<Picked>,
}

/// Labels of one head, and how many of them are right: of all samples and of the kept ones.
#[derive(Debug, Default)]
struct Accuracy {
    all: [u64; 2],
    kept: [u64; 2],
}

impl Accuracy {
    fn add(&mut self, right: bool, kept: bool) {
        for counts in [Some(&mut self.all), kept.then_some(&mut self.kept)].into_iter().flatten() {
            counts[0] += 1;
            counts[1] += u64::from(right);
        }
    }

    fn percent(&self) -> LabelAccuracy {
        let percent = |[all, right]: [u64; 2]| (all > 0).then(|| (100 * right) as f64 / all as f64);
        LabelAccuracy { all: percent(self.all), kept: percent(self.kept) }
    }
}

impl Measurements {
    /// Picks up to `samples` of each kind.
    pub(super) fn new(classes: usize, samples: usize) -> Self {
        let (labels, picker) = (vec![0; classes], Picker::new(samples));
        Self { classes, labels, picker, ..Self::default() }
    }

    /// Measures the labels that a client gave its images. `truth` are the labels of all images.
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
        add(&mut self.labels, &counts);
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

    /// Adds the measurements of a round to its record; returns the pseudo-labels by class.
    pub(super) fn complete(&mut self, record: &mut RoundRecord, label_counts: bool) -> Vec<u32> {
        let next = Self::new(self.classes, self.picker.most);
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
            record.kept_deviation = kept_deviation(&kept);
            if label_counts {
                record.label_counts = vec![0; self.classes];
                for (_, counts) in round.clients.values() {
                    add(&mut record.label_counts, counts);
                }
            }
        }
        let samples = round.picker.finish();
        self.picked = samples.map(|samples| Picked { round: record.round, samples });
        round.labels
    }
}

fn add(sums: &mut [u32], counts: &[u32]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}
