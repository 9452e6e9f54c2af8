//! The fleet that the coordinator sees: clients on nodes, behind a mailbox.

use crate::mailbox::{Mailbox, Reply, remove};
use crate::protocol::{JOIN, Joined, NOT_JOINED, PROTOCOL, TRAIN, Terms, TrainHeader};
use crate::protocol::{join_parts, split_parts};
use axum::body::Bytes;
use fedanchor::federation::{Arrival, ClientKey, Delivery, Fleet, Member, RoundTask};
use fedanchor::{Error, Result, Simulation};
use fedanchor_data::formats::natural;
use fedanchor_disk as disk;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one look at the mailbox waits, so that Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(500);
/// How long a node may take to join: it reads its images.
const JOIN_WITHIN: Duration = Duration::from_secs(600);
/// The longest answer to `join`, in bytes: 100,000 clients.
const LONGEST_JOIN: usize = 16 << 20;
/// Room for the header of an answer.
const HEADER: usize = 64 << 10;

/// Clients on nodes.
pub struct RemoteFleet {
    mailbox: Arc<Mailbox>,
    stop: Arc<AtomicBool>,
    terms: Bytes,
    run: String,
    /// Clients to wait for before the first round, and valid answers that later rounds need.
    expected: usize,
    quorum: usize,
    /// An answer's largest size, as a multiple of the broadcast's.
    size: f64,
    started: bool,
    /// Nodes that are part of the run or were refused, by the transport's names.
    nodes: BTreeMap<String, Node>,
    /// Which node a client is on, and how many images it has.
    clients: BTreeMap<String, (String, usize)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Node {
    Joined,
    Refused,
}

impl RemoteFleet {
    /// For the server's half of a federation. `run` names the run: what clients keep belongs to it.
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
            mailbox,
            stop,
            terms: terms.into(),
            run: run.to_owned(),
            expected: experiment.data.clients,
            quorum: experiment.checks.quorum.max(1),
            size: experiment.checks.size,
            started: false,
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
        })
    }

    /// Asks nodes to join, all at once, and waits for their answers.
    fn join(&mut self, nodes: &[String]) -> Result<()> {
        let mut asked = BTreeMap::new();
        for node in nodes {
            let (terms, within) = (self.terms.clone(), Some(JOIN_WITHIN));
            asked.insert(self.mailbox.post(node, JOIN, terms, within, LONGEST_JOIN), node);
        }
        let mut ids: BTreeSet<u64> = asked.keys().copied().collect();
        let until = Instant::now() + JOIN_WITHIN;
        while !ids.is_empty() && Instant::now() < until && !self.stopped() {
            let Some((id, reply)) = self.mailbox.next_reply(&ids, LOOK) else { continue };
            ids.remove(&id);
            let node = asked[&id];
            match reply {
                Reply::Failure(reason) => tracing::warn!(node, reason, "the node did not join"),
                Reply::Answer(200, path) => self.welcome(node, &read_reply(&path)?),
                Reply::Answer(status, path) => {
                    let reason = printable(&read_reply(&path)?);
                    tracing::warn!(node, status, reason, "the node refuses to join");
                    self.nodes.insert(node.clone(), Node::Refused);
                }
            }
        }
        ids.into_iter().for_each(|id| self.mailbox.withdraw(id));
        Ok(())
    }

    /// Takes the clients of a node in, or says why not.
    fn welcome(&mut self, node: &str, answer: &[u8]) {
        let refused = match serde_json::from_slice::<Joined>(answer) {
            Err(error) => Some(format!("its answer makes no sense: {error}")),
            Ok(Joined { protocol, version, .. }) if protocol != PROTOCOL => {
                Some(format!("it has version {version} with protocol {protocol}, not {PROTOCOL}"))
            }
            Ok(Joined { clients, .. }) => {
                match clients.iter().find(|c| self.is_elsewhere(&c.name, node)) {
                    Some(taken) => Some(format!(
                        "its client {:?} is on another node that is connected: names must differ",
                        printable(taken.name.as_bytes())
                    )),
                    None => {
                        for client in clients {
                            let samples = client.samples;
                            self.clients.insert(client.name, (node.to_owned(), samples));
                        }
                        None
                    }
                }
            }
        };
        let state = match refused {
            None => {
                tracing::info!(node, "joined");
                Node::Joined
            }
            Some(reason) => {
                tracing::warn!(node, reason, "the node is refused");
                Node::Refused
            }
        };
        self.nodes.insert(node.to_owned(), state);
    }

    /// Whether a client of this name is on another node that is connected. On one that is gone it may come back as
    /// another node: without registered keys, a restart changes what the transport calls it.
    fn is_elsewhere(&self, name: &str, node: &str) -> bool {
        self.clients.get(name).is_some_and(|(there, _)| {
            there != node
                && self.nodes.get(there) == Some(&Node::Joined)
                && self.mailbox.nodes().contains(there)
        })
    }

    /// Clients whose node is connected.
    fn present(&self) -> Vec<Member> {
        let connected = self.mailbox.nodes();
        let present = self.clients.iter().filter(|(_, (node, _))| {
            connected.contains(node) && self.nodes.get(node) == Some(&Node::Joined)
        });
        let member = |(name, (_, samples)): (&String, &(String, usize))| Member {
            key: ClientKey::Name(name.clone()),
            samples: *samples,
        };
        // The order of a simulation, which numbers clients by their names.
        let mut present: Vec<_> = present.collect();
        present.sort_by(|(a, _), (b, _)| natural(a, b));
        present.into_iter().map(member).collect()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests to the nodes of these clients. A broadcast that is the same for all is sent once per node.
    fn requests(&self, task: &RoundTask) -> Result<Vec<Asked>> {
        let mut by_node: BTreeMap<&str, Vec<(String, u32)>> = BTreeMap::new();
        for (number, key) in task.clients {
            let ClientKey::Name(name) = key else { continue };
            if let Some((node, _)) = self.clients.get(name) {
                by_node.entry(node).or_default().push((name.clone(), *number));
            }
        }
        let mut requests = Vec::new();
        for (node, clients) in by_node {
            let together = if task.broadcast.is_the_same_for_all() { clients.len() } else { 1 };
            for clients in clients.chunks(together) {
                let header = TrainHeader { run: self.run.clone(), clients: clients.to_vec() };
                let header = serde_json::to_vec(&header).map_err(|error| {
                    Error::Fleet(format!("a request cannot be written: {error}"))
                })?;
                let broadcast = task.broadcast.encode(clients[0].1)?;
                let longest = self.size * broadcast.len() as f64 * clients.len() as f64;
                requests.push(Asked {
                    node: node.to_owned(),
                    clients: clients.iter().map(|(_, number)| *number).collect(),
                    body: join_parts(&[&header, &broadcast]).into(),
                    longest: longest as usize + HEADER * clients.len(),
                    rejoined: false,
                });
            }
        }
        Ok(requests)
    }
}

