//! The grouped convolution.

use super::*;

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

/// Images of whole tiles of 8 x 8 pixels, for the kernels that copy a pixel once for all taps; also numbers of tiles that
/// do not divide evenly, fewer tiles than warp groups, and images that are not square.
#[test]
#[ignore = "needs a GPU"]
fn convolutions_of_whole_tiles() {
    gpu();
    tch::manual_seed(7);
    for (groups, batch, inputs, outputs, sides) in [
        (10, 21, 16, 16, [32, 32]),
        (10, 21, 16, 32, [32, 32]),
        (3, 5, 32, 16, [16, 16]),
        (10, 21, 32, 32, [32, 32]),
        (10, 90, 32, 64, [16, 16]),
        (10, 21, 64, 64, [32, 32]),
        (1, 1, 64, 64, [8, 8]),
        (10, 45, 32, 32, [8, 64]),
        (10, 45, 32, 32, [40, 16]),
        (2, 90, 64, 32, [32, 32]),
        (10, 20, 128, 128, [8, 8]),
        (10, 3, 128, 128, [24, 8]),
        (1, 5, 128, 64, [16, 16]),
        (1, 5, 64, 128, [8, 16]),
        (10, 21, 128, 256, [8, 8]),
        (10, 20, 256, 256, [8, 8]),
        (150, 1, 32, 32, [8, 8]),
        (10, 20, 512, 512, [4, 4]),
        (2, 9, 64, 128, [4, 4]),
    ] {
        check_conv(groups, batch, inputs, inputs, outputs, sides, 3, 1);
    }
    // A convolution that these kernels do not do tells a GPU that has them.
    check_conv(1, 2, 32, 32, 32, [9, 9], 3, 1);
    if has_launched(0, "hopper_forward_32").unwrap() {
        let rows = [
            "16_16",
            "16_32",
            "32_16",
            "32_32",
            "64_64",
            "wide_64",
            "wide_128",
            "small_64",
            "small_128",
        ];
        let rows = rows.iter().flat_map(|s| [format!("forward_{s}"), format!("backward_{s}")]);
        let weights = ["16_16", "16_32", "32_32", "32_64", "64_64", "small"];
        let weights = weights.iter().map(|size| format!("weight_{size}"));
        for kernel in rows.chain(weights) {
            assert!(has_launched(0, &format!("patch_{kernel}")).unwrap(), "patch_{kernel}");
        }
    }
}

/// A convolution with what is added to it, and the norm by the sums that it leaves: values and every gradient.
#[derive(Clone, Copy)]
struct BeforeNorm {
    groups: i64,
    batch: i64,
    inputs: i64,
    outputs: i64,
    side: i64,
    views: i64,
    adds: bool,
    /// Whether a kernel for Hopper leaves sums.
    sums: bool,
}

