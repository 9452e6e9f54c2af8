//! The messages between the server and its clients: a [`Broadcast`] down, an [`Answer`] up, in one process as over a
//! network.
//!
//! A message is safetensors with a small JSON header: protocol version, kind, round, client and method. Its
//! size is the length of its encoding. Pseudo-labels, true labels and a client's state are in no message.

mod answer;
mod broadcast;
mod header;
mod rounding;
#[cfg(test)]
mod tests;

pub use answer::{Answer, ClientOutcome, Update};
pub use broadcast::{Array, Arrays, Broadcast, ExtraModels};
pub use header::PROTOCOL;
pub use rounding::{MessagePrecision, Rounding};

pub(crate) use header::undecodable;
pub(crate) use rounding::round_change;
