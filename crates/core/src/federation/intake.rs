//! What the clients' answers come to: each is admitted, counted, and added to the aggregate or named.

use super::admission::{Admission, Admitted, AdmittedUpdate};
use super::fleet::Arrival;
use super::registry::Registry;
use super::rejection::Rejection;
use super::statistics::RoundStatistics;
use crate::aggregation::{Norms, Rule};
use crate::config::{Experiment, Weights, WithoutSamples};
use crate::error::Result;
use crate::messages::Update;
use fedanchor_engine::tensors::Params;
use fedanchor_record::ClientNote;
use fedanchor_record::words::excerpt;
use std::collections::BTreeSet;

/// What a round's answers come to.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Whether clients were asked at all.
    pub(super) asked: bool,
    /// What the updates come to; `None` if the model is to stay as it is.
    pub(super) aggregate: Option<Params>,
    pub(super) statistics: RoundStatistics,
    /// How far the admitted updates move.
    pub(super) norms: Vec<Norms>,
    /// Updates that the method sees one by one.
    pub(super) observed: Vec<(u32, AdmittedUpdate)>,
}

/// Takes answers in, one after the other.
pub(super) struct Intake<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) admission: Admission,
    pub(super) rule: Box<dyn Rule>,
    pub(super) registry: &'a mut Registry,
    pub(super) observes: bool,
    /// How many losses the method names.
    pub(super) losses: usize,
    /// Clients with an update, and clients with a rejection: each counts once per round.
    pub(super) trained: BTreeSet<u32>,
    pub(super) rejected: BTreeSet<u32>,
    pub(super) collected: Collected,
}

impl Intake<'_> {
    /// Whether an answer would count if it were taken now.
    pub(super) fn would_count(&self, client: u32, bytes: &[u8]) -> bool {
        let found = self.admission.check_encoded(client, bytes, self.registry);
        matches!(found, Ok(Admitted::Update(_) | Admitted::NothingKept { .. }))
    }

    pub(super) fn take(&mut self, client: u32, arrival: Arrival) -> Result<()> {
        self.take_answer(client, arrival)?;
        self.collected.statistics.trained = self.trained.len();
        Ok(())
    }

    fn take_answer(&mut self, client: u32, arrival: Arrival) -> Result<()> {
        let statistics = &mut self.collected.statistics;
        let (asked, classes) = (self.experiment.record.label_counts, self.admission.classes());
        let count = |sums: &mut Vec<u32>, labels: &[u32]| {
            if asked && labels.len() == classes {
                sums.resize(classes, 0);
                sums.iter_mut().zip(labels).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
            }
        };
        let note = |reason: &str| ClientNote { client, reason: excerpt(reason) };
        let answer = match arrival {
            Arrival::Absent => {
                statistics.absent.push(client);
                return Ok(());
            }
            Arrival::Lost(reason) => {
                statistics.absent.push(client);
                statistics.lost.push(note(&reason));
                return Ok(());
            }
            Arrival::Late => {
                // Slow is not hostile: named, and not counted against the client.
                if self.rejected.insert(client) {
                    self.trained.insert(client);
                    statistics.rejected.push(note(&Rejection::Late.to_string()));
                }
                return Ok(());
            }
            Arrival::Answer(answer) => {
                statistics.bytes_up += answer.encoded_len()?;
                self.admission.admit(client, answer, None, self.registry)
            }
            Arrival::Encoded(bytes) => {
                statistics.bytes_up += bytes.len() as u64;
                self.admission.admit_encoded(client, &bytes, self.registry)
            }
        };
        match answer {
            Ok(Admitted::Update(update)) => {
                self.trained.insert(client);
                self.collected.norms.extend(update.norms());
                if update.is_clipped() {
                    statistics.clipped.push(client);
                }
                if update.is_far_outside() {
                    statistics.far_outside.push(client);
                }
                statistics.answers += 1;
                statistics.seen = statistics.seen.saturating_add(update.update().samples);
                statistics.add_kept(update.update().kept);
                statistics.add_losses(&update.update().losses, self.losses);
                count(&mut statistics.labels, &update.update().labels);
                let weight = n_m(self.experiment.aggregation.weights, update.update());
                self.rule.add(&update.update().params, weight, self.admission.sent())?;
                if self.observes {
                    // Kept beyond this delivery, whose tensors may be views of what is trained next.
                    self.collected.observed.push((client, update.into_owned()?));
                }
            }
            Ok(Admitted::NothingKept { samples, labels }) => {
                count(&mut statistics.labels, &labels);
                statistics.answers += 1;
                statistics.seen = statistics.seen.saturating_add(samples);
                statistics.add_kept(0);
                if self.experiment.aggregation.without_samples == WithoutSamples::Unchanged {
                    let unchanged = self.admission.unchanged(client, samples)?;
                    let weight = n_m(self.experiment.aggregation.weights, unchanged.update());
                    let params = &unchanged.update().params;
                    self.rule.add(params, weight, self.admission.sent())?;
                }
            }
            Ok(Admitted::Failed { reason }) => {
                let note = note(&reason);
                tracing::warn!(client, reason = note.reason, "client failed");
                statistics.failed.push(note);
            }
            Ok(Admitted::Repeated) => tracing::debug!(client, "the same answer again, ignored"),
            Err(rejection) => {
                tracing::warn!(client, %rejection, "answer rejected");
                if rejection.concerns_an_update() {
                    self.trained.insert(client);
                }
                // A message that a network delivers again, or a flood of them, is one rejection.
                if self.rejected.insert(client) {
                    self.registry.reject(client);
                    statistics.rejected.push(note(&rejection.to_string()));
                }
            }
        }
        Ok(())
    }
}

/// n_m of Algorithm 1, line 10.
pub(super) fn n_m(weights: Weights, update: &Update) -> f64 {
    match weights {
        Weights::Samples => update.samples as f64,
        // A client that counts as unchanged although it kept nothing still needs a weight.
        Weights::Kept => update.kept.max(1) as f64,
        Weights::Uniform => 1.0,
    }
}
