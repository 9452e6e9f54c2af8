//! Pseudo-labels (section 4.2 of the paper): the anchors' latents, scores by similarity to them, and
//! which samples a client keeps.

mod anchors;
mod calibration;
mod labelling;
mod outputs;
mod prior;
mod pseudo_labels;
pub mod thresholds;

pub use anchors::{AnchorPayload, AnchorViews, Anchors, LabelledImages, Score};
pub use calibration::{Bin, Calibration};
pub use labelling::Labelling;
pub use outputs::LatentSource;
pub use pseudo_labels::{LocalImages, PseudoLabels, by_classifier, class_probabilities};
pub use thresholds::Threshold;

pub(crate) use calibration::percent;
pub(crate) use outputs::{
    all_logits, evaluation_statistics, latents, logits, outputs, predicted, probabilities,
};
pub(crate) use prior::effective_classes;
