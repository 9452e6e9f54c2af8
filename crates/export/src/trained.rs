//! What goes into an exporter and what comes out.

use fedanchor_data::{Fit, Normalisation, Shape};
use fedanchor_engine::model::Network;
use fedanchor_engine::tensors::Params;
use tch::Tensor;

/// A trained model and what its users must know about it.
#[derive(Debug, Clone, Copy)]
pub struct Trained<'a> {
    /// The network's description.
    pub network: &'a Network,
    /// Its parameters, K = 1.
    pub params: &'a Params,
    /// The shape of its images.
    pub shape: Shape,
    /// Names of the classes.
    pub classes: &'a [String],
    /// What is done to pixels before the network sees them.
    pub normalisation: &'a Normalisation,
    /// How pictures of other sizes are brought to the network's size.
    pub fit: Fit,
    /// The version and commit of the program that trained it.
    pub version: &'a str,
    /// Where latents are read.
    pub latents: Latents,
    /// The mean unit latent of each class's anchors, `[C, D]`.
    pub class_means: Option<&'a Tensor>,
}

/// Where the latents are read that class means belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latents {
    /// The anchor head.
    Anchor,
    /// The pooled features.
    Pooled,
}

/// A file to write.
#[derive(Debug)]
pub struct Exported {
    /// Its content.
    pub bytes: Vec<u8>,
    /// What the model has and the file does not, each with the reason.
    pub left_out: Vec<String>,
}
