//! FedAnchor and the methods it is compared with.
//!
//! One classifier is trained from labelled *anchors* on a server and from unlabelled images on clients,
//! which send weights only. The folders follow the data: [`config`] (an experiment as a value), [`privacy`] (the noisy mean and its cost), [`labels`]
//! (anchors and pseudo-labels), [`messages`] (what travels), [`server`] (the global model and its
//! training), [`methods`] (one file per method), [`experiment`] (files and sweeps), [`clients`] (those that train on this
//! machine), [`federation`] (the coordinator and its fleet), [`simulation`] (a federation in this process), [`model`] (a trained model in use) and
//! `run` (folders, checkpoints, resuming). Imports point the same way, and [`engine`], which trains a cohort as one network, knows
//! nothing of any of them.
//!
//! ```no_run
//! let experiment = fedanchor::Experiment::from_values(toml::toml! {
//!     rounds = 10
//!     data.name = "sample"
//! })?;
//! let data = fedanchor::simulation::load(&experiment)?;
//! let simulation = fedanchor::Simulation::new(experiment, data, None)?;
//! let (mut coordinator, mut fleet) = (simulation.coordinator()?, simulation.fleet());
//! coordinator.pretrain(&mut |_, _| true)?;
//! for round in 1..=10 {
//!     let done = coordinator.round(&mut fleet, round)?;
//!     assert_eq!(done.record.round, round);
//! }
//! # Ok::<(), fedanchor::Error>(())
//! ```

pub mod aggregation;
pub mod clients;
pub mod config;
mod disk;
mod error;
pub mod experiment;
pub mod federation;
pub mod labels;
pub mod messages;
pub mod methods;
pub mod model;
pub mod privacy;
mod run;
pub mod server;
pub mod simulation;
pub mod trunk;

pub use config::Experiment;
pub use error::{Error, Result};
pub use experiment::resolve;
pub use fedanchor_engine as engine;
pub use federation::{Coordinator, Federation, Fleet};
pub use methods::{Method, register};
pub use model::Model;
pub use run::{
    ConnectFleet, Observer, Phase, Resume, RunClients, RunOptions, Verification, WrapFleet,
    resume_command, run, verify,
};
pub use simulation::Simulation;
