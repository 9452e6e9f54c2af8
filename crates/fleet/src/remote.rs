//! The fleet that the coordinator sees: clients on nodes, behind a mailbox.

use crate::mailbox::{Arrived, Mailbox, Reply};
use crate::protocol::{NOT_JOINED, PROTOCOL, TRAIN, Terms, TrainHeader, framed, printable};
use crate::roster::{Node, Place, REASON, Roster};
use crate::spool::Spooled;
use axum::body::Bytes;
use fedanchor::federation::{Arrival, ClientKey, Delivery, Fleet, Member, RoundTask};
use fedanchor::{Error, Result, Simulation};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one look at the mailbox waits, so that Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(200);
/// For how long a resumed run waits for its clients, once one of them is there, if there are enough for a round: some
/// may be gone for good.
const RETURN_WITHIN: Duration = Duration::from_secs(120);
/// Room for the header of an answer.
const HEADER: usize = 64 << 10;

/// Clients on nodes.
pub struct RemoteFleet {
    mailbox: Arc<Mailbox>,
    stop: Arc<AtomicBool>,
    roster: Roster,
    run: String,
    /// Clients to wait for before the first round, and valid answers that later rounds need.
    expected: usize,
    quorum: usize,
    /// The names of the clients of a run that is resumed.
    before: BTreeSet<String>,
    /// An answer's largest size, as a multiple of the broadcast's.
    size: f64,
    started: bool,
}

impl RemoteFleet {
    /// For the server's half of a federation. `run` identifies the run: what clients keep belongs to it.
    pub fn new(
        mailbox: Arc<Mailbox>,
        stop: Arc<AtomicBool>,
        simulation: &Simulation,
        run: &str,
    ) -> Result<Self> {
        let experiment = simulation.settled()?;
        let images = &simulation.context.images;
        let terms = Terms {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run: run.to_owned(),
            experiment: Terms::text_of(&experiment)?,
            classes: simulation.classes.len(),
            shape: images.shape(),
            normalisation: images.normalisation().clone(),
            flip: images.flip(),
        };
        let terms = serde_json::to_vec(&terms)
            .map_err(|error| Error::config("the experiment", error.to_string()))?;
        Ok(Self {
            roster: Roster::new(mailbox.clone(), terms.into()),
            mailbox,
            stop,
            run: run.to_owned(),
            expected: experiment.data.clients,
            quorum: experiment.checks.quorum.max(1),
            before: BTreeSet::new(),
            size: experiment.checks.size,
            started: false,
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether a round can start with these clients: the first with all that are expected, later ones with as many as a
    /// round needs. `since` is when the first of them was there.
    fn are_enough(&self, present: &[Member], since: Option<Instant>) -> bool {
        if self.started {
            return present.len() >= self.quorum;
        }
        let missing = self.before.iter().filter(|name| {
            !present.iter().any(|member| member.key == ClientKey::Name((*name).clone()))
        });
        let missing: Vec<&String> = missing.collect();
        if present.len() >= self.expected && missing.is_empty() {
            return true;
        }
        let waited = since.is_some_and(|since| since.elapsed() >= RETURN_WITHIN);
        let without = !self.before.is_empty() && waited && present.len() >= self.quorum;
        if without {
            tracing::warn!(?missing, "the run goes on without clients that have not come back");
        }
        without
    }

    /// The longest answer of a client to a broadcast of so many bytes.
    fn longest(&self, broadcast: &Bytes) -> usize {
        (self.size * broadcast.len() as f64) as usize + HEADER
    }

    /// Requests to the nodes of these clients. A broadcast that is the same for all is encoded once, and sent once per
    /// node.
    fn requests(&self, task: &RoundTask) -> Result<Vec<Asked>> {
        let mut by_node: BTreeMap<&str, Vec<Client>> = BTreeMap::new();
        for (number, key) in task.clients {
            let ClientKey::Name(name) = key else { continue };
            if let Some(Place { node, samples }) = self.roster.place(name) {
                let client = Client { name: name.clone(), number: *number, samples: *samples };
                by_node.entry(node).or_default().push(client);
            }
        }
        let mut shared: Option<Bytes> = None;
        let mut requests = Vec::new();
        for (node, clients) in by_node {
            let alone = !task.broadcast.is_the_same_for_all();
            for clients in clients.chunks(if alone { 1 } else { clients.len() }) {
                let broadcast = match &shared {
                    Some(shared) if !alone => shared.clone(),
                    _ => Bytes::from(task.broadcast.encode(clients[0].number)?),
                };
                shared = Some(broadcast.clone());
                let (node, clients) = (node.to_owned(), clients.to_vec());
                requests.push(Asked { node, clients, broadcast, rejoined: false });
            }
        }
        Ok(requests)
    }

    /// Posts a request; returns its number.
    fn post(&self, request: &Asked, task: &RoundTask) -> Result<u64> {
        let Asked { node, clients, broadcast, .. } = request;
        let clients: Vec<_> = clients.iter().map(|c| (c.name.clone(), c.number)).collect();
        let longest = self.longest(broadcast) * clients.len();
        let header = serde_json::to_vec(&TrainHeader { run: self.run.clone(), clients })
            .map_err(|error| Error::Fleet(format!("a request cannot be written: {error}")))?;
        let body = [framed(broadcast.clone()), framed(header.into())].concat();
        let timeout = task.deadline.map(|end| end.saturating_duration_since(Instant::now()));
        Ok(self.mailbox.post(node, TRAIN, body, timeout, longest))
    }
}

/// A client that is asked.
#[derive(Clone)]
struct Client {
    name: String,
    number: u32,
    /// How many images it had when it was asked.
    samples: usize,
}

/// A request of a round.
struct Asked {
    node: String,
    clients: Vec<Client>,
    broadcast: Bytes,
    /// Whether the node had to be told again what is trained.
    rejoined: bool,
}

/// Where a client's answer is.
enum Slot {
    Waiting,
    There(Part),
    Absent,
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
                Arrival::Absent
            }
        }
    }
}

