//! Trains a cohort of clients as one network.
//!
//! This crate is the lower half of fedanchor and knows no federation: it sees images, labels,
//! parameters and a loss, and makes steps of SGD for K clients at once. Its folders follow the data:
//! [`tensors`] (named parameters and their encoding), [`model`] (the networks), [`batches`] (augmented
//! images to the input of a step) and [`training`] (losses, SGD, steps on a CPU or a GPU, inference); [`trunk`] is what
//! pictures pass before all that, where there is one.

pub mod batches;
pub mod config;
mod error;
pub mod model;
pub mod registry;
pub mod tensors;
mod threads;
pub mod training;
pub mod trunk;

pub use error::{Error, InPhase, Result, guard, torch_message};
pub use tch::Device;
pub use threads::{default_threads, set_threads};

/// Loads CUDA, if this build or package has it. libtorch looks for it once, when it first computes: a program that uses a
/// GPU after a CPU calls this first.
pub fn load_cuda() {
    fedanchor_cuda::is_available();
}
