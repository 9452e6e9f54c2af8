//! Batch norm with what follows it.

use super::*;

struct Case {
    batch: i64,
    columns: i64,
    side: i64,
    views: i64,
    kind: Kind,
    passes: bool,
    residual: bool,
    relu: bool,
    statistics: Statistics,
}

/// One norm with all that goes with it: values, running statistics and every gradient.
fn check_norm(case: &Case) {
    let &Case { batch, columns, side, views, kind, passes, residual, relu, statistics } = case;
    let what = format!(
        "{columns} columns, side {side}, {views} views, {kind:?}, passes {passes}, residual {residual}, relu {relu}, {statistics:?}"
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
    let (running_mean, running_variance) = (noise(&[columns]), noise(&[columns]).square() + 0.5);
    let running = || (running_mean.copy(), running_variance.copy());
    let (trains, momentum) = match statistics {
        Statistics::Update(momentum) => (true, momentum),
        Statistics::Batch => (true, 0.0),
        Statistics::Running => (false, 0.0),
    };

    let (fx, other_leaf, fw, fb) = (leaf(&x), leaf(&other), leaf(&weight), leaf(&bias));
    let (mean, variance) = running();
    let norm = Norm {
        weight: &fw,
        bias: &fb,
        mean: &mean,
        variance: &variance,
        statistics,
        views,
        epsilon: 1e-5,
        relu,
        sums: None,
    };
    let (y, second) = match (passes, residual) {
        (true, _) => norm.forward(&fx, None, true).unwrap(),
        (_, true) => norm.forward(&fx, Some(&other_leaf), false).unwrap(),
        _ => norm.forward(&fx, None, false).unwrap(),
    };
    let leaves = if residual { vec![&fx, &other_leaf, &fw, &fb] } else { vec![&fx, &fw, &fb] };
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
    let parts: Vec<Tensor> = (0..views)
        .map(|view| {
            let part = px.narrow(0, view * batch, batch);
            part.batch_norm(
                Some(&pw),
                Some(&pb),
                Some(&plain_mean),
                Some(&plain_variance),
                trains,
                momentum,
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
    let plain_second = if passes { px.shallow_clone() } else { out.shallow_clone() };
    let leaves = if residual { vec![&px, &po, &pw, &pb] } else { vec![&px, &pw, &pb] };
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

#[test]
#[ignore = "needs a GPU"]
fn the_fused_norm_is_batch_norm_with_what_follows() {
    gpu();
    tch::manual_seed(1);
    for kind in [Kind::Float, Kind::BFloat16] {
        for (batch, columns, side) in [(4, 16, 8), (10, 640, 16), (10, 1280, 4), (3, 72, 5)] {
            for (passes, residual) in [(false, false), (true, false), (false, true)] {
                for (views, relu) in [(1, true), (2, true), (2, false)] {
                    for statistics in [Statistics::Update(0.1), Statistics::Running] {
                        let case = Case {
                            batch,
                            columns,
                            side,
                            views,
                            kind,
                            passes,
                            residual,
                            relu,
                            statistics,
                        };
                        check_norm(&case);
                    }
                }
            }
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
        sums: None,
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
    assert_close(&norm.forward(&x, None, false).unwrap().0, &plain, 1e-5, "evaluation");
    assert_close(&norm.forward(&x, None, true).unwrap().1, &x, 0.0, "passed on in evaluation");
}

/// A consumer of one of the two outputs alone.
#[test]
#[ignore = "needs a GPU"]
fn an_output_that_nobody_uses_has_no_gradient() {
    gpu();
    tch::manual_seed(11);
    let columns = 64;
    let x = channels_last(&noise(&[6, columns, 8, 8])).set_requires_grad(true);
    let (weight, bias) = (noise(&[columns]) + 1.5, noise(&[columns]));
    let (mean, variance) = (noise(&[columns]), noise(&[columns]));
    let norm = Norm {
        weight: &weight,
        bias: &bias,
        mean: &mean,
        variance: &variance,
        statistics: Statistics::Batch,
        views: 1,
        epsilon: 1e-5,
        relu: true,
        sums: None,
    };
    let share = channels_last(&noise(&x.size()));
    let gradient = |y: &Tensor| {
        Tensor::run_backward(&[(y * &share).sum(Kind::Float)], &[&x], false, false).remove(0)
    };
    let passed = norm.forward(&x, None, true).unwrap().1;
    assert_close(&gradient(&passed), &share, 0.0, "of what was passed on");
    let expected = gradient(&norm.forward(&x, None, false).unwrap().0);
    let found = [
        norm.forward(&x, None, true).unwrap().0, // nobody uses what was passed on
        norm.forward(&x, None, false).unwrap().1,
    ];
    for y in found {
        assert_close(&gradient(&y), &expected, 1e-6, "of the norm");
    }
}
