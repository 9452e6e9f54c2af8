//! The model file of a run: it describes its own network.

use crate::config::{Heads, ModelConfig};
use crate::error::{Error, Result};
use fedanchor_data::Shape;
use fedanchor_engine::model::Network;
use fedanchor_engine::tensors::{Params, decode};
use serde::Deserialize;
use std::path::Path;
use tch::Device;

/// A trained model, read back from `model.safetensors`.
#[derive(Debug)]
pub struct Model {
    /// The network's description.
    pub network: Network,
    /// Its parameters, K = 1.
    pub params: Params,
    /// The shape of its images.
    pub shape: Shape,
    /// Names of the classes.
    pub classes: Vec<String>,
}

#[derive(Deserialize)]
struct About {
    model: ModelConfig,
    side: usize,
    channels: usize,
    classes: Vec<String>,
}

/// The description that a model file carries.
pub(super) fn about(model: &ModelConfig, shape: Shape, classes: &[String]) -> serde_json::Value {
    let Shape { side, channels } = shape;
    serde_json::json!({ "model": model, "side": side, "channels": channels, "classes": classes })
}

impl Model {
    /// Reads a model file written by a run.
    pub fn load(path: &Path, device: Device) -> Result<Self> {
        let problem = |problem: &dyn ToString| Error::file(path, problem.to_string());
        let bytes = fs_err::read(path).map_err(|error| problem(&error))?;
        let decoded = decode(&bytes).map_err(|error| problem(&error))?;
        let About { model, side, channels, classes } = serde_json::from_str(&decoded.header)
            .map_err(|error| problem(&format!("not a model of fedanchor: {error}")))?;
        let shape = Shape { side, channels };
        // Which heads the network has, its tensors say.
        let predictor = decoded.f32.get("predictor.0.bias").map(|bias| bias.numel());
        let heads = Heads { anchor: decoded.f32.contains_key("anchor.weight"), predictor };
        let network = Network::new(&model, heads, shape, classes.len())?;
        let params =
            Params::decode(&network.layout, &bytes, device).map_err(|error| problem(&error))?;
        Ok(Self { network, params, shape, classes })
    }
}
