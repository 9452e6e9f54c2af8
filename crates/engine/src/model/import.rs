//! An imported backbone: the weights of torchvision's ResNet-18 in a safetensors file. The entries
//! of our backbone have the same names. Heads are not imported: the file does not say which classes they tell
//! apart, and in which order.

use crate::error::{Error, Result};
use crate::tensors::{Layout, Params, Part};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// Tensors of a head, in torchvision's file or in one of our own.
const HEADS: [&str; 5] = ["fc.", "classifier.", "anchor.", "predictor.", "class_means"];
/// Counters that torchvision keeps next to batch norm's statistics; nothing reads them.
const COUNTER: &str = ".num_batches_tracked";

/// The content of such a file.
#[derive(Debug)]
pub struct Imported {
    /// The entries of the backbone, K = 1.
    pub backbone: Params,
    /// Tensors of the file that are not used.
    pub ignored: Vec<String>,
}

/// Reads the entries of the backbone of `layout` from a file with its names; those of `resnet18` are torchvision's.
pub fn import(layout: &Layout, path: &Path, device: Device) -> Result<Imported> {
    let bad = |problem: String| {
        Error::config("model.init_from", format!("{}: {problem}", path.display()))
    };
    let bytes = fedanchor_disk::read(path, fedanchor_disk::MAX_FILE)
        .map_err(|error| bad(error.to_string()))?;
    import_bytes(layout, &bytes, device).map_err(bad)
}

/// The same from the bytes of a file; an error says what is wrong with it.
pub fn import_bytes(layout: &Layout, bytes: &[u8], device: Device) -> Result<Imported, String> {
    let torch = |error: tch::TchError| Error::from(error).to_string();
    let text = |error: Error| error.to_string();
    let file = SafeTensors::deserialize(bytes).map_err(|error| {
        format!("not a safetensors file ({error}): save it with safetensors.torch.save_file")
    })?;
    let all = file.tensors().into_iter().filter(|(name, _)| !name.ends_with(COUNTER));
    let (heads, mut found): (BTreeMap<_, _>, BTreeMap<String, TensorView>) =
        all.partition(|(name, _)| HEADS.iter().any(|head| name.starts_with(head)));
    let ignored = heads.into_keys().collect();

    let (mut missing, mut misshapen, mut tensors) = (Vec::new(), Vec::new(), BTreeMap::new());
    let backbone = layout.iter().filter(|entry| entry.part == Part::Backbone);
    for entry in backbone {
        let Some(view) = found.remove(&entry.name) else {
            missing.push(entry.name.clone());
            continue;
        };
        let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
        if shape == entry.shape {
            let kind = match view.dtype() {
                Dtype::F32 => Kind::Float,
                Dtype::F16 => Kind::Half,
                Dtype::BF16 => Kind::BFloat16,
                Dtype::F64 => Kind::Double,
                other => {
                    let name = &entry.name;
                    let problem =
                        format!("`{name}` has numbers of type {other:?}, not of a float type");
                    return Err(problem);
                }
            };
            let tensor = Tensor::f_from_data_size(view.data(), &shape, kind).map_err(torch)?;
            tensors.insert(entry.name.clone(), tensor.f_to_kind(Kind::Float).map_err(torch)?);
            continue;
        }
        if let (true, [_, theirs, ..], [_, ours, ..]) =
            (entry.name == "conv1.weight", &shape[..], &entry.shape[..])
            && theirs != ours
        {
            return Err(format!(
                "its first convolution takes images of {theirs} channels, these have {ours}: store the \
                 images with {theirs} channels, or add up conv1.weight over its second axis in the \
                 file if it is to take grey images"
            ));
        }
        let stem = match entry.name.as_str() {
            "conv1.weight" => " (model.stem = \"imagenet\" has 7 x 7, \"cifar\" 3 x 3)",
            _ => "",
        };
        misshapen.push(format!("`{}` is {shape:?}, not {:?}{stem}", entry.name, entry.shape));
    }
    let unknown: Vec<String> = found.into_keys().collect();
    for (problem, names) in [
        ("has no", missing),
        ("does not fit:", misshapen),
        ("has what the network does not:", unknown),
    ] {
        if !names.is_empty() {
            return Err(format!("{problem} {}", listed(&names)));
        }
    }
    let backbone = Params::from_decoded(layout, tensors, device).map_err(text)?;
    match backbone.first_not_finite().map_err(text)?.pop().flatten() {
        Some(name) => Err(format!("`{name}` has a number that is not finite")),
        None => Ok(Imported { backbone, ignored }),
    }
}

