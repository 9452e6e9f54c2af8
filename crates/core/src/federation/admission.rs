//! Admission of answers: everything a client sends is checked before it counts, wherever the client is. A wrong answer
//! is rejected with its reason; too many rejections exclude a client. One client's NaN or wrong shape ends no run and
//! enters no model.

use super::rows::{Measured, Pair, SentRows, is_variance};
use crate::aggregation::{Norms, Row};
use crate::config::ChecksConfig;
use crate::error::Result;
use crate::messages::{Answer, Broadcast, ClientOutcome, Rounding, Update};
use fedanchor_engine::tensors::{Entry, Layout, Params, norm};
use fedanchor_engine::training::Context;
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, TchError, Tensor};

/// The most test images of a class that a client may claim.
const MOST_TESTED: u32 = 1_000_000;

/// An answer that passed the checks.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) outcome: ClientOutcome,
    /// How far an update moves the model, if that was measured.
    pub(super) norms: Option<Norms>,
    /// Whether it moved further than is usual and was clipped.
    pub(super) clipped: bool,
    /// Whether it moved so far that it can hardly be an honest client's.
    pub(super) far_outside: bool,
    /// Its test images by class, and how many of them the model gets right.
    pub(super) tested: Vec<[u32; 2]>,
}

/// Why an answer does not count.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Rejection {
    reason: String,
    /// Whether the client counts as trained: the answer was an update, as far as can be told.
    pub(super) counts_as_trained: bool,
}

impl Rejection {
    fn of_update(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), counts_as_trained: true }
    }

    /// Of a message that need not be an update.
    fn of_message(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), counts_as_trained: false }
    }

    fn undecodable(problem: impl std::fmt::Display) -> Self {
        Self::of_message(format!("sent a message that cannot be decoded: {problem}"))
    }
}

/// Tensors that cannot even be computed with are no update.
impl From<tch::TchError> for Rejection {
    fn from(error: tch::TchError) -> Self {
        Self::undecodable(fedanchor_engine::Error::from(error))
    }
}

/// How much further statistics may move than weights: they follow the client's images, not a step size.
const STATISTICS: f64 = 100.0;

#[derive(Debug)]
pub(super) struct Admission {
    method: String,
    round: u32,
    /// The clients that were asked, and the samples that each reported when it joined.
    asked: BTreeMap<u32, usize>,
    /// The clients that have answered, with a digest of the answer if it came as bytes.
    answered: BTreeMap<u32, Option<blake3::Hash>>,
    /// The entries of the broadcast model that clients send.
    pub(super) sent: Params,
    /// The same, to measure updates by.
    rows: SentRows,
    /// All entries of the network, to decode by.
    layout: Layout,
    device: Device,
    /// The largest distances of the weights and of the statistics of an update; `None` for no limit.
    limit: Option<Norms>,
    /// The usual norms of updates, if there are earlier ones, and the multiple of them to which updates are clipped.
    usual: Option<(Norms, f64)>,
    bytes: u64,
    /// Whether updates are rounded changes.
    rounded: bool,
    checked: bool,
    pub(super) classes: usize,
}

impl Admission {
    /// For the answers to a broadcast of these clients with their samples; `sent` are the entries that clients send. Distances are
    /// relative to these plus the model that they are added to, if there is any. `usual` are the usual norms of updates.
    pub(super) fn new(
        broadcast: &Broadcast,
        asked: BTreeMap<u32, usize>,
        sent: Params,
        summand: Option<&Params>,
        context: &Context,
        checks: &ChecksConfig,
        usual: Option<Norms>,
    ) -> Result<Self> {
        let mut limit = None;
        if checks.distance > 0.0 {
            let statistics = statistics_limit(&sent, checks.distance)?;
            // Of the summand only what a client can send: the same entries.
            let names: BTreeSet<&str> = sent.layout.iter().map(|e| e.name.as_str()).collect();
            let summand = summand.map(|model| model.subset(|e| names.contains(e.name.as_str())));
            let all = sent.weights().chain(summand.iter().flat_map(Params::weights));
            limit = Some(Norms { weights: checks.distance * norm(all)?, statistics });
        }
        let update = Update {
            params: sent.shallow_copy(),
            rounding: broadcast.rounded.then_some(Rounding::Bf16), // the larger of the two
            samples: usize::MAX,
            kept: usize::MAX,
            losses: vec![Some(-f64::MAX); 2],
            labels: vec![u32::MAX; context.classes],
        };
        let (method, round) = (broadcast.method.clone(), broadcast.round);
        let outcome = ClientOutcome::Update(update);
        let expected =
            Answer { method: method.clone(), round, client: u32::MAX, tested: Vec::new(), outcome };
        Ok(Self {
            bytes: (checks.size * expected.encoded_len()? as f64) as u64,
            method,
            round,
            asked,
            answered: BTreeMap::new(),
            rows: SentRows::new(&sent)?,
            sent,
            layout: context.network.layout.clone(),
            device: context.device,
            limit,
            usual: usual.filter(|_| checks.clip > 0.0).map(|usual| (usual, checks.clip)),
            rounded: broadcast.rounded,
            checked: checks.updates,
            classes: context.classes,
        })
    }

