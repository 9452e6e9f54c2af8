//! Takes in the answers of a round: each is admitted, recorded, and added to the aggregate or rejected.

use super::admission::{Admission, Admitted};
use super::fleet::Arrival;
use super::registry::Registry;
use crate::aggregation::{Norms, Rule};
use crate::config::{Experiment, Weights, WithoutSamples};
use crate::error::Result;
use crate::messages::{ClientOutcome, Update};
use crate::methods::{MeanLosses, Method};
use fedanchor_engine::tensors::Params;
use fedanchor_record::words::excerpt;
use fedanchor_record::{ClientNote, RoundRecord, SiteTest};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Whether clients were asked.
    pub(super) asked: bool,
    pub(super) record: RoundRecord,
    /// The aggregate; `None` if the model is to stay as it is.
    pub(super) aggregate: Option<Params>,
    /// Admitted updates, and clients that had nothing to send.
    pub(super) answers: usize,
    /// The finite losses of all clients, in the method's order.
    pub(super) losses: Vec<Vec<f64>>,
    pub(super) norms: Vec<Norms>,
    /// Clients whose update moved so far that it can hardly be an honest one's.
    pub(super) far_outside: Vec<u32>,
    /// Updates that the method sees one by one.
    pub(super) observed: Vec<(u32, Update)>,
    /// Clients with an update, and clients with a rejection: each counts once per round.
    trained: BTreeSet<u32>,
    rejected: BTreeSet<u32>,
    kept: Vec<usize>,
}

impl Collected {
    /// The mean of every loss over the clients that have it.
    pub(super) fn mean_losses(&self) -> MeanLosses {
        let mean = |losses: &Vec<f64>| {
            let sum = losses.iter().fold(0.0, |sum, loss| sum + loss);
            (!losses.is_empty()).then(|| sum / losses.len() as f64)
        };
        self.losses.iter().map(mean).collect()
    }
}

pub(super) struct Intake<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) method: &'a dyn Method,
    pub(super) admission: Admission,
    pub(super) rule: Box<dyn Rule>,
    pub(super) registry: &'a mut Registry,
    pub(super) observes: bool,
    pub(super) collected: Collected,
}

impl Intake<'_> {
    pub(super) fn take(&mut self, client: u32, arrival: Arrival) -> Result<()> {
        let Collected { record, trained, rejected, losses, .. } = &mut self.collected;
        let note = |reason: &str| ClientNote { client, reason: excerpt(reason) };
        let admitted = match arrival {
            Arrival::Absent => {
                record.absent.push(client);
                return Ok(());
            }
            Arrival::Lost(reason) => {
                record.absent.push(client);
                record.lost.push(note(&reason));
                return Ok(());
            }
            Arrival::Late => {
                // Slow is not hostile: recorded, and not counted against the client.
                if rejected.insert(client) {
                    trained.insert(client);
                    record.rejected.push(note("answered after the round was over"));
                }
                return Ok(());
            }
            Arrival::Answer(answer) => {
                record.bytes_up += answer.encoded_len()?;
                self.admission.admit(client, answer, None)
            }
            Arrival::Encoded(bytes) => {
                record.bytes_up += bytes.len() as u64;
                self.admission.admit_encoded(client, &bytes)
            }
        };
        let Admitted { outcome, norms, clipped, far_outside, tested } = match admitted {
            Ok(Some(admitted)) => admitted,
            Ok(None) => {
                tracing::debug!(client, "the same answer again, ignored");
                return Ok(());
            }
            Err(rejection) => {
                tracing::warn!(client, %rejection, "answer rejected");
                if rejection.counts_as_trained {
                    trained.insert(client);
                }
                // A message that a network delivers again, or a flood of them, is one rejection.
                if rejected.insert(client) {
                    self.registry.reject(client);
                    record.rejected.push(note(&rejection.to_string()));
                }
                return Ok(());
            }
        };
        if self.experiment.record.sites && !tested.is_empty() {
            record.sites.push(SiteTest::new(client, tested));
        }
        match outcome {
            ClientOutcome::Update(mut update) => {
                trained.insert(client);
                record.clipped.extend(clipped.then_some(client));
                for (all, loss) in losses.iter_mut().zip(&update.losses) {
                    all.extend(loss.filter(|loss| loss.is_finite()));
                }
                self.collected.norms.extend(norms);
                self.collected.far_outside.extend(far_outside.then_some(client));
                self.count(update.samples, update.kept, &update.labels);
                self.add(&update)?;
                if self.observes {
                    // Kept beyond this delivery, whose tensors may be views of memory that is used again.
                    update.params = update.params.copy()?;
                    self.collected.observed.push((client, update));
                }
            }
            ClientOutcome::NothingKept { samples, labels } => {
                self.count(samples, 0, &labels);
                if self.experiment.aggregation.without_samples == WithoutSamples::Unchanged {
                    self.add(&self.admission.unchanged(samples)?)?;
                }
            }
            ClientOutcome::Failed { reason } => {
                let note = note(&reason);
                tracing::warn!(client, reason = note.reason, "client failed");
                record.failed.push(note);
            }
        }
        Ok(())
    }

    /// Counts the samples of an admitted answer, and its pseudo-labels by class if they are recorded.
    fn count(&mut self, samples: usize, kept: usize, labels: &[u32]) {
        let (record, classes) = (&mut self.collected.record, self.admission.classes);
        self.collected.answers += 1;
        self.collected.kept.push(kept);
        record.seen = record.seen.saturating_add(samples);
        record.kept = record.kept.saturating_add(kept);
        if self.experiment.record.label_counts && labels.len() == classes {
            record.label_counts.resize(classes, 0);
            let sums = record.label_counts.iter_mut().zip(labels);
            sums.for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        }
    }

    fn add(&mut self, update: &Update) -> Result<()> {
        let weights = self.experiment.aggregation.weights;
        let own = (weights == Weights::Method).then(|| self.method.weight(update)).flatten();
        let weight = own.unwrap_or_else(|| n_m(weights, update));
        self.rule.add(&update.params, weight, &self.admission.sent)
    }

    pub(super) fn finish(self) -> Result<Collected> {
        let mut collected = self.collected;
        collected.record.trained = collected.trained.len();
        collected.record.kept_deviation = kept_deviation(&collected.kept);
        collected.aggregate = self.rule.finish(&self.admission.sent)?;
        Ok(collected)
    }
}

/// n_m of Algorithm 1, line 10.
pub(super) fn n_m(weights: Weights, update: &Update) -> f64 {
    match weights {
        Weights::Samples | Weights::Method => update.samples as f64,
        // A client that counts as unchanged although it kept nothing still needs a weight.
        Weights::Kept => update.kept.max(1) as f64,
        Weights::Uniform => 1.0,
    }
}

/// Standard deviation of the kept samples over clients, dividing by n - 1.
pub(crate) fn kept_deviation(kept: &[usize]) -> Option<f64> {
    let count = kept.len() as f64;
    let mean = kept.iter().fold(0usize, |sum, kept| sum.saturating_add(*kept)) as f64 / count;
    let squares = kept.iter().map(|&kept| (kept as f64 - mean).powi(2));
    (kept.len() > 1).then(|| (squares.sum::<f64>() / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_of_kept_samples_is_over_clients() {
        assert_eq!(kept_deviation(&[]), None);
        assert_eq!(kept_deviation(&[10]), None);
        assert_eq!(kept_deviation(&[10, 14, 18]), Some(4.0));
    }
}
