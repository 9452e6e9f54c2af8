//! Admission of answers: everything a client sends is checked before it counts, the same for simulated
//! and for real clients. What is wrong is rejected and named; too many rejections exclude a client. One
//! client's NaN or wrong shape ends no run and enters no model.

use super::fleet::ClientKey;
use super::registry::Registry;
use super::rejection::Rejection;
use super::rows::{Measured, Pair, SentRows, is_variance};
use crate::aggregation::Norms;
use crate::config::ChecksConfig;
use crate::error::Result;
use crate::messages::{Answer, Broadcast, ClientOutcome, Update};
use fedanchor_engine::tensors::{Layout, Params, norm};
use fedanchor_engine::training::Context;
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Tensor};

/// An answer that counts.
#[derive(Debug)]
pub enum Admitted {
    /// An update.
    Update(AdmittedUpdate),
    /// The client kept no sample.
    NothingKept {
        /// Its samples.
        samples: usize,
        /// Their pseudo-labels by class, where they were asked for.
        labels: Vec<u32>,
    },
    /// The client could not train.
    Failed {
        /// Why.
        reason: String,
    },
    /// The same answer once more: a message delivered twice.
    Repeated,
}

/// An update that passed every check. Only [`Admission`] makes one.
#[derive(Debug)]
pub struct AdmittedUpdate {
    client: u32,
    update: Update,
    /// How far it moves, where that was measured.
    norms: Option<Norms>,
    clipped: bool,
    far_outside: bool,
}

impl AdmittedUpdate {
    /// Whose it is.
    pub fn client(&self) -> u32 {
        self.client
    }

    /// The update.
    pub fn update(&self) -> &Update {
        &self.update
    }

    /// How far it moves, where that was measured.
    pub(super) fn norms(&self) -> Option<Norms> {
        self.norms
    }

    /// Whether it moved further than is usual and was clipped.
    pub(super) fn is_clipped(&self) -> bool {
        self.clipped
    }

    /// Whether it was clipped and moved so far that it can hardly be an honest client's.
    pub(super) fn is_far_outside(&self) -> bool {
        self.far_outside
    }

    /// With tensors of its own.
    pub(super) fn into_owned(mut self) -> Result<Self> {
        self.update.params = self.update.params.copy()?;
        Ok(self)
    }
}

/// How much further statistics may move than weights: they follow the client's images, not a step size.
const STATISTICS: f64 = 100.0;

/// A digest of an encoded answer.
pub(super) type Digest = blake3::Hash;

/// Admission to one round.
#[derive(Debug)]
pub struct Admission {
    method: String,
    round: u32,
    asked: BTreeSet<u32>,
    /// Who has answered, with a digest of the answer where it came as bytes.
    answered: BTreeMap<u32, Option<Digest>>,
    /// What was broadcast, of the entries that come back.
    sent: Params,
    /// The same, to measure updates by.
    rows: SentRows,
    /// All entries of the network, to decode by.
    layout: Layout,
    device: Device,
    /// The largest distance of the weights of an update, and of its statistics; none if unlimited.
    limit: Option<(f64, f64)>,
    /// How far updates usually move, and how many times as far one may move without being clipped; none if there is
    /// no limit or nothing is usual yet.
    usual: Option<(Norms, f64)>,
    /// The largest message.
    bytes: u64,
    /// Whether anything is checked.
    checked: bool,
    classes: usize,
}

