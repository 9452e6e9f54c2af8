//! The fused kernels against the plain operations they stand for, on a GPU; CONTRIBUTING says how to run
//! them.

#![allow(clippy::unwrap_used)]

use fedanchor_graph::{
    AVAILABLE, GraphError, Kernels, Mixture, Norm, Sgd, SgdEntry, Statistics, allow_tf32,
    compiled_for, conv, has_launched, images, setup, sgd,
};
use tch::{Cuda, Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

/// Prepares the GPU to test on; with FEDANCHOR_KERNELS=general, as one that has no kernels of its own.
fn gpu() {
    assert!(AVAILABLE && Cuda::is_available(), "no GPU, or built without CUDA");
    let kernels = match std::env::var("FEDANCHOR_KERNELS").is_ok_and(|asked| asked == "general") {
        true => Kernels::General,
        false => Kernels::Fitting,
    };
    setup(0, None, kernels).unwrap();
    allow_tf32(false).unwrap();
}

/// Ampere, Ada, Hopper with and without its own kernels, Blackwell.
#[test]
#[ignore = "needs libtorch's CUDA set"]
fn the_kernels_compile_for_every_architecture() {
    for architecture in [80, 86, 89, 90, 100, 120] {
        for kernels in [Kernels::Fitting, Kernels::General] {
            let code = compiled_for(architecture, kernels);
            let code =
                code.unwrap_or_else(|error| panic!("sm_{architecture}, {kernels:?}: {error}"));
            assert!(code.starts_with(b"\x7fELF"), "sm_{architecture}");
        }
    }
    assert!(compiled_for(75, Kernels::General).is_err()); // has no bfloat16
}

fn noise(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, GPU))
}

/// `[N, C, H, W]`, channels last in memory.
fn channels_last(x: &Tensor) -> Tensor {
    x.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2])
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(found.size(), expected.size(), "{what}");
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let scale = expected.abs().max().double_value(&[]);
    let difference = (&found - &expected).abs().max().double_value(&[]);
    assert!(
        difference <= tolerance * scale,
        "{what}: {difference:.2e} of {scale:.2e}, allowed {tolerance:e}"
    );
}

struct Case {
    batch: i64,
    columns: i64,
    side: i64,
    views: i64,
    kind: Kind,
    add: bool,
    residual: bool,
    relu: bool,
}

