//! Trained models in the formats of other programs.
//!
//! [`onnx()`] writes the network as a graph with both heads; [`state_dict()`] writes the weights of a
//! ResNet-18 under torchvision's names. Both return the bytes of a file and a list of the parts that
//! it lacks. No network is described here: the graph is written from
//! the layers of [`fedanchor_engine::model::Network`].

mod error;
mod numbers;
mod onnx;
mod state_dict;
mod trained;

pub use error::{Error, Result};
pub use onnx::{Input, onnx};
pub use state_dict::state_dict;
pub use trained::{Exported, Latents, Trained};
