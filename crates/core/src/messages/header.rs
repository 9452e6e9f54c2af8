//! The header of a message.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Version of the protocol. Messages of another version are refused.
pub const PROTOCOL: u32 = 1;

/// The header of every message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) protocol: u32,
    pub(super) round: u32,
    pub(super) client: u32,
    pub(super) method: String,
    #[serde(flatten)]
    pub(super) kind: Kind,
}

/// What a message is, with what fits into a header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Kind {
    Broadcast,
    Update { samples: usize, kept: usize, fix_loss: Option<f64>, mix_loss: Option<f64> },
    NothingKept { samples: usize },
    Failed { reason: String },
}

impl Header {
    pub(super) fn encode(&self) -> Result<String> {
        serde_json::to_string(self).map_err(undecodable)
    }

    pub(super) fn decode(text: &str) -> Result<Self> {
        // The version first: another version may have other keys.
        #[derive(Deserialize)]
        struct Version {
            protocol: u32,
        }
        let Version { protocol } = serde_json::from_str(text).map_err(undecodable)?;
        if protocol != PROTOCOL {
            let problem = format!("the message has protocol version {protocol}, not {PROTOCOL}");
            return Err(undecodable(problem));
        }
        serde_json::from_str(text).map_err(undecodable)
    }
}

/// A message that is not what it should be.
pub(super) fn undecodable(problem: impl ToString) -> Error {
    fedanchor_engine::Error::tensors(problem).into()
}