    /// The unchanged model as the update of a client that kept no sample.
    pub(super) fn unchanged(&self, samples: usize) -> Result<Update> {
        let (params, losses, labels) = (self.sent.copy()?, Vec::new(), Vec::new());
        Ok(Update { params, rounding: None, samples, kept: 0, losses, labels })
    }

    /// Decodes an answer and admits it. `client` is the sender according to the transport.
    pub(super) fn admit_encoded(
        &mut self,
        client: u32,
        bytes: &[u8],
    ) -> Result<Option<Admitted>, Rejection> {
        let answer = self.decode(bytes)?;
        self.admit(client, answer, Some(blake3::hash(bytes)))
    }

    /// Whether a client's first answer would count, without admitting it.
    pub(super) fn would_count(&self, client: u32, bytes: &[u8]) -> bool {
        let judged = self.decode(bytes).and_then(|answer| {
            self.check_header(client, &answer)?;
            self.judge(client, answer.outcome)
        });
        judged.is_ok_and(|found| !matches!(found.outcome, ClientOutcome::Failed { .. }))
    }

    fn decode(&self, bytes: &[u8]) -> Result<Answer, Rejection> {
        if self.checked && bytes.len() as u64 > self.bytes {
            let reason = format!("sent {} bytes; the limit is {}", bytes.len(), self.bytes);
            return Err(Rejection::of_update(reason));
        }
        Answer::decode(bytes, &self.layout, self.device).map_err(Rejection::undecodable)
    }

    /// Admits an answer. `client` is the sender according to the transport, `digest` the one of the answer's bytes.
    /// `None` is the same answer again: a message delivered twice.
    pub(super) fn admit(
        &mut self,
        client: u32,
        answer: Answer,
        digest: Option<blake3::Hash>,
    ) -> Result<Option<Admitted>, Rejection> {
        self.check_header(client, &answer)?;
        if self.checked {
            if let Some(first) = self.answered.get(&client) {
                return match first.is_some() && *first == digest {
                    true => Ok(None),
                    false => Err(Rejection::of_message("sent two different answers")),
                };
            }
            self.answered.insert(client, digest);
        }
        let admitted = self.judge(client, answer.outcome)?;
        Ok(Some(Admitted { tested: answer.tested, ..admitted }))
    }

    fn judge(&self, client: u32, outcome: ClientOutcome) -> Result<Admitted, Rejection> {
        let (norms, clipped, far_outside, tested) = (None, false, false, Vec::new());
        let mut admitted = Admitted { outcome, norms, clipped, far_outside, tested };
        if let ClientOutcome::Update(update) = &mut admitted.outcome {
            let rounded = update.rounding.take().is_some();
            if rounded != self.rounded {
                return Err(Rejection::of_update(
                    "sent numbers in another format than was asked for",
                ));
            }
            if rounded {
                update.params = self.add_change(&update.params)?;
            }
        }
        match &mut admitted.outcome {
            _ if !self.checked => {}
            ClientOutcome::Update(update) => {
                let norms = self.check_tensors(&update.params)?;
                self.check_counts(client, update.samples, update.kept, &update.labels)?;
                admitted.norms = Some(norms);
                if let Some((usual, factor)) = self.usual {
                    let most = usual.times(factor);
                    if let Some(clipped) = self.clip(&update.params, norms, most)? {
                        (update.params, admitted.clipped) = (clipped, true);
                        admitted.far_outside = norms.is_far_outside(usual);
                    }
                    admitted.norms = Some(norms.at_most(most));
                }
            }
            ClientOutcome::NothingKept { samples, labels } => {
                self.check_counts(client, *samples, 0, labels)?;
            }
            ClientOutcome::Failed { .. } => {}
        }
        Ok(admitted)
    }

    /// An update with these norms, clipped to `most`; `None` if it is within it.
    fn clip(
        &self,
        params: &Params,
        norms: Norms,
        most: Norms,
    ) -> Result<Option<Params>, Rejection> {
        if norms.at_most(most) == norms {
            return Ok(None);
        }
        let clipped = (|| {
            let clipped = norms.clip(&Row::of(params)?, &Row::of(&self.sent)?, most)?;
            clipped.map(|row| row.params(params)).transpose()
        })();
        clipped.map_err(Rejection::undecodable)
    }

    /// A client has at least one sample, and at most as many as when it joined. Label counts are one number per class
    /// and no more than there are samples, or empty.
    fn check_counts(
        &self,
        client: u32,
        samples: usize,
        kept: usize,
        labels: &[u32],
    ) -> Result<(), Rejection> {
        let (classes, count) = (labels.len(), labels.iter().map(|&n| u64::from(n)).sum::<u64>());
        let reason =
            if samples == 0 || samples > self.asked.get(&client).copied().unwrap_or_default() {
                format!("claims {samples} samples")
            } else if kept > samples {
                format!("claims {kept} kept samples of {samples}")
            } else if classes != 0 && (classes != self.classes || count > samples as u64) {
                format!("claims {count} pseudo-labels of {classes} classes")
            } else {
                return Ok(());
            };
        Err(Rejection::of_update(reason))
    }

