//! The fleet that the coordinator sees: clients on nodes, behind a mailbox.

use crate::mailbox::{Arrived, Mailbox, Reply};
use crate::protocol::{NOT_JOINED, PROTOCOL, TRAIN, Terms, TrainHeader, framed};
use crate::roster::{Node, Place, Roster};
use crate::round::{Asked, Client, Round};
use axum::body::Bytes;
use fedanchor::experiment::client_settings;
use fedanchor::federation::{ClientKey, Delivery, Fleet, Member, RoundTask};
use fedanchor::{Error, Federation, Result};
use fedanchor_record::Build;
use fedanchor_record::words::excerpt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one look at the mailbox waits, so that Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(200);
/// For how long a resumed run waits for its clients, once one of them is there, if there are enough for a round: some
/// may be gone for good.
const RETURN_WITHIN: Duration = Duration::from_secs(120);
/// A SuperLink that was restarted needs about a minute until its nodes are back.
const PATIENCE: Duration = Duration::from_secs(90);
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
    /// For how long a round waits for a node that has left before it could be asked, and for an answer after a later
    /// one of the same node.
    pub patience: Duration,
}

impl RemoteFleet {
    /// For the server's half of a federation. `run` identifies the run: what clients keep belongs to it.
    pub fn new(
        mailbox: Arc<Mailbox>,
        stop: Arc<AtomicBool>,
        federation: &Federation,
        run: &str,
    ) -> Result<Self> {
        mailbox.open()?;
        let experiment = federation.settled()?;
        let images = &federation.context.images;
        let terms = Terms {
            protocol: PROTOCOL,
            build: Build::current().clone(),
            run: run.to_owned(),
            experiment: client_settings(&experiment)?,
            classes: federation.classes.len(),
            shape: images.shape(),
            normalisation: images.normalisation().clone(),
            flip: images.flip(),
        };
        let terms = serde_json::to_vec(&terms)
            .map_err(|error| Error::config("the experiment", error.to_string()))?;
        Ok(Self {
            roster: Roster::new(mailbox.clone(), terms.into(), experiment.fleet.clients_per_node),
            mailbox,
            stop,
            run: run.to_owned(),
            expected: experiment.data.clients,
            quorum: experiment.checks.quorum.max(1),
            before: BTreeSet::new(),
            size: experiment.checks.size,
            started: false,
            patience: PATIENCE,
        })
    }

    /// The same, asking a node for a sign of life after so long without an answer.
    pub fn probing_after(mut self, long: Duration) -> Self {
        self.roster.probes.after = long;
        self
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
        if present.len() < self.expected.min(self.quorum) {
            return false;
        }
        let there: BTreeSet<&str> = present.iter().filter_map(|member| name(&member.key)).collect();
        let missing: Vec<&String> =
            self.before.iter().filter(|name| !there.contains(name.as_str())).collect();
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
        let encode = |number: u32| Ok::<_, Error>(Bytes::from(task.broadcast.encode(number)?));
        let shared = match task.clients.first() {
            Some((number, _)) if task.broadcast.is_the_same_for_all() => Some(encode(*number)?),
            _ => None,
        };
        let mut requests = Vec::new();
        for (node, clients) in by_node {
            let together = if shared.is_some() { clients.len() } else { 1 };
            for clients in clients.chunks(together) {
                let broadcast = shared.clone().map_or_else(|| encode(clients[0].number), Ok)?;
                let (node, clients) = (node.to_owned(), clients.to_vec());
                let since = Instant::now();
                requests.push(Asked { node, clients, broadcast, rejoined: false, since });
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
                    let reason = "its node was restarted without it, or with other images";
                    round.give_up(&Vec::from_iter::<Vec<Client>>(others), reason);
                    request.clients = there;
                    request.since = Instant::now();
                    if !request.clients.is_empty() {
                        let id = self.post(&request, round.task)?;
                        round.wait_for(id, request);
                    }
                }
                _ => round.give_up(&request.clients, "its node was restarted and has not joined"),
            }
        }
        Ok(())
    }

    /// What a node has replied. Nothing in it ends the run.
    fn take_reply(&mut self, round: &mut Round, mut request: Asked, arrived: Arrived) {
        let (node, Arrived { reply, at }) = (&request.node, arrived);
        let reason = match reply {
            Reply::Answer(200, body) => {
                self.roster.went_well(node);
                let most = self.longest(&request.broadcast);
                return round.take(&request, body, at, most);
            }
            Reply::Answer(NOT_JOINED, _) if !request.rejoined => {
                tracing::info!(node, "the node was restarted: it joins again");
                self.roster.ask(node);
                request.rejoined = true;
                return round.held.push(request);
            }
            Reply::Answer(status, body) => body.words(status),
            Reply::Failure(reason) => excerpt(&reason),
        };
        round.give_up(&request.clients, &reason);
        self.roster.leave_out(node, reason);
    }

    /// Gives up what nodes have lost.
    fn give_up_lost(&mut self, round: &mut Round) {
        let asked: Vec<(u64, String, Instant)> =
            round.asked.iter().map(|(id, asked)| (*id, asked.node.clone(), asked.since)).collect();
        for (id, node, since) in asked {
            if self.roster.probes.is_lost(&node, id, since, self.patience)
                && let Some(request) = round.asked.remove(&id)
            {
                self.mailbox.write_off(id);
                round.give_up(
                    &request.clients,
                    "its node has lost the request, or its answer was lost",
                );
            }
        }
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
            if self.mailbox.has_transport() && self.are_enough(&present, since) {
                self.started = true;
                return Ok(present);
            }
            if self.stopped() {
                return Err(Error::Stopped);
            }
            let ids = self.roster.asked().collect();
            let mut wait = LOOK;
            // All that are there, before anything is counted again.
            while let Some((id, arrived)) = self.mailbox.next_reply(&ids, wait) {
                self.roster.take(id, arrived.reply);
                wait = Duration::ZERO;
            }
        }
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.roster.notes)
    }

    fn expect(&mut self, clients: &[ClientKey]) {
        self.before.extend(clients.iter().filter_map(name).map(str::to_owned));
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
            for id in self.mailbox.out_of_reach(self.patience) {
                if let Some(request) = round.asked.remove(&id) {
                    self.mailbox.withdraw(id);
                    round.give_up(&request.clients, "its node is not connected any longer");
                }
            }
            if round.is_over() {
                continue;
            }
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
                // Only where no answer waits to be taken.
                (None, _) => self.give_up_lost(&mut round),
            }
        }
        round.end(&self.mailbox);
        round.deliver(take)
    }
}

/// What a client of a fleet is called.
fn name(key: &ClientKey) -> Option<&str> {
    match key {
        ClientKey::Name(name) => Some(name),
        _ => None,
    }
}
