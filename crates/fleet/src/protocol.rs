//! The messages between the coordinator and its nodes, other than broadcasts and answers.

use axum::body::Bytes;
use fedanchor_data::features::TrunkInfo;
use fedanchor_data::{InputFormat, Normalisation};
use fedanchor_record::Build;
use fedanchor_record::words::{excerpt, is_hidden};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of these messages. Nodes and coordinators of different versions do not work together.
pub const PROTOCOL: u32 = 3;

/// The path on which a node joins a run.
pub const JOIN: &str = "/v1/join";
/// The path on which a node trains, followed by `?task=` and the number of the request.
pub const TRAIN: &str = "/v1/train";
/// The path on which a node lists the requests that it works on.
pub const ALIVE: &str = "/v1/alive";

/// The transport's status for a node whose process it cannot reach.
pub const UNREACHABLE: u16 = 502;

/// A node's status before it has joined this run: it was restarted, or joined another run.
pub const NOT_JOINED: u16 = 428;

/// What a node must know before its first round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Version of these messages.
    pub protocol: u32,
    /// Build of the coordinator.
    #[serde(flatten)]
    pub build: Build,
    /// The run's random identifier. Clients keep their states under it.
    pub run: String,
    /// The settings that clients train by, from [`client_settings`](fedanchor::experiment::client_settings), as TOML.
    /// Their precision applies to all nodes, so that these train what a simulation would.
    pub experiment: String,
    /// Number of classes.
    pub classes: usize,
    /// Their names, where `record.sites` asks nodes to test on labelled pictures; otherwise empty.
    #[serde(default)]
    pub class_names: Vec<String>,
    /// The shape to which images are brought, and the features that the trunk makes of them.
    pub format: InputFormat,
    /// The trunk, which a node has under this name and hash, or the run has none. It is never sent.
    pub trunk: Option<TrunkInfo>,
    /// The normalisation of pixels or features, from the anchors or the config.
    pub normalisation: Normalisation,
    /// Whether images are mirrored.
    pub flip: bool,
}

/// A node's reply to [`JoinRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinReply {
    /// Version of these messages.
    pub protocol: u32,
    /// Build of the node.
    #[serde(flatten)]
    pub build: Build,
    /// Its clients, at least one.
    pub clients: Vec<LocalClient>,
}

/// A client of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalClient {
    /// Its name, unique within the fleet.
    pub name: String,
    /// Number of its images.
    pub samples: usize,
}

/// A node's reply to [`ALIVE`], which it gives also while it trains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The requests to train that are pending at the node.
    pub tasks: BTreeSet<u64>,
}

/// The clients that a node shall train. It follows the broadcast, so that messages to all nodes begin with the same
/// bytes, which a transport can recognise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainHeader {
    /// The run.
    pub run: String,
    /// Names, with the numbers that the coordinator has assigned to them.
    pub clients: Vec<(String, u32)>,
}

/// The most clients of a node.
pub const CLIENTS_PER_NODE: usize = 10_000;
/// The most clients that may join a run: their names are in every checkpoint.
pub const CLIENTS: usize = 100_000;
/// The most images of a client.
pub const SAMPLES: usize = 100_000_000;
/// The longest name of a client, in bytes.
pub const LONGEST_NAME: usize = 200;

/// Checks the names of a node's clients.
pub fn check_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Result<(), String> {
    if !(1..=CLIENTS_PER_NODE).contains(&names.len()) {
        return Err(format!("expected 1 to {CLIENTS_PER_NODE} clients, got {}", names.len()));
    }
    let mut seen = BTreeSet::new();
    for name in names {
        if !(1..=LONGEST_NAME).contains(&name.len()) || name.contains(is_hidden) {
            return Err(format!(
                "invalid client name {:?}: expected 1 to {LONGEST_NAME} bytes without hidden characters",
                excerpt(name)
            ));
        }
        if !seen.insert(name) {
            return Err(format!("duplicate client name {:?}", excerpt(name)));
        }
    }
    Ok(())
}

/// A byte string, preceded by its length.
pub fn framed(part: Bytes) -> [Bytes; 2] {
    [Bytes::copy_from_slice(&(part.len() as u64).to_le_bytes()), part]
}

/// The byte strings that were concatenated after their lengths; `None` for any other bytes.
pub fn split_parts(mut whole: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !whole.is_empty() {
        let (length, rest) = whole.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (part, rest) = rest.split_at_checked(length)?;
        parts.push(part);
        whole = rest;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join_parts(parts: &[&[u8]]) -> Vec<u8> {
        let framed = parts.iter().flat_map(|part| framed(Bytes::copy_from_slice(part)));
        framed.collect::<Vec<_>>().concat()
    }

    #[test]
    fn parts_are_split_as_they_were_joined() {
        for parts in [&[][..], &[&b""[..]], &[&b"one"[..], b"", b"three"]] {
            assert_eq!(split_parts(&join_parts(parts)).unwrap(), parts);
        }
        assert_eq!(join_parts(&[b"one"]), b"\x03\0\0\0\0\0\0\0one");
    }

    #[test]
    fn harmful_names_are_refused() {
        let check = |names: &[&str]| check_names(names.iter().copied());
        assert_eq!(check(&["ward-7", "Ward 7", "\u{5c0f}"]), Ok(()));
        for (names, problem) in [
            (&[][..], "expected 1 to 10000 clients, got 0"),
            (&["a", "b", "a"], "duplicate client name \"a\""),
            (&["a", ""], "invalid client name \"\""),
            (&["\u{1b}[2J"], "without hidden characters"),
            (&["gnp\u{202e}.7-draw"], "without hidden characters"),
            (&[&"x".repeat(201)], "expected 1 to 200 bytes"),
            (&["a"; 10_001], "expected 1 to 10000 clients, got 10001"),
        ] {
            let refused = check(names).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
    }

    #[test]
    fn truncated_parts_and_impossible_lengths_are_refused() {
        let whole = join_parts(&[b"one", b"two"]);
        for end in 1..whole.len() {
            // Between two parts it is complete.
            assert_eq!(split_parts(&whole[..end]).is_some(), end == 11, "{end}");
        }
        assert_eq!(split_parts(&u64::MAX.to_le_bytes()), None);
    }
}