/// A round under way.
struct Round<'a> {
    task: &'a RoundTask<'a>,
    slots: BTreeMap<u32, Slot>,
    /// Requests by their numbers.
    asked: BTreeMap<u64, Asked>,
    /// Requests whose node has to join first.
    held: Vec<Asked>,
    /// Answers that count, where not all are needed.
    counted: usize,
    /// Clients whose answers have been handed over.
    done: usize,
}

impl<'a> Round<'a> {
    fn new(task: &'a RoundTask<'a>) -> Self {
        let slots = task.clients.iter().map(|(number, _)| (*number, Slot::Absent)).collect();
        Self { task, slots, asked: BTreeMap::new(), held: Vec::new(), counted: 0, done: 0 }
    }

    fn wait_for(&mut self, id: u64, request: Asked) {
        for client in &request.clients {
            self.slots.insert(client.number, Slot::Waiting);
        }
        self.asked.insert(id, request);
    }

    fn give_up(&mut self, clients: &[Client]) {
        for client in clients {
            self.slots.insert(client.number, Slot::Absent);
        }
    }

    /// Whether there is nothing to wait for.
    fn is_over(&self) -> bool {
        self.counted >= self.task.enough || self.asked.is_empty() && self.held.is_empty()
    }

    /// Takes the reply of a node that has trained, or says that it has.
    fn take(&mut self, request: &Asked, reply: Spooled, arrived: Instant, most: usize) {
        let parts = match reply.parts(request.clients.len()) {
            Ok(parts) => parts,
            Err(error) => {
                tracing::error!(%error, "a reply that has arrived cannot be read");
                return self.give_up(&request.clients);
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
    fn deliver(&mut self, take: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        while let Some((number, key)) = self.task.clients.get(self.done) {
            let slot = self.slots.insert(*number, Slot::Absent).unwrap_or(Slot::Absent);
            let (arrival, arrived) = match slot {
                Slot::Waiting => {
                    self.slots.insert(*number, Slot::Waiting);
                    return Ok(());
                }
                Slot::There(part) => (part.read(), part.arrived),
                Slot::Absent => (Arrival::Absent, Instant::now()),
            };
            take(Delivery { from: key.clone(), arrival, arrived })?;
            self.done += 1;
        }
        Ok(())
    }

    /// Ends the waiting: who has not answered is absent.
    fn end(&mut self, mailbox: &Mailbox) {
        for id in std::mem::take(&mut self.asked).into_keys() {
            mailbox.withdraw(id);
        }
        self.held.clear();
        for slot in self.slots.values_mut().filter(|slot| matches!(slot, Slot::Waiting)) {
            *slot = Slot::Absent;
        }
    }
}

impl RemoteFleet {
    /// Asks those again that had to join first, once they have; those who did not are absent.
    fn ask_held(&self, round: &mut Round) -> Result<()> {
        for mut request in std::mem::take(&mut round.held) {
            match self.roster.node(&request.node) {
                Some(Node::Asked { .. }) => round.held.push(request),
                Some(Node::Joined) => {
                    // A client that is no longer there, or has other images, takes part from the next round on.
                    let same = |client: &Client| {
                        let place = self.roster.place(&client.name);
                        place.is_some_and(|place| {
                            place.node == request.node && place.samples == client.samples
                        })
                    };
                    let (there, others) = request.clients.iter().cloned().partition(same);
                    round.give_up(&Vec::from_iter::<Vec<Client>>(others));
                    request.clients = there;
                    if !request.clients.is_empty() {
                        let id = self.post(&request, round.task)?;
                        round.wait_for(id, request);
                    }
                }
                _ => round.give_up(&request.clients),
            }
        }
        Ok(())
    }

    /// What a node has replied. Nothing in it ends the run.
    fn take_reply(&mut self, round: &mut Round, mut request: Asked, arrived: Arrived) {
        let (node, Arrived { reply, at }) = (&request.node, arrived);
        match reply {
            Reply::Answer(200, body) => {
                let most = self.longest(&request.broadcast);
                return round.take(&request, body, at, most);
            }
            Reply::Answer(NOT_JOINED, _) if !request.rejoined => {
                tracing::info!(node, "the node was restarted: it joins again");
                self.roster.ask(node);
                request.rejoined = true;
                return round.held.push(request);
            }
            Reply::Answer(status, body) => {
                let reason = printable(&body.beginning(REASON).unwrap_or_default());
                tracing::warn!(node, status, reason, "the node did not train");
            }
            Reply::Failure(reason) => {
                let reason = printable(reason.as_bytes());
                tracing::warn!(node, reason, "no answer from the node");
            }
        }
        round.give_up(&request.clients);
    }
}

impl Fleet for RemoteFleet {
    /// Waits until enough clients have joined.
    fn members(&mut self) -> Result<Vec<Member>> {
        let mut since = None;
        loop {
            self.roster.tend();
            let present = self.roster.present();
            if !present.is_empty() && since.is_none() {
                since = Some(Instant::now());
            }
            if self.are_enough(&present, since) {
                self.started = true;
                return Ok(present);
            }
            if self.stopped() {
                return Err(Error::Stopped);
            }
            let ids = self.roster.asked().collect();
            if let Some((id, arrived)) = self.mailbox.next_reply(&ids, LOOK) {
                self.roster.take(id, arrived.reply);
            }
        }
    }

    fn expect(&mut self, clients: &[ClientKey]) {
        let names = clients.iter().filter_map(|key| match key {
            ClientKey::Name(name) => Some(name.clone()),
            _ => None,
        });
        self.before.extend(names);
        self.roster.know(self.before.iter().cloned());
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let mut round = Round::new(task);
        for request in self.requests(task)? {
            let id = self.post(&request, task)?;
            round.wait_for(id, request);
        }
        loop {
            round.deliver(take)?;
            if round.is_over() {
                break;
            }
            if self.stopped() {
                round.end(&self.mailbox);
                return Err(Error::Stopped);
            }
            self.roster.tend();
            self.ask_held(&mut round)?;
            let ids = round.asked.keys().copied().chain(self.roster.asked()).collect();
            // After the deadline, what came before it is still taken.
            let left = task.deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let look = left.map_or(LOOK, |left| left.min(LOOK));
            match (self.mailbox.next_reply(&ids, look), left) {
                (Some((id, arrived)), _) => match round.asked.remove(&id) {
                    Some(request) => self.take_reply(&mut round, request, arrived),
                    None => self.roster.take(id, arrived.reply),
                },
                (None, Some(Duration::ZERO)) => break,
                (None, _) => {}
            }
        }
        round.end(&self.mailbox);
        round.deliver(take)
    }
}