fn check_before_norm(case: BeforeNorm) {
    let BeforeNorm { groups, batch, inputs, outputs, side, views, adds, sums } = case;
    let what = format!("{groups} x {inputs} -> {outputs}, side {side}, {views} views, adds {adds}");
    let leaf = |x: Tensor| x.detach().set_requires_grad(true);
    // Views that differ, so that sums of the wrong one are found out.
    let view = |index: i64| {
        noise(&[batch, groups * inputs, side, side]) * (1.0 + index as f64) + 2.0 * index as f64
    };
    let x = Tensor::cat(&(0..views).map(view).collect::<Vec<_>>(), 0).to_kind(Kind::BFloat16);
    let x = leaf(channels_last(&x));
    let w = noise(&[groups, outputs, 3, 3, inputs]) / (9.0 * inputs as f64).sqrt();
    let w = leaf(w.to_kind(Kind::BFloat16).permute([0, 1, 4, 2, 3]));
    let columns = groups * outputs;
    let add = noise(&[views * batch, columns, side, side]).to_kind(Kind::BFloat16);
    let add = leaf(channels_last(&add));
    let (weight, bias) = (leaf(noise(&[columns]) + 1.5), leaf(noise(&[columns])));
    let (mean, variance) = (noise(&[columns]), noise(&[columns]));
    let norm = |x: &Tensor, sums: Option<&Sums>| {
        let (mean, variance) = (mean.copy(), variance.copy());
        let norm = Norm {
            weight: &weight,
            bias: &bias,
            mean: &mean,
            variance: &variance,
            statistics: Statistics::Update(0.1),
            views,
            epsilon: 1e-5,
            relu: true,
            sums,
        };
        (norm.forward(x, None, false).unwrap().0, mean, variance)
    };
    let (sum, found_sums) =
        conv_before_norm(&x, &w, 1, 1, adds.then_some(&add), Some(views)).unwrap();
    let hopper = has_launched(0, "hopper_forward_32").unwrap();
    assert_eq!(found_sums.is_some(), hopper && sums, "{what}: sums");
    let plain = conv(&x, &w, 1, 1).unwrap();
    let plain = if adds { plain + &add } else { plain };
    assert_close(&sum.detach(), &plain.detach(), 1e-2, &format!("{what}: sum"));
    let (found, expected) = (norm(&sum, found_sums.as_ref()), norm(&plain, None));
    assert_close(&found.0.detach(), &expected.0.detach(), 1e-2, &format!("{what}: norm"));
    assert_close(&found.1, &expected.1, 1e-3, &format!("{what}: running mean"));
    assert_close(&found.2, &expected.2, 1e-2, &format!("{what}: running variance"));

    // Rounding lets other values through ReLU, so both gradients are set against those in single precision.
    let (wide, flat) = (x.to_kind(Kind::Float), w.to_kind(Kind::Float).flatten(0, 1));
    let exact = wide.conv2d(&flat, None::<Tensor>, [1, 1], [1, 1], [1, 1], groups);
    let exact = if adds { exact + add.to_kind(Kind::Float) } else { exact };
    let exact = norm(&channels_last(&exact), None);

    let share = channels_last(&noise(&sum.size()));
    let mut leaves = vec![&x, &w, &weight, &bias];
    leaves.extend(adds.then_some(&add));
    let gradients = |y: &Tensor| {
        let total = (y.to_kind(Kind::Float) * &share).sum(Kind::Float);
        Tensor::run_backward(&[total], &leaves, false, false)
    };
    let [found, plain, exact] = [&found.0, &expected.0, &exact.0].map(gradients);
    for (index, exact) in exact.iter().enumerate() {
        let size = |x: &Tensor| x.square().mean(Kind::Double).sqrt().double_value(&[]);
        let error = |x: &Tensor| size(&(x.to_kind(Kind::Double) - exact.to_kind(Kind::Double)));
        let (fused, apart) = (error(&found[index]), error(&plain[index]));
        let least = 1e-3 * size(&exact.to_kind(Kind::Double));
        assert!(
            fused <= 1.5 * apart.max(least),
            "{what}: gradient {index}: {fused:.2e} off, in two operations {apart:.2e}"
        );
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_convolution_before_a_norm_adds_and_leaves_sums() {
    gpu();
    tch::manual_seed(9);
    // Something that tells a GPU that has kernels for Hopper.
    check_conv(1, 2, 32, 32, 32, [9, 9], 3, 1);
    for (groups, batch, inputs, outputs, side, sums) in [
        (10, 10, 32, 32, 32, true),
        (3, 7, 16, 16, 16, true),
        (10, 10, 64, 64, 16, true),
        (1, 1, 64, 64, 8, true),
        (10, 10, 128, 128, 8, true),
        (10, 5, 128, 256, 16, true),
        (10, 10, 512, 512, 4, false),
        (2, 3, 32, 64, 7, false),
    ] {
        for (views, adds) in [(1, true), (2, true), (2, false)] {
            let case = BeforeNorm { groups, batch, inputs, outputs, side, views, adds, sums };
            check_before_norm(case);
        }
    }
}

/// Convolutions in sequence, of which some share their weights and one has weights that are computed: the gradients beside a
/// backward pass are those of the pass, bit for bit, run one by one and replayed.
#[test]
#[ignore = "needs a GPU"]
fn overlapped_gradients_of_weights_are_the_same() {
    gpu();
    tch::manual_seed(10);
    let queue = Queue::new(0).unwrap();
    let _entered = queue.enter().unwrap();
    let leaf = |x: Tensor| x.detach().set_requires_grad(true);
    let weights = |inputs: i64| {
        let w = noise(&[10, 64, 3, 3, inputs]) / (9.0 * inputs as f64).sqrt();
        leaf(w.to_kind(Kind::BFloat16).permute([0, 1, 4, 2, 3]))
    };
    // Three channels, padded to eight, and enough convolutions that the pass has to wait for the first gradients.
    let x = channels_last(&noise(&[20, 10 * 8, 32, 32]).to_kind(Kind::BFloat16));
    let leaves: Vec<Tensor> = [3].into_iter().chain([64; 9]).map(weights).collect();
    let gradients = |overlapped: bool| {
        let computed = &leaves[9] * 2.0;
        let mut y = conv(&x, &leaves[0], 1, 1).unwrap();
        for w in leaves[1..9].iter().chain([&leaves[4], &computed, &leaves[8], &leaves[1]]) {
            y = conv(&y, w, 1, 1).unwrap();
        }
        let total = [y.to_kind(Kind::Float).square().mean(Kind::Float)];
        let pass = || {
            let found = Tensor::f_run_backward(&total, &leaves, false, false);
            found.map_err(|error| CudaError::Failed(error.to_string()))
        };
        if overlapped { overlap_weight_grads(pass) } else { pass() }
    };
    let expected = gradients(false).unwrap();
    let same = |found: &[Tensor], what: &str| {
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_close(found, expected, 0.0, &format!("{what}: weights {index}"));
        }
    };
    for _ in 0..5 {
        same(&gradients(true).unwrap(), "one by one");
    }
    let (graph, found) = Graph::capture(None, || gradients(true)).unwrap();
    for _ in 0..5 {
        found.iter().for_each(|gradient| drop(gradient.shallow_clone().zero_()));
        graph.replay().unwrap();
        same(&found, "replayed");
    }
    let failed = overlap_weight_grads(|| overlap_weight_grads(|| Ok::<_, CudaError>(())));
    assert!(failed.unwrap_err().to_string().contains("in progress"));
    // A pass ends on the stream on which it began, whatever is current then.
    let other = Queue::new(0).unwrap();
    let left = overlap_weight_grads(|| Ok::<_, CudaError>(other.enter().unwrap())).unwrap();
    drop(left);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        overlap_weight_grads(|| -> Result<(), CudaError> { panic!("within a pass") })
    }));
    assert!(panic.is_err());
    same(&gradients(true).unwrap(), "after failures");
    // Threads with a stream of their own each, which share libtorch's thread for gradients.
    std::thread::scope(|scope| {
        let run = |_| {
            scope.spawn(|| {
                let queue = Queue::new(0).unwrap();
                let _entered = queue.enter().unwrap();
                let w = weights(64);
                let x = channels_last(&noise(&[20, 640, 16, 16]).to_kind(Kind::BFloat16));
                let pass = |overlapped: bool| {
                    let y = conv(&conv(&x, &w, 1, 1).unwrap(), &w, 1, 1).unwrap();
                    let total = [y.to_kind(Kind::Float).square().mean(Kind::Float)];
                    let pass = || {
                        Tensor::f_run_backward(&total, &[&w], false, false)
                            .map_err(|error| CudaError::Failed(error.to_string()))
                    };
                    if overlapped { overlap_weight_grads(pass) } else { pass() }.unwrap().remove(0)
                };
                let expected = pass(false);
                (0..20).for_each(|_| assert_close(&pass(true), &expected, 0.0, "threads"));
            })
        };
        (0..3).map(run).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    });
}
