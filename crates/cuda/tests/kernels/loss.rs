//! The losses of both views.

use super::*;

/// Terms and gradient of the fused loss and of plain operations.
fn check_loss(batch: i64, classes: i64, mixed: bool, weighted: bool, adjusted: bool) {
    let what =
        format!("{batch} x {classes}, mixed {mixed}, weighted {weighted}, adjusted {adjusted}");
    let (clients, views) = (3, 1 + i64::from(mixed));
    let logits = (noise(&[clients, views * batch, classes]) * 5.0).set_requires_grad(true);
    let labels = || Tensor::randint(classes, [clients, batch], (Kind::Int64, GPU));
    let numbers = || Tensor::rand([clients, batch], (Kind::Float, GPU));
    let (first, second, lambda) = (labels(), labels(), numbers());
    let (weights, mix_weights) = (weighted.then(numbers), weighted.then(numbers));
    let adjustment = adjusted.then(|| noise(&[clients, 1, classes]));
    let mix = MixLabels {
        labels: Labels { labels: &second, weights: mix_weights.as_ref() },
        lambda: &lambda,
        weight: 0.7,
    };
    let loss = FixMixLoss {
        fix: Labels { labels: &first, weights: weights.as_ref() },
        mix: mixed.then_some(mix),
        adjustment: adjustment.as_ref(),
    };
    let Losses { total, terms: found } = loss.forward(&logits).unwrap();

    let log = adjustment.as_ref().map_or_else(|| &logits * 1.0, |a| &logits + a);
    let log = log.log_softmax(-1, Kind::Float);
    let each = |rows: Tensor, labels: &Tensor, weights: &Option<Tensor>| {
        let each = -rows.gather(-1, &labels.unsqueeze(-1), false).squeeze_dim(-1);
        weights.as_ref().map_or_else(|| each.shallow_clone(), |weights| &each * weights)
    };
    let mut terms = vec![each(log.narrow(1, 0, batch), &first, &weights)];
    if mixed {
        let rows = log.narrow(1, batch, batch);
        let to_mix = each(rows.shallow_clone(), &second, &mix_weights);
        terms.push(to_mix.lerp_tensor(&each(rows, &first, &weights), &lambda));
    }
    let means = terms.iter().map(|term| term.mean_dim(&[1i64][..], false, Kind::Float));
    let expected = Tensor::stack(&means.collect::<Vec<_>>(), 1);
    assert_close(&found, &expected.detach(), 1e-5, &format!("{what}: terms"));
    let weights = Tensor::from_slice(&[1f32, 0.7]).to_device(GPU).narrow(0, 0, views);
    let expected = expected.matmul(&weights);
    assert_close(&total.detach(), &expected.detach(), 1e-5, &format!("{what}: total"));

    let share = noise(&[clients]);
    let gradient = |total: &Tensor| {
        let sum = (total * &share).sum(Kind::Float);
        Tensor::run_backward(&[sum], &[&logits], true, false).remove(0)
    };
    assert_close(&gradient(&total), &gradient(&expected), 1e-5, &format!("{what}: gradient"));
}

#[test]
#[ignore = "needs a GPU"]
fn the_fused_loss_is_cross_entropy_of_both_views() {
    gpu();
    tch::manual_seed(8);
    for (batch, classes) in [(10, 10), (1, 2), (7, 33), (300, 100)] {
        for mixed in [false, true] {
            for (weighted, adjusted) in [(false, false), (true, false), (true, true)] {
                check_loss(batch, classes, mixed, weighted, adjusted);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_is_no_class_counts_for_nothing() {
    gpu();
    tch::manual_seed(10);
    let logits = noise(&[1, 3, 4]).set_requires_grad(true);
    let labels = Tensor::from_slice(&[2i64, -1, 4]).view([1, 3]).to_device(GPU);
    // And a class that is ruled out.
    let adjustment = Tensor::from_slice(&[0.0f32, f32::NEG_INFINITY, 0.0, 0.0]);
    let adjustment = adjustment.view([1, 1, 4]).to_device(GPU);
    let fix = Labels { labels: &labels, weights: None };
    let loss = FixMixLoss { fix, mix: None, adjustment: Some(&adjustment) };
    let Losses { total, terms } = loss.forward(&logits).unwrap();
    let first = (&logits + &adjustment).log_softmax(-1, Kind::Float).select(1, 0).select(1, 2);
    assert_close(&terms.view([1]), &(-first.detach() / 3.0), 1e-5, "term");
    let gradient = Tensor::run_backward(&[total], &[&logits], false, false).remove(0);
    assert!(gradient.isfinite().all().int64_value(&[]) == 1);
    assert_eq!(gradient.narrow(1, 1, 2).abs().max().double_value(&[]), 0.0);
}
