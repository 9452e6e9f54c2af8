//! What the coordinator asks of its nodes, and what they reply.
//!
//! The coordinator's thread posts requests and waits for replies; the transport takes requests and puts replies,
//! from threads of its own. Replies wait on disk, so that memory does not grow with the number of nodes.

use axum::body::Bytes;
use fedanchor::{Error, Result};
use fedanchor_disk as disk;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests and replies.
#[derive(Debug)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Where replies wait.
    folder: PathBuf,
}

#[derive(Debug, Default)]
struct Inner {
    /// Nodes that are connected, by the transport's own names; none before the transport has come.
    nodes: BTreeSet<String>,
    /// What the transport calls itself: another one does not know the requests that were taken before.
    session: Option<String>,
    next: u64,
    requests: BTreeMap<u64, Request>,
    replies: BTreeMap<u64, Reply>,
    end: Option<End>,
    /// Whether the transport has been told of the end.
    told: bool,
}

#[derive(Debug)]
struct Request {
    node: String,
    path: &'static str,
    body: Bytes,
    timeout: Option<f64>,
    /// The longest reply, in bytes.
    longest: usize,
    taken: bool,
}

#[derive(Debug, Clone)]
struct End {
    ok: bool,
    message: String,
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// The node's answer: an HTTP status, and the file that holds the bytes.
    Answer(u16, PathBuf),
    /// No answer, and why.
    Failure(String),
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
}

/// What the transport shall do.
#[derive(Debug, PartialEq, Serialize)]
pub struct Work {
    /// `work`, `wait` or `done`.
    pub state: &'static str,
    /// Requests to deliver.
    pub requests: Vec<Order>,
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
    pub path: &'static str,
    /// Seconds after which nobody waits for the reply.
    pub timeout: Option<f64>,
}

