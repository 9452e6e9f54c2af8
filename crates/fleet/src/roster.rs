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
mod tests {
    use super::*;
    use crate::mailbox::Asking;
    use std::io::Write;
    use tempfile::TempDir;

    fn roster() -> (TempDir, Roster) {
        roster_with(10)
    }

    fn roster_with(per_node: usize) -> (TempDir, Roster) {
        let folder = TempDir::new().unwrap();
        let mailbox = Mailbox::new(&folder.path().join("replies"));
        mailbox.open().unwrap();
        (folder, Roster::new(Arc::new(mailbox), Bytes::new(), per_node))
    }

    fn connect(roster: &mut Roster, nodes: &[&str]) {
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        let asking = Asking { protocol: 1, session: "a".to_owned(), nodes, holds: None };
        roster.mailbox.work(&asking, Duration::ZERO).unwrap();
        roster.tend();
    }

    fn answer(roster: &mut Roster, node: &str, status: u16, body: &[u8]) {
        let Some(Node::Asked { request, .. }) = roster.nodes.get(node) else { panic!("{node}") };
        let (request, (spooled, mut file)) = (*request, roster.mailbox.spool().unwrap());
        file.write_all(body).unwrap();
        roster.take(request, Reply::Answer(status, spooled));
    }

    fn join(roster: &mut Roster, node: &str, clients: &[(&str, usize)]) {
        let client = |(name, samples): &(&str, usize)| serde_json::json!({ "name": name, "samples": samples });
        let clients: Vec<_> = clients.iter().map(client).collect();
        let joined = serde_json::json!({ "protocol": 1, "version": "0", "clients": clients });
        answer(roster, node, 200, joined.to_string().as_bytes());
    }

    fn present(roster: &Roster) -> Vec<(String, usize)> {
        let members = roster.present().into_iter();
        members.map(|member| (member.key.to_string(), member.samples)).collect()
    }

    fn clients(names: &[(&str, usize)]) -> Vec<(String, usize)> {
        names.iter().map(|(name, samples)| ((*name).to_owned(), *samples)).collect()
    }

    #[test]
    fn a_node_that_joins_again_has_the_clients_that_it_names_now() {
        let (_folder, mut roster) = roster();
        connect(&mut roster, &["7"]);
        join(&mut roster, "7", &[("a", 10), ("b", 20)]);
        assert_eq!(present(&roster), clients(&[("a", 10), ("b", 20)]));
        roster.ask("7");
        assert_eq!(present(&roster), []);
        join(&mut roster, "7", &[("b", 21), ("c", 5)]);
        assert_eq!(present(&roster), clients(&[("b", 21), ("c", 5)]));
        connect(&mut roster, &[]);
        assert_eq!(present(&roster), []);
    }

    /// Whatever a node sends, it alone is left out, and asked again later.
    #[test]
    fn a_node_that_does_not_join_is_asked_again() {
        let (_folder, mut roster) = roster();
        let long = vec![b'x'; 20 << 20];
        let refusals: [(u16, &[u8]); 4] =
            [(409, b"no"), (500, &long), (200, b"garbage"), (200, &long)];
        for (status, body) in refusals {
            connect(&mut roster, &["7"]);
            answer(&mut roster, "7", status, body);
            assert!(matches!(roster.node("7"), Some(Node::Out { .. })));
            assert!(roster.troubles["7"].0.len() < 500);
            assert_eq!(roster.asked().count(), 0);
            connect(&mut roster, &["7"]);
            assert_eq!(roster.asked().count(), 0, "not at once");
            connect(&mut roster, &[]);
        }
        connect(&mut roster, &["7"]);
        answer(&mut roster, "7", 409, b"no");
        roster.nodes.insert("7".to_owned(), Node::Out { until: Instant::now() });
        roster.tend();
        join(&mut roster, "7", &[("a", 1)]);
        assert_eq!(present(&roster), clients(&[("a", 1)]));
    }

    /// While a node joins again, or is left out, nobody takes its clients' names.
    #[test]
    fn a_connected_node_keeps_its_names() {
        let (_folder, mut roster) = roster();
        connect(&mut roster, &["7", "8"]);
        join(&mut roster, "7", &[("a", 1)]);
        let refused = |roster: &mut Roster| {
            roster.ask("8");
            join(roster, "8", &[("a", 2)]);
            matches!(roster.node("8"), Some(Node::Out { .. }))
        };
        roster.ask("7");
        assert!(refused(&mut roster));
        answer(&mut roster, "7", 500, b"no");
        assert!(refused(&mut roster));
        roster.ask("7");
        join(&mut roster, "7", &[("a", 1)]);
        assert_eq!(present(&roster), clients(&[("a", 1)]));
    }

    #[test]
    fn a_node_that_fails_again_and_again_is_asked_less_often() {
        let (_folder, mut roster) = roster();
        connect(&mut roster, &["7"]);
        let mut wait = || {
            roster.ask("7");
            roster.leave_out("7", "no".to_owned());
            roster.leave_out("7", "no".to_owned()); // the same incident
            let Some(Node::Out { until, .. }) = roster.node("7") else { panic!() };
            until.saturating_duration_since(Instant::now()).as_secs_f64().round() as u64
        };
        assert_eq!([(); 6].map(|()| wait()), [10, 20, 40, 80, 160, 160]);
        roster.went_well("7");
        roster.ask("7");
        roster.leave_out("7", "no".to_owned());
        assert_eq!(roster.troubles["7"].1, 1);
        connect(&mut roster, &[]);
        assert!(roster.troubles.is_empty());
    }

