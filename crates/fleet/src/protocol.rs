//! What the coordinator and its nodes say to each other, beside broadcasts and answers.

use fedanchor::{Error, Experiment, Result};
use fedanchor_data::{Normalisation, Shape};
use serde::{Deserialize, Serialize};

/// Version of these messages. Nodes and coordinators of other versions do not work together.
pub const PROTOCOL: u32 = 1;

/// Where a node answers.
pub const JOIN: &str = "/v1/join";
/// Where a node trains.
pub const TRAIN: &str = "/v1/train";

/// Status of a node that has not been told what is trained: it was restarted, or another run was here.
pub const NOT_JOINED: u16 = 428;

/// What a node must know before its first round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Version of these messages.
    pub protocol: u32,
    /// Version of the coordinator.
    pub version: String,
    /// The run: what clients keep from round to round belongs to it.
    pub run: String,
    /// The settled experiment as TOML, without what is the coordinator's own: paths and device.
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

impl Terms {
    /// The settled experiment without what is the coordinator's own.
    pub fn text_of(experiment: &Experiment) -> Result<String> {
        let problem = |error: toml::ser::Error| Error::config("the experiment", error.to_string());
        let mut table = toml::Table::try_from(experiment).map_err(problem)?;
        for key in ["device", "precision"] {
            table.remove(key);
        }
        for (section, key) in [("data", "path"), ("model", "init_from")] {
            if let Some(toml::Value::Table(section)) = table.get_mut(section) {
                section.remove(key);
            }
        }
        toml::to_string(&table).map_err(problem)
    }
}

/// What a node says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Version of these messages.
    pub protocol: u32,
    /// Version of the node.
    pub version: String,
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

/// Which clients a node shall train; the broadcast follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainHeader {
    /// The run.
    pub run: String,
    /// Names, and the numbers that the coordinator has given them.
    pub clients: Vec<(String, u32)>,
}

/// Byte strings as one: each after its length.
pub fn join_parts(parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| 8 + part.len()).sum();
    let mut whole = Vec::with_capacity(length);
    for part in parts {
        whole.extend((part.len() as u64).to_le_bytes());
        whole.extend(*part);
    }
    whole
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

    #[test]
    fn terms_hold_nothing_of_the_coordinators_machine() {
        let settings = ["data.name=mine", "data.path=/secret/place", "model.name=resnet18"];
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let experiment = fedanchor::resolve("", &settings).unwrap();
        let text = Terms::text_of(&experiment).unwrap();
        assert!(!text.contains("secret") && !text.contains("device ="), "{text}");
        let mut there = fedanchor::resolve(&text, &[]).unwrap();
        there.data.path.clone_from(&experiment.data.path);
        assert_eq!(there, experiment);
    }
}
