//! Requests of the coordinator to its nodes, and their replies.
//!
//! The coordinator's thread posts requests and waits for replies; the transport takes requests and delivers replies on
//! its own threads. Replies are kept on disk, so that memory does not grow with the number of nodes.

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

/// The extension of files with replies.
const SUFFIX: &str = "reply";
/// A transport that has not polled for this long is gone. It polls about once per second; if one is late, a round
/// starts later.
const SILENCE: Duration = Duration::from_secs(3);
/// The number of earlier sessions that are remembered.
const PAST_SESSIONS: usize = 1000;

/// Requests and replies.
#[derive(Debug)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    changed: Condvar,
    folder: PathBuf,
    /// Counts files: a reply that is delivered twice is written to two files.
    files: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    /// Connected nodes, by the transport's names.
    nodes: BTreeSet<String>,
    /// The fingerprints of their public keys, where the transport knows them.
    keys: BTreeMap<String, String>,
    /// The session of the transport. Another one does not know the requests that were taken before.
    session: Option<String>,
    /// Earlier sessions, which are refused.
    past: VecDeque<String>,
    last_poll: Option<Instant>,
    next: u64,
    requests: BTreeMap<u64, Request>,
    replies: BTreeMap<u64, Arrived>,
    /// Whether the transport lists the requests that it holds.
    lists_held: bool,
    /// Cancelled requests that the transport still holds: their nodes, and when they were cancelled.
    cancelled: BTreeMap<u64, (String, Instant)>,
    /// Whether the run was successful, and the message for the transport.
    end: Option<(bool, String)>,
    end_is_known: bool,
}

#[derive(Debug)]
struct Request {
    outgoing: Outgoing,
    body: Vec<Bytes>,
    /// The longest reply, in bytes.
    longest: usize,
    taken: bool,
    /// Since when its node has been disconnected.
    missing: Option<Instant>,
}

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// The node's answer: an HTTP status and the body.
    Answer(u16, Spooled),
    /// Why there is no answer.
    Failure(String),
}

/// A reply, and when it was complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Arrived {
    pub reply: Reply,
    pub at: Instant,
}

/// How a transport asks for work.
#[derive(Debug, Deserialize)]
pub struct Poll {
    pub protocol: u32,
    /// Identifies the transport's process.
    #[serde(default)]
    pub session: String,
    pub nodes: BTreeSet<String>,
    /// The fingerprints of their public keys, if it knows them.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The requests that it holds, if it lists them. Any other that was handed out has not reached it.
    #[serde(default)]
    pub holds: Option<BTreeSet<u64>>,
}

/// What the transport shall do.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// `work`, `wait` or `done`.
    pub state: &'static str,
    pub requests: Vec<Outgoing>,
    /// Held requests that are not pending here: their replies are not needed.
    pub forget: Vec<u64>,
    /// Whether the run was successful, once it is over.
    pub ok: bool,
    /// What to log at the end.
    pub message: String,
}

/// A request to deliver.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outgoing {
    pub id: u64,
    pub node: String,
    pub path: String,
    /// Seconds until the request expires.
    pub timeout: Option<f64>,
}