    /// Nobody waits for its answer any longer, but it works on it: it is asked again once it has ended.
    #[test]
    fn a_node_that_is_behind_is_not_present() {
        let (_folder, mut roster) = roster();
        connect(&mut roster, &["7"]);
        join(&mut roster, "7", &[("a", 1)]);
        let id = roster.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
        let hold = |roster: &Roster, holds: &[u64]| {
            let holds = Some(holds.iter().copied().collect());
            let nodes = [String::from("7")].into();
            let asking = Asking { protocol: 1, session: "a".to_owned(), nodes, holds };
            roster.mailbox.work(&asking, Duration::ZERO).unwrap();
        };
        hold(&roster, &[]);
        roster.mailbox.withdraw(id);
        assert_eq!(present(&roster), []);
        hold(&roster, &[id]);
        assert_eq!(present(&roster), []);
        hold(&roster, &[]);
        assert_eq!(present(&roster), clients(&[("a", 1)]));
    }

    /// A node that answers what it was asked later does not work on what it was asked before.
    #[test]
    fn a_node_that_has_lost_a_request_is_not_busy_for_ever() {
        let (_folder, mut roster) = roster();
        let ask = |roster: &Roster, holds: &[u64]| {
            let holds = Some(holds.iter().copied().collect());
            let nodes = [String::from("7")].into();
            let asking = Asking { protocol: 1, session: "a".to_owned(), nodes, holds };
            roster.mailbox.work(&asking, Duration::ZERO).unwrap()
        };
        connect(&mut roster, &["7"]);
        join(&mut roster, "7", &[("a", 1)]);
        let lost = roster.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
        ask(&roster, &[]);
        roster.mailbox.withdraw(lost);
        roster.tend();
        assert_eq!(roster.asked().count(), 0, "it may still work on it");
        roster.probe_after = Duration::ZERO;
        roster.tend();
        roster.tend();
        let probes: Vec<u64> = roster.asked().collect();
        let [probe] = probes[..] else { panic!("{probes:?}") };
        // The transport could not deliver it: that says nothing of the node.
        roster.take(probe, Reply::Failure("no".to_owned()));
        assert!(roster.mailbox.withdrawn().contains_key(&lost));
        roster.tend();
        let probe = roster.asked().next().unwrap();
        let (spooled, _) = roster.mailbox.spool().unwrap();
        roster.take(probe, Reply::Answer(502, spooled));
        assert_eq!((present(&roster), roster.asked().count()), (vec![], 0));
        roster.tend();
        assert_eq!(present(&roster), clients(&[("a", 1)]));
        assert_eq!(ask(&roster, &[lost]).forget, [lost]);
    }

    /// A name that is taken is free again once whoever has it is gone.
    #[test]
    fn a_name_is_one_nodes_at_a_time() {
        let (_folder, mut roster) = roster();
        connect(&mut roster, &["7", "8"]);
        join(&mut roster, "7", &[("a", 1)]);
        join(&mut roster, "8", &[("a", 2)]);
        assert_eq!(present(&roster), clients(&[("a", 1)]));
        let (reason, _) = &roster.troubles["8"];
        assert!(reason.contains("names must differ"), "{reason}");
        connect(&mut roster, &["8"]);
        roster.ask("8");
        join(&mut roster, "8", &[("a", 2)]);
        assert_eq!(present(&roster), clients(&[("a", 2)]));
    }

    /// Neither all at once nor one after the other does a node get more clients than it may have.
    #[test]
    fn a_node_stands_for_only_so_many_clients() {
        let (_folder, mut roster) = roster_with(2);
        connect(&mut roster, &["7", "8"]);
        join(&mut roster, "7", &[("a", 1), ("b", 1), ("c", 1)]);
        let (reason, _) = &roster.troubles["7"];
        assert!(
            reason
                .contains("3 clients of this node in this run; `fleet.clients_per_node` allows 2")
        );
        let again = |roster: &mut Roster, node: &str, names: &[&str]| {
            roster.ask(node);
            let clients: Vec<(&str, usize)> = names.iter().map(|name| (*name, 1)).collect();
            join(roster, node, &clients);
            matches!(roster.node(node), Some(Node::Joined))
        };
        assert!(again(&mut roster, "7", &["a", "b"]));
        assert!(again(&mut roster, "7", &["b", "a"]));
        assert!(!again(&mut roster, "7", &["a", "d"]), "a third name");
        assert!(again(&mut roster, "7", &["a"]));
        // A client that has moved counts where it is now.
        join(&mut roster, "8", &[("b", 1)]);
        assert!(matches!(roster.node("8"), Some(Node::Joined)));
        assert!(again(&mut roster, "7", &["a", "d"]));
        assert_eq!(roster.held, BTreeMap::from([("7".to_owned(), 2), ("8".to_owned(), 1)]));
        // Under other names of the transport, as after a restart without registered keys.
        connect(&mut roster, &["9"]);
        join(&mut roster, "9", &[("a", 1), ("d", 1)]);
        assert_eq!(roster.held, BTreeMap::from([("8".to_owned(), 1), ("9".to_owned(), 2)]));
    }

    #[test]
    fn a_run_remembers_only_so_many_clients() {
        let (_folder, mut roster) = roster();
        roster.know((0..CLIENTS - 1).map(|number| number.to_string()));
        connect(&mut roster, &["7"]);
        join(&mut roster, "7", &[("5", 1), ("new", 1)]);
        assert_eq!(present(&roster).len(), 2);
        connect(&mut roster, &["7", "8"]);
        join(&mut roster, "8", &[("newer", 1)]);
        assert!(matches!(roster.node("8"), Some(Node::Out { .. })));
    }
}