/// A request of a round.
struct Asked {
    node: String,
    clients: Vec<u32>,
    body: Bytes,
    longest: usize,
    /// Whether the node had to be told again what is trained.
    rejoined: bool,
}

/// Where a client's answer is.
enum Slot {
    Waiting,
    /// A part of a file, which the last of its clients removes.
    There {
        path: Arc<Spooled>,
        part: usize,
        arrived: Instant,
    },
    Absent,
}

/// A file that is removed when nobody needs it any more.
struct Spooled(PathBuf);

impl Drop for Spooled {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

impl Fleet for RemoteFleet {
    /// Waits until enough clients have joined: before the first round all that are expected, later as many as a
    /// round needs.
    fn members(&mut self) -> Result<Vec<Member>> {
        let enough = if self.started { self.quorum } else { self.expected };
        loop {
            let connected = self.mailbox.nodes();
            // One that went away may come back with other clients, or after it was repaired.
            self.nodes.retain(|node, _| connected.contains(node));
            let new: Vec<String> =
                connected.iter().filter(|node| !self.nodes.contains_key(*node)).cloned().collect();
            if !new.is_empty() {
                self.join(&new)?;
            }
            let present = self.present();
            if present.len() >= enough {
                self.started = true;
                return Ok(present);
            }
            if self.stopped() {
                let (there, needed) = (present.len(), enough);
                return Err(Error::Fleet(format!(
                    "stopped while waiting for clients: {there} of {needed} were connected"
                )));
            }
            self.mailbox.wait_for_other_nodes(&connected, LOOK);
        }
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let timeout = |now: Instant| task.deadline.map(|end| end.saturating_duration_since(now));
        let mut slots: BTreeMap<u32, Slot> =
            task.clients.iter().map(|(number, _)| (*number, Slot::Absent)).collect();
        let mut asked = BTreeMap::new();
        for request in self.requests(task)? {
            request.clients.iter().for_each(|number| {
                slots.insert(*number, Slot::Waiting);
            });
            let Asked { node, body, longest, .. } = &request;
            let timeout = timeout(Instant::now());
            asked.insert(self.mailbox.post(node, TRAIN, body.clone(), timeout, *longest), request);
        }
        // In canonical order, so that nothing waits in memory.
        let mut order = task.clients.iter().peekable();
        let mut deliver = |slots: &mut BTreeMap<u32, Slot>| -> Result<()> {
            while let Some((number, key)) = order.peek() {
                let slot = match slots.get_mut(number) {
                    Some(Slot::Waiting) => return Ok(()),
                    Some(slot) => std::mem::replace(slot, Slot::Absent),
                    None => Slot::Absent,
                };
                let (arrival, arrived) = match slot {
                    Slot::There { path, part, arrived } => {
                        (Arrival::Encoded(read_part(&path.0, part)?), arrived)
                    }
                    _ => (Arrival::Absent, Instant::now()),
                };
                take(Delivery { from: key.clone(), arrival, arrived })?;
                order.next();
            }
            Ok(())
        };
        let over = |now: Instant| task.deadline.is_some_and(|end| now >= end);
        let mut answered = 0;
        while !asked.is_empty() && answered < task.enough && !over(Instant::now()) {
            deliver(&mut slots)?;
            let ids: BTreeSet<u64> = asked.keys().copied().collect();
            let look = timeout(Instant::now()).map_or(LOOK, |left| left.min(LOOK));
            let Some((id, reply)) = self.mailbox.next_reply(&ids, look) else { continue };
            let Some(mut request) = asked.remove(&id) else { continue };
            let node = request.node.clone();
            match reply {
                Reply::Answer(200, path) => {
                    let (path, arrived) = (Arc::new(Spooled(path)), Instant::now());
                    answered += request.clients.len();
                    for (part, number) in request.clients.iter().enumerate() {
                        slots.insert(*number, Slot::There { path: path.clone(), part, arrived });
                    }
                    continue;
                }
                Reply::Answer(NOT_JOINED, path) if !request.rejoined => {
                    remove(&path);
                    tracing::info!(node, "the node was restarted: it joins again");
                    self.nodes.remove(&node);
                    self.join(std::slice::from_ref(&node))?;
                    request.rejoined = true;
                    if self.nodes.get(&node) == Some(&Node::Joined) {
                        let (body, timeout) = (request.body.clone(), timeout(Instant::now()));
                        let id = self.mailbox.post(&node, TRAIN, body, timeout, request.longest);
                        asked.insert(id, request);
                        continue;
                    }
                }
                Reply::Answer(status, path) => {
                    let reason = printable(&read_reply(&path)?);
                    tracing::warn!(node, status, reason, "the node did not train");
                }
                Reply::Failure(reason) => {
                    let reason = printable(reason.as_bytes());
                    tracing::warn!(node, reason, "no answer from the node");
                }
            }
            request.clients.iter().for_each(|number| {
                slots.insert(*number, Slot::Absent);
            });
        }
        for id in asked.into_keys() {
            self.mailbox.withdraw(id);
        }
        slots.values_mut().for_each(|slot| {
            if matches!(slot, Slot::Waiting) {
                *slot = Slot::Absent;
            }
        });
        deliver(&mut slots)
    }
}

/// A reply, whose file is removed.
fn read_reply(path: &Path) -> Result<Vec<u8>> {
    let bytes = disk::read(path, LONGEST_JOIN as u64).map_err(|error| Error::file(path, error));
    remove(path);
    bytes
}

/// One part of a reply. What is no reply at all is handed on as it is, to be rejected and counted.
fn read_part(path: &Path, part: usize) -> Result<Vec<u8>> {
    let bytes = disk::read(path, u64::MAX).map_err(|error| Error::file(path, error))?;
    Ok(split_parts(&bytes)
        .and_then(|parts| parts.get(part).map(|part| part.to_vec()))
        .unwrap_or(bytes))
}

/// A node's words as they may stand in a log.
fn printable(bytes: &[u8]) -> String {
    const LONGEST: usize = 300;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * LONGEST)]).into_owned();
    let plain = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    text.chars().take(LONGEST).map(plain).collect()
}
