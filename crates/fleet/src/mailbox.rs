//! What the coordinator asks of its nodes, and what they reply.
//!
//! The coordinator's thread posts requests and waits for replies; the transport takes requests and puts replies,
//! from threads of its own. Replies wait on disk, so that memory does not grow with the number of nodes.

use crate::protocol::TRAIN;
use crate::spool::Spooled;
use axum::body::Bytes;
use fedanchor::{Error, Result};
use fedanchor_disk as disk;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the names of replies end in.
const SUFFIX: &str = "reply";
/// After how long without a question for work there is no transport any longer. It asks every second or so, and if it is
/// later than that, a round starts later.
const SILENCE: Duration = Duration::from_secs(3);
/// Earlier transports that are remembered.
const REMEMBERED: usize = 1000;

/// Requests and replies.
#[derive(Debug)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Where replies wait.
    folder: PathBuf,
    /// Replies that were begun: each has a file of its own, also where one is sent twice.
    begun: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    /// Nodes that are connected, by the transport's own names; none before the transport has come.
    nodes: BTreeSet<String>,
    /// What the transport calls itself: another one does not know the requests that were taken before.
    session: Option<String>,
    /// Those before it, which have nothing to do here any longer.
    past: VecDeque<String>,
    /// When a transport last asked for work.
    heard: Option<Instant>,
    next: u64,
    requests: BTreeMap<u64, Request>,
    replies: BTreeMap<u64, Arrived>,
    /// Whether the transport says which requests it has.
    tells: bool,
    /// Requests that nobody waits for any longer and the transport still has, with their nodes, since then.
    withdrawn: BTreeMap<u64, (String, Instant)>,
    end: Option<End>,
    /// Whether the transport has been told of the end.
    told: bool,
}

#[derive(Debug)]
struct Request {
    node: String,
    path: &'static str,
    body: Vec<Bytes>,
    timeout: Option<f64>,
    /// The longest reply, in bytes.
    longest: usize,
    taken: bool,
    /// Since when its node has not been connected.
    missing: Option<Instant>,
}

impl Request {
    /// Where the node answers; a node that trains can say by the number what it trains for.
    fn target(&self, id: u64) -> String {
        match self.path {
            TRAIN => format!("{TRAIN}?task={id}"),
            other => other.to_owned(),
        }
    }
}

#[derive(Debug, Clone)]
struct End {
    ok: bool,
    message: String,
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// The node's answer: an HTTP status, and the bytes.
    Answer(u16, Spooled),
    /// No answer, and why.
    Failure(String),
}

/// A reply, and when it was there.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The reply.
    pub reply: Reply,
    /// When it was complete.
    pub at: Instant,
}

/// What the transport tells when it asks for work.
#[derive(Debug, Deserialize)]
pub struct Asking {
    /// Version of the conversation.
    pub protocol: u32,
    /// Differs from one transport to the next.
    #[serde(default)]
    pub session: String,
    /// The nodes that are connected.
    pub nodes: BTreeSet<String>,
    /// The requests that it has, if it says so: any other that was handed out has not reached it.
    #[serde(default)]
    pub holds: Option<BTreeSet<u64>>,
}

/// What the transport shall do.
#[derive(Debug, PartialEq, Serialize)]
pub struct Work {
    /// `work`, `wait` or `done`.
    pub state: &'static str,
    /// Requests to deliver.
    pub requests: Vec<Order>,
    /// Requests that it need not wait for any longer: nobody knows them.
    pub forget: Vec<u64>,
    /// Whether the run was a success, once it is over.
    pub ok: bool,
    /// What to say at the end.
    pub message: String,
}

/// A request to deliver.
#[derive(Debug, PartialEq, Serialize)]
pub struct Order {
    /// Its number.
    pub id: u64,
    /// For which node.
    pub node: String,
    /// Where the node answers.
    pub path: String,
    /// Seconds after which nobody waits for the reply.
    pub timeout: Option<f64>,
}