impl Admission {
    /// For the answers of these clients to a broadcast; `sent` are the entries that come back. Distances
    /// are relative to these and to the model that they are added to, if there is any. `usual` is how far
    /// updates usually move.
    pub fn new(
        broadcast: &Broadcast,
        clients: &[(u32, ClientKey)],
        sent: Params,
        summand: Option<&Params>,
        context: &Context,
        checks: &ChecksConfig,
        usual: Option<Norms>,
    ) -> Result<Self> {
        let limit = match checks.distance > 0.0 {
            true => {
                let far = statistics_limit(&sent, checks.distance)?;
                // Of the summand only what a client can send: the same entries.
                let names: BTreeSet<&str> = sent.layout.iter().map(|e| e.name.as_str()).collect();
                let beside = summand.map(|model| model.subset(|e| names.contains(e.name.as_str())));
                let all = sent.weights().chain(beside.iter().flat_map(Params::weights));
                Some((checks.distance * norm(all)?, far))
            }
            false => None,
        };
        let update = Update {
            params: sent.shallow_copy(),
            samples: usize::MAX,
            kept: usize::MAX,
            losses: vec![Some(-f64::MAX); 2],
            labels: vec![u32::MAX; context.classes],
        };
        let (method, round) = (broadcast.method.clone(), broadcast.round);
        let outcome = ClientOutcome::Update(update);
        let expected = Answer { method: method.clone(), round, client: u32::MAX, outcome };
        Ok(Self {
            bytes: (checks.size * expected.encoded_len()? as f64) as u64,
            method,
            round,
            asked: clients.iter().map(|(number, _)| *number).collect(),
            answered: BTreeMap::new(),
            rows: SentRows::new(&sent)?,
            sent,
            layout: context.network.layout.clone(),
            device: context.device,
            limit,
            usual: usual.filter(|_| checks.clip > 0.0).map(|usual| (usual, checks.clip)),
            checked: checks.updates,
            classes: context.classes,
        })
    }

    /// The number of classes.
    pub(super) fn classes(&self) -> usize {
        self.classes
    }

    /// What was broadcast, of the entries that come back.
    pub fn sent(&self) -> &Params {
        &self.sent
    }

    /// The update of a client that counts as unchanged.
    pub(super) fn unchanged(&self, client: u32, samples: usize) -> Result<AdmittedUpdate> {
        let (params, losses) = (self.sent.copy()?, Vec::new());
        let update = Update { params, samples, kept: 0, losses, labels: Vec::new() };
        Ok(AdmittedUpdate { client, update, norms: None, clipped: false, far_outside: false })
    }

    /// Decodes an answer and admits it. `client` is who sent it, according to the transport.
    pub fn admit_encoded(
        &mut self,
        client: u32,
        bytes: &[u8],
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        let answer = self.decode(bytes)?;
        self.admit(client, answer, Some(blake3::hash(bytes)), registry)
    }

