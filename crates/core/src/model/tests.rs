//! Model files, complete and not.

use super::*;
use crate::config::ModelConfig;
use crate::labels::LatentSource;
use fedanchor_data::{Fit, Normalisation, Shape};
use fedanchor_record::Build;
use serde_json::{Value, json};

const SHAPE: Shape = Shape { side: 16, channels: 1 };
const TWO: Heads = Heads { anchor: true, predictor: None };

fn description(heads: Vec<Head>) -> Description {
    let model = ModelConfig { latent_dim: 4, ..ModelConfig::plain("small") };
    Description {
        build: Build::default(),
        method: "fedanchor".to_owned(),
        model,
        heads,
        shape: SHAPE,
        fit: Fit::Pad,
        normalisation: Normalisation { mean: vec![0.5], std: vec![0.25] },
        trunk: None,
        classes: ["cat", "dog"].map(str::to_owned).into(),
        latents: LatentSource::Anchor,
    }
}

/// Loads a model file with this header and tensors of a network with both heads.
fn load(header: &Value) -> Result<Model> {
    load_with(header, |_, _| {})
}

/// The same after a change of its parameters and class means.
fn load_with(header: &Value, change: impl Fn(&mut Params, &mut Tensor)) -> Result<Model> {
    let Description { model, normalisation, .. } = description(Vec::new());
    let context =
        Context::for_inference(&model, TWO, SHAPE, 2, &normalisation, Device::Cpu).unwrap();
    let mut params = context.network.init(1, Device::Cpu).unwrap();
    let mut means = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
    change(&mut params, &mut means);
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
        why.ends_with("expected tensors of the heads classifier, got those of classifier, anchor"),
        "{why}"
    );
}

#[test]
fn heads_that_serve_training_are_named_too() {
    let heads = Head::of(Heads { anchor: false, predictor: Some(8) });
    assert_eq!(heads, [Head::Classifier, Head::Predictor]);
}

#[test]
fn a_model_with_values_that_are_not_finite_is_refused() {
    let header = serde_json::to_value(description(Head::of(TWO))).unwrap();
    let why = |change: &dyn Fn(&mut Params, &mut Tensor)| {
        load_with(&header, change).unwrap_err().to_string()
    };
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = why(&|params, _| {
            let at = params.layout.iter().position(|entry| entry.name == "anchor.weight").unwrap();
            let _ = params.tensors[at].view([-1]).get(3).fill_(bad);
        });
        assert!(error.contains(": `anchor.weight` contains values that are not finite"), "{error}");
        let error = why(&|_, means| drop(means.view([-1]).get(5).fill_(bad)));
        assert!(error.contains(": `class_means` contains values that are not finite"), "{error}");
    }
}
