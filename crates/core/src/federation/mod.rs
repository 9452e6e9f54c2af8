//! The server's half of a round: drawing clients, admitting their updates, aggregating them.
//!
//! The [`Coordinator`] of a [`Federation`] works with any [`Fleet`]: clients in this process, or devices behind a
//! network. It sees the messages of a client and nothing else.

mod admission;
mod anchor_watch;
mod clock;
mod coordinator;
mod fleet;
mod in_order;
mod intake;
mod learning_watch;
mod norms;
mod pretraining;
mod private;
mod registry;
mod rows;
mod setup;
mod test_latents;

pub use clock::peak_memory;
pub use coordinator::{Coordinator, Finished};
pub use fleet::{Arrival, ClientKey, ClientStates, Delivery, Fleet, Member, RoundTask};
pub use pretraining::GoOn;
pub use setup::Federation;

pub(crate) use admission::statistics_limit;
pub(crate) use coordinator::CoordinatorState;
pub(crate) use intake::kept_deviation;
pub(crate) use setup::server_split;
