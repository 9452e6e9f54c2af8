//! Trained models in a format of other programs.
//!
//! [`onnx()`] writes the network as a graph with both heads, and returns the bytes of a file and a list of the
//! parts that it lacks. No network is described here: the graph is written from the layers of
//! [`fedanchor_engine::model::Network`].

mod onnx;

pub use onnx::{Attribute, Constant, Graph, Input, Node, graph, onnx};

use fedanchor_data::{Fit, Normalisation, Shape};
use fedanchor_engine::model::Network;
use fedanchor_engine::tensors::Params;
use fedanchor_engine::trunk::TrunkLayers;
use tch::Tensor;

/// A trained model and its metadata.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the types have comments
pub struct Trained<'a> {
    pub network: &'a Network,
    /// Its parameters, K = 1.
    pub params: &'a Params,
    pub shape: Shape,
    pub classes: &'a [String],
    pub normalisation: &'a Normalisation,
    /// The trunk that makes the features of pictures, and the normalisation of pixels; `normalisation` is then that of
    /// features.
    pub trunk: Option<(&'a TrunkLayers, &'a Normalisation)>,
    pub fit: Fit,
    /// The version and commit of the program that trained it.
    pub version: &'a str,
    pub latents: Latents,
    /// The mean unit latent of each class's anchors, `[C, D]`.
    pub class_means: Option<&'a Tensor>,
}

impl Trained<'_> {
    /// The normalisation of pixels.
    fn of_pixels(&self) -> &Normalisation {
        self.trunk.map_or(self.normalisation, |(_, of_pixels)| of_pixels)
    }
}

/// The source of the latents that class means belong to.
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
    /// Parts of the model that the file lacks, each with the reason.
    pub left_out: Vec<String>,
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A part of the model does not fit the others.
    #[error("{0}")]
    Unfit(String),
    /// The tensors could not be read.
    #[error(transparent)]
    Engine(#[from] fedanchor_engine::Error),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::Engine(error.into())
    }
}