    /// What a client's first answer would come to. Nothing is remembered of it.
    pub(super) fn check_encoded(
        &self,
        client: u32,
        bytes: &[u8],
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        let answer = self.decode(bytes)?;
        if self.checked {
            self.check_header(client, &answer)?;
        }
        self.judge(client, answer, registry)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Answer, Rejection> {
        if self.checked && bytes.len() as u64 > self.bytes {
            return Err(Rejection::Size(bytes.len() as u64, self.bytes));
        }
        Answer::decode(bytes, &self.layout, self.device)
            .map_err(|error| Rejection::Undecodable(error.to_string()))
    }

    /// Admits an answer. `client` is who sent it, according to the transport; `digest` that of its bytes.
    pub fn admit(
        &mut self,
        client: u32,
        answer: Answer,
        digest: Option<Digest>,
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        if self.checked {
            self.check_header(client, &answer)?;
            if let Some(first) = self.answered.get(&client) {
                let same = first.is_some() && *first == digest;
                return if same { Ok(Admitted::Repeated) } else { Err(Rejection::Conflicting) };
            }
            self.answered.insert(client, digest);
        }
        self.judge(client, answer, registry)
    }

    /// Checks what an answer holds, beyond its header.
    fn judge(
        &self,
        client: u32,
        answer: Answer,
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        match answer.outcome {
            ClientOutcome::Update(mut update) => {
                let (mut norms, mut clipped, mut far_outside) = (None, false, false);
                if self.checked {
                    let found = self.check_tensors(&update.params)?;
                    check_samples(registry, client, update.samples)?;
                    if update.kept > update.samples {
                        return Err(Rejection::Kept(update.kept, update.samples));
                    }
                    self.check_labels(&update.labels, update.samples)?;
                    norms = Some(found);
                    if let Some((usual, factor)) = self.usual {
                        let most = usual.times(factor);
                        if let Some(short) = found.clip(&update.params, &self.sent, most)? {
                            (update.params, clipped) = (short, true);
                            far_outside = found.is_far_outside(usual);
                        }
                        norms = Some(found.at_most(most));
                    }
                }
                let admitted = AdmittedUpdate { client, update, norms, clipped, far_outside };
                Ok(Admitted::Update(admitted))
            }
            ClientOutcome::NothingKept { samples, labels } => {
                if self.checked {
                    check_samples(registry, client, samples)?;
                    self.check_labels(&labels, samples)?;
                }
                Ok(Admitted::NothingKept { samples, labels })
            }
            ClientOutcome::Failed { reason } => Ok(Admitted::Failed { reason }),
        }
    }

    /// Label counts are one number per class and no more than there are samples, or none at all.
    fn check_labels(&self, counts: &[u32], samples: usize) -> Result<(), Rejection> {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        match counts.len() {
            0 => Ok(()),
            classes if classes == self.classes && total <= samples as u64 => Ok(()),
            classes => Err(Rejection::Labels(total, classes)),
        }
    }

    fn check_header(&self, client: u32, answer: &Answer) -> Result<(), Rejection> {
        match answer {
            _ if !self.asked.contains(&client) => Err(Rejection::Unexpected),
            Answer { round, .. } if *round != self.round => Err(Rejection::OtherRound(*round)),
            Answer { client: claimed, .. } if *claimed != client => {
                Err(Rejection::OtherClient(*claimed))
            }
            Answer { method, .. } if *method != self.method => {
                Err(Rejection::OtherMethod(method.chars().take(40).collect()))
            }
            _ => Ok(()),
        }
    }

    fn check_tensors(&self, params: &Params) -> Result<Norms, Rejection> {
        let pairs = self.pair_up(params)?;
        // All tensors at once: a good update has nothing to name.
        let Measured { weights: far, statistics, lowest_variance } = self.rows.measure(&pairs)?;
        if !(far + statistics).is_finite() {
            for &(entry, tensor, sent) in &pairs {
                // Finite numbers whose square is not are too far as well.
                if !tensor.f_sub(sent)?.f_norm()?.f_double_value(&[])?.is_finite() {
                    return Err(Rejection::NotFinite(entry.name.clone()));
                }
            }
        }
        if lowest_variance < 0.0 {
            for &(entry, tensor, _) in pairs.iter().filter(|(entry, ..)| is_variance(entry)) {
                if tensor.f_min()?.f_double_value(&[])? < 0.0 {
                    return Err(Rejection::Negative(entry.name.clone()));
                }
            }
        }
        let norms = Norms { weights: far, statistics };
        let Some((most, most_of_statistics)) = self.limit else { return Ok(norms) };
        match (far > most, statistics > most_of_statistics) {
            (true, _) => Err(Rejection::TooFar(far, most)),
            (_, true) => Err(Rejection::TooFar(statistics, most_of_statistics)),
            _ => Ok(norms),
        }
    }

    /// Every tensor that was sent with the one that came back, if they are the same ones.
    fn pair_up<'a>(&'a self, params: &'a Params) -> Result<Vec<Pair<'a>>, Rejection> {
        let mut there: BTreeMap<&str, &Tensor> =
            params.layout.iter().map(|entry| entry.name.as_str()).zip(&params.tensors).collect();
        let mut pairs = Vec::new();
        for (entry, sent) in self.sent.layout.iter().zip(&self.sent.tensors) {
            let tensor = there.remove(entry.name.as_str());
            let tensor = tensor.ok_or_else(|| Rejection::Missing(entry.name.clone()))?;
            if tensor.size() != sent.size() || tensor.kind() != sent.kind() {
                return Err(Rejection::Shape(entry.name.clone()));
            }
            pairs.push((entry, tensor, sent));
        }
        match there.keys().next() {
            Some(extra) => Err(Rejection::Extra((*extra).to_owned())),
            None => Ok(pairs),
        }
    }
}

/// The largest distance of an update's statistics from those that were sent.
pub(crate) fn statistics_limit(sent: &Params, distance: f64) -> Result<f64> {
    let statistics = sent.layout.iter().zip(&sent.tensors);
    let statistics = statistics.filter(|(entry, _)| entry.statistic).map(|(_, tensor)| tensor);
    Ok(STATISTICS * distance * (1.0 + norm(statistics)?))
}

fn check_samples(registry: &Registry, client: u32, samples: usize) -> Result<(), Rejection> {
    match samples {
        0 => Err(Rejection::Samples(0)),
        samples if samples > registry.samples(client) => Err(Rejection::Samples(samples)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
