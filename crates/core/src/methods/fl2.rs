//! (FL)^2: Lee, Le, Shin and Lee, "(FL)^2: Overcoming Few Labels in Federated Semi-Supervised Learning", 2024 (arXiv
//! 2410.23227).
//!
//! Clients label their images once per round with the broadcast classifier, on weakly augmented images, as in SemiFL,
//! but above thresholds of their own (client-specific adaptive thresholding): the mean confidence of a client, lower for
//! classes that it predicts less often. They train by cross entropy on what is kept, and by sharpness-aware consistency:
//! a model whose weights have been moved to where the loss of the confident samples is higher should predict these
//! samples as the model itself does. With `aggregation.weights = "method"`, the less sure a client is, the more its update
//! weighs (learning status-aware aggregation); a client that lies about its threshold then weighs more than others, so
//! that this is for clients that are trusted.
//!
//! Details are those of the published code: ASAM moves each weight relative to its size, and biases as they are; the
//! consistency is averaged over the whole batch, the loss that the weights are moved by over the confident samples alone.
//! Its recipe is in `experiments/fl2.toml`. Differences from that code: strong augmentation is FixMatch's, two operations
//! instead of three; static batch norm is measured on 10,000 images instead of all; the last batch of an epoch wraps
//! around.

use super::{ClientReport, ClientTrainer, Cohort, Method, Properties, losses, read_settings};
use crate::config::{Augmentation, within};
use crate::error::Result;
use crate::labels::{PseudoLabels, class_probabilities};
use crate::messages::{Broadcast, ClientOutcome, Update};
use fedanchor_engine::Result as EngineResult;
use fedanchor_engine::model::{Network, Pass, Statistics};
use fedanchor_engine::tensors::Layout;
use fedanchor_engine::training::losses::{cross_entropy_each, mean_of_batch};
use fedanchor_engine::training::{FixMix, FixMixFormat, Inputs, Objective, StepLoss, Terms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use toml::Table;

/// (FL)^2: thresholds by a client's own confidence, and consistency under moved weights (Lee et al., 2024).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fl2 {
    /// A kept sample takes part in the sharpness-aware consistency if its largest probability is at least this.
    pub confident: f64,
    /// How far the weights are moved: the norm of the movement, relative to their size.
    pub radius: f64,
}

/// Added to the size of a weight, by which its movement is scaled.
const SMALLEST: f64 = 0.01;
/// The weight of a client whose threshold is 1, so that no mean divides by 0.
const LEAST_WEIGHT: f64 = 0.001;
/// Index of the client's threshold among its losses.
const THRESHOLD: usize = 2;

impl Method for Fl2 {
    fn name(&self) -> &'static str {
        "fl2"
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, .. } = cohort;
        let classes = context.classes;
        let images = cohort.images();
        let probabilities = class_probabilities(context, &broadcast.params, round, &images)?;
        let labels = probabilities.iter().map(|own| label(own, classes, self.confident)).collect();
        let fix = FixMix::plain(context, round, experiment.client.batch, Augmentation::Strong)
            .with_weights(true);
        let loss = SharpnessLoss { format: fix.format, radius: self.radius };
        let trainer = ClientTrainer::new(self, &broadcast.params, Objective::new(&fix, loss));
        let mut reports = trainer.train(cohort, labels)?;
        for ClientReport { outcome, labels, .. } in &mut reports {
            if let ClientOutcome::Update(update) = outcome {
                update.losses.push(Some(labels.thresholds.iter().copied().fold(0.0, f64::max)));
            }
        }
        Ok(reports)
    }

    /// 1 minus the client's threshold. An answer without one (of a client that kept nothing, or whose labels a simulated
    /// attack has replaced) weighs as much as any.
    fn weight(&self, update: &Update) -> Option<f64> {
        let claimed = update.losses.get(THRESHOLD).copied().flatten();
        let threshold = claimed.filter(|claimed| (0.0..=1.0).contains(claimed)).unwrap_or(0.0);
        Some((1.0 - threshold).max(LEAST_WEIGHT))
    }

    fn properties(&self) -> Properties {
        Properties {
            client_losses: losses(&["fix", "consistency", "threshold"]),
            server_losses: losses(&["fix"]),
            ..Properties::default()
        }
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: Fl2 = read_settings(settings)?;
    within("method.confident", method.confident, 0.0, 1.0)?;
    within("method.radius", method.radius, 0.0, 100.0)?;
    Ok(Box::new(method))
}