/// The first few of several names.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Heads, ModelConfig, Stem};
    use crate::model::Network;
    use fedanchor_data::Shape;

    fn network(stem: Stem, channels: usize) -> Network {
        let config = ModelConfig { stem, ..ModelConfig::plain("resnet18") };
        let heads = Heads { anchor: true, predictor: None };
        Network::new(&config, heads, Shape { side: 32, channels }, 7).unwrap()
    }

    /// The backbone under torchvision's names, as a file has it, with a change to it.
    fn written(stem: Stem, change: impl Fn(&mut Vec<(String, Tensor)>)) -> Vec<u8> {
        let params = network(stem, 3).init(5, Device::Cpu).unwrap();
        let part = params.subset(|entry| entry.part == Part::Backbone);
        let mut all = Vec::new();
        for (entry, tensor) in part.layout.iter().zip(&part.tensors) {
            all.push((entry.name.clone(), tensor.squeeze_dim(0)));
            if let Some(norm) = entry.name.strip_suffix(".running_var") {
                all.push((format!("{norm}{COUNTER}"), Tensor::from(17i64)));
            }
        }
        all.push(("fc.weight".to_owned(), Tensor::ones([1000, 512], (Kind::Float, Device::Cpu))));
        all.push(("fc.bias".to_owned(), Tensor::ones([1000], (Kind::Float, Device::Cpu))));
        change(&mut all);
        let encoded = all.iter().map(|(name, tensor)| {
            let (dtype, width) = match tensor.kind() {
                Kind::Int64 => (Dtype::I64, 8),
                Kind::Half => (Dtype::F16, 2),
                _ => (Dtype::F32, 4),
            };
            let mut bytes = vec![0; tensor.numel() * width];
            tensor.contiguous().copy_data_u8(&mut bytes, tensor.numel());
            let shape: Vec<usize> = tensor.size().iter().map(|&size| size as usize).collect();
            (name.clone(), dtype, shape, bytes)
        });
        let encoded: Vec<_> = encoded.collect();
        let views = encoded.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn read(stem: Stem, channels: usize, bytes: &[u8]) -> Result<Imported, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs_err::write(file.path(), bytes).unwrap();
        let read = import(&network(stem, channels).layout, file.path(), Device::Cpu);
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_backbone_arrives_exactly_without_its_head() {
        for stem in [Stem::Cifar, Stem::Imagenet] {
            let imported = read(stem, 3, &written(stem, |_| ())).unwrap();
            assert_eq!(imported.ignored, ["fc.bias", "fc.weight"]);
            let expected = network(stem, 3).init(5, Device::Cpu).unwrap();
            let expected = expected.subset(|entry| entry.part == Part::Backbone);
            assert_eq!(imported.backbone.layout, expected.layout);
            assert_eq!(imported.backbone.tensors, expected.tensors);
        }
    }

    #[test]
    fn half_precision_and_a_missing_head_are_fine() {
        let bytes = written(Stem::Cifar, |all| {
            all.retain(|(name, _)| !name.starts_with("fc."));
            all[0].1 = all[0].1.to_kind(Kind::Half);
        });
        let imported = read(Stem::Cifar, 3, &bytes).unwrap();
        assert!(imported.ignored.is_empty());
        let drawn = network(Stem::Cifar, 3).init(5, Device::Cpu).unwrap();
        let far = (&imported.backbone.tensors[0] - &drawn.tensors[0]).abs().max();
        assert!((1e-9..1e-3).contains(&far.double_value(&[])));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let rename = |from: &'static str, to: &'static str| {
            move |all: &mut Vec<(String, Tensor)>| {
                all.iter_mut().find(|(name, _)| name == from).unwrap().0 = to.to_owned();
            }
        };
        let bytes = written(Stem::Cifar, |all| all.retain(|(name, _)| !name.starts_with("bn1")));
        let error = read(Stem::Cifar, 3, &bytes).unwrap_err();
        assert!(error.starts_with("model.init_from: "), "{error}");
        assert!(error.ends_with("has no bn1.weight, bn1.bias, bn1.running_mean, bn1.running_var"));
        let bytes = written(Stem::Cifar, |all| all.retain(|(name, _)| !name.contains("layer")));
        let error = read(Stem::Cifar, 3, &bytes).unwrap_err();
        assert!(error.ends_with("layer1.0.bn1.running_mean and 91 more"), "{error}");

        let error = read(Stem::Cifar, 3, &written(Stem::Imagenet, |_| ())).unwrap_err();
        assert!(error.contains("`conv1.weight` is [64, 3, 7, 7], not [64, 3, 3, 3]"), "{error}");
        assert!(error.contains("model.stem = \"imagenet\""), "{error}");

        let bytes = written(Stem::Cifar, rename("fc.bias", "layer5.bias"));
        let error = read(Stem::Cifar, 3, &bytes).unwrap_err();
        assert!(error.ends_with("has what the network does not: layer5.bias"), "{error}");

        let error = read(Stem::Cifar, 1, &written(Stem::Cifar, |_| ())).unwrap_err();
        assert!(error.contains("takes images of 3 channels, these have 1: store"), "{error}");

        let bytes = written(Stem::Cifar, |all| all[1].1 = all[1].1.f_mul_scalar(f64::NAN).unwrap());
        let error = read(Stem::Cifar, 3, &bytes).unwrap_err();
        assert!(error.ends_with("`bn1.weight` has a number that is not finite"), "{error}");

        let error = read(Stem::Cifar, 3, b"PK\x03\x04 a zip").unwrap_err();
        assert!(error.contains("not a safetensors file"), "{error}");
    }
}