    fn check_header(&self, client: u32, answer: &Answer) -> Result<(), Rejection> {
        let Answer { method, round, client: claimed, tested, .. } = answer;
        if !self.checked {
            return Ok(());
        }
        let possible = |[images, right]: &[u32; 2]| right <= images && *images <= MOST_TESTED;
        if ![0, self.classes].contains(&tested.len()) || !tested.iter().all(possible) {
            return Err(Rejection::of_update("claims impossible results of a test"));
        }
        if !self.asked.contains_key(&client) {
            return Err(Rejection::of_message("was not drawn in this round"));
        }
        let reason = if *round != self.round {
            format!("sent an answer for round {round}")
        } else if *claimed != client {
            format!("sent an answer as client {claimed}")
        } else if *method != self.method {
            format!("sent an answer of method {:?}", method.chars().take(40).collect::<String>())
        } else {
            return Ok(());
        };
        Err(Rejection::of_update(reason))
    }

    fn check_tensors(&self, params: &Params) -> Result<Norms, Rejection> {
        let refused = |what: String| Err(Rejection::of_update(what));
        let pairs = self.pair_up(params)?;
        // All tensors at once: a good update has nothing to name.
        let Measured { norms, lowest_variance } = self.rows.measure(&pairs)?;
        if !(norms.weights + norms.statistics).is_finite() {
            for &(Entry { name, .. }, tensor, sent) in &pairs {
                // Finite numbers whose square is not are too far as well.
                if !tensor.f_sub(sent)?.f_norm()?.f_double_value(&[])?.is_finite() {
                    return refused(format!("sent `{name}` with a value that is not finite"));
                }
            }
        }
        if lowest_variance < 0.0 {
            for &(entry, tensor, _) in pairs.iter().filter(|(entry, ..)| is_variance(entry)) {
                if tensor.f_min()?.f_double_value(&[])? < 0.0 {
                    return refused(format!("sent `{}` with a negative variance", entry.name));
                }
            }
        }
        let Some(limit) = self.limit else { return Ok(norms) };
        for (far, limit) in [(norms.weights, limit.weights), (norms.statistics, limit.statistics)] {
            if far > limit {
                return refused(format!(
                    "moved {far:.3e} from the broadcast model; the limit is {limit:.3e}"
                ));
            }
        }
        Ok(norms)
    }

    /// The model with a change, which was rounded: a variance near 0 may have become negative by that.
    fn add_change(&self, change: &Params) -> Result<Params, Rejection> {
        let pairs = self.pair_up(change)?.into_iter();
        let sums = pairs.map(|(entry, change, sent)| {
            let sum = sent.f_add(change)?;
            // 0, or what is not finite: that must not become a number.
            let bad = || change.f_mul_scalar(0.0);
            if is_variance(entry) { sum.f_clamp_min(0.0)?.f_add(&bad()?) } else { Ok(sum) }
        });
        let tensors = sums.collect::<Result<_, TchError>>()?;
        Ok(Params { tensors, layout: self.sent.layout.clone() })
    }

    /// Every tensor that was sent with the one that came back, if they are the same ones.
    fn pair_up<'a>(&'a self, params: &'a Params) -> Result<Vec<Pair<'a>>, Rejection> {
        let mut there: BTreeMap<&str, &Tensor> =
            params.layout.iter().map(|entry| entry.name.as_str()).zip(&params.tensors).collect();
        let mut pairs = Vec::new();
        for (entry, sent) in self.sent.layout.iter().zip(&self.sent.tensors) {
            let name = &entry.name;
            let tensor = there.remove(name.as_str());
            let tensor = tensor.ok_or_else(|| Rejection::of_update(format!("sent no `{name}`")))?;
            if tensor.size() != sent.size() || tensor.kind() != sent.kind() {
                let what = format!("sent `{name}` with another shape or number type");
                return Err(Rejection::of_update(what));
            }
            pairs.push((entry, tensor, sent));
        }
        match there.keys().next() {
            Some(extra) => {
                let reason = format!("sent `{extra}`, which does not belong to the update");
                Err(Rejection::of_update(reason))
            }
            None => Ok(pairs),
        }
    }
}

/// The largest distance of an update's statistics from those that were sent.
pub(crate) fn statistics_limit(sent: &Params, distance: f64) -> Result<f64> {
    let statistics = sent.entries().filter(|(entry, _)| entry.statistic).map(|(_, tensor)| tensor);
    Ok(STATISTICS * distance * (1.0 + norm(statistics)?))
}

#[cfg(test)]
mod tests;
