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
        let weights = ["16_16", "16_32", "32_32", "32_64", "64_64"];
        let weights = weights.iter().map(|size| format!("weight_{size}"));
        for kernel in rows.chain(weights) {
            assert!(has_launched(0, &format!("patch_{kernel}")).unwrap(), "patch_{kernel}");
        }
    }
}
