//! Refusals of a node.

use crate::protocol::NOT_JOINED;
use axum::body::Bytes;
use fedanchor::Error;

/// Replaces a reason that must stay on this machine, because it may name files.
pub(super) const PRIVATE: &str = "see the node's log";

/// Why a request is refused: an HTTP status, and a message that may leave this machine.
pub(super) struct Refusal(u16, String);

impl Refusal {
    /// A refusal that reveals nothing about this machine.
    pub(super) fn new(status: u16, problem: impl ToString) -> Self {
        let problem = problem.to_string();
        // A node that has not joined yet is no incident.
        if status != NOT_JOINED {
            tracing::warn!(status, reason = problem, "refused");
        }
        Self(status, problem)
    }

    /// A refusal whose reason may name files. It is logged here and not sent.
    pub(super) fn private(status: u16, problem: &str, reason: &impl ToString) -> Self {
        tracing::warn!(status, reason = reason.to_string(), "refused");
        Self(status, format!("{problem}: {PRIVATE}"))
    }

    pub(super) fn into_reply(self) -> (u16, Bytes) {
        (self.0, self.1.into())
    }
}

/// A failure of the node itself.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::private(500, "internal error", &error)
    }
}
