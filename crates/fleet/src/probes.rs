//! Signs of life. A node that has not answered for long is asked what it works on. What is not on its list, and whose
//! answer does not arrive either, is lost: a SuperNode was killed and restarted, or could not pass an answer on, of which
//! Flower does not tell. That a node answers at all says nothing of its work: a transport may carry several requests to a
//! node at a time.

use crate::mailbox::{Mailbox, Reply};
use crate::protocol::{ALIVE, Alive};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After how long without an answer a node is asked what it works on, and asked again if it still works on it.
const AFTER: Duration = Duration::from_secs(300);
/// The longest sign of life, in bytes: some thousand tasks.
const LONGEST: usize = 64 << 10;

/// The last sign of life that each node was asked for.
pub(crate) struct Probes {
    mailbox: Arc<Mailbox>,
    last: BTreeMap<String, Probe>,
    /// After how long without an answer a node is asked for one.
    pub(crate) after: Duration,
}

#[derive(Debug)]
struct Probe {
    request: u64,
    answer: Option<Answer>,
}

/// What a node works on, and since when that is known.
#[derive(Debug)]
struct Answer {
    tasks: BTreeSet<u64>,
    at: Instant,
}

impl Probes {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, last: BTreeMap::new(), after: AFTER }
    }

    /// Whether a node has lost a request. One that has not answered it for long is asked what it works on; `patience` is
    /// how long an answer may take to arrive after the node has said that it does not work on it.
    pub(crate) fn is_lost(
        &mut self,
        node: &str,
        request: u64,
        since: Instant,
        patience: Duration,
    ) -> bool {
        let ask = match self.last.get(node).filter(|probe| probe.request > request) {
            None => since.elapsed() >= self.after,
            Some(Probe { answer: None, .. }) => false,
            Some(Probe { answer: Some(Answer { tasks, at }), .. }) => {
                if !tasks.contains(&request) {
                    return at.elapsed() >= patience;
                }
                at.elapsed() >= self.after
            }
        };
        if ask {
            self.send(node);
        }
        false
    }

    fn send(&mut self, node: &str) {
        self.forget(node);
        let request = self.mailbox.post(node, ALIVE, Vec::new(), None, LONGEST);
        self.last.insert(node.to_owned(), Probe { request, answer: None });
    }

    /// Nothing more is expected of a node.
    pub(crate) fn forget(&mut self, node: &str) {
        if let Some(Probe { request, .. }) = self.last.remove(node) {
            self.mailbox.write_off(request);
        }
    }

    /// The requests that nodes have not answered yet.
    pub(crate) fn asked(&self) -> impl Iterator<Item = u64> {
        self.last.values().filter(|probe| probe.answer.is_none()).map(|probe| probe.request)
    }

    /// Takes the answer to such a request; `false` if it is to none.
    pub(crate) fn take(&mut self, id: u64, reply: &Reply) -> bool {
        let Some((node, probe)) = self.last.iter_mut().find(|(_, probe)| probe.request == id)
        else {
            return false;
        };
        match reply {
            Reply::Answer(status, body) => {
                // A node that cannot be reached, or does not say what it works on, works on nothing.
                let said = (*status == 200).then(|| body.beginning(LONGEST).ok()).flatten();
                let said = said.and_then(|body| serde_json::from_slice::<Alive>(&body).ok());
                let tasks = said.map_or_else(BTreeSet::new, |Alive { tasks }| tasks);
                probe.answer = Some(Answer { tasks, at: Instant::now() });
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
