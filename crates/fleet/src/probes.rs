//! Signs of life. A node does one thing after the other: once it has answered something, what it was asked before is
//! done or lost. It is lost if a SuperNode was killed and restarted, or could not pass an answer on, of which Flower
//! does not tell.

use crate::mailbox::{Mailbox, Reply};
use crate::protocol::ALIVE;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After how long without an answer a node is asked for a sign of life.
const AFTER: Duration = Duration::from_secs(300);
/// The longest sign of life, in bytes.
const LONGEST: usize = 4 << 10;

/// The last sign of life that each node was asked for.
pub(crate) struct Probes {
    mailbox: Arc<Mailbox>,
    last: BTreeMap<String, Probe>,
    /// After how long without an answer a node is asked for one.
    pub(crate) after: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    request: u64,
    answered: Option<Instant>,
}

impl Probes {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, last: BTreeMap::new(), after: AFTER }
    }

    /// Whether a node has lost a request. One that has not answered it for long is asked for a sign of life; `patience`
    /// is how long an answer may come after a later one.
    pub(crate) fn is_lost(
        &mut self,
        node: &str,
        request: u64,
        since: Instant,
        patience: Duration,
    ) -> bool {
        match self.last.get(node).filter(|probe| probe.request > request) {
            Some(Probe { answered, .. }) => answered.is_some_and(|at| at.elapsed() >= patience),
            None => {
                if since.elapsed() >= self.after {
                    self.send(node);
                }
                false
            }
        }
    }

    fn send(&mut self, node: &str) {
        self.forget(node);
        let request = self.mailbox.post(node, ALIVE, Vec::new(), None, LONGEST);
        self.last.insert(node.to_owned(), Probe { request, answered: None });
    }

    /// Nothing more is expected of a node.
    pub(crate) fn forget(&mut self, node: &str) {
        if let Some(Probe { request, .. }) = self.last.remove(node) {
            self.mailbox.write_off(request);
        }
    }

    /// The requests that nodes have not answered yet.
    pub(crate) fn asked(&self) -> impl Iterator<Item = u64> {
        self.last.values().filter(|probe| probe.answered.is_none()).map(|probe| probe.request)
    }

    /// Takes the answer to such a request; `false` if it is to none.
    pub(crate) fn take(&mut self, id: u64, reply: &Reply) -> bool {
        let Some((node, probe)) = self.last.iter_mut().find(|(_, probe)| probe.request == id)
        else {
            return false;
        };
        match reply {
            // Whatever it says.
            Reply::Answer(..) => probe.answered = Some(Instant::now()),
            // It may not have reached the node.
            Reply::Failure(_) => {
                let node = node.clone();
                self.last.remove(&node);
            }
        }
        true
    }
}
