//! What a client sends back.

use super::header::{Header, Kind, PROTOCOL, decode_message, undecodable};
use crate::error::Result;
use fedanchor_engine::tensors::{Data, Layout, Params, encode, encoded_len};
use std::collections::BTreeMap;
use tch::Device;

/// What a client sends back.
#[derive(Debug)]
pub struct Answer {
    /// The method's name.
    pub method: String,
    /// The round it is for.
    pub round: u32,
    /// The client's number, as the client claims it.
    pub client: u32,
    /// What became of the client's round.
    pub outcome: ClientOutcome,
}

/// What became of a client's round.
#[derive(Debug)]
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
    Failed {
        /// Why.
        reason: String,
    },
}

/// What a client trained: weights, and a few numbers about them.
#[derive(Debug)]
pub struct Update {
    /// What it trained, K = 1.
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
        let (tensors, header) = self.content();
        Ok(encode(&tensors, &header.encode()?)?)
    }

    /// The length of the message.
    pub fn encoded_len(&self) -> Result<u64> {
        let (tensors, header) = self.content();
        Ok(encoded_len(&tensors, &header.encode()?)?)
    }

    fn content(&self) -> (Vec<(String, Data<'_>)>, Header) {
        let kind = match &self.outcome {
            ClientOutcome::Update(Update { samples, kept, losses, labels, .. }) => {
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
        let tensors = match &self.outcome {
            ClientOutcome::Update(update) => update.params.data("model").collect(),
            _ => Vec::new(),
        };
        let (round, client, method) = (self.round, self.client, self.method.clone());
        (tensors, Header { protocol: PROTOCOL, round, client, method, kind })
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use fedanchor_engine::tensors::{Entry, Part};
    use std::sync::Arc;
    use tch::Tensor;

    pub(in super::super) fn layout() -> Layout {
        let entry = |name: &str, shape: &[i64], part, statistic| Entry {
            name: name.into(),
            shape: shape.into(),
            part,
            statistic,
        };
        Arc::new(vec![
            entry("conv.weight", &[2, 1], Part::Backbone, false),
            entry("bn.mean", &[2], Part::Backbone, true),
            entry("classifier.weight", &[1, 2], Part::Classifier, false),
        ])
    }

    pub(in super::super) fn params(layout: &Layout, value: f32) -> Params {
        let tensors = layout.iter().map(|entry| {
            let mut shape = vec![1];
            shape.extend(&entry.shape);
            Tensor::from_slice(&[value, value / 3.0]).reshape(&shape)
        });
        Params { tensors: tensors.collect(), layout: layout.clone() }
    }

    fn answer(outcome: ClientOutcome) -> Answer {
        Answer { method: "fedanchor".to_owned(), round: 3, client: 5, outcome }
    }

    fn update() -> ClientOutcome {
        let losses = vec![Some(0.1 + 0.2), None, Some(7.0)];
        let params = params(&layout(), 0.7);
        ClientOutcome::Update(Update { params, samples: 297, kept: 12, losses, labels: vec![3, 0] })
    }

    #[test]
    fn answers_arrive_exactly_and_their_length_is_known_before() {
        let all = [
            update(),
            ClientOutcome::NothingKept { samples: 31, labels: vec![30, 1] },
            ClientOutcome::Failed { reason: "out of \"memory\"".to_owned() },
        ];
        for outcome in all {
            let sent = answer(outcome);
            let bytes = sent.encode().unwrap();
            assert_eq!(bytes.len() as u64, sent.encoded_len().unwrap());
            let found = Answer::decode(&bytes, &layout(), Device::Cpu).unwrap();
            assert_eq!((found.round, found.client, &found.method), (3, 5, &sent.method));
            match (&found.outcome, &sent.outcome) {
                (ClientOutcome::Update(found), ClientOutcome::Update(sent)) => {
                    assert_eq!(found.params.tensors, sent.params.tensors);
                    assert_eq!((found.samples, found.kept), (297, 12));
                    assert_eq!((&found.losses, &found.labels), (&sent.losses, &sent.labels));
                }
                (ClientOutcome::NothingKept { samples, labels }, _) => {
                    assert_eq!((*samples, &labels[..]), (31, &[30, 1][..]));
                }
                (ClientOutcome::Failed { reason }, ClientOutcome::Failed { .. }) => {
                    assert_eq!(reason, "out of \"memory\"");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn foreign_tensors_are_refused() {
        let mut sent = answer(update());
        let ClientOutcome::Update(update) = &mut sent.outcome else { panic!() };
        let mut other: Vec<Entry> = update.params.layout.to_vec();
        other[0].name = "x".to_owned();
        update.params.layout = Arc::new(other);
        let error = Answer::decode(&sent.encode().unwrap(), &layout(), Device::Cpu).unwrap_err();
        assert_eq!(error.to_string(), "`x` does not belong to this network");
        let broadcast = super::super::Broadcast::new("fedanchor", 3, params(&layout(), 1.0));
        let error = Answer::decode(&broadcast.encode(5).unwrap(), &layout(), Device::Cpu);
        assert_eq!(error.unwrap_err().to_string(), "the message is not an answer");
    }

    /// Sizes are compared with the bytes that are there, and with the network, before anything is allocated.
    #[test]
    fn sizes_that_lie_are_refused() {
        let header = answer(update()).content().1.encode().unwrap();
        let metadata = serde_json::json!({ "fedanchor": header });
        for shape in [
            "[0,9223372036854775807]",
            "[0,18446744073709551615]",
            "[18446744073709551615,0]",
            "[4294967296,4294967296,0]",
            "[1099511627776]",
            "[1,4611686018427387905]", // four bytes, if the product wraps around
        ] {
            let index = format!(
                "{{\"__metadata__\":{metadata},\"model/conv.weight\":\
                 {{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,0]}}}}"
            );
            let bytes = [&(index.len() as u64).to_le_bytes()[..], index.as_bytes()].concat();
            assert!(Answer::decode(&bytes, &layout(), Device::Cpu).is_err(), "{shape}");
        }
    }

    #[test]
    fn a_reason_is_cut() {
        let sent = answer(ClientOutcome::Failed { reason: "x".repeat(10_000) });
        assert!(sent.encode().unwrap().len() < 1000);
    }
}
