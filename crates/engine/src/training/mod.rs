//! Training and inference of a cohort: losses, SGD, steps on a CPU or a GPU, forward passes.

mod client_objective;
mod context;
mod fix_mix;
mod gpu;
mod inference;
mod learner;
mod loss;
pub mod losses;
mod own_loss;
mod sgd;
mod steps;

pub use client_objective::client_objective;
pub use context::{Context, Settings};
pub use fedanchor_cuda::Entered;
pub use fix_mix::{FixMix, FixMixFormat, FixMixLoss};
pub use learner::Learner;
pub use loss::{Inputs, LossValue, Objective, StepLoss, Terms, Weight};
pub use own_loss::OwnLoss;
pub use sgd::Momentum;
