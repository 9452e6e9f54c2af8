//! The members of a fleet: connected nodes, whether they have joined, and their clients. A join request is posted like
//! any other, and nothing waits for its reply: the node may have many images to read.

use crate::bindings::Bindings;
use crate::heartbeats::Heartbeats;
use crate::mailbox::{Mailbox, Reply};
use crate::protocol::{CLIENTS, JOIN, JoinReply, LocalClient, PROTOCOL, SAMPLES, check_names};
use axum::body::Bytes;
use fedanchor::federation::{ClientKey, Member};
use fedanchor_data::formats::natural;
use fedanchor_record::Build;
use fedanchor_record::words::excerpt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a node may read its images before it has joined.
const JOIN_WITHIN: Duration = Duration::from_secs(600);
/// The time after which a suspended node is asked to join again. It doubles with each suspension in a row, up to
/// [`DOUBLINGS`] times.
const SUSPENSION: Duration = Duration::from_secs(10);
const DOUBLINGS: u32 = 4;
/// The longest reply to a join request, in bytes: as many clients as a node may have.
const LONGEST_REPLY: usize = 4 << 20;

/// Nodes and clients.
pub(crate) struct MemberList {
    mailbox: Arc<Mailbox>,
    join_request: Bytes,
    /// By the transport's names.
    nodes: BTreeMap<String, NodeState>,
    clients: BTreeMap<String, Client>,
    /// All clients that have ever joined, with the node that each was last on if the coordinator has not been restarted
    /// since.
    last_nodes: BTreeMap<String, Option<String>>,
    /// The most clients of a node.
    per_node: usize,
    /// The keys that names are bound to, if they are.
    pub(crate) bindings: Option<Bindings>,
    pub(crate) heartbeats: Heartbeats,
    /// Why connected nodes have failed since they last trained, and how often.
    failures: BTreeMap<String, (String, u32)>,
    /// The builds of nodes that have joined.
    builds: BTreeMap<String, String>,
    /// Whether a node has joined whose key is not known.
    keys_are_missing: bool,
    /// Notes on nodes for the next record.
    pub(crate) notes: Vec<String>,
}

/// A client that has joined.
#[derive(PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) node: String,
    /// Number of its images.
    pub(crate) samples: usize,
}

#[derive(Debug)]
pub(crate) enum NodeState {
    /// It was asked to join.
    Joining { request: u64, until: Instant },
    /// Its clients are known.
    Joined,
    /// It failed, and is asked to join again later.
    Suspended { until: Instant },
}

impl MemberList {
    pub(crate) fn new(mailbox: Arc<Mailbox>, join_request: Bytes, per_node: usize) -> Self {
        Self {
            heartbeats: Heartbeats::new(mailbox.clone()),
            mailbox,
            join_request,
            per_node,
            bindings: None,
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
            last_nodes: BTreeMap::new(),
            failures: BTreeMap::new(),
            builds: BTreeMap::new(),
            keys_are_missing: false,
            notes: Vec::new(),
        }
    }

    /// Registers clients that joined before the coordinator was restarted.
    pub(crate) fn expect(&mut self, names: impl Iterator<Item = String>) {
        if self.bindings.as_ref().is_some_and(Bindings::is_empty) {
            self.notes.push(
                "no name of this run is bound to a key: the next node that joins with it will have it".to_owned(),
            );
        }
        names.for_each(|name| _ = self.last_nodes.entry(name).or_default());
    }

    /// Removes nodes that have disconnected, and asks new ones to join.
    pub(crate) fn poll(&mut self) {
        let (connected, now) = (self.mailbox.nodes(), Instant::now());
        let gone = self.nodes.extract_if(.., |node, _| !connected.contains(node));
        for (node, state) in gone.collect::<Vec<_>>() {
            if let NodeState::Joining { request, .. } = state {
                self.mailbox.forget(request);
            }
            self.heartbeats.remove(&node);
            self.remove_clients(&node);
            self.failures.remove(&node);
        }
        for node in connected {
            match self.nodes.get(&node) {
                None => self.request_join(&node),
                Some(NodeState::Suspended { until }) if now >= *until => self.request_join(&node),
                Some(NodeState::Joining { until, .. }) if now >= *until => {
                    let reason = format!("no answer within {} s", JOIN_WITHIN.as_secs());
                    self.mark_failed(&node, reason);
                }
                _ => {}
            }
        }
        // A node that has lost a cancelled request must not count as busy for ever.
        for (request, (node, since)) in self.mailbox.cancelled() {
            if self.heartbeats.is_lost(&node, request, since, Duration::ZERO) {
                self.mailbox.forget(request);
            }
        }
    }

