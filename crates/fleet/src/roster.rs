//! Who takes part: nodes that are connected, whether they have joined, and their clients. A node is asked to join as it
//! is asked for anything else, and nothing waits for its answer: it may have many images to read.

use crate::mailbox::{Mailbox, Reply};
use crate::protocol::{ALIVE, CLIENTS, JOIN, Joined, PROTOCOL, bad_names};
use axum::body::Bytes;
use fedanchor::federation::{ClientKey, Member};
use fedanchor_data::formats::natural;
use fedanchor_record::words::excerpt;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a node may read its images before it has joined.
const JOIN_WITHIN: Duration = Duration::from_secs(600);
/// After how long a node that was left out is asked to join again: it may have been repaired, or whoever had its name
/// is gone. Twice as long after each time, up to sixteen times.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
const DOUBLINGS: u32 = 4;
/// After how long without an answer a node is asked for a sign of life.
const PROBE_AFTER: Duration = Duration::from_secs(300);
/// The longest sign of life, in bytes.
const LONGEST_SIGN: usize = 4 << 10;
/// The longest answer to `join`, in bytes: as many clients as a node may have.
const LONGEST_JOIN: usize = 4 << 20;

/// Nodes and clients.
pub(crate) struct Roster {
    mailbox: Arc<Mailbox>,
    terms: Bytes,
    /// By the transport's names.
    nodes: BTreeMap<String, Node>,
    clients: BTreeMap<String, Place>,
    /// The names of all clients that have ever joined, and the node that each was on last, if it joined since the
    /// coordinator was started.
    names: BTreeMap<String, Option<String>>,
    /// How many of them were last on each node.
    held: BTreeMap<String, usize>,
    /// The most of them per node.
    per_node: usize,
    /// The last sign of life that each node was asked for.
    probes: BTreeMap<String, Probe>,
    /// After how long without an answer a node is asked for one.
    pub(crate) probe_after: Duration,
    /// Why connected nodes were left out that have not trained since, and how often.
    troubles: BTreeMap<String, (String, u32)>,
}

/// Where a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    /// How many images it has.
    pub(crate) samples: usize,
}

/// A node does one thing after the other: once it has answered this, what it was asked before is done or lost.
#[derive(Debug, Clone, Copy)]
struct Probe {
    request: u64,
    answered: Option<Instant>,
}

/// How far a node has come.
#[derive(Debug)]
pub(crate) enum Node {
    /// It was asked to join.
    Asked { request: u64, until: Instant },
    /// It is part of the run.
    Joined,
    /// It was left out; it is asked again later.
    Out { until: Instant },
}

impl Roster {
    pub(crate) fn new(mailbox: Arc<Mailbox>, terms: Bytes, per_node: usize) -> Self {
        let (nodes, clients, names, held, troubles, probes) = Default::default();
        let probe_after = PROBE_AFTER;
        Self {
            mailbox,
            terms,
            nodes,
            clients,
            names,
            held,
            per_node,
            probes,
            probe_after,
            troubles,
        }
    }

    /// Clients that count as known although they have not joined yet.
    pub(crate) fn know(&mut self, names: impl Iterator<Item = String>) {
        names.for_each(|name| _ = self.names.entry(name).or_default());
    }

    /// Forgets nodes that are gone, and asks those to join that have not.
    pub(crate) fn tend(&mut self) {
        let (connected, now) = (self.mailbox.nodes(), Instant::now());
        let gone: Vec<String> =
            self.nodes.keys().filter(|node| !connected.contains(*node)).cloned().collect();
        for node in gone {
            if let Some(Node::Asked { request, .. }) = self.nodes.remove(&node) {
                self.mailbox.write_off(request);
            }
            if let Some(Probe { request, .. }) = self.probes.remove(&node) {
                self.mailbox.write_off(request);
            }
            self.clients.retain(|_, place| place.node != node);
            self.troubles.remove(&node);
        }
        for node in connected {
            match self.nodes.get(&node) {
                None => self.ask(&node),
                Some(Node::Out { until }) if now >= *until => self.ask(&node),
                Some(Node::Asked { request, until }) if now >= *until => {
                    self.mailbox.withdraw(*request);
                    self.leave_out(&node, format!("no answer within {} s", JOIN_WITHIN.as_secs()));
                }
                _ => {}
            }
        }
        // What nobody waits for any longer may be lost, too: its node is not to count as busy for ever.
        for (request, (node, since)) in self.mailbox.withdrawn() {
            if self.is_lost(&node, request, since, Duration::ZERO) {
                self.mailbox.write_off(request);
            }
        }
    }

