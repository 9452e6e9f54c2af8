//! A client's labels for its own images: a label, a score and whether the image is trained on. One pass of
//! the broadcast model over the clients' images, all clients of a cohort together.

use super::anchors::{Anchors, Score, Scoring, as_scored, class_counts, latents};
use super::prior::{class_shares, classes_held, fitted_temperature, probabilities};
use super::selection::{Selection, Threshold, select};
use crate::error::{Error, Result};
use fedanchor_data::{ImageSet, Purpose};
use fedanchor_engine::Result as EngineResult;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::{Features, Pass, Statistics};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::Context;
use tch::{Device, Kind, Tensor};

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

/// How FedAnchor labels.
#[derive(Debug)]
pub struct LabelledBy<'a> {
    /// What was broadcast of the anchors.
    pub anchors: &'a Anchors,
    /// How images are scored by them.
    pub scoring: Scoring,
    /// The mean probability of a client's labels that its temperature is fitted to; 0: the temperature of `scoring`.
    pub confidence: f64,
    /// Weak views that vote on a label; 0: the image as it is.
    pub views: u32,
    /// What a client's labels take into account beside each image.
    pub classes: ClassShares<'a>,
    /// Whether a sample is kept only if both heads give it the same label.
    pub agreement: bool,
    /// Which samples are kept.
    pub threshold: &'a Threshold,
    /// One threshold per class, where the server finds them.
    pub thresholds: &'a [f64],
    /// 0 in the first round, 1 in the last.
    pub progress: f64,
}

/// What is known of the classes of a client's images as a whole.
#[derive(Debug, Clone, Copy)]
pub enum ClassShares<'a> {
    /// Nothing.
    Ignored,
    /// They should be the anchors': labels are aligned with these shares, in full (1) or less.
    Aligned {
        /// The share of every class in the anchors.
        anchors: &'a [f64],
        /// How far labels are aligned, from 0 to 1.
        weight: f64,
    },
    /// They are what the client finds in its images, if it holds few of the classes. A model that prefers a class
    /// does so on every client; on clients with all classes its own shares would amplify the error.
    Own {
        /// Share of the classes below which a client counts as holding few.
        below: f64,
    },
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
    /// What scores were compared with: one number for all, or one per class; empty if there is none.
    pub thresholds: Vec<f64>,
    /// Its weight in the loss; empty where all count alike.
    pub weight: Vec<f32>,
    /// What is added to the client's logits in training, by class; empty for nothing.
    pub adjustment: Vec<f32>,
    /// The anchor head's labels, where it labels.
    pub anchor: Vec<u16>,
    /// The classification head's labels.
    pub classifier: Vec<u16>,
}

impl PseudoLabels {
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

    /// What the score of a sample with this label was compared with.
    pub fn threshold(&self, label: u16) -> Option<f64> {
        self.thresholds.get(usize::from(label)).or(self.thresholds.first()).copied()
    }

    /// The log of every class's frequency among the labels, times `weight`. A class that does not occur
    /// counts as one sample.
    pub fn log_frequencies(&self, classes: usize, weight: f64) -> Vec<f32> {
        let counts = class_counts(&self.label, classes);
        let total = self.label.len().max(1) as f64;
        let log = |count: u32| (f64::from(count.max(1)) / total).ln();
        counts.into_iter().map(|count| (weight * log(count)) as f32).collect()
    }

    /// Local indices of the kept samples: the fix set.
    pub fn fix_set(&self) -> Vec<u32> {
        (0..).zip(&self.kept).filter(|(_, kept)| **kept).map(|(index, _)| index).collect()
    }
}

