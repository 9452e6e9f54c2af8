//! Forward passes against the layers that they run, one by one in plain operations.

use super::*;
use crate::config::Stem;

/// Every network, with what changes its layers.
fn configs() -> Vec<ModelConfig> {
    let plain =
        |name, preactivation, stem| ModelConfig { preactivation, stem, ..ModelConfig::plain(name) };
    let names = [
        plain("resnet18", false, Stem::Cifar),
        plain("resnet18", false, Stem::Imagenet),
        plain("resnet18", true, Stem::Cifar),
        plain("wrn28x2", false, Stem::Cifar),
        plain("small", false, Stem::Cifar),
        plain("cnn", false, Stem::Cifar),
    ];
    let norms = names.iter().flat_map(|config| {
        [NormKind::Batch, NormKind::Group].map(|norm| ModelConfig { norm, ..config.clone() })
    });
    let staged = norms.flat_map(|config| {
        let early = (config.name != "cnn").then_some(Some(2));
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
fn interpret(layers: &[Layer], tensors: &[Tensor], images: &Tensor) -> Vec<Tensor> {
    let at = |index: usize| tensors[index].squeeze_dim(0);
    let mut values = vec![images.shallow_clone()];
    for Layer { input, operation } in layers {
        let input = &values[*input];
        let value = match *operation {
            Operation::Conv { weight, bias, stride, padding, groups } => {
                let (bias, Padding { before, after }) = (bias.map(at), padding);
                let input = input.constant_pad_nd([before, after, before, after]);
                input.conv2d(&at(weight), bias, [stride; 2], [0, 0], [1, 1], groups)
            }
            Operation::BatchNorm { weight, bias, mean, variance, epsilon } => {
                let channel = |index| at(index).view([1, -1, 1, 1]);
                let scaled = (input - channel(mean)) / (channel(variance) + epsilon).sqrt();
                scaled * channel(weight) + channel(bias)
            }
            Operation::GroupNorm { weight, bias, groups } => {
                input.group_norm(groups, Some(at(weight)), Some(at(bias)), EPSILON, false)
            }
            Operation::Relu => input.relu(),
            Operation::Relu6 => input.relu().clamp_max(6.0),
            Operation::Add { other } => input + &values[other],
            Operation::MaxPool { kernel, stride, padding } => {
                input.max_pool2d([kernel; 2], [stride; 2], [padding; 2], [1, 1], false)
            }
            Operation::GlobalAveragePool => input.mean_dim(&[2i64, 3][..], false, Kind::Float),
            Operation::Flatten => input.flatten(1, -1),
            Operation::Linear { weight, bias } => input.linear(&at(weight), Some(at(bias))),
        };
        values.push(value);
    }
    values
}

#[test]
fn a_pass_computes_the_layers() {
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
            let values = interpret(&network.layers, &params.tensors, &images);
            let convolutions = network.layers.iter().zip(&values[1..]);
            let convolved: usize = convolutions
                .filter(|(layer, _)| matches!(layer.operation, Operation::Conv { .. }))
                .map(|(_, value)| value.numel() / 5)
                .sum();
            assert_eq!(network.convolved, convolved as u64);
            close(&values[network.pooled], &features.pooled.squeeze_dim(0));
            let logits = network.logits(&features, &pass).unwrap().squeeze_dim(0);
            close(&values[network.logits], &logits);
            assert_eq!(network.latents.is_some(), anchor);
            if let Some(latents) = network.latents {
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
        let plain = config.name == "resnet18" && !config.preactivation;
        let network = Network::new(&config, heads, Shape { side: 32, channels: 3 }, 4);
        assert_eq!(network.is_ok(), plain);
    }
}

/// Layers in an order and a shape that no model of this crate has: nothing is computed in place that is read again.
fn tangled(net: &mut Builder) -> Value {
    let first = net.conv("first", IMAGES, 8, 3, 2);
    let second = net.norm("second", first);
    let third = net.relu(second);
    let sum = net.add(second, third);
    net.end_stage(sum);
    let twice = net.add(sum, sum);
    let fourth = net.conv("fourth", twice, 8, 1, 1);
    let fifth = net.add(fourth, first);
    let sixth = net.norm("sixth", fifth);
    let sum = net.add(sixth, fifth);
    let active = net.relu(sum);
    let narrow = net.norm("seventh", active);
    let pooled = net.add(narrow, fifth);
    net.pool(pooled)
}

fn too_deep(net: &mut Builder) -> Value {
    let x = (0..4).fold(IMAGES, |x, at| net.max_pool(x, 2 + at % 2, 4, 0));
    net.flatten(x)
}

fn unpooled(net: &mut Builder) -> Value {
    net.conv("only", IMAGES, 12, 3, 1)
}

fn odd(net: &mut Builder) -> Value {
    let x = net.conv("conv", IMAGES, 12, 3, 1);
    let x = net.norm("norm", x);
    net.pool(x)
}

fn named_as_a_head(net: &mut Builder) -> Value {
    let x = net.flatten(IMAGES);
    net.linear("classifier", x, 8)
}

#[test]
fn a_registered_model_is_found_by_its_name_and_checked() {
    let register =
        |name, describe| super::register(Registration::new(name, "A test.", describe)).unwrap();
    register("tangled", tangled as fn(&mut Builder) -> Value);
    register("too-deep", too_deep);
    register("unpooled", unpooled);
    register("odd", odd);
    register("head", named_as_a_head);
    let heads = Heads { anchor: true, predictor: None };
    let network =
        |config: &ModelConfig| Network::new(config, heads, Shape { side: 20, channels: 3 }, 4);
    for norm in [NormKind::Batch, NormKind::Group] {
        let config = ModelConfig { latent_stage: Some(1), norm, ..ModelConfig::plain("tangled") };
        let network = network(&config).unwrap();
        let params = filled(&network);
        let images = (Tensor::arange(2 * 1200, (Kind::Float, Device::Cpu)) * 0.37).sin();
        let images = images.view([2, 3, 20, 20]);
        let values = interpret(&network.layers, &params.tensors, &images);
        let entries = params.layout.iter().zip(&params.tensors);
        let trained = entries.map(|(entry, tensor)| tensor.set_requires_grad(!entry.statistic));
        let trained: Vec<Tensor> = trained.collect();
        let pass = Pass::plain(&trained, Statistics::Running);
        let features = network.features(&images, &pass).unwrap();
        let latents = network.latents(&features, &pass).unwrap();
        let logits = network.logits(&features, &pass).unwrap();
        assert!(values[network.logits].allclose(&logits.squeeze_dim(0), 1e-4, 1e-5, false));
        let expected = &values[network.latents.unwrap()];
        assert!(expected.allclose(&latents.squeeze_dim(0), 1e-4, 1e-5, false));
        (logits.sum(Kind::Float) + latents.sum(Kind::Float)).backward();
    }
    let refused = |config: &ModelConfig| network(config).unwrap_err().to_string();
    let plain = ModelConfig::plain;
    assert_eq!(
        refused(&plain("tangle")),
        "model.name: unknown model `tangle`; expected one of resnet18, wrn28x2, small, cnn, efficientnet-lite0, \
         efficientnet-lite1, efficientnet-lite2, adapter, tangled, \
         too-deep, unpooled, odd, head"
    );
    assert!(refused(&plain("too-deep")).contains("images of 20 pixels are too small"));
    assert!(refused(&plain("odd")).contains("`norm` must have a multiple of 8 channels, got 12"));
    assert!(refused(&plain("head")).contains("two layers have a tensor `classifier.weight`"));
    assert!(refused(&plain("unpooled")).contains("must be pooled or flattened"));
    let groups = ModelConfig { norm: NormKind::Group, groups: 16, ..plain("tangled") };
    network(&groups).unwrap(); // as many groups as channels
    let groups = ModelConfig { groups: 5, ..groups };
    assert!(refused(&groups).contains("5 groups do not divide the 8 channels of `second`"));
    let stage = ModelConfig { latent_stage: Some(3), ..plain("tangled") };
    assert!(refused(&stage).contains("stages 1 to 2, not 3"));
    let taken = super::register(Registration::new("small", "", tangled)).unwrap_err();
    assert_eq!(taken.to_string(), "model.name: a model called `small` already exists");
}
