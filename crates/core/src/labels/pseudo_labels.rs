//! A client's labels for its own images: a label, a score and whether the image is trained on. One pass of
//! the broadcast model over the clients' images, all clients of a cohort together.

use super::anchors::class_counts;
use super::outputs::{outputs, probabilities};
use crate::error::{Error, Result};
use fedanchor_data::{ImageSet, Purpose};
use fedanchor_engine::batches::View;
use fedanchor_engine::model::{Features, Pass, Statistics};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::Context;
use fedanchor_engine::{InPhase, Result as EngineResult};
use tch::{Device, Tensor};

/// One client's images.
#[derive(Debug, Clone, Copy)]
pub struct LocalImages<'a> {
    /// The client's number: random draws about its images are keyed by it.
    pub client: u32,
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are this client's.
    pub local: &'a [u32],
}

/// Labels of a client's samples. They never leave the client; a simulation compares them with the
/// true labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PseudoLabels {
    /// The label of every sample (eq. 4).
    pub label: Vec<u16>,
    /// The score that label was chosen by; empty for true labels.
    pub score: Vec<f32>,
    /// Whether the sample is trained on (eq. 5).
    pub kept: Vec<bool>,
    /// The thresholds of the scores: one for all, or one per class; empty if there is none.
    pub thresholds: Vec<f64>,
    /// Its weight in the loss; empty where all count alike.
    pub weight: Vec<f32>,
    /// Added to the client's logits in training, by class; empty for none.
    pub adjustment: Vec<f32>,
    /// The anchor head's labels, where it labels.
    pub anchor: Vec<u16>,
    /// The classification head's labels.
    pub classifier: Vec<u16>,
    /// Whether training does not use them.
    pub only_measured: bool,
}

impl PseudoLabels {
    /// No labels at all: the loss itself chooses among all samples.
    pub fn none(samples: usize) -> Self {
        Self::known(vec![0; samples])
    }

    /// True labels: all samples are trained on.
    pub fn known(label: Vec<u16>) -> Self {
        Self { kept: vec![true; label.len()], label, ..Self::default() }
    }

    /// Number of kept samples.
    pub fn kept_count(&self) -> usize {
        self.kept.iter().filter(|kept| **kept).count()
    }

    /// How many labels are of each class; empty for true labels.
    pub fn counts(&self, classes: usize) -> Vec<u32> {
        if self.score.is_empty() { Vec::new() } else { class_counts(&self.label, classes) }
    }

    /// The threshold of a sample with this label.
    pub fn threshold(&self, label: u16) -> Option<f64> {
        self.thresholds.get(usize::from(label)).or(self.thresholds.first()).copied()
    }

    /// Adds the log of every class's frequency among the labels, times `weight`, to the logits in training. A class
    /// that does not occur counts as one sample.
    pub(crate) fn adjusted(mut self, classes: usize, weight: f64) -> Self {
        if weight > 0.0 {
            let total = self.label.len().max(1) as f64;
            let log = |count: u32| (f64::from(count.max(1)) / total).ln();
            let counts = class_counts(&self.label, classes).into_iter();
            self.adjustment = counts.map(|count| (weight * log(count)) as f32).collect();
        }
        self
    }

    /// Local indices of the kept samples: the fix set.
    pub fn fix_set(&self) -> Vec<u32> {
        (0..).zip(&self.kept).filter(|(_, kept)| **kept).map(|(index, _)| index).collect()
    }
}

/// SemiFL's labels: by the classification head on weakly augmented images, kept if the probability is
/// at least `threshold`.
pub fn by_classifier(
    context: &Context,
    params: &Params,
    threshold: f64,
    round: u32,
    clients: &[LocalImages],
) -> Result<Vec<PseudoLabels>> {
    let of = |features: &_, pass: &Pass| Ok([probabilities(context, features, pass)?]);
    let [probability] = summed_over_views(context, params, 1, round, clients, of)?;
    let (score, label) = best(&probability)?;
    check_finite(round, clients, &score, "lower the learning rate")?;
    let labels = split(clients, &score, &label).map(|(score, label)| PseudoLabels {
        label: label.to_vec(),
        score: score.to_vec(),
        kept: score.iter().map(|&score| f64::from(score) >= threshold).collect(),
        thresholds: vec![threshold],
        classifier: label.to_vec(),
        ..PseudoLabels::default()
    });
    Ok(labels.collect())
}

