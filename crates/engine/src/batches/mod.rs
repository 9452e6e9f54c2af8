//! From 8-bit images to the input of a training step: which samples, how they are augmented, and how
//! a step's inputs travel to the device.

mod fix_mix;
mod images;
mod packing;
mod plan;
mod streams;
mod two_views;

pub use fix_mix::{FixMixBatch, FixMixBatches, Mix};
pub use images::{ImagePipeline, View};
pub use packing::{Packing, write};
pub use plan::{Sample, StepPlan, Task, mix_partner};
pub use streams::RoundStreams;
pub use two_views::{TwoViewBatch, TwoViews};