    fn remove_clients(&mut self, node: &str) {
        self.clients.retain(|_, client| client.node != node);
    }

    /// Asks a node to join, even if it had joined: it was restarted.
    pub(crate) fn request_join(&mut self, node: &str) {
        if let Some(NodeState::Joining { .. }) = self.nodes.get(node) {
            return;
        }
        let (body, timeout) = (vec![self.join_request.clone()], Some(JOIN_WITHIN));
        let request = self.mailbox.post(node, JOIN, body, timeout, LONGEST_REPLY);
        let state = NodeState::Joining { request, until: Instant::now() + JOIN_WITHIN };
        self.nodes.insert(node.to_owned(), state);
    }

    /// The requests of this list that nodes have not answered yet.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        let joining = self.nodes.values().filter_map(|state| match state {
            NodeState::Joining { request, .. } => Some(*request),
            _ => None,
        });
        joining.chain(self.heartbeats.pending())
    }

    /// Takes the reply to such a request. It has no effect on other nodes.
    pub(crate) fn take(&mut self, id: u64, reply: Reply) {
        if self.heartbeats.take(id, &reply) {
            return;
        }
        let joins = |state: &NodeState| matches!(state, NodeState::Joining { request, .. } if *request == id);
        let Some((node, _)) = self.nodes.iter().find(|(_, state)| joins(state)) else { return };
        let node = node.clone();
        let registered = match reply {
            Reply::Failure(reason) => Err(excerpt(&reason)),
            Reply::Answer(200, body) => match body.prefix(LONGEST_REPLY) {
                Ok(body) => self.register(&node, &body),
                Err(error) => Err(format!("its answer cannot be read: {error}")),
            },
            Reply::Answer(status, body) => Err(body.error(status)),
        };
        match registered {
            Err(reason) => self.mark_failed(&node, reason),
            Ok(()) => {
                tracing::info!(node, "joined");
                self.nodes.insert(node, NodeState::Joined);
            }
        }
    }

    /// Suspends a node until it has joined again.
    pub(crate) fn mark_failed(&mut self, node: &str, reason: String) {
        let (last, times) = self.failures.entry(node.to_owned()).or_default();
        // A reason is logged once.
        if *last != reason {
            tracing::warn!(node, reason, "the node is suspended until it has joined again");
            *last = reason;
        }
        // Several requests that fail together are one failure.
        if let Some(NodeState::Suspended { .. }) = self.nodes.get(node) {
            return;
        }
        let until = Instant::now() + SUSPENSION * 2_u32.pow((*times).min(DOUBLINGS));
        *times = times.saturating_add(1);
        self.remove_clients(node);
        let before = self.nodes.insert(node.to_owned(), NodeState::Suspended { until });
        if let Some(NodeState::Joining { request, .. }) = before {
            self.mailbox.forget(request);
        }
    }

    /// Resets the failures of a node that has trained.
    pub(crate) fn mark_ok(&mut self, node: &str) {
        self.failures.remove(node);
    }

    /// Registers the clients of a node in place of its earlier ones.
    fn register(&mut self, node: &str, reply: &[u8]) -> Result<(), String> {
        let JoinReply { protocol, build, clients } = serde_json::from_slice(reply)
            .map_err(|error| excerpt(&format!("malformed join reply: {error}")))?;
        if protocol != PROTOCOL {
            let build = excerpt(&build.to_string());
            return Err(format!("expected protocol {PROTOCOL}, got {protocol} of version {build}"));
        }
        check_names(clients.iter().map(|client| client.name.as_str()))?;
        let key = self.mailbox.key(node);
        for LocalClient { name, samples } in &clients {
            if !(1..=SAMPLES).contains(samples) {
                return Err(format!(
                    "client {name:?}: expected 1 to {SAMPLES} images, got {samples}"
                ));
            }
            let bound = self.bindings.as_ref().and_then(|bindings| bindings.key(name));
            if self.bindings.as_ref().is_some_and(|bindings| key.is_none() && !bindings.is_empty())
            {
                return Err(
                    "the transport gives no key of this node, and names of this run are bound to keys: use Flower 1.38 or \
                     later"
                        .to_owned(),
                );
            }
            if bound.is_some_and(|bound| Some(bound) != key.as_deref()) {
                return Err(format!(
                    "client {name:?} is bound to the key of another node: if its own node has a new key, start the \
                     coordinator with --release; without registered keys, set fleet.keys=false"
                ));
            }
            if bound.is_none() && self.is_elsewhere(name, node) {
                return Err(format!(
                    "client {name:?} is on another connected node: names must differ"
                ));
            }
        }
        let new =
            clients.iter().filter(|client| !self.last_nodes.contains_key(&client.name)).count();
        if self.last_nodes.len() + new > CLIENTS {
            return Err(format!("more than {CLIENTS} clients would have joined this run"));
        }
        let last_here = |name: &str| {
            self.last_nodes.get(name).is_some_and(|last| last.as_deref() == Some(node))
        };
        let added = clients.iter().filter(|client| !last_here(&client.name)).count();
        let before = self.last_nodes.values().filter(|last| last.as_deref() == Some(node)).count();
        // Also those that it had before the coordinator was restarted.
        let (added, before) = match (&self.bindings, &key) {
            (Some(bindings), Some(key)) => {
                let new = |client: &&LocalClient| bindings.key(&client.name).is_none();
                (clients.iter().filter(new).count(), bindings.names_of(key).count())
            }
            _ => (added, before),
        };
        let (count, most) = (before + added, self.per_node);
        if count > most {
            return Err(format!(
                "{count} clients of this node would have joined this run; `fleet.clients_per_node` allows {most}"
            ));
        }
        match (&mut self.bindings, &key) {
            (Some(bindings), Some(key)) => {
                let names = clients.iter().map(|client| client.name.as_str());
                bindings.bind(names, key).map_err(|error| error.to_string())?;
            }
            (Some(_), None) if !std::mem::replace(&mut self.keys_are_missing, true) => {
                self.notes.push(
                    "the transport gives no keys of nodes, so that names of clients are not bound to them: use Flower \
                     1.38 or later"
                        .to_owned(),
                );
            }
            _ => {}
        }
        self.remove_clients(node);
        for LocalClient { name, samples } in clients {
            self.last_nodes.insert(name.clone(), Some(node.to_owned()));
            self.clients.insert(name, Client { node: node.to_owned(), samples });
        }
        // Another build is noted once, until it changes.
        let here = Build::current();
        let there = excerpt(&build.to_string());
        let before = self.builds.insert(node.to_owned(), there.clone());
        if build != *here && before.as_ref() != Some(&there) {
            let node = excerpt(node);
            self.notes.push(format!("node {node} has another build: {there}, not {here}"));
        }
        Ok(())
    }

    /// Whether a client is on another node that is connected, or was when that node last joined. It may move from a
    /// node that has disconnected: without registered keys, a node that restarts has a new name.
    fn is_elsewhere(&self, name: &str, node: &str) -> bool {
        let Some(Some(other)) = self.last_nodes.get(name) else { return false };
        let was_dropped = self.has_joined(other) && !self.clients.contains_key(name);
        other != node && !was_dropped && self.mailbox.nodes().contains(other)
    }

    pub(crate) fn node(&self, node: &str) -> Option<&NodeState> {
        self.nodes.get(node)
    }

    fn has_joined(&self, node: &str) -> bool {
        matches!(self.nodes.get(node), Some(NodeState::Joined))
    }

    /// A client of a node that has joined.
    pub(crate) fn client(&self, name: &str) -> Option<&Client> {
        self.clients.get(name).filter(|client| self.has_joined(&client.node))
    }

    /// Clients of nodes that are connected and idle, in the order of a simulation, which sorts them by name.
    pub(crate) fn present(&self) -> Vec<Member> {
        let (connected, cancelled) = (self.mailbox.nodes(), self.mailbox.cancelled());
        // A node that still works on a cancelled request would be late for another.
        let busy: BTreeSet<&String> = cancelled.values().map(|(node, _)| node).collect();
        let is_present = |node: &String| {
            connected.contains(node) && !busy.contains(node) && self.has_joined(node)
        };
        let mut present: Vec<_> =
            self.clients.iter().filter(|(_, client)| is_present(&client.node)).collect();
        present.sort_by(|(a, _), (b, _)| natural(a, b));
        let member = |(name, client): (&String, &Client)| Member {
            key: ClientKey::Name(name.clone()),
            samples: client.samples,
        };
        present.into_iter().map(member).collect()
    }
}

#[cfg(test)]
mod tests;
