//! A round under way: the requests of its clients, and the answers that have arrived.

use crate::mailbox::Mailbox;
use crate::spool::Spooled;
use axum::body::Bytes;
use fedanchor::Result;
use fedanchor::federation::{Arrival, Delivery, RoundTask};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Why an answer is lost that had arrived.
const UNREADABLE: &str = "its answer cannot be read from the coordinator's disk";

/// A client that was drawn.
#[derive(Clone)]
pub(crate) struct Drawn {
    pub(crate) name: String,
    pub(crate) number: u32,
    /// How many images it had when it was drawn.
    pub(crate) samples: usize,
}

/// A request to train.
pub(crate) struct TrainRequest {
    pub(crate) node: String,
    pub(crate) clients: Vec<Drawn>,
    pub(crate) broadcast: Bytes,
    /// Whether the node had to join again first.
    pub(crate) rejoined: bool,
    pub(crate) since: Instant,
}

/// The answer of a client that is not just absent.
enum Slot {
    Waiting,
    Arrived(Part),
    /// Absent, with the reason.
    Lost(String),
}

/// A part of a reply.
struct Part {
    reply: Arc<Spooled>,
    /// `None` if the reply is malformed, which is rejected and counted.
    range: Option<Range<u64>>,
    /// The longest answer. One more byte is read, for which it is rejected.
    longest: usize,
    arrived: Instant,
}

impl Part {
    fn read(&self) -> Arrival {
        let Some(range) = &self.range else { return Arrival::Encoded(Vec::new()) };
        match self.reply.read(range, self.longest as u64 + 1) {
            Ok(bytes) => Arrival::Encoded(bytes),
            Err(error) => {
                tracing::error!(%error, "an answer that has arrived cannot be read");
                Arrival::Lost(UNREADABLE.to_owned())
            }
        }
    }
}

/// A round under way.
pub(crate) struct Round<'a> {
    pub(crate) task: &'a RoundTask<'a>,
    slots: BTreeMap<u32, Slot>,
    /// Pending requests by number.
    pub(crate) pending: BTreeMap<u64, TrainRequest>,
    /// Requests whose node has to join first.
    pub(crate) joining: Vec<TrainRequest>,
    /// Number of answers that count, if the round needs fewer than all.
    counted: usize,
    /// Number of clients whose answers have been delivered.
    delivered: usize,
}

impl<'a> Round<'a> {
    pub(crate) fn new(task: &'a RoundTask<'a>) -> Self {
        let (slots, pending, joining) = Default::default();
        Self { task, slots, pending, joining, counted: 0, delivered: 0 }
    }

    pub(crate) fn add(&mut self, id: u64, request: TrainRequest) {
        for client in &request.clients {
            self.slots.insert(client.number, Slot::Waiting);
        }
        self.pending.insert(id, request);
    }

    pub(crate) fn mark_lost(&mut self, clients: &[Drawn], reason: &str) {
        for client in clients {
            self.slots.insert(client.number, Slot::Lost(reason.to_owned()));
        }
    }

    /// Whether no further answer is needed or can arrive.
    pub(crate) fn is_complete(&self) -> bool {
        self.counted >= self.task.enough || self.pending.is_empty() && self.joining.is_empty()
    }

    /// Takes the reply to a request.
    pub(crate) fn take(
        &mut self,
        request: &TrainRequest,
        reply: Spooled,
        arrived: Instant,
        longest: usize,
    ) {
        let parts = match reply.parts(request.clients.len()) {
            Ok(parts) => parts,
            Err(error) => {
                tracing::error!(%error, "a reply that has arrived cannot be read");
                return self.mark_lost(&request.clients, UNREADABLE);
            }
        };
        let reply = Arc::new(reply);
        for (at, client) in request.clients.iter().enumerate() {
            let range = parts.as_ref().map(|parts| parts[at].clone());
            let part = Part { reply: reply.clone(), range, longest, arrived };
            // Decoding is expensive, and the count matters only if fewer answers than all are enough.
            if self.task.enough < self.task.clients.len()
                && let Arrival::Encoded(bytes) = part.read()
                && (self.task.counts)(client.number, &bytes)
            {
                self.counted += 1;
            }
            self.slots.insert(client.number, Slot::Arrived(part));
        }
    }

    /// Delivers answers in canonical order, up to the first that is missing, so that none waits in memory.
    pub(crate) fn deliver(&mut self, take: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        while let Some((number, key)) = self.task.clients.get(self.delivered) {
            let (arrival, arrived) = match self.slots.get(number) {
                Some(Slot::Waiting) => return Ok(()),
                Some(Slot::Arrived(part)) => (part.read(), part.arrived),
                Some(Slot::Lost(reason)) => (Arrival::Lost(reason.clone()), Instant::now()),
                None => (Arrival::Absent, Instant::now()),
            };
            // Removes the file with the last part.
            self.slots.remove(number);
            take(Delivery { from: key.clone(), arrival, arrived })?;
            self.delivered += 1;
        }
        Ok(())
    }

    /// Cancels pending requests: their clients are absent.
    pub(crate) fn end(&mut self, mailbox: &Mailbox) {
        std::mem::take(&mut self.pending).into_keys().for_each(|id| mailbox.cancel(id));
        self.joining.clear();
        self.slots.retain(|_, slot| !matches!(slot, Slot::Waiting));
    }
}
