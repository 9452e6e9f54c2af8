//! Trunks: their networks against the implementation that the weights were published with (the package
//! `efficientnet_lite_pytorch` 0.1.0, in PyTorch), and files that are none. `make trunks` sets them up.

#![allow(clippy::unwrap_used)] // the setting for tests does not reach the functions they share

use fedanchor_data::features::FeatureFormat;
use fedanchor_data::{InputFormat, Normalisation};
use fedanchor_engine::batches::View;
use fedanchor_engine::config::{Heads, ModelConfig, Unfreeze};
use fedanchor_engine::model::Statistics;
use fedanchor_engine::training::Context;
use fedanchor_engine::trunk::{Place, Trunk, TrunkFile, folders};
use fedanchor_engine::{Device, Result};
use std::path::PathBuf;
use tch::{Kind, Tensor};

fn load(named: &str, size: Option<usize>, normalisation: Option<&Normalisation>) -> Result<Trunk> {
    let file = TrunkFile::read(&Place::find(named)?, size, normalisation)?;
    Trunk::load(&file, Unfreeze::None, Device::Cpu)
}

/// Name, norm of the features of a picture, and the first twelve of them.
const REFERENCE: [(&str, f64, [f64; 12]); 3] = [
    (
        "efficientnet-lite0",
        20.095457,
        [0.00022175, 0.0, 0.00111136, 0.0, 0.0, 0.0, 0.0, 2.47074032, 0.0, 0.0, 0.0, 0.0],
    ),
    (
        "efficientnet-lite1",
        19.050619,
        [0.0, 0.0, 0.0, 0.09341497, 0.0, 0.0, 0.0, 2.38668680, 0.0, 0.0, 0.13459367, 0.14830527],
    ),
    (
        "efficientnet-lite2",
        15.785285,
        [
            0.0, 2.06069875, 0.34735112, 0.29771242, 0.00021268, 1.61024571, 0.0, 0.33225191, 0.0,
            0.73666817, 0.0, 0.96045768,
        ],
    ),
];

/// A picture of smooth colours.
fn picture(side: usize) -> Vec<u8> {
    let value = |at: usize| {
        let (y, x, channel) = (at / 3 / side, at / 3 % side, at % 3);
        (x * (channel + 2) + y * 3 + x * y / 40) % 256
    };
    (0..side * side * 3).map(|at| value(at) as u8).collect()
}

#[test]
fn features_are_those_of_the_reference() {
    for (name, norm, first) in REFERENCE {
        let trunk = load(name, None, None).unwrap();
        let bytes = trunk.encode(&picture(trunk.info.size)).unwrap();
        let features = Tensor::from_data_size(&bytes, &[1280], Kind::Half).to_kind(Kind::Double);
        let found = Vec::<f64>::try_from(features.narrow(0, 0, 12)).unwrap();
        // Half precision has 11 bits.
        let close = |a: f64, b: f64| (a - b).abs() < 2e-3 * b.abs().max(0.1);
        assert!(found.iter().zip(first).all(|(&a, b)| close(a, b)), "{name}: {found:?}");
        let length = features.norm().double_value(&[]);
        assert!(close(length, norm), "{name}: {length}, not {norm}");
    }
}

/// Whatever of a trunk is trained, training starts from its features: its last stage on what it makes of a picture, and
/// the whole network on the picture.
#[test]
fn training_starts_from_the_features_of_the_trunk() {
    let name = "efficientnet-lite0";
    let file = TrunkFile::read(&Place::find(name).unwrap(), Some(96), None).unwrap();
    let of = |unfreeze| Trunk::load(&file, unfreeze, Device::Cpu).unwrap();
    let picture = picture(96);
    let frozen = of(Unfreeze::None).encode(&picture).unwrap();
    let frozen = Tensor::from_data_size(&frozen, &[1, 1, 1280], Kind::Half).to_kind(Kind::Float);
    for unfreeze in [Unfreeze::Last, Unfreeze::All] {
        let trunk = of(unfreeze);
        let (channels, side) = (trunk.output.channels, trunk.output.side);
        let identity = Normalisation { mean: vec![0.0; channels], std: vec![1.0; channels] };
        let shape = file.info.shape();
        let features = FeatureFormat { picture: shape, width: channels, side, views: 0 };
        let (features, input, normalisation) = match unfreeze {
            Unfreeze::Last => (Some(features), trunk.encode(&picture).unwrap(), &identity),
            _ => (None, picture.clone(), &file.info.normalisation),
        };
        let model =
            ModelConfig { trunk: Some(name.to_owned()), unfreeze, ..ModelConfig::plain(name) };
        let (format, heads) = (InputFormat { shape, features }, Heads::default());
        let context =
            Context::for_inference(&model, heads, format, 5, normalisation, Device::Cpu).unwrap();
        let params = context.initial().unwrap();
        let mut bytes = vec![0; format.bytes()];
        context.images.render(&[View::Raw(&input)], &mut bytes);
        let (kind, places) = match unfreeze {
            Unfreeze::Last => (Kind::Half, [1, 1, side as i64, side as i64, channels as i64]),
            _ => (Kind::Uint8, [1, 1, 96, 96, 3]),
        };
        let input = context.images.input(&Tensor::from_data_size(&bytes, &places, kind)).unwrap();
        let pass = context.pass(&params.tensors, Statistics::Running);
        let found = context.network.features(&input, &pass).unwrap().pooled;
        let difference = (found - &frozen).abs().max().double_value(&[]);
        assert!(difference < 0.02, "{unfreeze:?}: {difference}");
    }
}

