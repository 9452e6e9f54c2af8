//! From 8-bit images to the input of a training step: which samples, how they are augmented, and how
//! a step's inputs travel to the device.
//!
//! [`Batches`] is what training knows of a kind of batch: [`TwoViews`] is one, and
//! [`FixMix`](crate::training::FixMix) the other.

mod images;
mod packing;
mod plan;
mod two_views;

pub use images::{ImagePipeline, View};
pub use packing::{Packing, write};
pub use plan::{RoundStreams, Sample, StepPlan, Task};
pub(crate) use plan::{by_client, mix_partner};
pub use two_views::{TwoViewFormat, TwoViews};

/// How the inputs of a step are made on the host. Nothing here may depend on the parameters, so that it can
/// run ahead of the training.
pub trait Batches: std::fmt::Debug + Sync {
    /// Samples per client in a step.
    fn batch(&self) -> usize;
    /// Bytes of a step in which this many clients take part.
    fn bytes(&self, active: usize) -> usize;
    /// Draws and renders one step's inputs.
    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]);
}
