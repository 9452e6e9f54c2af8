//! What travels between the server and its clients: a [`Broadcast`] down, an [`Answer`] up. The same plain
//! structs serve a simulation and a network.
//!
//! A message is safetensors with a small JSON header: protocol version, kind, round, client and method. Its
//! size is the length of its encoding. Pseudo-labels, true labels and a client's state are in no message.

mod answer;
mod arrays;
mod broadcast;
mod header;

pub use answer::{Answer, ClientOutcome, Update};
pub use arrays::{Array, Arrays};
pub use broadcast::{Broadcast, ExtraModels};
pub use header::PROTOCOL;

pub(crate) use header::undecodable;
