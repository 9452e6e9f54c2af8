//! Training and inference of a cohort: losses, SGD, steps on a CPU or a GPU, forward passes.

mod context;
mod fix_mix;
mod gpu;
mod inference;
mod learner;
pub mod losses;
mod sgd;

pub use context::{Context, Settings};
pub use fix_mix::FixMix;
pub use learner::{AfterStep, Learner, StepLoss, Terms};
pub use sgd::Momentum;
