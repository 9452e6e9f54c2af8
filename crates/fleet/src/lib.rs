//! Real fleets: clients whose images stay where they are.
//!
//! A `Node` (`node`) runs on a device. It holds unlabelled images, trains on them with the code of the simulation,
//! and answers requests on a Unix socket. The coordinator (`coordinator`) runs where the server's labelled images are.
//! Its [`RemoteFleet`] represents all nodes; its requests wait in a [`Mailbox`], from which a transport takes them and
//! into which it puts the replies, over another Unix socket. The transport (Flower, in the folder `flower`) passes
//! bytes and does not interpret them.
//!
//! Everything that a node sends is in [`protocol`]; nothing else leaves it.

mod bindings;
pub mod coordinator;
mod heartbeats;
mod mailbox;
mod members;
mod metrics;
pub mod node;
pub mod protocol;
mod remote;
mod round;
mod socket;
mod spool;

pub use mailbox::{Mailbox, Reply};
pub use metrics::{Metrics, MetricsServer};
pub use remote::RemoteFleet;
pub use socket::{Bound, Socket};
