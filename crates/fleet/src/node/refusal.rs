//! Refusals of a node.

use crate::protocol::NOT_JOINED;
use axum::body::Bytes;
use fedanchor::Error;

/// Replaces a reason that must stay on this machine, because it may name files.
pub(super) const PRIVATE: &str = "see the node's log";

/// Why a request is refused: an HTTP status, a message that may leave this machine, and perhaps a reason that may not.
pub(super) struct Refusal {
    status: u16,
    problem: String,
    private: Option<String>,
}

impl Refusal {
    /// A refusal that reveals nothing about this machine.
    pub(super) fn new(status: u16, problem: impl ToString) -> Self {
        Self { status, problem: problem.to_string(), private: None }
    }

    /// A refusal whose reason may name files.
    pub(super) fn private(status: u16, problem: &str, reason: &impl ToString) -> Self {
        let problem = format!("{problem}: {PRIVATE}");
        Self { status, problem, private: Some(reason.to_string()) }
    }

    /// Logs the reason and returns the reply.
    pub(super) fn into_reply(self) -> (u16, Bytes) {
        let Self { status, problem, private } = self;
        // A node that has not joined yet is no incident.
        if status != NOT_JOINED {
            let reason = private.as_ref().unwrap_or(&problem);
            tracing::warn!(status, reason, "refused");
        }
        (status, problem.into())
    }
}

/// A failure of the node itself.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::private(500, "internal error", &error)
    }
}