impl Mailbox {
    /// A mailbox that keeps replies in this folder, which [`open`](Self::open) creates.
    pub fn new(folder: &Path) -> Self {
        // Numbers must differ from those of an earlier process.
        let next =
            std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()) << 20;
        let inner = Mutex::new(Inner { next, ..Inner::default() });
        let (changed, files) = Default::default();
        Self { inner, changed, folder: folder.to_owned(), files }
    }

    /// Creates the folder for replies, or removes the replies that a killed process has left there.
    pub fn open(&self) -> Result<()> {
        let folder = &self.folder;
        let problem = |error| Error::file(folder, error);
        disk::create_folder(folder).map_err(problem)?;
        for path in disk::list(folder).map_err(problem)? {
            if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
                disk::remove(&path).map_err(|error| Error::file(path, error))?;
            }
        }
        // No access for other users of this machine.
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder, private).map_err(problem)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, until: Instant) -> MutexGuard<'a, Inner> {
        let left = until.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether a transport has polled in the last seconds.
    pub fn has_transport(&self) -> bool {
        self.lock().last_poll.is_some_and(|at| at.elapsed() < SILENCE)
    }

    /// Requests that no transport has taken because their nodes have been disconnected for this long.
    pub fn undeliverable(&self, long: Duration) -> Vec<u64> {
        let inner = self.lock();
        let is_missing = |r: &Request| r.missing.is_some_and(|since| since.elapsed() >= long);
        let missing = inner.requests.iter().filter(|(_, r)| !r.taken && is_missing(r));
        missing.map(|(id, _)| *id).collect()
    }

    /// The connected nodes.
    pub fn nodes(&self) -> BTreeSet<String> {
        self.lock().nodes.clone()
    }

    /// The fingerprint of a connected node's public key, if the transport knows it.
    pub fn key(&self, node: &str) -> Option<String> {
        self.lock().keys.get(node).cloned()
    }

    /// Posts a request, whose body may be shared with others, and returns its number. A reply of more than `longest`
    /// bytes is refused.
    pub fn post(
        &self,
        node: &str,
        path: &str,
        body: Vec<Bytes>,
        timeout: Option<Duration>,
        longest: usize,
    ) -> u64 {
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        // With the number, a node that trains can list its pending requests.
        let path = if path == TRAIN { format!("{TRAIN}?task={id}") } else { path.to_owned() };
        let timeout = timeout.map(|timeout| timeout.as_secs_f64());
        let outgoing = Outgoing { id, node: node.to_owned(), path, timeout };
        let request = Request { outgoing, body, longest, taken: false, missing: None };
        inner.requests.insert(id, request);
        self.changed.notify_all();
        id
    }

    /// Cancels a request: its reply will be refused. Its node may still work on it.
    pub fn cancel(&self, id: u64) {
        let mut inner = self.lock();
        if let Some(Request { outgoing, taken: true, .. }) = inner.requests.remove(&id)
            && inner.lists_held
        {
            inner.cancelled.insert(id, (outgoing.node, Instant::now()));
        }
        inner.replies.remove(&id);
    }

    /// Forgets a request on which its node does not work.
    pub fn forget(&self, id: u64) {
        self.cancel(id);
        self.lock().cancelled.remove(&id);
    }

    /// Cancelled requests on which nodes still work according to the transport: the node, and when they were cancelled.
    pub fn cancelled(&self) -> BTreeMap<u64, (String, Instant)> {
        self.lock().cancelled.clone()
    }

    /// Waits for the reply to any of these requests, for at most this long.
    pub fn next_reply(&self, ids: &BTreeSet<u64>, at_most: Duration) -> Option<(u64, Arrived)> {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        loop {
            if let Some(id) = inner.replies.keys().find(|id| ids.contains(id)).copied() {
                return inner.replies.remove(&id).map(|reply| (id, reply));
            }
            if Instant::now() >= until {
                return None;
            }
            inner = self.wait(inner, until);
        }
    }

    /// Ends the run. Waits until the transport has been told, for at most this long.
    pub fn end(&self, ok: bool, message: String, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        inner.end = Some((ok, message));
        self.changed.notify_all();
        while inner.session.is_some() && !inner.end_is_known && Instant::now() < until {
            inner = self.wait(inner, until);
        }
    }

    /// For the transport: the work to do, after a pause of at most this long if there is none. `None` for a transport
    /// that was replaced: two of them would take each other's requests.
    pub fn work(&self, poll: &Poll, at_most: Duration) -> Option<Work> {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        if inner.past.contains(&poll.session) {
            return None;
        }
        if inner.session.as_ref() != Some(&poll.session) {
            let before = inner.session.replace(poll.session.clone());
            inner.past.extend(before);
            if inner.past.len() > PAST_SESSIONS {
                inner.past.pop_front();
            }
            inner.requests.values_mut().for_each(|request| request.taken = false);
        }
        inner.nodes.clone_from(&poll.nodes);
        inner.keys.clone_from(&poll.keys);
        self.changed.notify_all();
        let now = Instant::now();
        inner.last_poll = Some(now);
        let is_held = |id: &u64| poll.holds.as_ref().is_some_and(|holds| holds.contains(id));
        inner.lists_held = poll.holds.is_some();
        inner.cancelled.retain(|id, _| is_held(id));
        for (id, request) in &mut inner.requests {
            request.taken &= poll.holds.is_none() || is_held(id);
            let since = request.missing.unwrap_or(now);
            request.missing = (!poll.nodes.contains(&request.outgoing.node)).then_some(since);
        }
        loop {
            if let Some((ok, message)) = inner.end.clone() {
                inner.end_is_known = true;
                self.changed.notify_all();
                return Some(Work { state: "done", ok, message, ..Work::default() });
            }
            let mut requests = Vec::new();
            for request in inner.requests.values_mut() {
                if !request.taken && poll.nodes.contains(&request.outgoing.node) {
                    request.taken = true;
                    requests.push(request.outgoing.clone());
                }
            }
            if !requests.is_empty() || Instant::now() >= until {
                let state = if requests.is_empty() { "wait" } else { "work" };
                let is_known =
                    |id| inner.requests.contains_key(id) || inner.cancelled.contains_key(id);
                let forget = poll.holds.iter().flatten().filter(|id| !is_known(id));
                let forget = forget.copied().collect();
                return Some(Work { state, requests, forget, ok: true, message: String::new() });
            }
            inner = self.wait(inner, until);
            if inner.session.as_ref() != Some(&poll.session) {
                return None;
            }
        }
    }

    /// The body of a pending request.
    pub fn body(&self, id: u64) -> Option<Vec<Bytes>> {
        self.lock().requests.get(&id).map(|request| request.body.clone())
    }

    /// The longest reply to a pending request.
    pub fn longest(&self, id: u64) -> Option<usize> {
        self.lock().requests.get(&id).map(|request| request.longest)
    }

    /// For the transport: a file for a reply. It need not be synced: a power cut also ends the request.
    pub fn spool(&self) -> Result<(Spooled, File)> {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("{number}.{SUFFIX}"));
        let file = File::create_new(&path).map_err(|error| Error::file(&path, error))?;
        Ok((Spooled(path), file))
    }

    /// For the transport: delivers the reply to a request; `false` if the request is not pending.
    pub fn deliver(&self, id: u64, reply: Reply) -> bool {
        let mut inner = self.lock();
        let is_pending = inner.requests.remove(&id).is_some();
        if is_pending {
            inner.replies.insert(id, Arrived { reply, at: Instant::now() });
            self.changed.notify_all();
        }
        is_pending
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.lock().replies.clear();
        // Fails if it contains other files, which stay.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests;
