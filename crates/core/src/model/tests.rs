//! Model files, complete and not.

use super::*;
use crate::config::{ModelConfig, ModelName};
use crate::labels::LatentSource;
use fedanchor_data::{Fit, Normalisation, Shape};
use serde_json::{Value, json};

const SHAPE: Shape = Shape { side: 16, channels: 1 };
const TWO: Heads = Heads { anchor: true, predictor: None };

fn description(heads: Vec<Head>) -> Description {
    let model = ModelConfig { latent_dim: 4, ..ModelConfig::plain(ModelName::Small) };
    Description {
        version: "0.1.0".to_owned(),
        method: "fedanchor".to_owned(),
        model,
        heads,
        shape: SHAPE,
        fit: Fit::Pad,
        normalisation: Normalisation { mean: vec![0.5], std: vec![0.25] },
        classes: ["cat", "dog"].map(str::to_owned).into(),
        latents: LatentSource::Anchor,
    }
}

/// Loads a model file with this header and tensors of a network with both heads.
fn load(header: &Value) -> Result<Model> {
    let Description { model, normalisation, .. } = description(Vec::new());
    let context =
        Context::for_inference(&model, TWO, SHAPE, 2, &normalisation, Device::Cpu).unwrap();
    let params = context.network.init(1, Device::Cpu).unwrap();
    let means = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
    let mut tensors = params.named();
    tensors.push((CLASS_MEANS.to_owned(), Data::F32(&means, &[2, 4])));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs_err::write(file.path(), encode(&tensors, &header.to_string()).unwrap()).unwrap();
    Model::load(file.path(), Device::Cpu)
}

#[test]
fn a_file_names_its_heads() {
    let both = vec![Head::Classifier, Head::Anchor];
    let mut header = serde_json::to_value(description(Head::of(TWO))).unwrap();
    assert_eq!(header["heads"], json!(["classifier", "anchor"]));
    assert_eq!(load(&header).unwrap().description.heads, both);
    // Files of earlier versions have no such key.
    header.as_object_mut().unwrap().remove("heads");
    assert_eq!(load(&header).unwrap().description, description(both));
    // Others are a sign that the file was changed.
    header["heads"] = json!(["classifier"]);
    let why = load(&header).unwrap_err().to_string();
    assert!(
        why.ends_with(
            "expected tensors of the heads classifier, found those of classifier, anchor"
        ),
        "{why}"
    );
}

#[test]
fn heads_that_serve_training_are_named_too() {
    let heads = Head::of(Heads { anchor: false, predictor: Some(8) });
    assert_eq!(heads, [Head::Classifier, Head::Predictor]);
}
