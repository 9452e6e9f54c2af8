//! From an experiment file to a checked [`Experiment`](crate::config::Experiment): presets, layers of
//! settings, sweeps.

mod resolve;
mod sweep;

pub use resolve::{PRESETS, resolve, settle};
pub use sweep::{Cell, Sweep, sweep};
