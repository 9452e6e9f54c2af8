//! Real fleets: clients whose images stay where they are.
//!
//! A `Node` (`node`) runs on a device. It holds unlabelled images, trains on them with the code of the simulation,
//! and answers requests on a Unix socket. The coordinator (`coordinator`) runs where the server's labelled images are. Its
//! [`RemoteFleet`] stands for all nodes; what it asks of them waits in a [`Mailbox`], from which a transport takes
//! requests and into which it puts replies, over another Unix socket. The transport (Flower, in the folder `flower`)
//! passes bytes and knows nothing of what they mean.
//!
//! Everything that a node sends is in [`protocol`]; nothing else leaves it.

pub mod coordinator;
mod mailbox;
mod names;
pub mod node;
mod probes;
pub mod protocol;
mod remote;
mod roster;
mod round;
mod socket;
mod spool;

pub use mailbox::{Mailbox, Reply};
pub use remote::RemoteFleet;
pub use socket::{Bound, Socket};