impl Mailbox {
    /// With a folder for replies, which is emptied.
    pub fn new(folder: &Path) -> Result<Self> {
        let problem = |error| Error::file(folder, error);
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(problem(error));
            }
            _ => disk::create_folder(folder).map_err(problem)?,
        }
        // Other users of this machine have no business there.
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder, private).map_err(problem)?;
        // Numbers of another process must not be taken for those of this one.
        let next =
            std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()) << 20;
        let inner = Mutex::new(Inner { next, ..Inner::default() });
        Ok(Self { inner, changed: Condvar::new(), folder: folder.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, at_most: Duration) -> MutexGuard<'a, Inner> {
        self.changed.wait_timeout(inner, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The nodes that are connected.
    pub fn nodes(&self) -> BTreeSet<String> {
        self.lock().nodes.clone()
    }

    /// Posts a request. No reply may have more than `longest` bytes.
    pub fn post(
        &self,
        node: &str,
        path: &'static str,
        body: Bytes,
        timeout: Option<Duration>,
        longest: usize,
    ) -> u64 {
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        let timeout = timeout.map(|timeout| timeout.as_secs_f64());
        let node = node.to_owned();
        inner.requests.insert(id, Request { node, path, body, timeout, longest, taken: false });
        self.changed.notify_all();
        id
    }

    /// Forgets a request: its reply is refused from now on.
    pub fn withdraw(&self, id: u64) {
        let mut inner = self.lock();
        inner.requests.remove(&id);
        if let Some(Reply::Answer(_, path)) = inner.replies.remove(&id) {
            remove(&path);
        }
    }

    /// Waits for the reply to any of these requests, at most so long.
    pub fn next_reply(&self, ids: &BTreeSet<u64>, at_most: Duration) -> Option<(u64, Reply)> {
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

    /// Waits until the connected nodes differ from these, at most so long.
    pub fn wait_for_other_nodes(&self, known: &BTreeSet<String>, at_most: Duration) {
        let inner = self.lock();
        if inner.nodes == *known {
            drop(self.wait(inner, at_most));
        }
    }

    /// The run is over. Waits until the transport has been told, at most so long.
    pub fn end(&self, ok: bool, message: String, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        inner.end = Some(End { ok, message });
        self.changed.notify_all();
        while inner.session.is_some() && !inner.told && Instant::now() < until {
            inner = self.wait(inner, until.saturating_duration_since(Instant::now()));
        }
    }

    /// For the transport: what to do, with a pause of at most so long if there is nothing.
    pub fn work(&self, asking: &Asking, at_most: Duration) -> Work {
        let until = Instant::now() + at_most;
        let mut inner = self.lock();
        if inner.session.as_ref() != Some(&asking.session) {
            // Whatever an earlier transport had taken, this one does not know.
            inner.session = Some(asking.session.clone());
            inner.requests.values_mut().for_each(|request| request.taken = false);
        }
        if inner.nodes != asking.nodes {
            inner.nodes.clone_from(&asking.nodes);
            self.changed.notify_all();
        }
        loop {
            if let Some(End { ok, message }) = inner.end.clone() {
                inner.told = true;
                self.changed.notify_all();
                return Work { state: "done", requests: Vec::new(), ok, message };
            }
            let connected = |request: &Request| asking.nodes.contains(&request.node);
            let waiting = inner.requests.iter_mut().filter(|(_, r)| !r.taken && connected(r));
            let requests: Vec<Order> = waiting
                .map(|(&id, request)| {
                    request.taken = true;
                    let Request { node, path, timeout, .. } = request;
                    Order { id, node: node.clone(), path, timeout: *timeout }
                })
                .collect();
            let left = until.saturating_duration_since(Instant::now());
            if !requests.is_empty() || left.is_zero() {
                let state = if requests.is_empty() { "wait" } else { "work" };
                return Work { state, requests, ok: true, message: String::new() };
            }
            inner = self.wait(inner, left);
        }
    }

    /// For the transport: the body of a request.
    pub fn body(&self, id: u64) -> Option<Bytes> {
        self.lock().requests.get(&id).map(|request| request.body.clone())
    }

    /// The longest reply to a request; `None` if nobody waits for it.
    pub fn longest(&self, id: u64) -> Option<usize> {
        self.lock().requests.get(&id).map(|request| request.longest)
    }

    /// For the transport: a node's reply. `Ok(false)` if nobody waits for it (any more).
    pub fn reply(&self, id: u64, status: u16, body: &[u8]) -> Result<bool> {
        if self.longest(id).is_none() {
            return Ok(false);
        }
        let path = self.folder.join(format!("{id}.reply"));
        // Not synced: after a power cut nobody waits for it.
        std::fs::write(&path, body).map_err(|error| Error::file(&path, error))?;
        let taken = self.put(id, Reply::Answer(status, path.clone()));
        if !taken {
            remove(&path);
        }
        Ok(taken)
    }

    /// For the transport: why there is no reply. `false` if nobody waits for it (any more).
    pub fn failure(&self, id: u64, reason: String) -> bool {
        self.put(id, Reply::Failure(reason))
    }

    fn put(&self, id: u64, reply: Reply) -> bool {
        let mut inner = self.lock();
        let waited_for = inner.requests.remove(&id).is_some();
        if waited_for {
            inner.replies.insert(id, reply);
            self.changed.notify_all();
        }
        waited_for
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Removes a reply that has been read or is not wanted. What is left is removed with the folder.
pub(crate) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn asking(session: &str, nodes: &[&str]) -> Asking {
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        Asking { protocol: 1, session: session.to_owned(), nodes }
    }

    fn ids(work: &Work) -> Vec<u64> {
        work.requests.iter().map(|order| order.id).collect()
    }

    #[test]
    fn a_request_is_taken_once_and_answered_once() {
        let folder = tempfile::tempdir().unwrap();
        let mailbox = Mailbox::new(&folder.path().join("replies")).unwrap();
        let id = mailbox.post("7", "/v1/join", Bytes::from_static(b"who?"), None, 100);
        // A node that is not connected is not asked.
        assert_eq!(mailbox.work(&asking("a", &["8"]), NOW).state, "wait");
        let work = mailbox.work(&asking("a", &["7", "8"]), NOW);
        assert_eq!((work.state, ids(&work)), ("work", vec![id]));
        assert_eq!(mailbox.work(&asking("a", &["7", "8"]), NOW).state, "wait");
        assert_eq!(mailbox.body(id).unwrap(), &b"who?"[..]);
        // Another transport takes it anew.
        assert_eq!(ids(&mailbox.work(&asking("b", &["7"]), NOW)), [id]);
        let all = BTreeSet::from([id]);
        assert_eq!(mailbox.next_reply(&all, NOW), None);
        assert!(mailbox.reply(id, 200, b"me").unwrap());
        assert!(!mailbox.reply(id, 200, b"me again").unwrap());
        assert!(!mailbox.failure(id, "too late".to_owned()));
        let Some((_, Reply::Answer(200, path))) = mailbox.next_reply(&all, NOW) else { panic!() };
        assert_eq!(std::fs::read(path).unwrap(), b"me");
    }

    #[test]
    fn a_withdrawn_request_has_no_reply_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("replies");
        let mailbox = Mailbox::new(&place).unwrap();
        let post = || mailbox.post("7", "/v1/train", Bytes::new(), None, 100);
        let (early, late) = (post(), post());
        assert!(mailbox.reply(early, 200, b"x").unwrap());
        [early, late].into_iter().for_each(|id| mailbox.withdraw(id));
        assert!(!mailbox.reply(late, 200, b"x").unwrap());
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        assert_eq!(mailbox.body(late), None);
        drop(mailbox);
        assert!(!place.exists());
    }

    #[test]
    fn the_end_is_told_to_whoever_asks() {
        let folder = tempfile::tempdir().unwrap();
        let mailbox = Mailbox::new(&folder.path().join("replies")).unwrap();
        mailbox.end(false, "no".to_owned(), Duration::from_secs(60)); // nobody is there to be told
        let work = mailbox.work(&asking("a", &[]), NOW);
        assert_eq!((work.state, work.ok, &work.message[..]), ("done", false, "no"));
    }
}