/// Runs all clients' images through the model, without augmentation (`views` 0) or in this many weak views, and adds
/// up what `of` computes: `[samples, C]` each, client after client.
pub(super) fn summed_over_views<const N: usize>(
    context: &Context,
    params: &Params,
    views: u32,
    round: u32,
    clients: &[LocalImages],
    of: impl Fn(&Features, &Pass) -> EngineResult<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let in_view = |view: u32| {
        let images = clients.iter().flat_map(|client| {
            let stream = context.streams(round).of(Purpose::LabelViews, client.client).epoch(view);
            (0..).zip(client.local).map(move |(at, &i)| {
                let image = client.images.input(i as usize);
                if views == 0 { View::Raw(image) } else { View::Weak(image, stream, at) }
            })
        });
        outputs(context, params, Statistics::Running, &images.collect::<Vec<_>>(), &of)
            .in_phase("labelling the clients' images")
    };
    let mut sums = in_view(0)?;
    for view in 1..views {
        for (sum, next) in sums.iter_mut().zip(in_view(view)?) {
            *sum = sum.f_add(&next)?;
        }
    }
    Ok(sums)
}

/// An error if a score is not finite: it is above no threshold, and its client would keep nothing without a word.
pub(super) fn check_finite(
    round: u32,
    clients: &[LocalImages],
    score: &[f32],
    advice: &'static str,
) -> Result<()> {
    let owners = clients.iter().flat_map(|one| std::iter::repeat_n(one.client, one.local.len()));
    match owners.zip(score).find(|(_, score)| !score.is_finite()) {
        Some((client, _)) => {
            let what = format!("the score of an image of client {client}");
            Err(Error::NotFinite { round, phase: "labelling", what, advice })
        }
        None => Ok(()),
    }
}

/// The largest number of every row and its column.
pub(super) fn best(scores: &Tensor) -> Result<(Vec<f32>, Vec<u16>)> {
    if scores.size()[0] == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let (score, label) = scores.f_max_dim(1, false)?;
    let labels = Vec::<i64>::try_from(label.f_to_device(Device::Cpu)?)?;
    let score = Vec::<f32>::try_from(score.f_to_device(Device::Cpu)?)?;
    Ok((score, labels.into_iter().map(|label| label as u16).collect()))
}

/// The scores and labels of each client.
pub(super) fn split<'a>(
    clients: &'a [LocalImages],
    score: &'a [f32],
    label: &'a [u16],
) -> impl Iterator<Item = (&'a [f32], &'a [u16])> {
    clients.iter().scan(0, move |start, client| {
        let range = *start..*start + client.local.len();
        *start = range.end;
        Some((&score[range.clone()], &label[range]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_set_is_what_passed_the_threshold() {
        let labels = PseudoLabels { kept: vec![true, false, true], ..PseudoLabels::default() };
        assert_eq!(labels.fix_set(), [0, 2]);
        assert_eq!(PseudoLabels::known(vec![3, 1]).fix_set(), [0, 1]);
    }

    #[test]
    fn a_threshold_is_for_all_or_for_one_class() {
        let with = |thresholds| PseudoLabels { thresholds, ..PseudoLabels::default() };
        assert_eq!(with(vec![0.6]).threshold(9), Some(0.6));
        assert_eq!(with(vec![0.6, 0.7]).threshold(1), Some(0.7));
        assert_eq!(with(vec![]).threshold(0), None);
    }

    #[test]
    fn log_frequencies_by_hand() {
        // Three of four, one of four, and none, which counts as one.
        let found = PseudoLabels::known(vec![0, 0, 1, 0]).adjusted(3, 2.0).adjustment;
        let expected = [2.0 * 0.75f32.ln(), 2.0 * 0.25f32.ln(), 2.0 * 0.25f32.ln()];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn a_score_that_is_not_finite_is_an_error_that_names_the_client() {
        let images = ImageSet {
            shape: fedanchor_data::Shape { side: 1, channels: 1 },
            pixels: vec![0; 3],
            features: None,
            labels: None,
            classes: vec!["a".to_owned()],
        };
        let client = |client, local| LocalImages { client, images: &images, local };
        let clients = [client(4, &[0][..]), client(7, &[1, 2])];
        let check = |last| check_finite(1, &clients, &[0.5, -1.0, last], "lower the learning rate");
        assert!(check(0.0).is_ok());
        for bad in [f32::NAN, f32::INFINITY] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.contains("of client 7 is not finite"), "{error}");
        }
    }
}
