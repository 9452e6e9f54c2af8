//! The message from a client.

use super::header::{Header, Kind, PROTOCOL, decode_message, undecodable};
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
    /// The parameters, K = 1.
    pub params: Params,
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
            ClientOutcome::Update(Update { params, samples, kept, losses, labels }) => {
                tensors.extend(params.data("model"));
                let loss = |at: usize| losses.get(at).copied().flatten();
                let (fix_loss, mix_loss) = (loss(0), loss(1));
                let more_losses = losses.get(2..).unwrap_or_default().to_vec();
                let (samples, kept, labels) = (*samples, *kept, labels.clone());
                Kind::Update { samples, kept, fix_loss, mix_loss, more_losses, labels }
            }
            ClientOutcome::NothingKept { samples, labels } => {
                Kind::NothingKept { samples: *samples, labels: labels.clone() }
            }
            ClientOutcome::Failed { reason } => {
                Kind::Failed { reason: reason.chars().take(REASON).collect() }
            }
        };
        let (round, client, method) = (self.round, self.client, self.method.clone());
        Ok((tensors, Header { protocol: PROTOCOL, round, client, method, kind }.encode()?))
    }

    /// Reads a message for a network of this layout.
    pub fn decode(bytes: &[u8], layout: &Layout, device: Device) -> Result<Self> {
        let decoded = decode_message(bytes)?;
        let Header { round, client, method, kind, .. } = Header::decode(&decoded.header)?;
        let mut tensors = BTreeMap::new();
        for (name, tensor) in decoded.f32 {
            let Some(name) = name.strip_prefix("model/") else {
                return Err(undecodable(format!("`{name}` does not belong to an answer")));
            };
            tensors.insert(name.to_owned(), tensor);
        }
        if let Some(name) = decoded.f64.keys().chain(decoded.u16.keys()).next() {
            return Err(undecodable(format!("`{name}` does not belong to an answer")));
        }
        let outcome = match kind {
            Kind::Update { samples, kept, fix_loss, mix_loss, more_losses, labels } => {
                let params = Params::from_decoded(layout, std::mem::take(&mut tensors), device)?;
                let losses = [fix_loss, mix_loss].into_iter().chain(more_losses).collect();
                ClientOutcome::Update(Update { params, samples, kept, losses, labels })
            }
            Kind::NothingKept { samples, labels } => ClientOutcome::NothingKept { samples, labels },
            Kind::Failed { reason } => {
                ClientOutcome::Failed { reason: reason.chars().take(REASON).collect() }
            }
            Kind::Broadcast => return Err(undecodable("the message is not an answer")),
        };
        match tensors.keys().next() {
            Some(name) => Err(undecodable(format!("`{name}` does not belong to this answer"))),
            None => Ok(Self { method, round, client, outcome }),
        }
    }
}