/// A client's labels from the class probabilities of its images, `[images * C]`. The threshold of the class with the
/// largest mean probability is the mean of the largest probabilities; those of other classes are lower in proportion.
/// The weight says which samples are confident.
fn label(probabilities: &[f32], classes: usize, confident: f64) -> PseudoLabels {
    let mut labels = PseudoLabels::default();
    let mut shares = vec![0.0; classes];
    for image in probabilities.chunks_exact(classes) {
        let (mut best, mut label) = (f32::NEG_INFINITY, 0);
        for (class, &probability) in image.iter().enumerate() {
            shares[class] += f64::from(probability);
            if probability > best {
                (best, label) = (probability, class as u16); // the first of equals
            }
        }
        labels.score.push(best);
        labels.label.push(label);
    }
    let sum: f64 = labels.score.iter().map(|&score| f64::from(score)).sum();
    let mean = sum / labels.score.len().max(1) as f64;
    let largest = shares.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    labels.thresholds = shares.iter().map(|share| mean * share / largest).collect();
    let scored = || labels.score.iter().map(|&score| f64::from(score)).zip(&labels.label);
    let kept = scored().map(|(score, &label)| score >= labels.thresholds[usize::from(label)]);
    let weight = scored().map(|(score, _)| f32::from(u8::from(score >= confident)));
    let (kept, weight) = (kept.collect(), weight.collect());
    PseudoLabels { kept, weight, classifier: labels.label.clone(), ..labels }
}

/// Cross entropy on all samples of a batch, and the consistency of the confident ones under moved weights.
#[derive(Debug, Clone, PartialEq)]
struct SharpnessLoss {
    format: FixMixFormat,
    radius: f64,
}

impl StepLoss for SharpnessLoss {
    fn terms(&self) -> usize {
        2
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        let Inputs { context, bytes, .. } = *inputs;
        let batch = self.format.read(&context.images, bytes, pass.clients())?;
        let images = context.images.input(&batch.fix)?;
        let confident = batch.weights.unwrap_or_else(|| batch.labels.ones_like());
        let labels = (&batch.labels, &confident);
        let [fix, consistency] =
            client_terms(&context.network, &images, labels, self.radius, pass)?;
        Ok(vec![(1.0, fix), (1.0, consistency)].into())
    }
}

/// The cross entropy of images with their labels `[K, batch]`, and the consistency of the confident ones under weights
/// moved by this radius.
pub fn client_terms(
    network: &Network,
    images: &Tensor,
    (labels, confident): (&Tensor, &Tensor),
    radius: f64,
    pass: &Pass,
) -> EngineResult<[Tensor; 2]> {
    let logits = |pass: &Pass| network.logits(&network.features(images, pass)?, pass);
    let own = logits(pass)?; // [K, batch, C]
    let each = cross_entropy_each(&own, labels)?;
    let count = sum(confident, 1)?.f_clamp_min(1)?; // [K]
    let of_confident = sum(&each.f_mul(confident)?, 1)?.f_div(&count)?;
    let moved = moved(pass, &network.layout, &of_confident, radius)?;
    // Running statistics are those of the weights as they are.
    let statistics = match pass.statistics() {
        Statistics::Update(_) => Statistics::Batch,
        kept => kept,
    };
    let moved = logits(&pass.with_tensors(&moved).with_statistics(statistics))?;
    let consistency = divergence(&own.f_detach()?, &moved)?.f_mul(confident)?;
    Ok([mean_of_batch(&each)?, mean_of_batch(&consistency)?])
}

/// The tensors of a pass, moved by ASAM's step (Kwon et al., 2021) of this length to where the loss `[K]` of each client
/// is higher: by r s^2 g / |s g| with the gradient g and the size s of each weight, which for a bias is 1. The gradient
/// of what is computed with them is that of the weights.
fn moved(pass: &Pass, layout: &Layout, loss: &Tensor, radius: f64) -> EngineResult<Vec<Tensor>> {
    let weights = pass.weights()?;
    let trained: Vec<usize> =
        (0..weights.len()).filter(|&at| weights[at].requires_grad()).collect();
    let leaves: Vec<&Tensor> = trained.iter().map(|&at| &weights[at]).collect();
    let gradients = Tensor::f_run_backward(&[loss.f_sum(Kind::Float)?], &leaves, true, false)?;
    let mut tensors: Vec<Tensor> = pass.tensors().iter().map(Tensor::shallow_clone).collect();
    let mut steps = Vec::new();
    let mut squares = loss.f_zeros_like()?.f_detach()?; // [K]
    for (&at, gradient) in trained.iter().zip(&gradients).filter(|(_, gradient)| gradient.defined())
    {
        let is_weight = layout[at].name.ends_with("weight");
        let size = is_weight.then(|| weights[at].f_detach()?.f_abs()?.f_add_scalar(SMALLEST));
        let size = size.transpose()?;
        let scaled = match &size {
            Some(size) => gradient.f_mul(size)?,
            None => gradient.shallow_clone(),
        };
        squares = squares.f_add(&sum(&scaled.f_square()?.f_flatten(1, -1)?, 1)?)?;
        let step = match &size {
            Some(size) => scaled.f_mul(size)?,
            None => scaled,
        };
        steps.push((at, step));
    }
    let factor = squares.f_sqrt()?.f_add_scalar(1e-16)?.f_reciprocal()?.f_mul_scalar(radius)?;
    for (at, step) in steps {
        let mut shape = vec![1; step.dim()];
        shape[0] = -1;
        let step = step.f_mul(&factor.f_view(&shape[..])?)?.f_detach()?;
        tensors[at] = weights[at].f_add(&step)?.f_to_kind(pass.tensors()[at].kind())?;
    }
    Ok(tensors)
}

