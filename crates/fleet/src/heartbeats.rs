//! Heartbeats. A node that has not answered for long is asked which requests it works on. One that is not among them,
//! and whose answer does not arrive either, is lost: a SuperNode was killed and restarted or could not pass an answer
//! on, neither of which Flower reports. That a node answers at all proves nothing: a transport may carry several
//! requests to a node at a time.

use crate::mailbox::{Mailbox, Reply};
use crate::protocol::{ALIVE, Heartbeat};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time without an answer after which a node is asked which requests it works on, and the interval until it is
/// asked again.
const INTERVAL: Duration = Duration::from_secs(300);
/// The longest reply, in bytes: some thousand requests.
const LONGEST: usize = 64 << 10;

/// The last heartbeat of each node that was asked for one.
pub(crate) struct Heartbeats {
    mailbox: Arc<Mailbox>,
    last: BTreeMap<String, Last>,
    pub(crate) interval: Duration,
}

struct Last {
    request: u64,
    /// The requests on which the node works, and when it said so.
    answer: Option<(BTreeSet<u64>, Instant)>,
}

impl Heartbeats {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, last: BTreeMap::new(), interval: INTERVAL }
    }

    /// Whether a node has lost a request, which it was sent at `since`; asks it for a heartbeat when one is due. An
    /// answer may arrive for as long as `patience` after a heartbeat without the request.
    pub(crate) fn is_lost(
        &mut self,
        node: &str,
        request: u64,
        since: Instant,
        patience: Duration,
    ) -> bool {
        let is_due = match self.last.get(node).filter(|last| last.request > request) {
            None => since.elapsed() >= self.interval,
            Some(Last { answer: None, .. }) => false,
            Some(Last { answer: Some((tasks, at)), .. }) => {
                if !tasks.contains(&request) {
                    return at.elapsed() >= patience;
                }
                at.elapsed() >= self.interval
            }
        };
        if is_due {
            self.remove(node);
            let request = self.mailbox.post(node, ALIVE, Vec::new(), None, LONGEST);
            self.last.insert(node.to_owned(), Last { request, answer: None });
        }
        false
    }

    pub(crate) fn remove(&mut self, node: &str) {
        if let Some(Last { request, .. }) = self.last.remove(node) {
            self.mailbox.forget(request);
        }
    }

    /// The requests that nodes have not answered yet.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        self.last.values().filter(|last| last.answer.is_none()).map(|last| last.request)
    }

    /// Takes the reply to such a request; `false` for any other request.
    pub(crate) fn take(&mut self, id: u64, reply: &Reply) -> bool {
        let Some((node, last)) = self.last.iter_mut().find(|(_, last)| last.request == id) else {
            return false;
        };
        match reply {
            Reply::Answer(status, body) => {
                // A node that cannot be reached, or does not list its requests, works on none.
                let listed = (*status == 200).then(|| body.prefix(LONGEST).ok()).flatten();
                let listed =
                    listed.and_then(|body| serde_json::from_slice::<Heartbeat>(&body).ok());
                let tasks = listed.map(|Heartbeat { tasks }| tasks).unwrap_or_default();
                last.answer = Some((tasks, Instant::now()));
            }
            // It may not have reached the node.
            Reply::Failure(_) => {
                let node = node.clone();
                self.last.remove(&node);
            }
        }
        true
    }
}
