//! Losses of both views.

use super::*;

fn integers(size: &[i64]) -> Tensor {
    zeros(size, Kind::Int64)
}

/// The arguments of a loss that is right but for the device: three clients, five samples, four classes.
struct LossCase {
    logits: Tensor,
    labels: Tensor,
    weights: Option<Tensor>,
    mix: Option<(Tensor, Option<Tensor>, Tensor)>,
    adjustment: Option<Tensor>,
}

impl Default for LossCase {
    fn default() -> Self {
        Self {
            logits: floats(&[3, 10, 4]),
            labels: integers(&[3, 5]),
            weights: Some(floats(&[3, 5])),
            mix: Some((integers(&[3, 5]), Some(floats(&[3, 5])), floats(&[3, 5]))),
            adjustment: Some(floats(&[3, 1, 4])),
        }
    }
}

impl LossCase {
    #[track_caller]
    fn is_refused(&self, expected: CudaError) {
        let loss = FixMixLoss {
            fix: Labels { labels: &self.labels, weights: self.weights.as_ref() },
            mix: self.mix.as_ref().map(|(labels, weights, lambda)| MixLabels {
                labels: Labels { labels, weights: weights.as_ref() },
                lambda,
                weight: 1.0,
            }),
            adjustment: self.adjustment.as_ref(),
        };
        assert_eq!(loss.forward(&self.logits).unwrap_err(), expected);
    }
}

#[test]
fn a_loss_refuses_logits_that_are_not_of_its_views() {
    let with = |logits: Tensor| LossCase { logits, ..LossCase::default() };
    with(floats(&[3, 10, 4])).is_refused(not_on_gpu("logits"));
    with(Tensor::new()).is_refused(wrong_memory("logits", "an undefined one"));
    with(halves(&[3, 10, 4])).is_refused(wrong_kind("logits", &[Kind::Float], Kind::BFloat16));
    let three = Expected::Between(3, 3);
    with(floats(&[3, 10])).is_refused(wrong_number("dimensions of logits", three, 2));
    let ten = Expected::Between(10, 10);
    with(floats(&[3, 5, 4])).is_refused(wrong_number("rows of logits", ten, 5));
    let five = Expected::Between(5, 5);
    let one_view = LossCase { mix: None, ..LossCase::default() };
    one_view.is_refused(wrong_number("rows of logits", five, 10));
}

#[test]
fn a_loss_refuses_labels_that_are_not_of_its_samples() {
    let labels = |labels: Tensor| LossCase { labels, ..LossCase::default() };
    let two = Expected::Between(2, 2);
    labels(integers(&[15])).is_refused(wrong_number("dimensions of labels", two, 1));
    labels(floats(&[3, 5])).is_refused(wrong_kind("labels", &[Kind::Int64], Kind::Float));
    labels(integers(&[2, 5])).is_refused(wrong_size("labels", &[3, 5], &[2, 5]));
    labels(integers(&[5, 3]).tr()).is_refused(wrong_strides("labels", &[5, 1], &[1, 3]));
    let mix = |labels, weights, lambda| LossCase {
        mix: Some((labels, weights, lambda)),
        ..LossCase::default()
    };
    let (good, shares) = (|| integers(&[3, 5]), || floats(&[3, 5]));
    mix(integers(&[3, 4]), None, shares()).is_refused(wrong_size("mix labels", &[3, 5], &[3, 4]));
    mix(floats(&[3, 5]), None, shares()).is_refused(wrong_kind(
        "mix labels",
        &[Kind::Int64],
        Kind::Float,
    ));
    mix(good(), Some(floats(&[3, 4])), shares()).is_refused(wrong_size(
        "mix weights",
        &[3, 5],
        &[3, 4],
    ));
    mix(good(), None, floats(&[5, 3])).is_refused(wrong_size("lambda", &[3, 5], &[5, 3]));
    mix(good(), None, floats(&[5, 3]).tr()).is_refused(wrong_strides("lambda", &[5, 1], &[1, 3]));
}

#[test]
fn a_loss_refuses_weights_and_adjustments_of_other_sizes() {
    let weights = |weights| LossCase { weights: Some(weights), ..LossCase::default() };
    weights(floats(&[3])).is_refused(wrong_size("weights", &[3, 5], &[3]));
    weights(halves(&[3, 5])).is_refused(wrong_kind("weights", &[Kind::Float], Kind::BFloat16));
    let adjustment = |adjustment| LossCase { adjustment: Some(adjustment), ..LossCase::default() };
    adjustment(floats(&[3, 4])).is_refused(wrong_size("adjustment", &[3, 1, 4], &[3, 4]));
    adjustment(floats(&[3, 1, 1]).expand([3, 1, 4], false)).is_refused(wrong_strides(
        "adjustment",
        &[4, 4, 1],
        &[1, 1, 0],
    ));
}
