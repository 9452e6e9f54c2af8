//! Pseudo-labels (section 4.2 of the paper): the anchors' latents, scores by similarity to them, and
//! which samples a client keeps.

mod anchors;
mod labelling;
mod prior;
mod pseudo_labels;
pub mod thresholds;

pub(crate) use anchors::latents;
pub use anchors::{AnchorPayload, AnchorSet, Anchors, LatentSource, Score, Scoring};
pub use labelling::Labelling;
pub use pseudo_labels::{LocalImages, PseudoLabels, by_classifier};
pub use thresholds::Threshold;
