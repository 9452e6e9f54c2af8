//! The coordinator's fleet: clients on nodes, behind a mailbox.

use crate::bindings::Bindings;
use crate::mailbox::{Arrived, Mailbox, Reply};
use crate::members::{Client, MemberList, NodeState};
use crate::protocol::{JoinRequest, NOT_JOINED, PROTOCOL, TRAIN, TrainHeader, framed};
use crate::round::{Drawn, Round, TrainRequest};
use axum::body::Bytes;
use fedanchor::experiment::client_settings;
use fedanchor::federation::{ClientKey, Delivery, Fleet, Member, RoundTask};
use fedanchor::{Error, Federation, Result};
use fedanchor_record::Build;
use fedanchor_record::words::excerpt;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait for a reply, so that Ctrl-C is noticed.
const TICK: Duration = Duration::from_millis(200);
/// How long a resumed run waits for all of its clients once one of them is present, if there are enough for a round:
/// some may never return.
const RETURN_WITHIN: Duration = Duration::from_secs(120);
/// Nodes need about a minute to reconnect after a SuperLink was restarted.
const PATIENCE: Duration = Duration::from_secs(90);
/// The longest header of an answer, in bytes.
const HEADER: usize = 64 << 10;

/// Clients on nodes.
pub struct RemoteFleet {
    mailbox: Arc<Mailbox>,
    stop: Arc<AtomicBool>,
    members: MemberList,
    run: String,
    /// The number of clients that the first round waits for.
    expected: usize,
    /// The number of valid answers that a round needs.
    quorum: usize,
    /// The names of the clients of a resumed run.
    before: BTreeSet<String>,
    /// The largest size of an answer, as a multiple of the broadcast's.
    size: f64,
    started: bool,
    /// How long a round waits for a node that disconnects before it takes its request, and for an answer after a
    /// heartbeat without the request.
    pub patience: Duration,
}

