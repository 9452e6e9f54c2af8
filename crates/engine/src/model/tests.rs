//! The list of operations against the network itself.

use super::*;
use crate::config::Stem;

/// Every network, with what changes its operations.
fn configs() -> Vec<ModelConfig> {
    let plain =
        |name, preactivation, stem| ModelConfig { preactivation, stem, ..ModelConfig::plain(name) };
    let names = [
        plain(ModelName::Resnet18, false, Stem::Cifar),
        plain(ModelName::Resnet18, false, Stem::Imagenet),
        plain(ModelName::Resnet18, true, Stem::Cifar),
        plain(ModelName::Wrn28x2, false, Stem::Cifar),
        plain(ModelName::Small, false, Stem::Cifar),
        plain(ModelName::Cnn, false, Stem::Cifar),
    ];
    let norms = names.iter().flat_map(|config| {
        [NormKind::Batch, NormKind::Group].map(|norm| ModelConfig { norm, ..config.clone() })
    });
    let staged = norms.flat_map(|config| {
        let early = (config.name != ModelName::Cnn).then_some(Some(2));
        let stages = [None].into_iter().chain(early);
        let with = |latent_stage| ModelConfig { latent_stage, ..config.clone() };
        stages.map(with).collect::<Vec<_>>()
    });
    staged.collect()
}

/// Weights as they are drawn, and statistics that are not those of a new network.
fn filled(network: &Network) -> Params {
    let params = network.init(3, Device::Cpu).unwrap();
    for (index, (entry, tensor)) in params.layout.iter().zip(&params.tensors).enumerate() {
        if entry.shape.len() == 1 {
            let count = entry.numel();
            let wave = (Tensor::arange(count, (Kind::Float, Device::Cpu)) + index as f64).sin();
            let centre = if entry.name.ends_with("weight") || entry.name.ends_with("var") {
                1.0
            } else {
                0.0
            };
            tensor.shallow_clone().copy_(&(wave * 0.3 + centre).view([1, count]));
        }
    }
    params
}

/// Computes the list with plain operations.
fn interpret(operations: &Operations, tensors: &[Tensor], images: &Tensor) -> Vec<Tensor> {
    let at = |index: usize| tensors[index].squeeze_dim(0);
    let mut values = vec![images.shallow_clone()];
    for operation in &operations.list {
        let value = match *operation {
            Operation::Conv { input, weight, bias, stride, padding } => {
                let bias = bias.map(at);
                values[input].conv2d(&at(weight), bias, [stride; 2], [padding; 2], [1, 1], 1)
            }
            Operation::BatchNorm { input, weight, bias, mean, variance, epsilon } => {
                let channel = |index| at(index).view([1, -1, 1, 1]);
                let scaled =
                    (&values[input] - channel(mean)) / (channel(variance) + epsilon).sqrt();
                scaled * channel(weight) + channel(bias)
            }
            Operation::GroupNorm { input, weight, bias, groups, epsilon } => {
                values[input].group_norm(groups, Some(at(weight)), Some(at(bias)), epsilon, false)
            }
            Operation::Relu { input } => values[input].relu(),
            Operation::Add { left, right } => &values[left] + &values[right],
            Operation::MaxPool { input, kernel, stride, padding } => {
                values[input].max_pool2d([kernel; 2], [stride; 2], [padding; 2], [1, 1], false)
            }
            Operation::GlobalAveragePool { input } => {
                values[input].mean_dim(&[2i64, 3][..], false, Kind::Float)
            }
            Operation::Flatten { input } => values[input].flatten(1, -1),
            Operation::Linear { input, weight, bias } => {
                values[input].linear(&at(weight), Some(at(bias)))
            }
        };
        values.push(value);
    }
    values
}

#[test]
fn the_operations_are_the_network() {
    let _no_grad = tch::no_grad_guard();
    let close = |a: &Tensor, b: &Tensor| {
        assert_eq!(a.size(), b.size());
        let far = (a - b).abs().max().double_value(&[]);
        assert!(far < 1e-5 * b.abs().max().double_value(&[]).max(1.0), "{far}");
    };
    for config in configs() {
        let shape = Shape { side: 20, channels: 3 };
        for anchor in [true, false] {
            if !anchor && config.latent_stage.is_some() {
                continue; // without the head the stage does not matter
            }
            let heads = Heads { anchor, predictor: Some(4) };
            let network = Network::new(&config, heads, shape, 7).unwrap();
            let params = filled(&network);
            let images = (Tensor::arange(5 * 1200, (Kind::Float, Device::Cpu)) * 0.37).sin();
            let images = images.view([5, 3, 20, 20]);
            let pass = Pass::plain(&params.tensors, Statistics::Running);
            let features = network.features(&images, &pass).unwrap();
            let operations = network.operations();
            let values = interpret(&operations, &params.tensors, &images);
            let convolutions = operations.list.iter().zip(&values[1..]);
            let convolved: usize = convolutions
                .filter(|(operation, _)| matches!(operation, Operation::Conv { .. }))
                .map(|(_, value)| value.numel() / 5)
                .sum();
            assert_eq!(operations.convolved(&network.layout, 20), convolved as u64);
            close(&values[operations.pooled], &features.pooled.squeeze_dim(0));
            let logits = network.logits(&features, &pass).unwrap().squeeze_dim(0);
            close(&values[operations.logits], &logits);
            assert_eq!(operations.latents.is_some(), anchor);
            if let Some(latents) = operations.latents {
                close(&values[latents], &network.latents(&features, &pass).unwrap().squeeze_dim(0));
            }
        }
    }
}

/// K clients with the imagenet stem are K networks.
#[test]
fn the_imagenet_stem_serves_a_cohort() {
    let _no_grad = tch::no_grad_guard();
    let config = ModelConfig { stem: Stem::Imagenet, ..configs()[0].clone() };
    let heads = Heads { anchor: true, predictor: None };
    let network = Network::new(&config, heads, Shape { side: 32, channels: 3 }, 4).unwrap();
    let alone = [network.init(1, Device::Cpu).unwrap(), network.init(2, Device::Cpu).unwrap()];
    let cohort = Params::stack(&[&alone[0], &alone[1]]).unwrap();
    let images = Tensor::randn([2, 6, 32, 32], (Kind::Float, Device::Cpu));
    let logits = |params: &Params, images: &Tensor| {
        let pass = Pass::plain(&params.tensors, Statistics::Batch);
        let features = network.features(images, &pass).unwrap();
        network.logits(&features, &pass).unwrap()
    };
    let together = logits(&cohort, &images);
    for (client, params) in alone.iter().enumerate() {
        let own = logits(params, &images.narrow(1, 3 * client as i64, 3));
        assert!(together.get(client as i64).allclose(&own.get(0), 1e-4, 1e-5, false));
    }
}

#[test]
fn the_imagenet_stem_is_for_resnet18() {
    let heads = Heads::default();
    for mut config in configs().into_iter().filter(|config| config.stem == Stem::Cifar) {
        config.stem = Stem::Imagenet;
        let plain = config.name == ModelName::Resnet18 && !config.preactivation;
        let network = Network::new(&config, heads, Shape { side: 32, channels: 3 }, 4);
        assert_eq!(network.is_ok(), plain);
    }
}
