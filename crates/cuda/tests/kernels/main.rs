//! The fused kernels against the plain operations they stand for, on a GPU; CONTRIBUTING says how to run
//! them.

#![allow(clippy::unwrap_used)]

mod conv;
mod head;
mod loss;
mod norm;

use fedanchor_cuda::{
    CudaError, FixMixLoss, Graph, Kernels, Labels, Losses, MixLabels, Mixture, Norm, Queue, Sgd,
    SgdEntry, Statistics, Sums, compiled_for, conv_before_norm, has_launched, head, images,
    is_available, is_small_head, overlap_weight_grads, pool, set_math_mode, setup, sgd,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tch::{Cuda, Device, Kind, Tensor};

/// A convolution alone.
fn conv(x: &Tensor, w: &Tensor, stride: i64, padding: i64) -> Result<Tensor, CudaError> {
    conv_before_norm(x, w, stride, padding, None, None).map(|(y, _)| y)
}

const GPU: Device = Device::Cuda(0);

/// Prepares the GPU to test on; with FEDANCHOR_KERNELS=general, as one that has no kernels of its own.
fn gpu() {
    assert!(is_available() && Cuda::is_available(), "no GPU, or built without CUDA");
    let kernels = match std::env::var("FEDANCHOR_KERNELS").is_ok_and(|asked| asked == "general") {
        true => Kernels::General,
        false => Kernels::Fitting,
    };
    setup(0, None, kernels).unwrap();
    set_math_mode(false, true).unwrap();
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
    for channels in 1..=4 {
        let pixels = || Tensor::randint(256, [5, 3, 8, 8, channels], (Kind::Uint8, GPU));
        let (fix, first, second) = (pixels(), pixels(), pixels());
        let lambda = Tensor::rand([3, 5], (Kind::Float, GPU));
        let (scale, shift) = ([0.01f32, 0.02, 0.03, 0.04], [0.5f32, 1.5, 2.5, 3.5]);
        let (scale, shift) = (&scale[..channels as usize], &shift[..channels as usize]);
        let mixture = Mixture { first: &first, second: &second, lambda: &lambda };
        let norm = |x: &Tensor| {
            x.to_kind(Kind::Float) * Tensor::from_slice(scale).to_device(GPU)
                - Tensor::from_slice(shift).to_device(GPU)
        };
        let share = lambda.tr().view([5, 3, 1, 1, 1]);
        let mixed = norm(&first) * &share + norm(&second) * (share.ones_like() - &share);
        let both = Tensor::cat(&[norm(&fix), mixed], 0).permute([0, 1, 4, 2, 3]); // [10, 3, C, 8, 8]
        for half in [false, true] {
            let tolerance = if half { 1e-2 } else { 1e-6 };
            for (mixture, rows) in [(Some(&mixture), 10), (None, 5)] {
                let what = format!("{channels} channels, half {half}, {rows} rows");
                let found = images(&fix, mixture, scale, shift, half).unwrap();
                let padded = if half { 8 } else { channels };
                let found = found.view([rows, 3, padded, 8, 8]);
                let expected = both.narrow(0, 0, rows);
                assert_close(&found.narrow(2, 0, channels), &expected, tolerance, &what);
                let rest = found.narrow(2, channels, padded - channels);
                assert_eq!(rest.count_nonzero(None::<i64>).int64_value(&[]), 0, "{what}");
            }
        }
    }
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
                sums: None,
            };
            let (y, _) = norm.forward(&x, Some(other), false).unwrap();
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
            sums: None,
        }
        .forward(&x, None, false)
    };
    let device = |tensor| CudaError::refused(tensor, format!("a tensor on {GPU:?}"), "one on Cpu");
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
