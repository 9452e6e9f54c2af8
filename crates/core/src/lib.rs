//! FedAnchor and the methods it is compared with.
//!
//! Where to look: [`method`] holds the paper's algorithm, one file a method; [`loss`] and
//! [`anchors`] its equations; [`model`] the networks; [`training`] how a cohort of clients is trained
//! as one network; [`simulation`] a federation in one process; [`run()`] rounds, records and results.
//! Arrows point one way: data and record below, this crate above them, the command line on top.

pub mod aggregation;
pub mod anchors;
mod checkpoint;
pub mod config;
mod crew;
mod disk;
pub mod door;
mod engine;
mod error;
pub mod faults;
pub mod fix_mix;
pub mod folder;
mod inference;
pub mod labels;
pub mod ledger;
pub mod load;
mod local;
pub mod loss;
pub mod method;
pub mod model;
pub mod optimiser;
mod packing;
pub mod params;
mod resume;
mod run;
pub mod schedule;
pub mod selection;
pub mod server;
pub mod server_epochs;
pub mod setting;
pub mod simulation;
mod tally;
pub mod training;
mod two_views;
mod wire;

pub use config::Experiment;
pub use error::{Error, Result, engine_message};
pub use resume::{differences, resume};
pub use run::{Observer, run, server_only, settle};