impl Mailbox {
    /// With a folder for replies, which is not touched before it is opened.
    pub fn new(folder: &Path) -> Self {
        // Numbers of another process must not be taken for those of this one.
        let next =
            std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()) << 20;
        let inner = Mutex::new(Inner { next, ..Inner::default() });
        let (changed, begun) = (Condvar::new(), AtomicU64::new(0));
        Self { inner, changed, folder: folder.to_owned(), begun }
    }

    /// Makes the folder for replies. Those that a killed process has left there are removed, and nothing else.
    pub fn open(&self) -> Result<()> {
        let folder = &self.folder;
        let problem = |error| Error::file(folder, error);
        disk::create_folder(folder).map_err(problem)?;
        for path in disk::list(folder).map_err(problem)? {
            if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
                disk::remove(&path).map_err(|error| Error::file(path, error))?;
            }
        }
        // Other users of this machine have no business there.
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder, private).map_err(problem)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, at_most: Duration) -> MutexGuard<'a, Inner> {
        self.changed.wait_timeout(inner, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether there is a transport: one that has asked for work in the last seconds.
    pub fn has_transport(&self) -> bool {
        self.lock().heard.is_some_and(|heard| heard.elapsed() < SILENCE)
    }

    /// Requests that no transport has taken because their nodes have not been connected for so long.
    pub fn out_of_reach(&self, long: Duration) -> Vec<u64> {
        let inner = self.lock();
        let lost = |r: &Request| r.missing.is_some_and(|since| since.elapsed() >= long);
        inner.requests.iter().filter(|(_, r)| !r.taken && lost(r)).map(|(id, _)| *id).collect()
    }

    /// The nodes that are connected.
    pub fn nodes(&self) -> BTreeSet<String> {
        self.lock().nodes.clone()
    }

    /// Posts a request, whose body may be shared with others. No reply may have more than `longest` bytes.
    pub fn post(
        &self,
        node: &str,
        path: &'static str,
        body: Vec<Bytes>,
        timeout: Option<Duration>,
        longest: usize,
    ) -> u64 {
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        let timeout = timeout.map(|timeout| timeout.as_secs_f64());
        let node = node.to_owned();
        let (taken, missing) = (false, None);
        inner.requests.insert(id, Request { node, path, body, timeout, longest, taken, missing });
        self.changed.notify_all();
        id
    }

    /// Forgets a request: its reply is refused from now on. Its node may still work on it.
    pub fn withdraw(&self, id: u64) {
        let mut inner = self.lock();
        if let Some(Request { node, taken: true, .. }) = inner.requests.remove(&id)
            && inner.tells
        {
            inner.withdrawn.insert(id, (node, Instant::now()));
        }
        inner.replies.remove(&id);
    }

    /// Forgets a request that its node does not work on any longer.
    pub fn write_off(&self, id: u64) {
        self.withdraw(id);
        self.lock().withdrawn.remove(&id);
    }

    /// Requests that nobody waits for any longer and nodes still work on, as far as the transport says, since then.
    pub fn withdrawn(&self) -> BTreeMap<u64, (String, Instant)> {
        self.lock().withdrawn.clone()
    }

    /// Waits for the reply to any of these requests, for at most this long.
    pub fn next_reply(&self, ids: &BTreeSet<u64>, at_most: Duration) -> Option<(u64, Arrived)> {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        loop {
            if let Some(id) = inner.replies.keys().find(|id| ids.contains(id)).copied() {
                return inner.replies.remove(&id).map(|reply| (id, reply));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            inner = self.wait(inner, left);
        }
    }

    /// The run is over. Waits until the transport has been told, for at most this long.
    pub fn end(&self, ok: bool, message: String, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        inner.end = Some(End { ok, message });
        self.changed.notify_all();
        while inner.session.is_some() && !inner.told && Instant::now() < until {
            inner = self.wait(inner, until.saturating_duration_since(Instant::now()));
        }
    }

    /// For the transport: what to do, with a pause of at most this long if there is nothing. `None` for one that
    /// another has replaced: two of them would take each other's work for ever.
    pub fn work(&self, asking: &Asking, at_most: Duration) -> Option<Work> {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        if inner.past.contains(&asking.session) {
            return None;
        }
        if inner.session.as_ref() != Some(&asking.session) {
            // Whatever an earlier transport had taken, this one does not know.
            let before = inner.session.replace(asking.session.clone());
            inner.past.extend(before);
            if inner.past.len() > REMEMBERED {
                inner.past.pop_front();
            }
            inner.requests.values_mut().for_each(|request| request.taken = false);
            self.changed.notify_all();
        }
        if inner.nodes != asking.nodes {
            inner.nodes.clone_from(&asking.nodes);
            self.changed.notify_all();
        }
        let now = Instant::now();
        inner.heard = Some(now);
        let holds = |id: &u64| asking.holds.as_ref().is_some_and(|holds| holds.contains(id));
        inner.tells = asking.holds.is_some();
        inner.withdrawn.retain(|id, _| holds(id));
        for (id, request) in &mut inner.requests {
            request.taken &= asking.holds.is_none() || holds(id);
            let since = request.missing.unwrap_or(now);
            request.missing = (!asking.nodes.contains(&request.node)).then_some(since);
        }
        loop {
            if let Some(End { ok, message }) = inner.end.clone() {
                inner.told = true;
                self.changed.notify_all();
                let (requests, forget) = Default::default();
                return Some(Work { state: "done", requests, forget, ok, message });
            }
            let connected = |request: &Request| asking.nodes.contains(&request.node);
            let waiting = inner.requests.iter_mut().filter(|(_, r)| !r.taken && connected(r));
            let requests: Vec<Order> = waiting
                .map(|(&id, request)| {
                    request.taken = true;
                    let (node, timeout) = (request.node.clone(), request.timeout);
                    Order { id, node, path: request.target(id), timeout }
                })
                .collect();
            let left = until.saturating_duration_since(Instant::now());
            if !requests.is_empty() || left.is_zero() {
                let state = if requests.is_empty() { "wait" } else { "work" };
                let known =
                    |id| inner.requests.contains_key(id) || inner.withdrawn.contains_key(id);
                let held = asking.holds.iter().flatten();
                let forget = held.filter(|id| !known(id)).copied().collect();
                return Some(Work { state, requests, forget, ok: true, message: String::new() });
            }
            inner = self.wait(inner, left);
            if inner.session.as_ref() != Some(&asking.session) {
                return None;
            }
        }
    }

    /// For the transport: the body of a request.
    pub fn body(&self, id: u64) -> Option<Vec<Bytes>> {
        self.lock().requests.get(&id).map(|request| request.body.clone())
    }

    /// The longest reply to a request; `None` if nobody waits for it.
    pub fn longest(&self, id: u64) -> Option<usize> {
        self.lock().requests.get(&id).map(|request| request.longest)
    }

    /// For the transport: a file for a node's reply. It need not be synced: after a power cut nobody waits for it.
    pub fn spool(&self) -> Result<(Spooled, File)> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{number}.{SUFFIX}"));
        Spooled::create(path.clone()).map_err(|error| Error::file(path, error))
    }

    /// For the transport: a node's reply. `false` if nobody waits for it (any longer).
    pub fn reply(&self, id: u64, status: u16, body: Spooled) -> bool {
        self.put(id, Reply::Answer(status, body))
    }

    /// For the transport: why there is no reply. `false` if nobody waits for it (any longer).
    pub fn failure(&self, id: u64, reason: String) -> bool {
        self.put(id, Reply::Failure(reason))
    }

    /// Of several replies to one request the first counts.
    fn put(&self, id: u64, reply: Reply) -> bool {
        let mut inner = self.lock();
        let waited_for = inner.requests.remove(&id).is_some();
        if waited_for {
            inner.replies.insert(id, Arrived { reply, at: Instant::now() });
            self.changed.notify_all();
        }
        waited_for
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.lock().replies.clear();
        // Unless there is anything in it that is not a reply.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests;