/// One norm with all that goes with it: values, running statistics and every gradient.
fn check_norm(case: &Case) {
    let &Case { batch, columns, side, views, kind, add, residual, relu } = case;
    let what = format!(
        "{columns} columns, side {side}, {views} views, {kind:?}, add {add}, residual {residual}, relu {relu}"
    );
    let size = [views * batch, columns, side, side];
    // Means far from 0 beside the spread, so that a sum of squares that cancels is found out; bfloat16
    // itself cancels there.
    let offset = if kind == Kind::Float { 5.0 } else { 0.5 };
    let input =
        || channels_last(&(noise(&size) + noise(&[1, columns, 1, 1]) * offset).to_kind(kind));
    let leaf = |x: &Tensor| x.detach().copy().set_requires_grad(true);
    let (x, other) = (input(), input());
    let (weight, bias) = (noise(&[columns]) + 1.5, noise(&[columns]));
    let (g1, g2) =
        (channels_last(&noise(&size).to_kind(kind)), channels_last(&noise(&size).to_kind(kind)));
    let running = || {
        (Tensor::zeros([columns], (Kind::Float, GPU)), Tensor::ones([columns], (Kind::Float, GPU)))
    };

    let (fx, other_leaf, fw, fb) = (leaf(&x), leaf(&other), leaf(&weight), leaf(&bias));
    let (mean, variance) = running();
    let norm = Norm {
        weight: &fw,
        bias: &fb,
        mean: &mean,
        variance: &variance,
        statistics: Statistics::Update(0.1),
        views,
        epsilon: 1e-5,
        relu,
    };
    let (y, second) = match (add, residual) {
        (true, _) => norm.forward_sum(&fx, &other_leaf).unwrap(),
        (_, true) => norm.forward_residual(&fx, &other_leaf).unwrap(),
        _ => norm.forward(&fx).unwrap(),
    };
    let leaves =
        if add || residual { vec![&fx, &other_leaf, &fw, &fb] } else { vec![&fx, &fw, &fb] };
    let total = (y.to_kind(Kind::Float) * g1.to_kind(Kind::Float)).sum(Kind::Float)
        + (second.to_kind(Kind::Float) * g2.to_kind(Kind::Float)).sum(Kind::Float);
    let found = Tensor::run_backward(&[total], &leaves, false, false);

    // The same in single precision with plain operations, view by view.
    let (px, po, pw, pb) = (
        leaf(&x.to_kind(Kind::Float)),
        leaf(&other.to_kind(Kind::Float)),
        leaf(&weight),
        leaf(&bias),
    );
    let (plain_mean, plain_variance) = running();
    let sum = if add { &px + &po } else { px.shallow_clone() };
    let parts: Vec<Tensor> = (0..views)
        .map(|view| {
            let part = sum.narrow(0, view * batch, batch);
            part.batch_norm(
                Some(&pw),
                Some(&pb),
                Some(&plain_mean),
                Some(&plain_variance),
                true,
                0.1,
                1e-5,
                false,
            )
        })
        .collect();
    let mut out = Tensor::cat(&parts, 0);
    if residual {
        out = &out + &po;
    }
    if relu {
        out = out.relu();
    }
    let plain_second = if add { sum } else { out.shallow_clone() };
    let leaves = if add || residual { vec![&px, &po, &pw, &pb] } else { vec![&px, &pw, &pb] };
    let total = (&out * g1.to_kind(Kind::Float)).sum(Kind::Float)
        + (&plain_second * g2.to_kind(Kind::Float)).sum(Kind::Float);
    let expected = Tensor::run_backward(&[total], &leaves, false, false);

    // bfloat16 keeps 8 bits. An activation near 0 may fall on the other side of ReLU, which moves single
    // gradients by all they are: gradients are compared by their root mean square.
    let tolerance = if kind == Kind::Float { 2e-4 } else { 1e-2 };
    assert_close(&y.detach(), &out.detach(), tolerance, &format!("{what}: output"));
    assert_close(
        &second.detach(),
        &plain_second.detach(),
        tolerance,
        &format!("{what}: second output"),
    );
    assert_close(
        &mean,
        &plain_mean,
        1e-4_f64.max(tolerance / 10.0),
        &format!("{what}: running mean"),
    );
    assert_close(
        &variance,
        &plain_variance,
        1e-4_f64.max(tolerance),
        &format!("{what}: running variance"),
    );
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let what = format!("{what}: gradient {index}");
        let allowed = if kind == Kind::Float { 2e-3 } else { 0.04 };
        assert_alike(found, expected, allowed, &what);
    }
}

/// The difference has a root mean square of at most this share of the expected one.
#[track_caller]
fn assert_alike(found: &Tensor, expected: &Tensor, share: f64, what: &str) {
    assert_eq!(found.size(), expected.size(), "{what}");
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let size = |x: &Tensor| x.square().mean(Kind::Double).sqrt().double_value(&[]);
    let (error, scale) = (size(&(&found - &expected)), size(&expected));
    assert!(error <= share * scale, "{what}: {error:.2e} of {scale:.2e}");
}

#[test]
#[ignore = "needs a GPU"]
fn the_fused_norm_is_batch_norm_with_what_follows() {
    gpu();
    tch::manual_seed(1);
    for kind in [Kind::Float, Kind::BFloat16] {
        for (batch, columns, side) in [(4, 16, 8), (10, 640, 16), (10, 1280, 4), (3, 72, 5)] {
            for (add, residual) in [(false, false), (true, false), (false, true)] {
                for (views, relu) in [(1, true), (2, true), (2, false)] {
                    check_norm(&Case { batch, columns, side, views, kind, add, residual, relu });
                }
            }
        }
    }
}

