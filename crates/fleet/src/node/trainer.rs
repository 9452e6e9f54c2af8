//! Training on a node: executes requests to train, and keeps the states of clients on disk between rounds.

use super::state::{Kept, StateFolder};
use super::{PRIVATE, Refusal, Site, limits};
use crate::protocol::{NOT_JOINED, TrainHeader, framed, split_parts};
use axum::body::Bytes;
use fedanchor::Error;
use fedanchor::clients::LocalClients;
use fedanchor::messages::{Answer, Broadcast, ClientOutcome};
use std::collections::BTreeSet;

/// Executes requests to train.
pub(super) struct Trainer<'a> {
    site: &'a Site,
    clients: LocalClients<'a>,
    folder: &'a StateFolder,
    /// The last request and its reply, in case the transport delivers the request again.
    last: Option<(blake3::Hash, Bytes)>,
    /// Clients that have trained without a state after the first round.
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
            return (200, reply.clone());
        }
        match self.train_uncached(body) {
            Ok(reply) => {
                self.last = Some((digest, reply.clone()));
                (200, reply)
            }
            Err(refusal) => refusal.into_reply(),
        }
    }

    fn train_uncached(&mut self, body: &[u8]) -> std::result::Result<Bytes, Refusal> {
        let Site { run: joined, context, like, .. } = self.site;
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
        if run != joined.run {
            return Err(Refusal::new(NOT_JOINED, "another run: join first"));
        }
        let layout = &context.network.layout;
        let decoded = Broadcast::decode(broadcast, layout, context.device);
        let (broadcast, _) = decoded.map_err(|error| match error {
            Error::Engine(fedanchor::engine::Error::Tensors(problem)) => Refusal::new(400, problem),
            other => other.into(),
        })?;
        let local = limits::check_task(&clients, broadcast.round, self.site)?;
        let numbers: Vec<u32> = clients.iter().map(|(_, number)| *number).collect();
        let mut stateless = BTreeSet::new();
        for ((name, number), local) in clients.iter().zip(local) {
            self.clients.add(*number, local);
            // From disk, even if it is in memory: a round that is repeated starts from the same state.
            match self.folder.load(&run, name, broadcast.round)? {
                Kept::State(round, state)
                    if self.clients.restore(*number, round, &state, like).is_ok() =>
                {
                    continue;
                }
                Kept::Nothing => _ = stateless.insert(*number),
                _ => tracing::warn!(client = name, "its state is damaged: it starts without one"),
            }
            self.clients.forget(*number);
        }
        let mut answers = Vec::new();
        self.clients.train(&numbers, &broadcast, &mut |answer, _| {
            let parts = framed(without_reason(answer).encode()?.into());
            parts.iter().for_each(|part| answers.extend_from_slice(part));
            Ok(())
        })?;
        // On disk before the answer leaves, as the coordinator relies on it.
        for (number, kept) in self.clients.save(broadcast.round, like)? {
            let Some((name, _)) = clients.iter().find(|(_, other)| *other == number) else {
                continue;
            };
            self.folder.save(&run, name, broadcast.round, &kept)?;
            let (client, round) = (name, broadcast.round);
            if round > 1 && stateless.contains(&number) && self.new.insert(name.clone()) {
                tracing::warn!(
                    client,
                    round,
                    "no state from earlier rounds: it trains for the first time, or its state is not in the folder of \
                     --state"
                );
            }
        }
        // States are on disk. In memory, a client whose number changes would have two.
        numbers.iter().for_each(|number| self.clients.forget(*number));
        answers.shrink_to_fit();
        Ok(answers.into())
    }
}

/// Removes the reason of a failure, which may name files, from an answer that leaves this machine.
fn without_reason(mut answer: Answer) -> Answer {
    if let ClientOutcome::Failed { reason } = &mut answer.outcome {
        tracing::warn!(client = answer.client, reason, "could not train");
        *reason = format!("could not train: {PRIVATE}");
    }
    answer
}