    /// Whether a node has lost a request: its SuperNode was killed and restarted, or could not pass the answer on, of
    /// which Flower does not tell. A node that has not answered for long is asked for a sign of life; `patience` is how
    /// long an answer may come after a later one.
    pub(crate) fn is_lost(
        &mut self,
        node: &str,
        request: u64,
        since: Instant,
        patience: Duration,
    ) -> bool {
        match self.probes.get(node).filter(|probe| probe.request > request) {
            Some(Probe { answered, .. }) => answered.is_some_and(|at| at.elapsed() >= patience),
            None => {
                if since.elapsed() >= self.probe_after {
                    self.probe(node);
                }
                false
            }
        }
    }

    fn probe(&mut self, node: &str) {
        let request = self.mailbox.post(node, ALIVE, Vec::new(), None, LONGEST_SIGN);
        let probe = Probe { request, answered: None };
        if let Some(earlier) = self.probes.insert(node.to_owned(), probe) {
            self.mailbox.write_off(earlier.request);
        }
    }

    /// Asks a node to join, though it may have done so before: it was restarted.
    pub(crate) fn ask(&mut self, node: &str) {
        if let Some(Node::Asked { .. }) = self.nodes.get(node) {
            return;
        }
        let (terms, within) = (vec![self.terms.clone()], Some(JOIN_WITHIN));
        let request = self.mailbox.post(node, JOIN, terms, within, LONGEST_JOIN);
        let state = Node::Asked { request, until: Instant::now() + JOIN_WITHIN };
        self.nodes.insert(node.to_owned(), state);
    }

    /// The requests that nodes have not answered yet.
    pub(crate) fn asked(&self) -> impl Iterator<Item = u64> {
        let joining = self.nodes.values().filter_map(|state| match state {
            Node::Asked { request, .. } => Some(*request),
            _ => None,
        });
        let open = self.probes.values().filter(|probe| probe.answered.is_none());
        joining.chain(open.map(|probe| probe.request))
    }

    /// Takes the answer to such a request. Whatever a node says concerns nobody else.
    pub(crate) fn take(&mut self, id: u64, reply: Reply) {
        if let Some((node, probe)) = self.probes.iter_mut().find(|(_, probe)| probe.request == id) {
            match reply {
                // Whatever it says.
                Reply::Answer(..) => probe.answered = Some(Instant::now()),
                Reply::Failure(_) => {
                    let node = node.clone();
                    self.probes.remove(&node);
                }
            }
            return;
        }
        let asked = |state: &Node| matches!(state, Node::Asked { request, .. } if *request == id);
        let Some(node) = self.nodes.iter().find(|(_, state)| asked(state)) else { return };
        let node = node.0.clone();
        let refused = match reply {
            Reply::Failure(reason) => Err(excerpt(&reason)),
            Reply::Answer(200, body) => match body.beginning(LONGEST_JOIN) {
                Ok(answer) => self.welcome(&node, &answer),
                Err(error) => Err(format!("its answer cannot be read: {error}")),
            },
            Reply::Answer(status, body) => Err(body.words(status)),
        };
        match refused {
            Err(reason) => self.leave_out(&node, reason),
            Ok(()) => {
                tracing::info!(node, "joined");
                self.nodes.insert(node, Node::Joined);
            }
        }
    }

    /// A node that did not do what it was asked for takes no part until it has joined again.
    pub(crate) fn leave_out(&mut self, node: &str, reason: String) {
        let (last, times) = self.troubles.entry(node.to_owned()).or_default();
        // What was said last time is not said again.
        if *last != reason {
            tracing::warn!(node, reason, "the node is left out until it has joined again");
            *last = reason;
        }
        // Several requests that failed together are one incident.
        if let Some(Node::Out { .. }) = self.nodes.get(node) {
            return;
        }
        let until = Instant::now() + AGAIN_AFTER * 2_u32.pow((*times).min(DOUBLINGS));
        *times = times.saturating_add(1);
        self.clients.retain(|_, place| place.node != node);
        let before = self.nodes.insert(node.to_owned(), Node::Out { until });
        if let Some(Node::Asked { request, .. }) = before {
            self.mailbox.write_off(request);
        }
    }

