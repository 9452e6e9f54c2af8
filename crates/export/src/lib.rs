//! Trained models in the formats of other programs.
//!
//! [`onnx()`] writes the network as a graph with both heads; [`state_dict()`] writes the weights of a
//! ResNet-18 under torchvision's names. Both return the bytes of a file and a list of the parts that
//! it lacks. No network is described here: the graph is written from
//! the layers of [`fedanchor_engine::model::Network`].

mod onnx;
mod state_dict;

pub use onnx::{Input, onnx};
pub use state_dict::state_dict;

use fedanchor_data::{Fit, Normalisation, Shape};
use fedanchor_engine::model::Network;
use fedanchor_engine::tensors::Params;
use tch::{Device, Kind, Tensor};

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
    pub fit: Fit,
    /// The version and commit of the program that trained it.
    pub version: &'a str,
    pub latents: Latents,
    /// The mean unit latent of each class's anchors, `[C, D]`.
    pub class_means: Option<&'a Tensor>,
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

/// A tensor's numbers in single precision as the bytes of a file: little endian, the last axis fastest.
pub(crate) fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let host = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut bytes = vec![0; host.numel() * size_of::<f32>()];
    host.f_copy_data_u8(&mut bytes, host.numel())?;
    Ok(bytes)
}

/// The note on a predictor, which no form contains.
pub(crate) fn without_predictor(model: &Trained) -> Option<String> {
    let mut names = model.params.layout.iter().map(|entry| &entry.name);
    let has = names.any(|name| name.starts_with("predictor."));
    has.then(|| "predictor.*: it serves training only".to_owned())
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model does not fit the format, or a part of it the others.
    #[error("{0}")]
    Unfit(String),
    /// The tensors could not be read.
    #[error(transparent)]
    Engine(#[from] fedanchor_engine::Error),
    /// The archive could not be written.
    #[error("the archive could not be written: {0}")]
    Archive(#[from] zip::result::ZipError),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::Engine(error.into())
    }
}
