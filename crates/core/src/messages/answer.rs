//! The message from a client.

use super::Rounding;
use super::header::{Header, Kind, PROTOCOL, decode_message, undecodable};
use super::rounding::scale;
use crate::error::Result;
use fedanchor_engine::tensors::{Data, Layout, Params, encode, encoded_len};
use std::collections::BTreeMap;
use tch::Device;

/// The answer of a client to a broadcast.
#[derive(Debug)]
#[allow(missing_docs)] // of what the name says
pub struct Answer {
    pub method: String,
    pub round: u32,
    /// The client's number, as the client claims it.
    pub client: u32,
    /// By class, the client's labelled test images and how many of them the broadcast model gets right; empty without such
    /// images, or where `record.sites` does not ask for it.
    pub tested: Vec<[u32; 2]>,
    pub outcome: ClientOutcome,
}

/// The result of a client's round.
#[derive(Debug)]
#[allow(missing_docs)] // of what the name says
pub enum ClientOutcome {
    /// It trained.
    Update(Update),
    /// It kept no sample to train on.
    NothingKept {
        /// Its local samples.
        samples: usize,
        /// Their pseudo-labels by class, where `record.label_counts` asks for them; otherwise empty.
        labels: Vec<u32>,
    },
    /// It could not train.
    Failed { reason: String },
}

/// Trained parameters, and a few numbers about them.
#[derive(Debug)]
pub struct Update {
    /// The parameters, K = 1; or their change since the broadcast, rounded.
    pub params: Params,
    /// How the change was rounded; `None` for parameters.
    pub rounding: Option<Rounding>,
    /// Its local samples.
    pub samples: usize,
    /// The samples it kept.
    pub kept: usize,
    /// Its mean losses over its steps, in the order of the method's names for them.
    pub losses: Vec<Option<f64>>,
    /// Its pseudo-labels by class, where `record.label_counts` asks for them; otherwise empty.
    pub labels: Vec<u32>,
}

/// The longest reason that is sent, in characters.
const REASON: usize = 500;

impl Answer {
    /// The message.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (tensors, header) = self.content()?;
        Ok(encode(&tensors, &header)?)
    }

    /// The length of the message.
    pub fn encoded_len(&self) -> Result<u64> {
        let (tensors, header) = self.content()?;
        Ok(encoded_len(&tensors, &header)?)
    }

    /// The same with its own tensors instead of views.
    pub(crate) fn into_owned(mut self) -> Result<Self> {
        if let ClientOutcome::Update(update) = &mut self.outcome {
            update.params = update.params.copy()?;
        }
        Ok(self)
    }

    pub(super) fn content(&self) -> Result<(Vec<(String, Data<'_>)>, String)> {
        let mut tensors = Vec::new();
        let kind = match &self.outcome {
            ClientOutcome::Update(update) => {
                let Update { params, rounding, samples, kept, losses, labels } = update;
                let mut exponents = Vec::new();
                match rounding {
                    None => tensors.extend(params.data("model")),
                    Some(rounding) => tensors.extend(rounding.data(params)),
                }
                if let Some(Rounding::Int8(all)) = rounding {
                    exponents.clone_from(all);
                }
                let loss = |at: usize| losses.get(at).copied().flatten();
                let (fix_loss, mix_loss) = (loss(0), loss(1));
                let more_losses = losses.get(2..).unwrap_or_default().to_vec();
                let (samples, kept, labels) = (*samples, *kept, labels.clone());
                Kind::Update { samples, kept, fix_loss, mix_loss, more_losses, labels, exponents }
            }
            ClientOutcome::NothingKept { samples, labels } => {
                Kind::NothingKept { samples: *samples, labels: labels.clone() }
            }
            ClientOutcome::Failed { reason } => {
                Kind::Failed { reason: reason.chars().take(REASON).collect() }
            }
        };
        let (round, client, method) = (self.round, self.client, self.method.clone());
        let tested = self.tested.clone();
        let header = Header { protocol: PROTOCOL, round, client, method, tested, kind };
        Ok((tensors, header.encode()?))
    }

    /// Reads a message for a network of this layout.
    pub fn decode(bytes: &[u8], layout: &Layout, device: Device) -> Result<Self> {
        let decoded = decode_message(bytes)?;
        let Header { round, client, method, tested, kind, .. } = Header::decode(&decoded.header)?;
        if let Some(name) = decoded.f64.keys().chain(decoded.u16.keys()).next() {
            return Err(undecodable(format!("`{name}` does not belong to an answer")));
        }
        let exponents = match &kind {
            Kind::Update { exponents, .. } => exponents.clone(),
            _ => Vec::new(),
        };
        let rounding = match (decoded.bf16.is_empty(), decoded.i8.is_empty()) {
            (true, true) => None,
            (false, true) => Some(Rounding::Bf16),
            (_, false) => Some(Rounding::Int8(exponents)),
        };
        // In bytes are weights and nothing else, beside them statistics in bfloat16.
        let statistic = |name: &str| {
            let name = name.strip_prefix("model/").unwrap_or(name);
            layout.iter().any(|entry| entry.statistic && entry.name == name)
        };
        let in_bytes = matches!(rounding, Some(Rounding::Int8(_)));
        let mixed = rounding.is_some() && !decoded.f32.is_empty()
            || decoded.i8.keys().any(|name| statistic(name))
            || in_bytes && decoded.bf16.keys().any(|name| !statistic(name));
        if mixed {
            return Err(undecodable("its tensors have number formats that do not fit together"));
        }
        let mut tensors = BTreeMap::new();
        for (name, tensor) in decoded.f32.into_iter().chain(decoded.bf16).chain(decoded.i8) {
            let Some(name) = name.strip_prefix("model/") else {
                return Err(undecodable(format!("`{name}` does not belong to an answer")));
            };
            tensors.insert(name.to_owned(), tensor);
        }
        let outcome = match kind {
            Kind::Update { samples, kept, fix_loss, mix_loss, more_losses, labels, .. } => {
                let params = Params::from_decoded(layout, std::mem::take(&mut tensors), device)?;
                if let Some(Rounding::Int8(exponents)) = &rounding {
                    scale(&params, exponents)?;
                }
                let losses = [fix_loss, mix_loss].into_iter().chain(more_losses).collect();
                ClientOutcome::Update(Update { params, rounding, samples, kept, losses, labels })
            }
            Kind::NothingKept { samples, labels } => ClientOutcome::NothingKept { samples, labels },
            Kind::Failed { reason } => {
                ClientOutcome::Failed { reason: reason.chars().take(REASON).collect() }
            }
            Kind::Broadcast => return Err(undecodable("the message is not an answer")),
        };
        match tensors.keys().next() {
            Some(name) => Err(undecodable(format!("`{name}` does not belong to this answer"))),
            None => Ok(Self { method, round, client, tested, outcome }),
        }
    }
}
