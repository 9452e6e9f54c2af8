//! Writes exported models and the outputs that the program itself computes, for `scripts/check_export.py`
//! to compare: `cargo run --locked -p fedanchor-export --example cases -- FOLDER`.

use anyhow::{Context, Result, ensure};
use fedanchor_data::augment::Strong;
use fedanchor_data::{Fit, Normalisation, Shape};
use fedanchor_engine::batches::ImagePipeline;
use fedanchor_engine::config::{AugmentConfig, Heads, ModelConfig, NormKind, Stem};
use fedanchor_engine::model::{Network, Pass, Statistics};
use fedanchor_engine::tensors::{Data, Params, Part, encode};
use fedanchor_engine::training::losses::unit;
use fedanchor_export::{Input, Latents, Trained, onnx};
use std::path::Path;
use tch::{Device, Kind, Tensor};

const IMAGES: i64 = 1000;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("usage: cases FOLDER")?;
    let _no_grad = tch::no_grad_guard();
    let resnet = |norm, preactivation, stem| ("resnet18", norm, preactivation, stem);
    let plain = |name, norm| (name, norm, false, Stem::Cifar);
    let (batch, group) = (NormKind::Batch, NormKind::Group);
    // Small images: the comparison does not depend on the size, but the time does.
    let cases = [
        ("resnet18", resnet(batch, false, Stem::Cifar), 16, 3, None),
        ("resnet18-imagenet", resnet(batch, false, Stem::Imagenet), 32, 3, Some(3)),
        ("resnet18-group", resnet(group, false, Stem::Imagenet), 32, 3, None),
        ("resnet18-pre", resnet(batch, true, Stem::Cifar), 16, 1, Some(2)),
        ("wrn28x2", plain("wrn28x2", batch), 17, 3, None),
        ("wrn28x2-group", plain("wrn28x2", group), 16, 3, Some(1)),
        ("small", plain("small", batch), 32, 3, Some(2)),
        ("small-group", plain("small", group), 28, 1, None),
        ("cnn", plain("cnn", batch), 27, 3, None),
    ];
    for (case, (name, norm, preactivation, stem), side, channels, latent_stage) in cases {
        let config =
            ModelConfig { preactivation, norm, latent_stage, stem, ..ModelConfig::plain(name) };
        let case_folder = Path::new(&folder).join(case);
        fs_err::create_dir_all(&case_folder)?;
        write(&config, Shape { side, channels }, &case_folder).context(case)?;
    }
    Ok(())
}

/// A model whose every number matters: statistics, weights and biases are none of a new network's.
fn filled(network: &Network) -> Result<Params> {
    let params = network.init(11, Device::Cpu)?;
    for (entry, tensor) in params.layout.iter().zip(&params.tensors) {
        if entry.shape.len() == 1 {
            let positive = entry.name.ends_with("weight") || entry.name.ends_with("running_var");
            let (low, high) = if positive { (0.5, 1.2) } else { (-0.2, 0.2) };
            let _ = tensor.shallow_clone().f_uniform_(low, high)?;
        }
    }
    Ok(params)
}

fn write(config: &ModelConfig, shape: Shape, folder: &Path) -> Result<()> {
    tch::manual_seed(7);
    let classes: Vec<String> = ["a cat", "größer", "\"quoted\"", "d", "e"].map(String::from).into();
    let heads = Heads { anchor: true, predictor: Some(8) };
    let network = Network::new(config, heads, shape, classes.len())?;
    let params = filled(&network)?;
    let normalisation = match shape.channels {
        1 => Normalisation { mean: vec![0.31], std: vec![0.27] },
        _ => Normalisation { mean: vec![0.49, 0.48, 0.44], std: vec![0.24, 0.25, 0.21] },
    };
    let (side, channels) = (shape.side as i64, shape.channels as i64);
    let size = [IMAGES, side, side, channels];
    let images = Tensor::f_randint(256, size, (Kind::Uint8, Device::Cpu))?;

    // The outputs of the program.
    let augment = AugmentConfig { strong: Strong::Fixmatch, flip: None, views: 2 };
    let kernels = (false, false);
    let pipeline = ImagePipeline::new(
        shape.into(),
        &normalisation,
        &augment,
        false,
        Device::Cpu,
        kernels,
        Some(1),
    )?;
    let input = pipeline.input(&images.f_unsqueeze(1)?)?;
    let pass = Pass::plain(&params.tensors, Statistics::Running);
    let features = network.features(&input, &pass)?;
    let logits = network.logits(&features, &pass)?.f_squeeze_dim(0)?;
    // One model has its class means among the pooled features.
    let (latent_source, latents) = match &*config.name {
        "cnn" => (Latents::Pooled, features.pooled.shallow_clone()),
        _ => (Latents::Anchor, network.latents(&features, &pass)?),
    };
    let latents = unit(&latents.f_squeeze_dim(0)?)?;
    let width = latents.size2()?.1;
    let like = (Kind::Float, Device::Cpu);
    let means = unit(&Tensor::f_randn([classes.len() as i64, width], like)?)?.f_mul_scalar(0.8)?;
    let scores = latents.f_matmul(&means.f_tr()?)?;

    // The exports.
    let model = Trained {
        network: &network,
        params: &params,
        shape,
        classes: &classes,
        normalisation: &normalisation,
        fit: Fit::Crop,
        version: "1.2.3",
        latents: latent_source,
        class_means: Some(&means),
    };
    for (input, name) in [(Input::Normalised, "normalised"), (Input::Raw, "raw")] {
        let exported = onnx(&model, input)?;
        ensure!(exported.left_out[0] == "predictor.*: it serves training only");
        fs_err::write(folder.join(format!("{name}.onnx")), exported.bytes)?;
    }
    // Without class means there are no scores, and without an anchor head no latents.
    if config.name == "small" {
        let fewer = Trained { class_means: None, ..model };
        fs_err::write(folder.join("without-scores.onnx"), onnx(&fewer, Input::Raw)?.bytes)?;
        let network = Network::new(config, Heads::default(), shape, classes.len())?;
        let kept = params.subset(|entry| matches!(entry.part, Part::Backbone | Part::Classifier));
        let fewer = Trained { network: &network, params: &kept, ..fewer };
        fs_err::write(folder.join("without-latents.onnx"), onnx(&fewer, Input::Raw)?.bytes)?;
    }
    // The model file of a run, for the networks that torchvision has too.
    if config.name == "resnet18" && config.norm == NormKind::Batch && !config.preactivation {
        let means_shape = means.size();
        let mut tensors = params.named();
        tensors.push(("class_means".to_owned(), Data::F32(&means, &means_shape)));
        fs_err::write(folder.join("model.safetensors"), encode(&tensors, "")?)?;
    }
    let input = input.f_contiguous()?;
    let computed = [("logits", logits), ("latents", latents), ("scores", scores)];
    for (name, tensor) in [("images", images), ("input", input)].into_iter().chain(computed) {
        tensor.write_npy(folder.join(format!("{name}.npy")))?;
    }
    Ok(())
}