/// Against the plain grouped convolution in single precision on the same bfloat16 numbers: what is
/// left is the rounding of the result.
#[allow(clippy::too_many_arguments)]
fn check_conv(
    groups: i64,
    batch: i64,
    inputs: i64,
    given: i64,
    outputs: i64,
    [height, width]: [i64; 2],
    kernel: i64,
    stride: i64,
) {
    let what = format!(
        "{groups} groups, {inputs} ({given}) to {outputs}, {height} x {width}, kernel {kernel}, stride {stride}"
    );
    let half = |x: Tensor| x.to_kind(Kind::BFloat16);
    let mut x = half(noise(&[batch, groups, inputs, height, width]));
    if given < inputs {
        let _ = x.narrow(2, given, inputs - given).zero_();
    }
    x = channels_last(&x.flatten(1, 2)).set_requires_grad(true);
    let w = half(noise(&[groups, outputs, kernel, kernel, given]))
        .permute([0, 1, 4, 2, 3])
        .set_requires_grad(true);
    let y = conv(&x, &w, stride, kernel / 2).unwrap();
    let g = half(noise(&y.size()));
    let found = Tensor::run_backward(&[(&y * &g).sum(Kind::Float)], &[&x, &w], false, false);

    let full = |t: &Tensor| t.detach().to_kind(Kind::Float).contiguous().set_requires_grad(true);
    let (px, pw) = (full(&x), full(&w));
    let own = px.view([batch, groups, inputs, height, width]).narrow(2, 0, given).flatten(1, 2);
    let (strides, padding) = ([stride; 2], [kernel / 2; 2]);
    let plain = own.conv2d(&pw.flatten(0, 1), None::<&Tensor>, strides, padding, [1, 1], groups);
    let total = (&plain * g.to_kind(Kind::Float)).sum(Kind::Float);
    let expected = Tensor::run_backward(&[total], &[&px, &pw], false, false);
    assert_alike(&y.detach(), &plain.detach(), 4e-3, &format!("{what}: output"));
    assert_alike(&found[1], &expected[1], 4e-3, &format!("{what}: weight"));
    if given == inputs {
        assert_alike(&found[0], &expected[0], 4e-3, &format!("{what}: input"));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_convolution_is_a_grouped_convolution() {
    gpu();
    tch::manual_seed(5);
    for (groups, batch, inputs, given, outputs, side, kernel, stride) in [
        (1, 2, 8, 3, 16, 9, 3, 1),
        (3, 2, 8, 1, 16, 28, 3, 2),
        (10, 4, 8, 3, 64, 32, 3, 1),
        (3, 5, 16, 16, 32, 15, 3, 1),
        (2, 3, 32, 32, 32, 16, 3, 1),
        (10, 20, 32, 32, 64, 16, 3, 2),
        (4, 6, 64, 64, 64, 32, 3, 1),
        (2, 7, 64, 64, 128, 7, 3, 2),
        (2, 7, 64, 64, 128, 7, 1, 2),
        (3, 20, 128, 128, 128, 16, 3, 1),
        (10, 20, 512, 512, 512, 4, 3, 1),
        (10, 20, 256, 256, 512, 8, 1, 2),
        (1, 300, 64, 64, 64, 8, 1, 1),
    ] {
        check_conv(groups, batch, inputs, given, outputs, [side, side], kernel, stride);
    }
}

/// Enough tiles of 8 x 8 pixels for the kernels that copy a pixel once for all taps; also numbers of tiles that do not
/// divide evenly, images that are not square, and fewer columns than a block has.
#[test]
#[ignore = "needs a GPU"]
fn convolutions_with_many_tiles() {
    gpu();
    tch::manual_seed(7);
    for (groups, batch, inputs, outputs, sides) in [
        (10, 21, 16, 16, [32, 32]),
        (10, 21, 16, 32, [32, 32]),
        (10, 21, 32, 32, [32, 32]),
        (10, 90, 32, 64, [16, 16]),
        (10, 21, 64, 64, [32, 32]),
        (10, 45, 32, 32, [8, 64]),
        (10, 45, 32, 32, [40, 16]),
        (2, 90, 64, 32, [32, 32]),
        (10, 20, 128, 128, [8, 8]),
    ] {
        check_conv(groups, batch, inputs, inputs, outputs, sides, 3, 1);
    }
    // A convolution that these kernels do not do tells a GPU that has them.
    check_conv(1, 2, 32, 32, 32, [9, 9], 3, 1);
    if has_launched(0, "hopper_forward_32").unwrap() {
        let rows = ["16_32", "32_32", "64_64"];
        let rows = rows.iter().flat_map(|s| [format!("forward_{s}"), format!("backward_{s}")]);
        let weights = ["32_32", "32_64", "64_64"].iter().map(|size| format!("weight_{size}"));
        for kernel in rows.chain(weights) {
            assert!(has_launched(0, &format!("patch_{kernel}")).unwrap(), "patch_{kernel}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn running_statistics_are_used_as_they_are() {
    gpu();
    tch::manual_seed(2);
    let x = channels_last(&noise(&[6, 32, 8, 8]));
    let (weight, bias, mean, variance) =
        (noise(&[32]), noise(&[32]), noise(&[32]), noise(&[32]).square() + 0.1);
    let norm = Norm {
        weight: &weight,
        bias: &bias,
        mean: &mean,
        variance: &variance,
        statistics: Statistics::Running,
        views: 1,
        epsilon: 1e-5,
        relu: true,
    };
    let _no_grad = tch::no_grad_guard();
    let plain = x
        .batch_norm(
            Some(&weight),
            Some(&bias),
            Some(&mean),
            Some(&variance),
            false,
            0.0,
            1e-5,
            false,
        )
        .relu();
    assert_close(&norm.forward(&x).unwrap().0, &plain, 1e-5, "evaluation");
    assert_close(&norm.forward_sum(&x, &x).unwrap().1, &(&x * 2.0), 1e-6, "sum in evaluation");
}

#[test]
#[ignore = "needs a GPU"]
fn the_fused_step_is_sgd() {
    gpu();
    tch::manual_seed(3);
    let sizes: [&[i64]; 4] = [&[3, 16, 8, 3, 3], &[3, 10], &[3, 7, 5], &[3, 20000]];
    for nesterov in [false, true] {
        let values: Vec<Tensor> = sizes.iter().map(|size| noise(size)).collect();
        let momenta: Vec<Tensor> = sizes.iter().map(|size| noise(size)).collect();
        let gradients: Vec<Tensor> = sizes
            .iter()
            .enumerate()
            .map(|(index, size)| {
                noise(size).to_kind(if index % 2 == 0 { Kind::BFloat16 } else { Kind::Float })
            })
            .collect();
        let shadows: Vec<Tensor> =
            values.iter().map(|value| value.to_kind(Kind::BFloat16)).collect();
        let lr = Tensor::from_slice(&[0.1f32]).to_device(GPU);
        // By hand, each client by its own norm.
        let mut squares = Tensor::zeros([3], (Kind::Float, GPU));
        for gradient in &gradients {
            squares += gradient.to_kind(Kind::Float).square().flatten(1, -1).sum_dim_intlist(
                &[1i64][..],
                false,
                Kind::Float,
            );
        }
        let scale = ((squares.sqrt() + 1e-6).reciprocal() * 2.0).clamp_max(1.0);
        let expected: Vec<(Tensor, Tensor)> = values
            .iter()
            .zip(&momenta)
            .zip(&gradients)
            .map(|((value, momentum), gradient)| {
                let mut shape = vec![1; value.dim()];
                shape[0] = 3;
                let gradient =
                    gradient.to_kind(Kind::Float) * scale.view(&shape[..]) + value * 0.01;
                let momentum = momentum * 0.9 + &gradient;
                let step =
                    if nesterov { gradient + &momentum * 0.9 } else { momentum.shallow_clone() };
                (value - step * 0.1, momentum)
            })
            .collect();
        let entries: Vec<SgdEntry> = (0..4)
            .map(|at| SgdEntry {
                value: &values[at],
                momentum: Some(&momenta[at]),
                gradient: &gradients[at],
                shadow: (at != 1).then_some(&shadows[at]),
            })
            .collect();
        sgd(Sgd { momentum: 0.9, decay: 0.01, clip: 2.0, nesterov }, &lr, &entries).unwrap();
        for at in 0..4 {
            assert_close(&values[at], &expected[at].0, 1e-5, "value");
            assert_close(&momenta[at], &expected[at].1, 1e-5, "momentum");
            if at != 1 {
                assert_close(&shadows[at], &values[at].to_kind(Kind::BFloat16), 0.0, "shadow");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn images_are_normalised_and_mixed() {
    gpu();
    tch::manual_seed(4);
    let pixels = || Tensor::randint(256, [5, 3, 8, 8, 2], (Kind::Uint8, GPU));
    let (fix, first, second) = (pixels(), pixels(), pixels());
    let lambda = Tensor::rand([3, 5], (Kind::Float, GPU));
    let (scale, shift) = ([0.01f32, 0.02], [0.5f32, 1.5]);
    let mixture = Mixture { first: &first, second: &second, lambda: &lambda };
    let found = images(&fix, Some(&mixture), &scale, &shift, false).unwrap();
    let norm = |x: &Tensor| {
        x.to_kind(Kind::Float) * Tensor::from_slice(&scale).to_device(GPU)
            - Tensor::from_slice(&shift).to_device(GPU)
    };
    let share = lambda.tr().view([5, 3, 1, 1, 1]);
    let mixed = norm(&first) * &share + norm(&second) * (share.ones_like() - &share);
    let expected =
        Tensor::cat(&[norm(&fix), mixed], 0).permute([0, 1, 4, 2, 3]).reshape([10, 6, 8, 8]);
    assert_close(&found, &expected, 1e-6, "images");
}

/// A view that starts one number after an aligned address.
fn shifted(x: &Tensor) -> Tensor {
    let count = x.numel() as i64;
    let room = Tensor::zeros([count + 1], (x.kind(), GPU)).narrow(0, 1, count);
    let mut view = room.as_strided(x.size(), x.stride(), 1);
    view.copy_(x);
    view
}

/// Kernels read vectors; what starts between them is copied first, and what is written in place refused.
#[test]
#[ignore = "needs a GPU"]
fn addresses_between_vectors_are_read_from_a_copy() {
    gpu();
    tch::manual_seed(6);
    for kind in [Kind::Float, Kind::BFloat16] {
        let leaf = |x: &Tensor| x.detach().set_requires_grad(true);
        let x = channels_last(&noise(&[4, 16, 5, 5]).to_kind(kind));
        let (weight, bias) = (noise(&[16]), noise(&[16]));
        let run = |x: Tensor, other: &Tensor| {
            let norm = Norm {
                weight: &weight,
                bias: &bias,
                mean: &noise(&[16]),
                variance: &noise(&[16]),
                statistics: Statistics::Batch,
                views: 2,
                epsilon: 1e-5,
                relu: true,
            };
            let (y, _) = norm.forward_residual(&x, other).unwrap();
            // The gradient is a part of a larger one, so it starts anywhere.
            let all = Tensor::cat(
                &[Tensor::ones([1], (kind, GPU)), y.permute([0, 2, 3, 1]).flatten(0, -1)],
                0,
            );
            let total = (&all * &all).sum(Kind::Float);
            Tensor::run_backward(&[total], &[&x], false, false).remove(0)
        };
        let plain = run(leaf(&x), &x);
        assert_close(&run(leaf(&shifted(&x)), &shifted(&x)), &plain, 1e-6, "norm");
    }
    let x = channels_last(&noise(&[2, 16, 5, 5]).to_kind(Kind::BFloat16));
    let w = noise(&[2, 8, 3, 3, 8]).to_kind(Kind::BFloat16).permute([0, 1, 4, 2, 3]);
    let plain = conv(&x, &w, 1, 1).unwrap();
    assert_close(&conv(&shifted(&x), &shifted(&w), 1, 1).unwrap(), &plain, 0.0, "convolution");
    let step = |gradient: &Tensor| {
        let value = Tensor::ones([3, 8], (Kind::Float, GPU));
        let entry = SgdEntry { value: &value, momentum: None, gradient, shadow: None };
        let config = Sgd { momentum: 0.0, decay: 0.0, clip: 0.0, nesterov: false };
        sgd(config, &Tensor::ones([1], (Kind::Float, GPU)), &[entry]).unwrap();
        value
    };
    let gradient = noise(&[3, 8]);
    assert_close(&step(&shifted(&gradient)), &step(&gradient), 0.0, "step");
}

/// Refused calls queue nothing: the same call with what was missing gives what it should.
#[test]
#[ignore = "needs a GPU"]
fn a_refused_call_leaves_the_device_usable() {
    gpu();
    let on = |device| move |size: &[i64]| Tensor::ones(size, (Kind::Float, device));
    let (here, host) = (on(GPU), on(Device::Cpu));
    let x = channels_last(&here(&[2, 8, 4, 4]));
    let forward = |weight: &Tensor, mean: &Tensor, views| {
        let one = here(&[8]);
        Norm {
            weight,
            bias: &one,
            mean,
            variance: &one,
            statistics: Statistics::Running,
            views,
            epsilon: 0.0,
            relu: false,
        }
        .forward(&x)
    };
    let device = |tensor| GraphError::Device { tensor, expected: GPU, found: Device::Cpu };
    assert_eq!(forward(&host(&[8]), &here(&[8]), 1).unwrap_err(), device("weight"));
    assert_eq!(forward(&here(&[8]), &host(&[8]), 1).unwrap_err(), device("mean"));
    forward(&here(&[1]), &here(&[8]), 1).unwrap_err();
    forward(&here(&[8]), &here(&[8]), 0).unwrap_err();
    let one = forward(&here(&[8]), &here(&[8]), 1).unwrap().0; // (1 - 1) / 1 + 1
    assert_close(&one, &here(&[2, 8, 4, 4]), 0.0, "norm");

    let step = |lr: &Tensor, momentum: &Tensor, gradient: &Tensor| {
        let value = here(&[3, 8]);
        let entry = SgdEntry { value: &value, momentum: Some(momentum), gradient, shadow: None };
        let config = Sgd { momentum: 0.5, decay: 0.0, clip: 0.0, nesterov: false };
        sgd(config, lr, &[entry]).map(|()| value)
    };
    let good = here(&[3, 8]);
    assert_eq!(step(&host(&[1]), &good, &good).unwrap_err(), device("lr"));
    assert_eq!(step(&here(&[1]), &host(&[3, 8]), &good).unwrap_err(), device("momentum"));
    assert_eq!(step(&here(&[1]), &good, &host(&[3, 8])).unwrap_err(), device("gradient"));
    step(&here(&[1]), &good, &here(&[2, 8])).unwrap_err();
    let stepped = step(&here(&[1]), &here(&[3, 8]), &good).unwrap(); // 1 - (0.5 + 1)
    assert_close(&stepped, &(here(&[3, 8]) * -0.5), 0.0, "step");
}
