//! The server's half of a round: who takes part, which updates are admitted, how they become one model.
//!
//! The [`Coordinator`] of a [`Federation`] works with any [`Fleet`]: clients in this process, or devices behind a
//! network. It sees messages and nothing else of a client.

mod admission;
mod anchor_watch;
mod coordinator;
mod fleet;
mod in_order;
mod intake;
mod learning_watch;
mod memory;
mod norms;
mod pretraining;
mod registry;
mod rejection;
mod rows;
mod setup;
mod statistics;
mod test_latents;

pub use admission::{Admission, Admitted, AdmittedUpdate};
pub use coordinator::{Coordinator, Finished};
pub use fleet::{Arrival, ClientKey, ClientStates, Delivery, Fleet, Member, RoundTask};
pub use registry::Registry;
pub use rejection::Rejection;
pub use setup::Federation;
pub use statistics::{Accuracy, peak_memory};

pub(crate) use admission::statistics_limit;
pub(crate) use coordinator::CoordinatorState;
pub(crate) use setup::{ForClients, server_split};
