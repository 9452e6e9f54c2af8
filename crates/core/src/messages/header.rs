//! The header of a message.

use crate::error::{Error, Result};
use fedanchor_engine::tensors::{Decoded, decode};
use serde::{Deserialize, Serialize};

/// Version of the protocol. Messages of another version are refused.
pub const PROTOCOL: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) protocol: u32,
    pub(super) round: u32,
    pub(super) client: u32,
    pub(super) method: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tested: Vec<[u32; 2]>,
    #[serde(flatten)]
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Kind {
    Broadcast,
    Update {
        samples: usize,
        kept: usize,
        /// The first and the second loss, and any others.
        fix_loss: Option<f64>,
        mix_loss: Option<f64>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        more_losses: Vec<Option<f64>>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        labels: Vec<u32>,
        /// Of the tensors in bytes, in the order of the network.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        exponents: Vec<i32>,
    },
    NothingKept {
        samples: usize,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        labels: Vec<u32>,
    },
    Failed {
        reason: String,
    },
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

/// Names and shapes of all tensors, and the header: an honest message has some ten thousand bytes of them, and
/// reading them takes many times their size in memory.
const LARGEST: u64 = 1 << 20;

/// Takes a message apart, unless what describes it is too long.
pub(super) fn decode_message(bytes: &[u8]) -> Result<Decoded> {
    match bytes.first_chunk().map(|length| u64::from_le_bytes(*length)) {
        Some(length) if length > LARGEST => Err(undecodable(format!(
            "the description of its tensors has {length} bytes; the limit is {LARGEST}"
        ))),
        _ => Ok(decode(bytes)?),
    }
}

pub(crate) fn undecodable(problem: impl ToString) -> Error {
    fedanchor_engine::Error::tensors(problem).into()
}
