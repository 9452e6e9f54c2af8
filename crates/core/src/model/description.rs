//! The description in a model file.

use crate::config::{Heads, ModelConfig};
use crate::labels::LatentSource;
use fedanchor_data::features::TrunkInfo;
use fedanchor_data::{Fit, Normalisation, Shape};
use fedanchor_record::Build;
use serde::{Deserialize, Serialize};

/// The description in a model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // of what the name says
pub struct Description {
    /// The build that wrote it.
    #[serde(flatten)]
    pub build: Build,
    pub method: String,
    pub model: ModelConfig,
    /// Its heads. Files of earlier versions do not name them; the reader adds them.
    #[serde(default)]
    pub heads: Vec<Head>,
    #[serde(flatten)]
    pub shape: Shape,
    /// How pictures of another shape are fitted.
    pub fit: Fit,
    /// The normalisation of the network's input: pixels or, with a trunk, features.
    pub normalisation: Normalisation,
    /// The trunk that turns pictures into features, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<TrunkInfo>,
    pub classes: Vec<String>,
    /// Where the latents are read that the class means belong to.
    pub latents: LatentSource,
}

/// A head of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Head {
    /// Logits of the classes. Every network has it.
    Classifier,
    /// Latents, to be compared with those of the anchors.
    Anchor,
    /// A predictor of features, which serves training only.
    Predictor,
}

impl Head {
    /// The heads of a network, the classification head first.
    pub fn of(heads: Heads) -> Vec<Self> {
        let anchor = heads.anchor.then_some(Self::Anchor);
        let predictor = heads.predictor.map(|_| Self::Predictor);
        [Some(Self::Classifier), anchor, predictor].into_iter().flatten().collect()
    }
}
