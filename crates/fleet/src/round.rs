//! A round under way: who was asked, and whose answers are there.

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

/// A client that is asked.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) number: u32,
    /// How many images it had when it was asked.
    pub(crate) samples: usize,
}

/// A request of a round.
pub(crate) struct Asked {
    pub(crate) node: String,
    pub(crate) clients: Vec<Client>,
    pub(crate) broadcast: Bytes,
    /// Whether the node had to be told again what is trained.
    pub(crate) rejoined: bool,
    /// When it was.
    pub(crate) since: Instant,
}

/// Where a client's answer is.
enum Slot {
    Waiting,
    There(Part),
    Absent,
    /// It is absent, and why.
    Lost(String),
}

/// A part of a reply, which the last of its clients removes.
struct Part {
    reply: Arc<Spooled>,
    /// Nothing where the reply is not what it should be: that is rejected and counted.
    range: Option<Range<u64>>,
    /// The most bytes to read. One more than an answer may have is enough for it to be rejected.
    most: usize,
    arrived: Instant,
}

impl Part {
    fn read(&self) -> Arrival {
        let Some(range) = &self.range else { return Arrival::Encoded(Vec::new()) };
        match self.reply.read(range, self.most as u64 + 1) {
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
    /// Requests by their numbers.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Requests whose node has to join first.
    pub(crate) held: Vec<Asked>,
    /// Answers that count, where not all are needed.
    counted: usize,
    /// Clients whose answers have been handed over.
    done: usize,
}

impl<'a> Round<'a> {
    pub(crate) fn new(task: &'a RoundTask<'a>) -> Self {
        let slots = task.clients.iter().map(|(number, _)| (*number, Slot::Absent)).collect();
        Self { task, slots, asked: BTreeMap::new(), held: Vec::new(), counted: 0, done: 0 }
    }

    pub(crate) fn wait_for(&mut self, id: u64, request: Asked) {
        for client in &request.clients {
            self.slots.insert(client.number, Slot::Waiting);
        }
        self.asked.insert(id, request);
    }

    pub(crate) fn give_up(&mut self, clients: &[Client], reason: &str) {
        for client in clients {
            self.slots.insert(client.number, Slot::Lost(reason.to_owned()));
        }
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.counted >= self.task.enough || self.asked.is_empty() && self.held.is_empty()
    }

    /// Takes the reply of a node that has trained, or says that it has.
    pub(crate) fn take(&mut self, request: &Asked, reply: Spooled, arrived: Instant, most: usize) {
        let parts = match reply.parts(request.clients.len()) {
            Ok(parts) => parts,
            Err(error) => {
                tracing::error!(%error, "a reply that has arrived cannot be read");
                return self.give_up(&request.clients, UNREADABLE);
            }
        };
        let reply = Arc::new(reply);
        for (at, client) in request.clients.iter().enumerate() {
            let range = parts.as_ref().map(|parts| parts[at].clone());
            let part = Part { reply: reply.clone(), range, most, arrived };
            // It costs as much as taking it does, and matters only where not all are waited for.
            if self.task.enough < self.task.clients.len()
                && let Arrival::Encoded(bytes) = part.read()
                && (self.task.counts)(client.number, &bytes)
            {
                self.counted += 1;
            }
            self.slots.insert(client.number, Slot::There(part));
        }
    }

    /// Hands over what has come, in canonical order, so that nothing waits in memory.
    pub(crate) fn deliver(&mut self, take: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        while let Some((number, key)) = self.task.clients.get(self.done) {
            let slot = self.slots.insert(*number, Slot::Absent).unwrap_or(Slot::Absent);
            let (arrival, arrived) = match slot {
                Slot::Waiting => {
                    self.slots.insert(*number, Slot::Waiting);
                    return Ok(());
                }
                Slot::There(part) => (part.read(), part.arrived),
                Slot::Absent => (Arrival::Absent, Instant::now()),
                Slot::Lost(reason) => (Arrival::Lost(reason), Instant::now()),
            };
            take(Delivery { from: key.clone(), arrival, arrived })?;
            self.done += 1;
        }
        Ok(())
    }

    /// Ends the waiting: who has not answered is absent.
    pub(crate) fn end(&mut self, mailbox: &Mailbox) {
        for id in std::mem::take(&mut self.asked).into_keys() {
            mailbox.withdraw(id);
        }
        self.held.clear();
        for slot in self.slots.values_mut().filter(|slot| matches!(slot, Slot::Waiting)) {
            *slot = Slot::Absent;
        }
    }
}