/// FedAnchor's procedure Pseudo Label: by average cosine similarity to the anchors (eq. 3-5).
pub fn by_anchors(
    context: &Context,
    params: &Params,
    by: &LabelledBy,
    round: u32,
    clients: &[LocalImages],
) -> Result<Vec<PseudoLabels>> {
    let both = |features: &Features, pass: &Pass| {
        let latents = latents(context, by.scoring.source, features, pass)?;
        Ok([
            by.anchors.scores(&latents, context.classes)?,
            class_probabilities(context, features, pass)?,
        ])
    };
    let [cosines, probability] =
        summed_over_views(context, params, by.views, round, clients, both)?;
    // Views vote with their scores.
    let cosines = cosines.f_div_scalar(f64::from(by.views.max(1)))?;
    let (score, label) = match (by.classes, by.confidence) {
        (ClassShares::Ignored, 0.0) => best(&as_scored(&cosines, by.scoring)?)?,
        _ => weighed(&cosines, by, clients)?,
    };
    check_finite(
        round,
        clients,
        &score,
        "raise method.score_temperature, or lower the learning rate",
    )?;
    let (_, classifier) = best(&probability)?;
    let parts = split(clients, &score, &label).zip(split(clients, &score, &classifier));
    let labels = parts.map(|((score, label), (_, classifier))| {
        let Selection { mut kept, weight, thresholds } =
            select(by.threshold, by.thresholds, score, label, by.progress);
        if by.agreement {
            let heads = label.iter().zip(classifier);
            kept.iter_mut().zip(heads).for_each(|(kept, (label, other))| *kept &= label == other);
        }
        PseudoLabels {
            label: label.to_vec(),
            score: score.to_vec(),
            kept,
            thresholds,
            weight,
            adjustment: Vec::new(),
            anchor: label.to_vec(),
            classifier: classifier.to_vec(),
        }
    });
    Ok(labels.collect())
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
    let [probability] = summed_over_views(context, params, 1, round, clients, |features, pass| {
        Ok([class_probabilities(context, features, pass)?])
    })?;
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

fn class_probabilities(
    context: &Context,
    features: &Features,
    pass: &Pass,
) -> EngineResult<Tensor> {
    let logits = context.network.logits(features, pass)?;
    Ok(logits.f_softmax(-1, Kind::Float)?.f_squeeze_dim(0)?)
}

/// Runs all clients' images through the model, as they are (`views` 0) or in so many weak views, and
/// adds up what `of` computes: `[samples, C]` each, client after client.
fn summed_over_views<const N: usize>(
    context: &Context,
    params: &Params,
    views: u32,
    round: u32,
    clients: &[LocalImages],
    of: impl Fn(&Features, &Pass) -> EngineResult<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let nothing = || Tensor::f_zeros([0, context.classes as i64], (Kind::Float, context.device));
    let mut sums = [(); N].map(|()| None::<Tensor>);
    for view in 0..views.max(1) {
        let images = clients.iter().flat_map(|client| {
            let stream = context.streams(round).of(Purpose::LabelViews, client.client).epoch(view);
            (0..).zip(client.local).map(move |(at, &i)| {
                let image = client.images.image(i as usize);
                if views == 0 { View::Raw(image) } else { View::Weak(image, stream, at) }
            })
        });
        let mut parts = [(); N].map(|()| Vec::new());
        context.for_each_batch(
            params,
            |_| Statistics::Running,
            &images.collect::<Vec<_>>(),
            |_, pass, features| {
                let found = of(&features, pass)?;
                parts.iter_mut().zip(found).for_each(|(parts, found)| parts.push(found));
                Ok(())
            },
        )?;
        for (sum, parts) in sums.iter_mut().zip(&parts) {
            let next = if parts.is_empty() { nothing()? } else { Tensor::f_cat(parts, 0)? };
            *sum = Some(match sum.take() {
                Some(sum) => sum.f_add(&next)?,
                None => next,
            });
        }
    }
    let mut all = Vec::with_capacity(N);
    for sum in sums {
        all.push(sum.map_or_else(nothing, Ok)?);
    }
    Ok(std::array::from_fn(|index| all[index].shallow_clone()))
}

/// Labels by class probabilities, the softmax of a client's cosines, that take its class shares into account. A
/// cosine score stays the cosine with the label that was chosen. Where the probabilities are not finite, no label is
/// better than the others, and the score is NaN.
fn weighed(
    cosines: &Tensor,
    by: &LabelledBy,
    clients: &[LocalImages],
) -> Result<(Vec<f32>, Vec<u16>)> {
    let classes = cosines.size()[1] as usize;
    let cosines = cosines.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
    let mut rest = &Vec::<f32>::try_from(cosines)?[..];
    let (mut scores, mut labels) = (Vec::new(), Vec::new());
    for client in clients {
        let own;
        (own, rest) = rest.split_at(client.local.len() * classes);
        let temperature = match by.confidence {
            0.0 => by.scoring.temperature,
            confidence => fitted_temperature(own, classes, confidence),
        };
        let probability = probabilities(own, classes, temperature);
        let weights = class_weights(by.classes, &probability, classes);
        for (cosines, probability) in own.chunks(classes).zip(probability.chunks(classes)) {
            let joint = || probability.iter().zip(&weights).map(|(p, weight)| p * weight);
            let (label, best) = joint().enumerate().fold((0, f64::MIN), |best, next| {
                if next.1 > best.1 { next } else { best } // the first of equals
            });
            let total: f64 = joint().sum();
            scores.push(match by.scoring.score {
                _ if !total.is_finite() => f32::NAN,
                Score::Cosine => cosines[label],
                Score::Softmax => (best / total) as f32,
            });
            labels.push(label as u16);
        }
    }
    Ok((scores, labels))
}

/// What a client's class probabilities are multiplied by: its own class shares, or those of the anchors over the
/// client's mean (ReMixMatch's distribution alignment).
fn class_weights(shares: ClassShares, probability: &[f64], classes: usize) -> Vec<f64> {
    match shares {
        ClassShares::Ignored => vec![1.0; classes],
        ClassShares::Own { below } => {
            let shares = class_shares(probability, classes);
            let few = classes_held(&shares) < below * classes as f64;
            if few { shares } else { vec![1.0; classes] }
        }
        ClassShares::Aligned { anchors, weight } => {
            let mut sums = vec![0.0; classes];
            let images = probability.chunks(classes);
            images.for_each(|image| sums.iter_mut().zip(image).for_each(|(sum, p)| *sum += p));
            let mean = sums.iter().map(|sum| sum * classes as f64 / probability.len() as f64);
            anchors.iter().zip(mean).map(|(share, mean)| (share / mean).powf(weight)).collect()
        }
    }
}

/// An error if a score is not finite: it is above no threshold, and its client would keep nothing without a word.
fn check_finite(
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
fn best(scores: &Tensor) -> Result<(Vec<f32>, Vec<u16>)> {
    if scores.size()[0] == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let (score, label) = scores.f_max_dim(1, false)?;
    let labels = Vec::<i64>::try_from(label.f_to_device(Device::Cpu)?)?;
    let score = Vec::<f32>::try_from(score.f_to_device(Device::Cpu)?)?;
    Ok((score, labels.into_iter().map(|label| label as u16).collect()))
}

/// Each client's share of what was found for all.
fn split<'a>(
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
    use crate::labels::LatentSource;

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
        let found = PseudoLabels::known(vec![0, 0, 1, 0]).log_frequencies(3, 2.0);
        let expected = [2.0 * 0.75f32.ln(), 2.0 * 0.25f32.ln(), 2.0 * 0.25f32.ln()];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    }

    /// Two clients with the same images but for one: each has class shares of its own.
    #[test]
    fn weighed_labels_by_hand() {
        let images = ImageSet {
            shape: fedanchor_data::Shape { side: 1, channels: 1 },
            pixels: vec![0; 3],
            labels: None,
            classes: vec!["a".to_owned(), "b".to_owned()],
        };
        let client = |local| LocalImages { client: 0, images: &images, local };
        let clients = [client(&[0, 1][..]), client(&[2])];
        // Probabilities (4/5, 1/5) and (3/5, 2/5); the other client has (4/5, 1/5) alone.
        let rows = [4f32.ln(), 0.0, 1.5f32.ln(), 0.0, 4f32.ln(), 0.0];
        let cosines = Tensor::from_slice(&rows).view([3, 2]);
        let (anchors, threshold) =
            (Anchors::ClassMeans { means: cosines.shallow_clone() }, Threshold::Fixed(0.0));
        let by = |classes, score| LabelledBy {
            anchors: &anchors,
            scoring: Scoring { source: LatentSource::Anchor, score, temperature: 1.0 },
            confidence: 0.0,
            views: 0,
            classes,
            agreement: false,
            threshold: &threshold,
            thresholds: &[],
            progress: 0.0,
        };
        let aligned = |weight| ClassShares::Aligned { anchors: &[0.5, 0.5], weight };
        let close = |found: &[f32], expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            let mut pairs = found.iter().zip(expected);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} is not {expected:?}");
        };
        // Mean (7/10, 3/10): weights 5/7 and 5/3 give (4/7, 1/3) and (3/7, 2/3). The other client's mean is
        // its only image: (1/2, 1/2), of which the first class comes first.
        let (score, label) =
            weighed(&cosines, &by(aligned(1.0), Score::Softmax), &clients).unwrap();
        assert_eq!(label, [0, 1, 0]);
        close(&score, &[12.0 / 19.0, 14.0 / 23.0, 0.5]);
        // A cosine stays a cosine.
        let (score, _) = weighed(&cosines, &by(aligned(1.0), Score::Cosine), &clients).unwrap();
        close(&score, &[4f32.ln(), 0.0, 4f32.ln()]);
        // A tenth of it changes no label here.
        let (_, label) = weighed(&cosines, &by(aligned(0.1), Score::Softmax), &clients).unwrap();
        assert_eq!(label, [0, 0, 0]);
        assert_eq!(
            weighed(&cosines, &by(aligned(1.0), Score::Cosine), &[]).unwrap(),
            (vec![], vec![])
        );
        // The client's own shares, by which the first class gains.
        let of = |images: &[f64]| class_shares(images, 2);
        let (shares, other) = (of(&[0.8, 0.2, 0.6, 0.4]), of(&[0.8, 0.2]));
        let posterior = |p: f64, shares: &[f64]| {
            (p * shares[0] / (p * shares[0] + (1.0 - p) * shares[1])) as f32
        };
        let own = |below| by(ClassShares::Own { below }, Score::Softmax);
        let (score, label) = weighed(&cosines, &own(1.0), &clients).unwrap();
        assert_eq!(label, [0, 0, 0]);
        assert!(shares[0] > 0.5 && score[1] > 0.6, "{shares:?} {score:?}");
        close(&score, &[posterior(0.8, &shares), posterior(0.6, &shares), posterior(0.8, &other)]);
        // A client that seems to hold more of the classes labels as if all were alike.
        let held = [classes_held(&shares), classes_held(&other)];
        assert!(held[0] < held[1], "{held:?}");
        let (score, _) = weighed(&cosines, &own((held[0] + held[1]) / 4.0), &clients).unwrap();
        close(&score, &[posterior(0.8, &shares), posterior(0.6, &shares), 0.8]);
        // With a fitted temperature the mean of a client's probabilities is as wanted.
        let fitted = LabelledBy { confidence: 0.9, ..by(ClassShares::Ignored, Score::Softmax) };
        let (score, _) = weighed(&cosines, &fitted, &clients).unwrap();
        close(&[(score[0] + score[1]) / 2.0, score[2]], &[0.9, 0.9]);
        // Where a class has no probability left on any image of a client, no label can be aligned, whatever the score.
        for score in [Score::Cosine, Score::Softmax] {
            let by = by(aligned(1.0), score);
            let scoring = Scoring { temperature: 0.001, ..by.scoring };
            let (score, _) = weighed(&cosines, &LabelledBy { scoring, ..by }, &clients).unwrap();
            assert!(score[0].is_finite() && score[2].is_nan(), "{score:?}");
            let error = check_finite(3, &clients, &score, "lower it").unwrap_err().to_string();
            let expected = "round 3: the score of an image of client 0 is not finite after labelling; lower it";
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_score_that_is_not_finite_is_an_error_that_names_the_client() {
        let images = ImageSet {
            shape: fedanchor_data::Shape { side: 1, channels: 1 },
            pixels: vec![0; 3],
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