/// The Kullback-Leibler divergence of each sample's prediction from a target, by their logits `[K, batch, C]`.
fn divergence(target: &Tensor, logits: &Tensor) -> EngineResult<Tensor> {
    let target = target.f_log_softmax(-1, Kind::Float)?;
    let each = target.f_exp()?.f_mul(&target.f_sub(&logits.f_log_softmax(-1, Kind::Float)?)?)?;
    sum(&each, -1)
}

fn sum(tensor: &Tensor, dimension: i64) -> EngineResult<Tensor> {
    Ok(tensor.f_sum_dim_intlist(&[dimension][..], false, Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_engine::tensors::{Entry, Params, Part};

    #[test]
    fn thresholds_follow_the_clients_own_confidence() {
        // Means 0.6 and 0.4; mean confidence (0.9 + 0.7 + 0.6 + 0.6) / 4 = 0.7.
        let probabilities = [0.9, 0.1, 0.7, 0.3, 0.4, 0.6, 0.4, 0.6];
        let found = label(&probabilities, 2, 0.8);
        assert_eq!(found.label, [0, 0, 1, 1]);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(found.thresholds[0], 0.7) && close(found.thresholds[1], 0.7 * 0.4 / 0.6));
        assert_eq!(found.kept[0..1], [true]);
        assert_eq!(found.kept[2..], [true, true]);
        assert_eq!(found.weight, [1.0, 0.0, 0.0, 0.0]);
        let none = label(&[], 2, 0.8);
        assert_eq!((none.kept_count(), none.thresholds), (0, vec![0.0, 0.0]));
    }

    #[test]
    fn the_less_sure_client_weighs_more() {
        let method = Fl2 { confident: 0.95, radius: 0.1 };
        let weight = |losses: Vec<Option<f64>>| {
            let params = Params { layout: Layout::default(), tensors: Vec::new() };
            let update =
                Update { params, rounding: None, samples: 9, kept: 9, losses, labels: Vec::new() };
            method.weight(&update).unwrap()
        };
        assert!((weight(vec![None, None, Some(0.7)]) - 0.3).abs() < 1e-12);
        // What cannot be a threshold, or is missing, counts as 0.
        for claimed in [Some(-40.0), Some(f64::NAN), Some(1.1), None] {
            assert_eq!(weight(vec![None, None, claimed]), 1.0);
        }
        assert_eq!(weight(vec![]), 1.0);
        assert_eq!(weight(vec![None, None, Some(1.0)]), LEAST_WEIGHT);
    }

    /// Two clients with one weight (2 and -1) and one bias each, and the loss 3 w + 4 b: scaled gradients
    /// 3 (|w| + 0.01) and 4.
    #[test]
    fn weights_are_moved_relative_to_their_size() {
        let leaf =
            |values: [f32; 2]| Tensor::from_slice(&values).view([2, 1]).set_requires_grad(true);
        let tensors = [leaf([2.0, -1.0]), leaf([0.5, 0.5])];
        let entry = |name: &str| Entry {
            name: name.to_owned(),
            shape: vec![1],
            part: Part::Classifier,
            statistic: false,
        };
        let layout = Layout::new(vec![entry("a.weight"), entry("a.bias")]);
        let pass = Pass::plain(&tensors, Statistics::Batch).with_weights(&tensors);
        let loss = (&tensors[0] * 3.0 + &tensors[1] * 4.0).squeeze_dim(1);
        let found = moved(&pass, &layout, &loss, 0.1).unwrap();
        for (client, (weight, size)) in [(2.0, 2.01), (-1.0, 1.01)].into_iter().enumerate() {
            let norm = f64::hypot(3.0 * size, 4.0);
            let expected = [weight + 0.1 * 3.0 * size * size / norm, 0.5 + 0.1 * 4.0 / norm];
            for (tensor, expected) in found.iter().zip(expected) {
                let found = tensor.double_value(&[client as i64, 0]);
                assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
            }
        }
        // The gradient of what is computed with them is that of the weights.
        let total = (&found[0] * &found[0]).sum(Kind::Float);
        let gradient = Tensor::run_backward(&[total], &[&tensors[0]], false, false).remove(0);
        assert!((&gradient - &found[0] * 2.0).abs().max().double_value(&[]) < 1e-6);
    }

    #[test]
    fn the_divergence_by_hand() {
        // (1/4, 3/4) from (1/2, 1/2): 1/4 ln 1/2 + 3/4 ln 3/2.
        let target = Tensor::from_slice(&[0.0, 3f32.ln()]).view([1, 1, 2]);
        let found = divergence(&target, &Tensor::from_slice(&[0f32, 0.0]).view([1, 1, 2])).unwrap();
        let expected = 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln();
        assert!((found.double_value(&[0, 0]) - expected).abs() < 1e-6);
        assert!(divergence(&target, &target).unwrap().double_value(&[0, 0]).abs() < 1e-7);
    }
}
