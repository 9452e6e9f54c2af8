//! The properties and losses of a method, as in records.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// The properties of a method that readers of its records need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MethodProperties {
    /// Whether it has clients at all.
    pub clients: bool,
    /// The labels that its clients train on.
    pub labels: ClientLabels,
    /// Whether clients train on some of their samples only, by a threshold.
    pub selects: bool,
    /// The names of its losses.
    pub losses: Vec<String>,
}

/// The labels that clients train on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientLabels {
    /// None.
    None,
    /// The true ones.
    True,
    /// Their own.
    Pseudo,
}

/// Mean losses of a round by name, in the order in which the method names them; `None` for a loss that was not
/// computed. Those of clients (`client_...`) are averaged over steps and then over the clients that trained; those of
/// the server (`server_...`) are of its last epoch of the round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Losses {
    losses: Vec<(String, Option<f64>)>,
}

impl Losses {
    /// A loss by name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.losses.iter().find(|(known, _)| known == name)?.1
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<f64>)> {
        self.losses.iter().map(|(name, loss)| (name.as_str(), *loss))
    }
}

impl<N: Into<String>> FromIterator<(N, Option<f64>)> for Losses {
    fn from_iter<I: IntoIterator<Item = (N, Option<f64>)>>(losses: I) -> Self {
        let losses = losses.into_iter().map(|(name, loss)| (name.into(), loss));
        Self { losses: losses.collect() }
    }
}

impl Serialize for Losses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.losses.len()))?;
        for (name, loss) in &self.losses {
            map.serialize_entry(name, loss)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Losses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Losses;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("losses by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Losses, A::Error> {
                let mut losses = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    losses.push(entry);
                }
                Ok(Losses { losses })
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl JsonSchema for Losses {
    fn schema_name() -> Cow<'static, str> {
        "Losses".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": { "type": ["number", "null"] } })
    }
}
