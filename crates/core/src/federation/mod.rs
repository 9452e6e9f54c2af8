//! The server's half of a round: who takes part, which updates are admitted, how they become one model.
//!
//! The [`Coordinator`] works with any [`Fleet`]: simulated clients in this process, or devices behind a
//! network. It sees messages and nothing else of a client.

mod admission;
pub mod aggregation;
mod anchor_watch;
mod coordinator;
mod fleet;
mod in_order;
mod intake;
mod learning_watch;
mod lengths;
mod pretraining;
mod registry;
mod rejection;
mod rows;
mod statistics;
mod test_latents;

pub use admission::{Admission, Admitted, AdmittedUpdate};
pub use coordinator::{Coordinator, Finished, ServerData};
pub use fleet::{
    Arrival, ClientKey, ClientStates, Delivery, Fleet, Member, Observed, Picked, PickedSample,
    RoundTask,
};
pub use lengths::Lengths;
pub use registry::Registry;
pub use rejection::Rejection;
pub use statistics::{Accuracy, peak_memory};

pub(crate) use admission::statistics_limit;
pub(crate) use coordinator::CoordinatorState;