/// The file that `make trunks` wrote.
fn trunk_file(name: &str) -> PathBuf {
    let files = folders().into_iter().map(|folder| folder.join(format!("{name}.safetensors")));
    files.into_iter().find(|file| file.exists()).unwrap()
}

fn error(file: &std::path::Path, size: Option<usize>) -> String {
    let half = Normalisation { mean: vec![0.5; 3], std: vec![0.5; 3] };
    let named = file.to_str().unwrap();
    load(named, size, size.map(|_| &half)).unwrap_err().to_string()
}

/// Damage, a cut, and files of other kinds are errors that name the file.
#[test]
fn a_file_that_is_no_trunk_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("trunk.safetensors");
    let intact = fs_err::read(trunk_file("efficientnet-lite0")).unwrap();
    let text = String::from_utf8_lossy(&intact[8..100_000]).into_owned(); // after the length of the header
    let shape = 8 + text.find("\"shape\": [").unwrap() + 10;
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = intact.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let name = 8 + text.find("conv1.weight").unwrap();
    let size = 8 + text.find("size\\\": 224").unwrap() + 8;
    let mut not_finite = intact.clone();
    let end = not_finite.len();
    not_finite[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    for (bytes, expected) in [
        (Vec::new(), "neither safetensors"),
        (b"a text".to_vec(), "neither safetensors"),
        (intact[..end / 2].to_vec(), "trunk.safetensors: "),
        (intact[..40].to_vec(), "neither safetensors"),
        (changed(0, &u64::MAX.to_le_bytes()), "neither safetensors"),
        (changed(shape, b"9"), "trunk.safetensors: "),
        (changed(name, b"conv9"), "has no conv1.weight"),
        (not_finite, "not finite"),
        (changed(size, b" 10"), "expected pictures of 16 to"),
        (b"PK\x03\x04 an archive".to_vec(), "does not state the size"),
    ] {
        fs_err::write(&path, &bytes).unwrap();
        let found = error(&path, None);
        assert!(
            found.starts_with("model.trunk: ") && found.contains(expected),
            "{expected}: {found}"
        );
    }
    fs_err::write(&path, b"PK\x03\x04 an archive").unwrap();
    let found = error(&path, Some(32));
    assert!(found.contains("not TorchScript that can be loaded"), "{found}");
    fs_err::remove_file(&path).unwrap();
    assert!(error(&path, None).contains("trunk.safetensors: "));
    let unknown = load("no-such-trunk", None, None).unwrap_err().to_string();
    assert!(
        unknown.contains("no trunk `no-such-trunk` in") && unknown.contains("make trunks"),
        "{unknown}"
    );
    let elsewhere = Place::by_name("../../etc/passwd").unwrap_err().to_string();
    assert!(elsewhere.contains("expected letters, digits"), "{elsewhere}");
}

/// Programs of TorchScript: one that encodes pictures, and others that do something else.
#[test]
fn torchscript_encodes_pictures_or_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("encoder.pt");
    let save = |of: &mut dyn FnMut(&Tensor) -> Tensor| {
        let example = Tensor::rand([2, 3, 32, 32], (Kind::Float, Device::Cpu));
        let mut closure = |inputs: &[Tensor]| vec![of(&inputs[0])];
        tch::CModule::create_by_tracing("encoder", "forward", &[example], &mut closure)
            .unwrap()
            .save(&path)
            .unwrap();
    };
    save(&mut |x| x.adaptive_avg_pool2d([2, 2]).flatten(1, -1));
    let half = Normalisation { mean: vec![0.5; 3], std: vec![0.5; 3] };
    let named = path.to_str().unwrap();
    let trunk = load(named, Some(32), Some(&half)).unwrap();
    assert_eq!((trunk.output.channels, trunk.info.size, &*trunk.info.name), (12, 32, "encoder"));
    assert!(trunk.layers().unwrap().is_none());
    // White: (1 - 0.5) / 0.5.
    let bytes = trunk.encode(&vec![255; 2 * 32 * 32 * 3]).unwrap();
    let white = Tensor::from_data_size(&bytes, &[2, 12], Kind::Half).to_kind(Kind::Float);
    assert_eq!((white.min().double_value(&[]), white.max().double_value(&[])), (1.0, 1.0));
    assert!(error(&path, None).contains("does not state the size and normalisation"));
    // A map that is not pooled yet is pooled.
    save(&mut |x| x.shallow_clone());
    assert_eq!(load(named, Some(32), Some(&half)).unwrap().output.channels, 3);
    save(&mut |x| x - x.mean_dim(&[0i64][..], true, Kind::Float));
    assert!(error(&path, Some(32)).contains("on the other pictures of a batch"));
    save(&mut |x| x.sum(Kind::Float));
    assert!(error(&path, Some(32)).contains("expected one vector per picture"));
    save(&mut |x| (x.flatten(1, -1) - 1.0).log());
    assert!(error(&path, Some(32)).contains("finite numbers"), "{}", error(&path, Some(32)));
    save(&mut |x| x.matmul(&Tensor::rand([32, 4], (Kind::Float, Device::Cpu))).narrow(2, 20, 12));
    let other_size = error(&path, Some(16));
    assert!(other_size.starts_with("model.trunk: "), "{other_size}");
}