    /// A node has trained.
    pub(crate) fn went_well(&mut self, node: &str) {
        self.troubles.remove(node);
    }

    /// Takes the clients of a node in, in place of those that it had before, or says why not.
    fn welcome(&mut self, node: &str, answer: &[u8]) -> Result<(), String> {
        let Joined { protocol, version, clients } = serde_json::from_slice(answer)
            .map_err(|error| excerpt(&format!("its answer makes no sense: {error}")))?;
        if protocol != PROTOCOL {
            let version = excerpt(&version);
            return Err(format!(
                "it has version {version} with protocol {protocol}, not {PROTOCOL}"
            ));
        }
        if let Some(problem) = bad_names(clients.iter().map(|client| client.name.as_str())) {
            return Err(problem);
        }
        if let Some(taken) = clients.iter().find(|client| self.is_elsewhere(&client.name, node)) {
            return Err(format!(
                "its client {:?} is on another node that is connected: names must differ",
                taken.name
            ));
        }
        let new = clients.iter().filter(|client| !self.names.contains_key(&client.name)).count();
        if self.names.len() + new > CLIENTS {
            return Err(format!("with it, more than {CLIENTS} clients would have joined this run"));
        }
        let was_here =
            |name: &str| self.names.get(name).is_some_and(|at| at.as_deref() == Some(node));
        let others = clients.iter().filter(|client| !was_here(&client.name)).count();
        let all = self.held.get(node).unwrap_or(&0) + others;
        if all > self.per_node {
            return Err(format!(
                "that would make {all} clients of this node in this run; `fleet.clients_per_node` allows {}",
                self.per_node
            ));
        }
        self.clients.retain(|_, place| place.node != node);
        for client in clients {
            self.hold(&client.name, node);
            let place = Place { node: node.to_owned(), samples: client.samples };
            self.clients.insert(client.name, place);
        }
        Ok(())
    }

    /// A client of this name is on this node now, and no longer where it was.
    fn hold(&mut self, name: &str, node: &str) {
        let before = self.names.insert(name.to_owned(), Some(node.to_owned())).flatten();
        if let Some(before) = before
            && let Entry::Occupied(mut count) = self.held.entry(before)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        *self.held.entry(node.to_owned()).or_default() += 1;
    }

    /// Whether a client of this name is on another node that is connected, or was when that node last joined. On one
    /// that is gone it may come back as another node: without registered keys, a restart changes what the transport
    /// calls it.
    fn is_elsewhere(&self, name: &str, node: &str) -> bool {
        let Some(Some(other)) = self.names.get(name) else { return false };
        let given_up = self.has_joined(other) && !self.clients.contains_key(name);
        other != node && !given_up && self.mailbox.nodes().contains(other)
    }

    /// How far a node has come.
    pub(crate) fn node(&self, node: &str) -> Option<&Node> {
        self.nodes.get(node)
    }

    fn has_joined(&self, node: &str) -> bool {
        matches!(self.nodes.get(node), Some(Node::Joined))
    }

    /// Where a client is that has joined.
    pub(crate) fn place(&self, client: &str) -> Option<&Place> {
        self.clients.get(client).filter(|place| self.has_joined(&place.node))
    }

    /// Clients whose node is connected, in the order of a simulation, which numbers them by their names.
    pub(crate) fn present(&self) -> Vec<Member> {
        // Who still works on what nobody waits for any longer comes too late for another round.
        let (connected, withdrawn) = (self.mailbox.nodes(), self.mailbox.withdrawn());
        let busy: BTreeSet<&String> = withdrawn.values().map(|(node, _)| node).collect();
        let there = |node: &String| {
            connected.contains(node) && !busy.contains(node) && self.has_joined(node)
        };
        let mut present: Vec<_> =
            self.clients.iter().filter(|(_, place)| there(&place.node)).collect();
        present.sort_by(|(a, _), (b, _)| natural(a, b));
        let member = |(name, place): (&String, &Place)| Member {
            key: ClientKey::Name(name.clone()),
            samples: place.samples,
        };
        present.into_iter().map(member).collect()
    }
}

#[cfg(test)]
mod tests;
