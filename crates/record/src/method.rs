//! The properties and losses of a method, as in records.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Losses(
    #[schemars(with = "BTreeMap<String, Option<f64>>")] IndexMap<String, Option<f64>>,
);

impl Losses {
    /// The names of the losses.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A loss by name.
    pub fn get(&self, name: &str) -> Option<f64> {
        *self.0.get(name)?
    }
}

impl<N: Into<String>> FromIterator<(N, Option<f64>)> for Losses {
    fn from_iter<I: IntoIterator<Item = (N, Option<f64>)>>(losses: I) -> Self {
        Self(losses.into_iter().map(|(name, loss)| (name.into(), loss)).collect())
    }
}
