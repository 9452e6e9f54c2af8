//! Training at a node, round by round: requests in, answers out, and what clients keep on disk between the two.

use super::refusal::{PRIVATE, Refusal};
use super::state::{Kept, StateFolder};
use super::{Site, limits};
use crate::protocol::{NOT_JOINED, TrainHeader, push_part, split_parts};
use axum::body::Bytes;
use axum::http::StatusCode;
use fedanchor::Error;
use fedanchor::clients::LocalClients;
use fedanchor::messages::{Answer, Broadcast, ClientOutcome};
use std::collections::BTreeSet;

/// Trains the clients of a node, round by round.
pub(super) struct Trainer<'a> {
    site: &'a Site,
    clients: LocalClients<'a>,
    folder: &'a StateFolder,
    /// The last request and its reply: a request that a transport delivers again is not trained again.
    last: Option<(blake3::Hash, Bytes)>,
    /// Clients that have trained without anything kept from a round before.
    new: BTreeSet<String>,
}

impl<'a> Trainer<'a> {
    pub(super) fn new(site: &'a Site, clients: LocalClients<'a>, folder: &'a StateFolder) -> Self {
        Self { site, clients, folder, last: None, new: BTreeSet::new() }
    }

    pub(super) fn train(&mut self, body: &[u8]) -> (u16, Bytes) {
        let digest = blake3::hash(body);
        if let Some((last, reply)) = &self.last
            && *last == digest
        {
            return (StatusCode::OK.as_u16(), reply.clone());
        }
        match self.train_anew(body) {
            Ok(reply) => {
                self.last = Some((digest, reply.clone()));
                (StatusCode::OK.as_u16(), reply)
            }
            Err(refusal) => refusal.tell(),
        }
    }

    fn train_anew(&mut self, body: &[u8]) -> std::result::Result<Bytes, Refusal> {
        let Site { terms, context, data, like, .. } = self.site;
        let parts = split_parts(body).unwrap_or_default();
        let [broadcast, header] = parts[..] else {
            return Err(Refusal::new(
                400,
                "malformed train request: expected a broadcast and a header",
            ));
        };
        let Ok(TrainHeader { run, clients }) = serde_json::from_slice(header) else {
            return Err(Refusal::new(400, "malformed header in train request"));
        };
        if run != terms.run {
            return Err(Refusal::new(NOT_JOINED, "another run: join first"));
        }
        let layout = &context.network.layout;
        let decoded = Broadcast::decode(broadcast, layout, context.device);
        let (broadcast, _) = decoded.map_err(|error| match error {
            Error::Engine(fedanchor::engine::Error::Tensors(problem)) => Refusal::new(400, problem),
            other => other.into(),
        })?;
        limits::check_task(&clients, broadcast.round, self.site)?;
        let numbers: Vec<u32> = clients.iter().map(|(_, number)| *number).collect();
        let mut without = BTreeSet::new();
        for (name, number) in &clients {
            let Some((_, local)) = data.clients.iter().find(|(there, _)| there == name) else {
                return Err(Refusal::new(404, "unknown client in train request"));
            };
            self.clients.add(*number, local);
            // From disk, even if it is in memory: a round that is asked for again starts where it started before.
            match self.folder.load(&run, name, broadcast.round)? {
                Kept::State(round, kept)
                    if self.clients.restore(*number, round, &kept, like).is_ok() => {}
                Kept::Nothing => {
                    self.clients.forget(*number);
                    without.insert(*number);
                }
                Kept::State(..) | Kept::Damaged => {
                    tracing::warn!(client = name, "starts without what it kept, which is damaged");
                    self.clients.forget(*number);
                }
            }
        }
        let mut answers = Vec::new();
        self.clients.train(&numbers, &broadcast, &mut |answer, _| {
            push_part(&mut answers, &without_reason(answer).encode()?);
            Ok(())
        })?;
        // On disk before the answer leaves: the coordinator may count on it.
        for (number, kept) in self.clients.save(broadcast.round, like)? {
            let Some((name, _)) = clients.iter().find(|(_, other)| *other == number) else {
                continue;
            };
            self.folder.save(&run, name, broadcast.round, &kept)?;
            let (client, round) = (name, broadcast.round);
            if round > 1 && without.contains(&number) && self.new.insert(name.clone()) {
                tracing::warn!(
                    client,
                    round,
                    "has kept nothing from earlier rounds of this run: it trains for the first time, or its state is \
                     not in the folder of --state"
                );
            }
        }
        // It is on disk: under other numbers, memory would keep it once more.
        numbers.iter().for_each(|number| self.clients.forget(*number));
        answers.shrink_to_fit();
        Ok(answers.into())
    }
}

/// An answer that may leave this machine: why a client failed may name files.
fn without_reason(mut answer: Answer) -> Answer {
    if let ClientOutcome::Failed { reason } = &mut answer.outcome {
        tracing::warn!(client = answer.client, reason, "could not train");
        *reason = format!("it could not train: {PRIVATE}");
    }
    answer
}
