//! From an experiment file to a checked [`Experiment`](crate::config::Experiment): presets, layers of
//! settings, sweeps.

mod for_clients;
mod layers;
mod length;
mod resolve;
mod sweep;

pub use for_clients::{client_settings, resolve_client_settings};
pub use layers::{PRESETS, preset};
pub use length::RunLength;
pub use resolve::{Resolved, resolve, resolve_file, resolve_stored, settle};
pub use sweep::{Cell, Sweep, sweep, sweep_file};
