//! What a node says when it does not do what it is asked for.

use crate::protocol::NOT_JOINED;
use axum::body::Bytes;
use fedanchor::Error;

/// What is said of a failure whose reason stays on this machine: it may name files.
pub(super) const PRIVATE: &str = "the node's own log says why";

/// Why a request is not carried out: an HTTP status, words that may leave this machine, and perhaps others that may
/// not.
pub(super) struct Refusal {
    status: u16,
    problem: String,
    private: Option<String>,
}

impl Refusal {
    /// For a reason that says nothing of this machine.
    pub(super) fn new(status: u16, problem: impl ToString) -> Self {
        Self { status, problem: problem.to_string(), private: None }
    }

    /// For one that may name files.
    pub(super) fn private(status: u16, what: &str, error: &impl ToString) -> Self {
        let problem = format!("{what}: {PRIVATE}");
        Self { status, problem, private: Some(error.to_string()) }
    }

    /// The reply, after saying why on this machine.
    pub(super) fn tell(self) -> (u16, Bytes) {
        let Self { status, problem, private } = self;
        // That it has to join first is no news.
        if status != NOT_JOINED {
            let reason = private.as_ref().unwrap_or(&problem);
            tracing::warn!(status, reason, "refused");
        }
        (status, problem.into())
    }
}

/// The node's own fault.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::private(500, "it failed", &error)
    }
}
