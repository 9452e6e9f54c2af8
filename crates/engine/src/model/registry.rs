//! The models by name. A model of this crate is one function and one line in [`BUILT_IN`]; a model from elsewhere is one
//! call of [`register`].

use super::description::{Builder, Value};
use super::{built_in, efficientnet};
use crate::error::Result;
use crate::registry::Registry;
use schemars::{Schema, json_schema};

/// A model by name.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// The name as written in a config.
    pub name: &'static str,
    /// One sentence for the reference of the config keys.
    pub summary: &'static str,
    /// Describes the layers from the images to the features, which have no pixels.
    pub describe: fn(&mut Builder) -> Value,
}

impl Registration {
    /// A model that this function describes.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        describe: fn(&mut Builder) -> Value,
    ) -> Self {
        Self { name, summary, describe }
    }
}

/// The models of this crate.
const BUILT_IN: [Registration; 8] = [
    Registration::new("resnet18", "ResNet-18.", built_in::resnet18),
    Registration::new("wrn28x2", "Wide ResNet-28-2.", built_in::wrn28x2),
    Registration::new("small", "A small residual network for CPU work.", built_in::small),
    Registration::new("cnn", "Two convolutions and two linear layers.", built_in::cnn),
    Registration::new("efficientnet-lite0", "EfficientNet-Lite0.", efficientnet::lite0),
    Registration::new("efficientnet-lite1", "EfficientNet-Lite1.", efficientnet::lite1),
    Registration::new("efficientnet-lite2", "EfficientNet-Lite2.", efficientnet::lite2),
    Registration::new(
        "adapter",
        "One hidden layer, on the features of a trunk.",
        built_in::adapter,
    ),
];

static MODELS: Registry<Registration> =
    Registry::new("model", "model.name", &BUILT_IN, |model| model.name);

/// Adds a model for the whole process: from now on `model.name` may name it.
pub fn register(model: Registration) -> Result<()> {
    MODELS.add(model)
}

/// A model by name.
pub(super) fn find(name: &str) -> Result<Registration> {
    MODELS.find(name)
}

/// Describes the values of `model.name`, for the reference of the config keys.
pub fn names_schema() -> Schema {
    let models = MODELS.all().into_iter().map(
        |model| json_schema!({ "type": "string", "const": model.name, "description": model.summary }),
    );
    json_schema!({ "oneOf": models.collect::<Vec<_>>() })
}
