//! Who takes part: nodes that are connected, whether they have joined, and their clients. A node is asked to join as it
//! is asked for anything else, and nothing waits for its answer: it may have many images to read.

use crate::mailbox::{Mailbox, Reply};
use crate::names::Names;
use crate::probes::Probes;
use crate::protocol::{JOIN, Joined, LocalClient, PROTOCOL, SAMPLES, bad_names};
use axum::body::Bytes;
use fedanchor::federation::{ClientKey, Member};
use fedanchor_data::formats::natural;
use fedanchor_record::Build;
use fedanchor_record::words::excerpt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a node may read its images before it has joined.
const JOIN_WITHIN: Duration = Duration::from_secs(600);
/// After how long a node that was left out is asked to join again: it may have been repaired, or whoever had its name
/// is gone. Twice as long after each time, up to sixteen times.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
const DOUBLINGS: u32 = 4;
/// The longest answer to `join`, in bytes: as many clients as a node may have.
const LONGEST_JOIN: usize = 4 << 20;

/// Nodes and clients.
pub(crate) struct Roster {
    mailbox: Arc<Mailbox>,
    terms: Bytes,
    /// By the transport's names.
    nodes: BTreeMap<String, Node>,
    clients: BTreeMap<String, Place>,
    names: Names,
    pub(crate) probes: Probes,
    /// Why connected nodes were left out that have not trained since, and how often.
    troubles: BTreeMap<String, (String, u32)>,
    /// What nodes that have joined said of their builds.
    builds: BTreeMap<String, String>,
    /// What the next record shall say of the nodes.
    pub(crate) notes: Vec<String>,
}

/// Where a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    /// How many images it has.
    pub(crate) samples: usize,
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
        let (nodes, clients, troubles, builds, notes) = Default::default();
        let (names, probes) = (Names::new(per_node), Probes::new(mailbox.clone()));
        Self { mailbox, terms, nodes, clients, names, probes, troubles, builds, notes }
    }

    /// Clients that count as known although they have not joined yet.
    pub(crate) fn know(&mut self, names: impl Iterator<Item = String>) {
        self.names.know(names);
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
            self.probes.forget(&node);
            self.clients.retain(|_, place| place.node != node);
            self.troubles.remove(&node);
        }
        for node in connected {
            match self.nodes.get(&node) {
                None => self.ask(&node),
                Some(Node::Out { until }) if now >= *until => self.ask(&node),
                Some(Node::Asked { until, .. }) if now >= *until => {
                    self.leave_out(&node, format!("no answer within {} s", JOIN_WITHIN.as_secs()));
                }
                _ => {}
            }
        }
        // What nobody waits for any longer may be lost, too: its node is not to count as busy for ever.
        for (request, (node, since)) in self.mailbox.withdrawn() {
            if self.probes.is_lost(&node, request, since, Duration::ZERO) {
                self.mailbox.write_off(request);
            }
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
        joining.chain(self.probes.asked())
    }

    /// Takes the answer to such a request. Whatever a node says concerns nobody else.
    pub(crate) fn take(&mut self, id: u64, reply: Reply) {
        if self.probes.take(id, &reply) {
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
        let Joined { protocol, build, clients } = serde_json::from_slice(answer)
            .map_err(|error| excerpt(&format!("its answer makes no sense: {error}")))?;
        if protocol != PROTOCOL {
            let build = excerpt(&build.to_string());
            return Err(format!("it has version {build} with protocol {protocol}, not {PROTOCOL}"));
        }
        if let Some(problem) = bad_names(clients.iter().map(|client| client.name.as_str())) {
            return Err(problem);
        }
        if let Some(client) = clients.iter().find(|c| !(1..=SAMPLES).contains(&c.samples)) {
            let LocalClient { name, samples } = client;
            return Err(format!(
                "its client {name:?} has {samples} images, expected between 1 and {SAMPLES}"
            ));
        }
        if let Some(taken) = clients.iter().find(|client| self.is_elsewhere(&client.name, node)) {
            return Err(format!(
                "its client {:?} is on another node that is connected: names must differ",
                taken.name
            ));
        }
        self.names.check(node, clients.iter().map(|client| client.name.as_str()))?;
        self.clients.retain(|_, place| place.node != node);
        for client in clients {
            self.names.put(&client.name, node);
            let place = Place { node: node.to_owned(), samples: client.samples };
            self.clients.insert(client.name, place);
        }
        self.note_build(node, &build);
        Ok(())
    }

    /// Notes that a node has another build than the coordinator, once until its build changes.
    fn note_build(&mut self, node: &str, build: &Build) {
        let here = Build::current();
        let there = excerpt(&build.to_string());
        let told = self.builds.insert(node.to_owned(), there.clone());
        if build != here && told.as_ref() != Some(&there) {
            let node = excerpt(node);
            self.notes.push(format!("node {node} has another build: {there}, not {here}"));
        }
    }

    /// Whether a client of this name is on another node that is connected, or was when that node last joined. On one
    /// that is gone it may come back as another node: without registered keys, a restart changes what the transport
    /// calls it.
    fn is_elsewhere(&self, name: &str, node: &str) -> bool {
        let Some(other) = self.names.node(name) else { return false };
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
