//! Why an answer does not count.

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Rejection {
    reason: String,
    /// Whether the client counts as trained: the answer was an update, as far as can be told.
    pub(super) counts_as_trained: bool,
}

impl Rejection {
    /// Of an update.
    pub(super) fn of_update(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), counts_as_trained: true }
    }

    /// Of a message that need not be an update.
    pub(super) fn of_message(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), counts_as_trained: false }
    }

    pub(super) fn undecodable(problem: impl std::fmt::Display) -> Self {
        Self::of_message(format!("sent a message that cannot be decoded: {problem}"))
    }
}

/// Tensors that cannot even be computed with are no update.
impl From<tch::TchError> for Rejection {
    fn from(error: tch::TchError) -> Self {
        Self::undecodable(fedanchor_engine::Error::from(error))
    }
}
