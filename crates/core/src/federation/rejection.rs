//! Why an answer does not count.

use std::fmt;

/// Why an answer does not count.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// The client was not drawn.
    Unexpected,
    /// A second answer that differs from the first.
    Conflicting,
    /// For another round.
    OtherRound(u32),
    /// For another client, by its own account.
    OtherClient(u32),
    /// Of another method.
    OtherMethod(String),
    /// After the round was over.
    Late,
    /// More bytes than allowed: how many, and the limit.
    Size(u64, u64),
    /// Bytes that are no answer.
    Undecodable(String),
    /// A tensor that is not there.
    Missing(String),
    /// A tensor that does not belong there.
    Extra(String),
    /// A tensor of another shape or number type.
    Shape(String),
    /// Infinite or not a number.
    NotFinite(String),
    /// A variance below 0.
    Negative(String),
    /// Too far from the broadcast model: the distance and the limit.
    TooFar(f64, f64),
    /// An impossible number of samples: none, or more than at first contact.
    Samples(usize),
    /// More kept samples than samples.
    Kept(usize, usize),
    /// Counts of pseudo-labels that cannot be: their sum, and of how many classes.
    Labels(u64, usize),
}

impl Rejection {
    /// Whether what was rejected was an update, as far as can be told.
    pub(super) fn concerns_an_update(&self) -> bool {
        !matches!(self, Self::Conflicting | Self::Undecodable(_) | Self::Unexpected)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unexpected => write!(f, "was not drawn in this round"),
            Self::Conflicting => write!(f, "sent two different answers"),
            Self::OtherRound(round) => write!(f, "sent an answer for round {round}"),
            Self::OtherClient(client) => write!(f, "sent an answer as client {client}"),
            Self::OtherMethod(method) => write!(f, "sent an answer of method {method:?}"),
            Self::Late => write!(f, "answered after the round was over"),
            Self::Size(bytes, limit) => write!(f, "sent {bytes} bytes; the limit is {limit}"),
            Self::Undecodable(problem) => {
                write!(f, "sent a message that cannot be decoded: {problem}")
            }
            Self::Missing(name) => write!(f, "sent no `{name}`"),
            Self::Extra(name) => write!(f, "sent `{name}`, which does not belong to the update"),
            Self::Shape(name) => write!(f, "sent `{name}` with another shape or number type"),
            Self::NotFinite(name) => write!(f, "sent `{name}` with a value that is not finite"),
            Self::Negative(name) => write!(f, "sent `{name}` with a negative variance"),
            Self::TooFar(distance, limit) => {
                write!(f, "moved {distance:.3e} from the broadcast model; the limit is {limit:.3e}")
            }
            Self::Samples(count) => write!(f, "claims {count} samples"),
            Self::Kept(kept, samples) => write!(f, "claims {kept} kept samples of {samples}"),
            Self::Labels(count, classes) => {
                write!(f, "claims {count} pseudo-labels of {classes} classes")
            }
        }
    }
}

/// Tensors that cannot even be computed with are no update.
impl From<tch::TchError> for Rejection {
    fn from(error: tch::TchError) -> Self {
        Self::Undecodable(fedanchor_engine::Error::from(error).to_string())
    }
}
