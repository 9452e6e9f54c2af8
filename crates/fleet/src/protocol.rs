//! What the coordinator and its nodes say to each other, besides broadcasts and answers.

use axum::body::Bytes;
use fedanchor_data::{Normalisation, Shape};
use fedanchor_record::Build;
use fedanchor_record::words::{excerpt, is_hidden};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of these messages. Nodes and coordinators of other versions do not work together.
pub const PROTOCOL: u32 = 2;

/// Where a node answers.
pub const JOIN: &str = "/v1/join";
/// Where a node trains; followed by `?task=` and the number of the request.
pub const TRAIN: &str = "/v1/train";
/// Where a node says what it works on.
pub const ALIVE: &str = "/v1/alive";

/// Status of what the transport says in place of a node whose process it cannot reach.
pub const UNREACHABLE: u16 = 502;

/// Status of a node that has not been told what is trained: it was restarted, or another run was here.
pub const NOT_JOINED: u16 = 428;

/// What a node must know before its first round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Version of these messages.
    pub protocol: u32,
    /// Build of the coordinator.
    #[serde(flatten)]
    pub build: Build,
    /// The run's identifier, which is random: what clients keep from round to round belongs to it.
    pub run: String,
    /// Of the settled experiment what clients need to train, as TOML: see [`client_settings`]. Its precision is that of
    /// all nodes, so that they train what a simulation would.
    ///
    /// [`client_settings`]: fedanchor::experiment::client_settings
    pub experiment: String,
    /// Number of classes.
    pub classes: usize,
    /// The shape that images are brought to.
    pub shape: Shape,
    /// The normalisation of pixels, from the anchors or the config.
    pub normalisation: Normalisation,
    /// Whether images are mirrored.
    pub flip: bool,
}

/// What a node says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Version of these messages.
    pub protocol: u32,
    /// Build of the node.
    #[serde(flatten)]
    pub build: Build,
    /// Its clients: one, or several that it stands for.
    pub clients: Vec<LocalClient>,
}

/// A client of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalClient {
    /// Its name, which no other client of the fleet may have.
    pub name: String,
    /// How many images it has.
    pub samples: usize,
}

/// What a node works on. It is asked side by side with its work, so that it can say what is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// The requests to train that it has and whose askers wait for the answer.
    pub tasks: BTreeSet<u64>,
}

/// Which clients a node shall train; it follows the broadcast, which is the same for all nodes, so that a transport can
/// tell by the first bytes of a message that it has them already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainHeader {
    /// The run.
    pub run: String,
    /// Names, and the numbers that the coordinator has given them.
    pub clients: Vec<(String, u32)>,
}

/// The most clients that a node may stand for.
pub const CLIENTS_PER_NODE: usize = 10_000;
/// The most clients that may join a run while it lasts: their names are in every checkpoint.
pub const CLIENTS: usize = 100_000;
/// The most images of a client.
pub const SAMPLES: usize = 100_000_000;
/// The longest name of a client, in bytes.
pub const LONGEST_NAME: usize = 200;

/// What is wrong with the names of a node's clients, if anything is.
pub fn bad_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    if names.len() == 0 {
        return Some("it has no client".to_owned());
    }
    if names.len() > CLIENTS_PER_NODE {
        return Some(format!("it has {} clients, more than {CLIENTS_PER_NODE}", names.len()));
    }
    let mut seen = BTreeSet::new();
    names.into_iter().find_map(|name| {
        let name_for_people = excerpt(name);
        match name {
            "" => Some("a client has an empty name".to_owned()),
            _ if name.len() > LONGEST_NAME => {
                Some(format!("the name {name_for_people:?} has more than {LONGEST_NAME} bytes"))
            }
            _ if name.contains(is_hidden) => {
                Some(format!("the name {name_for_people:?} has hidden characters"))
            }
            _ if !seen.insert(name) => Some(format!("two clients are called {name_for_people:?}")),
            _ => None,
        }
    })
}

/// A byte string after its length, as [`join_parts`] writes it.
pub fn framed(part: Bytes) -> [Bytes; 2] {
    [Bytes::copy_from_slice(&(part.len() as u64).to_le_bytes()), part]
}

/// Byte strings as one: each after its length.
pub fn join_parts(parts: &[&[u8]]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(parts.iter().map(|part| 8 + part.len()).sum());
    parts.iter().for_each(|part| push_part(&mut whole, part));
    whole
}

/// Adds a byte string to those that are joined already.
pub(crate) fn push_part(whole: &mut Vec<u8>, part: &[u8]) {
    whole.extend((part.len() as u64).to_le_bytes());
    whole.extend(part);
}

/// The byte strings that [`join_parts`] put together; `None` if these are none.
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

    #[test]
    fn parts_arrive_as_they_were() {
        for parts in [&[][..], &[&b""[..]], &[&b"one"[..], b"", b"three"]] {
            assert_eq!(split_parts(&join_parts(parts)).unwrap(), parts);
            let framed = parts.iter().flat_map(|part| framed(Bytes::copy_from_slice(part)));
            assert_eq!(framed.collect::<Vec<_>>().concat(), join_parts(parts));
        }
    }

    #[test]
    fn names_that_could_do_harm_are_refused() {
        let bad = |names: &[&str]| bad_names(names.iter().copied()).unwrap_or_default();
        assert_eq!(bad(&["ward-7", "Ward 7", "\u{5c0f}"]), "");
        for (names, problem) in [
            (&[][..], "no client"),
            (&["a", "b", "a"], "two clients are called \"a\""),
            (&["a", ""], "empty name"),
            (&["\u{1b}[2J"], "hidden characters"),
            (&["gnp\u{202e}.7-draw"], "hidden characters"),
            (&[&"x".repeat(201)], "more than 200 bytes"),
            (&["a"; 10_001], "more than 10000"),
        ] {
            assert!(bad(names).contains(problem), "{}", bad(names));
        }
    }

    #[test]
    fn what_is_cut_off_or_claims_too_much_is_refused() {
        let whole = join_parts(&[b"one", b"two"]);
        for end in 1..whole.len() {
            // Between two parts it is whole.
            assert_eq!(split_parts(&whole[..end]).is_some(), end == 11, "{end}");
        }
        assert_eq!(split_parts(&u64::MAX.to_le_bytes()), None);
    }
}