impl RemoteFleet {
    /// A fleet for a federation. `run` identifies the run; clients keep their states under it.
    pub fn new(
        mailbox: Arc<Mailbox>,
        stop: Arc<AtomicBool>,
        federation: &Federation,
        run: &str,
    ) -> Result<Self> {
        mailbox.open()?;
        let experiment = federation.settled()?;
        let images = &federation.context.images;
        let request = JoinRequest {
            protocol: PROTOCOL,
            build: Build::current().clone(),
            run: run.to_owned(),
            experiment: client_settings(&experiment)?,
            classes: federation.classes.len(),
            class_names: match experiment.record.sites {
                true => federation.classes.clone(),
                false => Vec::new(),
            },
            format: images.format,
            trunk: federation.trunk.clone().filter(|_| images.format.features.is_some()),
            normalisation: images.normalisation.clone(),
            flip: images.flip,
        };
        let request = serde_json::to_vec(&request)
            .map_err(|error| Error::config("the experiment", error.to_string()))?;
        let per_node = experiment.fleet.clients_per_node;
        Ok(Self {
            members: MemberList::new(mailbox.clone(), request.into(), per_node),
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

    /// Binds the names of clients to the keys of their nodes, which this file keeps; `released` are names whose nodes
    /// have new keys, with the beginnings of the old ones.
    pub fn bind_names(mut self, file: PathBuf, released: &[(String, String)]) -> Result<Self> {
        let mut bindings = Bindings::read(file)?;
        bindings.release(released)?;
        self.members.bindings = Some(bindings);
        Ok(self)
    }

    /// Sets the interval after which a node that has not answered is asked for a heartbeat.
    pub fn heartbeat_after(mut self, interval: Duration) -> Self {
        self.members.heartbeats.interval = interval;
        self
    }

    /// Whether a round can start with these clients: the first needs all that are expected, later ones a quorum.
    /// `since` is when the first of them was present.
    fn are_enough(&self, present: &[Member], since: Option<Instant>) -> bool {
        if self.started {
            return present.len() >= self.quorum;
        }
        let names: BTreeSet<&str> = present.iter().filter_map(|member| name(&member.key)).collect();
        let missing: Vec<&String> =
            self.before.iter().filter(|name| !names.contains(name.as_str())).collect();
        if present.len() >= self.expected && missing.is_empty() {
            return true;
        }
        let waited = since.is_some_and(|since| since.elapsed() >= RETURN_WITHIN);
        let resumes = !self.before.is_empty() && waited && present.len() >= self.quorum;
        if resumes {
            tracing::warn!(?missing, "the run resumes without clients that have not returned");
        }
        resumes
    }

    /// The longest answer of a client to a broadcast.
    fn longest(&self, broadcast: &Bytes) -> usize {
        (self.size * broadcast.len() as f64) as usize + HEADER
    }

    /// The requests of a round. A broadcast that is the same for all clients is encoded once, and sent once per node.
    fn requests(&self, task: &RoundTask) -> Result<Vec<TrainRequest>> {
        let mut by_node: BTreeMap<&str, Vec<Drawn>> = BTreeMap::new();
        for (number, key) in task.clients {
            let Some(name) = name(key) else { continue };
            if let Some(Client { node, samples }) = self.members.client(name) {
                let client = Drawn { name: name.to_owned(), number: *number, samples: *samples };
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
                requests.push(TrainRequest { node, clients, broadcast, rejoined: false, since });
            }
        }
        Ok(requests)
    }

    /// Posts a request of a round.
    fn post(&self, round: &mut Round, request: TrainRequest) -> Result<()> {
        let TrainRequest { node, clients, broadcast, .. } = &request;
        let clients: Vec<_> = clients.iter().map(|c| (c.name.clone(), c.number)).collect();
        let longest = self.longest(broadcast) * clients.len();
        let header = serde_json::to_vec(&TrainHeader { run: self.run.clone(), clients })
            .map_err(|error| Error::Fleet(format!("cannot encode a train request: {error}")))?;
        let body = [framed(broadcast.clone()), framed(header.into())].concat();
        let timeout = round.task.deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let id = self.mailbox.post(node, TRAIN, body, timeout, longest);
        round.add(id, request);
        Ok(())
    }

    /// Posts the requests of nodes that have joined again; the clients of those that failed to are lost.
    fn post_rejoined(&self, round: &mut Round) -> Result<()> {
        for mut request in std::mem::take(&mut round.joining) {
            match self.members.node(&request.node) {
                Some(NodeState::Joining { .. }) => round.joining.push(request),
                Some(NodeState::Joined) => {
                    // A client that is gone, or has other images, can take part from the next round on.
                    let is_same = |drawn: &Drawn| {
                        let client = self.members.client(&drawn.name);
                        client.is_some_and(|client| {
                            client.node == request.node && client.samples == drawn.samples
                        })
                    };
                    let (same, others): (_, Vec<Drawn>) =
                        request.clients.iter().cloned().partition(is_same);
                    let reason = "its node was restarted without it, or with other images";
                    round.mark_lost(&others, reason);
                    request.clients = same;
                    request.since = Instant::now();
                    if !request.clients.is_empty() {
                        self.post(round, request)?;
                    }
                }
                _ => {
                    let reason = "its node was restarted and has not joined again";
                    round.mark_lost(&request.clients, reason);
                }
            }
        }
        Ok(())
    }

    /// Takes the reply to a train request. Nothing in it ends the run.
    fn take_reply(&mut self, round: &mut Round, mut request: TrainRequest, arrived: Arrived) {
        let (node, Arrived { reply, at }) = (&request.node, arrived);
        let reason = match reply {
            Reply::Answer(200, body) => {
                self.members.mark_ok(node);
                return round.take(&request, body, at, self.longest(&request.broadcast));
            }
            Reply::Answer(NOT_JOINED, _) if !request.rejoined => {
                tracing::info!(node, "the node was restarted and joins again");
                self.members.request_join(node);
                request.rejoined = true;
                return round.joining.push(request);
            }
            Reply::Answer(status, body) => body.error(status),
            Reply::Failure(reason) => excerpt(&reason),
        };
        round.mark_lost(&request.clients, &reason);
        self.members.mark_failed(node, reason);
    }

    /// Gives up requests that nodes have lost.
    fn give_up_lost(&mut self, round: &mut Round) {
        let (heartbeats, patience) = (&mut self.members.heartbeats, self.patience);
        let lost = round.pending.extract_if(.., |id, request| {
            heartbeats.is_lost(&request.node, *id, request.since, patience)
        });
        for (id, request) in lost.collect::<Vec<_>>() {
            self.mailbox.forget(id);
            let reason = "its node has lost the request, or its answer was lost";
            round.mark_lost(&request.clients, reason);
        }
    }
}

impl Fleet for RemoteFleet {
    /// Waits until enough clients have joined.
    fn members(&mut self) -> Result<Vec<Member>> {
        let mut since = None;
        loop {
            self.members.poll();
            let present = self.members.present();
            if !present.is_empty() {
                since.get_or_insert_with(Instant::now);
            }
            if self.mailbox.has_transport() && self.are_enough(&present, since) {
                self.started = true;
                return Ok(present);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let ids = self.members.pending().collect();
            let mut wait = TICK;
            // All replies that have arrived, before the members are counted again.
            while let Some((id, arrived)) = self.mailbox.next_reply(&ids, wait) {
                self.members.take(id, arrived.reply);
                wait = Duration::ZERO;
            }
        }
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.members.notes)
    }

    fn expect(&mut self, clients: &[ClientKey]) {
        self.before.extend(clients.iter().filter_map(name).map(str::to_owned));
        self.members.expect(self.before.iter().cloned());
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let mut round = Round::new(task);
        for request in self.requests(task)? {
            self.post(&mut round, request)?;
        }
        loop {
            round.deliver(take)?;
            if round.is_complete() {
                break;
            }
            if self.stop.load(Ordering::Relaxed) {
                round.end(&self.mailbox);
                return Err(Error::Stopped);
            }
            self.members.poll();
            self.post_rejoined(&mut round)?;
            for id in self.mailbox.undeliverable(self.patience) {
                if let Some(request) = round.pending.remove(&id) {
                    self.mailbox.cancel(id);
                    round.mark_lost(&request.clients, "its node has disconnected");
                }
            }
            if round.is_complete() {
                continue;
            }
            let ids = round.pending.keys().copied().chain(self.members.pending()).collect();
            // Replies that arrived before the deadline are taken even after it.
            let left = task.deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let wait = left.map_or(TICK, |left| left.min(TICK));
            match (self.mailbox.next_reply(&ids, wait), left) {
                (Some((id, arrived)), _) => match round.pending.remove(&id) {
                    Some(request) => self.take_reply(&mut round, request, arrived),
                    None => self.members.take(id, arrived.reply),
                },
                (None, Some(Duration::ZERO)) => break,
                // Only once all replies have been taken.
                (None, _) => self.give_up_lost(&mut round),
            }
        }
        round.end(&self.mailbox);
        round.deliver(take)
    }
}

/// The name of a client of a fleet.
fn name(key: &ClientKey) -> Option<&str> {
    match key {
        ClientKey::Name(name) => Some(name),
        _ => None,
    }
}
