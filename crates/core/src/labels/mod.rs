//! Pseudo-labels (section 4.2 of the paper): the anchors' latents, scores by similarity to them, and
//! which samples a client keeps.

mod anchors;
mod prior;
mod pseudo_labels;
mod selection;

pub(crate) use anchors::latents;
pub use anchors::{AnchorPayload, AnchorSet, Anchors, LatentSource, Score, Scoring, own_scores};
pub use pseudo_labels::{
    ClassShares, LabelledBy, LocalImages, PseudoLabels, by_anchors, by_classifier,
};
pub use selection::{Selection, Threshold, ThresholdRule, relative_thresholds, select};
