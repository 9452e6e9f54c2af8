//! FedAnchor's procedure Pseudo Label (section 4.2 of the paper): labels by average cosine similarity to the
//! anchors (eq. 3-5).

use super::anchors::{AnchorPayload, Anchors, LabelledImages, Score};
use super::anchors::{class_counts, latents_of, scores_among};
use super::outputs::{LatentSource, latents, probabilities};
use super::prior::{class_shares, effective_classes, softmax};
use super::pseudo_labels::{LocalImages, PseudoLabels};
use super::pseudo_labels::{best, check_finite, split, summed_over_views};
use super::thresholds::{Scored, Selection, ThresholdRule};
use crate::config::{at_most, within};
use crate::error::{Error, Result};
use crate::messages::{Array, Arrays, Broadcast, undecodable};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::InPhase;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::{Features, Pass};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::Context;
use fedanchor_engine::training::losses::unit;
use tch::{Device, Kind, Tensor};

/// How images are labelled by the anchors.
#[derive(Debug)]
pub struct Labelling {
    /// Where latents are read.
    pub source: LatentSource,
    /// The broadcast form of the anchors.
    pub send: AnchorPayload,
    /// The score that the threshold applies to.
    pub score: Score,
    /// Temperature of [`Score::Softmax`] and of a client's class shares.
    pub temperature: f64,
    /// Weight of the classifier.
    pub classifier_share: f64,
    /// Temperature in the last round.
    pub last_temperature: f64,
    /// Weak views that vote on a label; 0: the image as it is.
    pub views: u32,
    /// A client that seems to hold less than this share of the classes weighs its labels by its own class shares.
    /// A model that prefers a class does so on every client; on clients with all classes their own shares would
    /// amplify the error.
    pub local_prior: f64,
    /// Weight of the log of the label frequencies in training; 0 for none.
    pub logit_adjustment: f64,
    /// Which samples are kept.
    pub threshold: Box<dyn ThresholdRule>,
}

/// The name of the thresholds in a broadcast.
const THRESHOLDS: &str = "thresholds";
const ADVICE: &str = "raise method.score_temperature, or lower the learning rate";

impl Labelling {
    /// Checks the values, which are settings of the method.
    pub fn check(&self) -> Result<()> {
        within("method.score_temperature", self.temperature, 0.001, 1000.0)?;
        at_most("method.label_views", self.views as usize, 100)?;
        within("method.local_prior", self.local_prior, 0.0, 1.0)?;
        within("method.logit_adjustment", self.logit_adjustment, 0.0, 10.0)
    }

    /// The server's part: Z_anchor, and one threshold per class where the rule has them.
    pub fn broadcast(
        &self,
        context: &Context,
        model: &Params,
        anchors: &LabelledImages,
        round: u32,
    ) -> Result<Arrays> {
        let mut arrays = Arrays::default();
        Anchors::compute(context, model, anchors, self.source, self.send)
            .in_phase("computing the anchors' latents")?
            .put_into(&mut arrays);
        let own = |views| self.own_scores(context, model, anchors, views, round);
        if let Some(thresholds) = self.threshold.class_thresholds(&own)? {
            arrays.insert(THRESHOLDS.to_owned(), Array::F64(thresholds));
        }
        Ok(arrays)
    }

    /// The client's part: the labels of all clients' images by the broadcast model. `progress` is 0 in the first round
    /// and 1 in the last.
    pub fn label(
        &self,
        context: &Context,
        broadcast: &Broadcast,
        progress: f64,
        clients: &[LocalImages],
    ) -> Result<Vec<PseudoLabels>> {
        let Broadcast { round, ref params, ref arrays, .. } = *broadcast;
        let classes = context.classes;
        let Some(anchors) = Anchors::take_from(arrays, classes)? else {
            return Err(undecodable("the broadcast contains no anchors"));
        };
        let class_thresholds = match arrays.get(THRESHOLDS) {
            Some(Array::F64(thresholds)) => &thresholds[..],
            _ => &[],
        };
        if ![0, classes].contains(&class_thresholds.len()) {
            let length = class_thresholds.len();
            let problem = format!("`{THRESHOLDS}` has length {length} for {classes} classes");
            return Err(undecodable(problem));
        }
        let both = |features: &Features, pass: &Pass| {
            let latents = latents(context, self.source, features, pass)?;
            Ok([anchors.scores(&latents, classes)?, probabilities(context, features, pass)?])
        };
        let [cosines, probability] =
            summed_over_views(context, params, self.views, round, clients, both)?;
        // Views vote with their scores.
        let cosines = cosines.f_div_scalar(f64::from(self.views.max(1)))?;
        let by_both = match self.classifier_share {
            0.0 => None,
            share => {
                let q = probability.f_div_scalar(f64::from(self.views.max(1)))?;
                let q = q.f_clamp_min(1e-4)?.f_log()?.f_mul_scalar(share)?;
                Some(Vec::<f32>::try_from(
                    q.f_to_kind(Kind::Float)?
                        .f_to_device(Device::Cpu)?
                        .f_contiguous()?
                        .f_view([-1])?,
                )?)
            }
        };
        let by_both = by_both.as_deref();
        let (score, label) = match self.local_prior {
            0.0 => best(&self.scores(&cosines)?)?,
            _ => {
                let fleet = match arrays.get("fleet") {
                    Some(Array::F64(fleet)) if fleet.len() == classes => &fleet[..],
                    _ => &[],
                };
                let temperature =
                    self.temperature * (self.last_temperature / self.temperature).powf(progress);
                self.weighted(&cosines, clients, temperature, fleet, by_both)?
            }
        };
        check_finite(round, clients, &score, ADVICE)?;
        let (_, classifier) = best(&probability)?;
        let parts = split(clients, &score, &label).zip(split(clients, &score, &classifier));
        let labels = parts.map(|((scores, labels), (_, classifier))| {
            let samples = Scored { scores, labels, class_thresholds, progress };
            let Selection { kept, weight, thresholds } = self.threshold.select(&samples);
            let labels = PseudoLabels {
                label: labels.to_vec(),
                score: scores.to_vec(),
                kept,
                thresholds,
                weight,
                anchor: labels.to_vec(),
                classifier: classifier.to_vec(),
                ..PseudoLabels::default()
            };
            labels.adjusted(classes, self.logit_adjustment)
        });
        Ok(labels.collect())
    }

    /// Scores as the threshold sees them: cosines, or their softmax over the classes.
    fn scores(&self, cosines: &Tensor) -> Result<Tensor> {
        Ok(match self.score {
            Score::Cosine => cosines.shallow_clone(),
            Score::Softmax => cosines.f_div_scalar(self.temperature)?.f_softmax(-1, Kind::Float)?,
        })
    }

    /// How well the anchors of each class score among themselves, `[C]`: the mean score of weakly augmented anchors
    /// with their own class, each compared with the others of its class but not with itself. Augmented, because
    /// anchors are trained on: without augmentation they score near 1.
    fn own_scores(
        &self,
        context: &Context,
        model: &Params,
        anchors: &LabelledImages,
        views: u32,
        round: u32,
    ) -> Result<Vec<f64>> {
        let raw = unit(&latents_of(context, model, &anchors.views(), self.source)?)?;
        let mut sums = vec![0.0; context.classes];
        for view in 0..views {
            let stream = context.streams(round).of(Purpose::AnchorScores, SERVER).epoch(view);
            let weak = |at| View::Weak(anchors.images.input(at), stream, at as u64);
            let weak = (0..anchors.images.len()).map(weak);
            let weak = latents_of(context, model, &weak.collect::<Vec<_>>(), self.source)?;
            let scores = scores_among(&unit(&weak)?, &raw, &anchors.labels, context.classes)?;
            let scores = self.scores(&scores)?.f_to_device(Device::Cpu)?;
            for (row, &label) in anchors.labels.iter().enumerate() {
                let label = usize::from(label);
                sums[label] += scores.f_double_value(&[row as i64, label as i64])?;
            }
        }
        if sums.iter().any(|sum| !sum.is_finite()) {
            let what = "a score of the anchors among themselves".to_owned();
            let phase = "scoring the anchors";
            return Err(Error::NotFinite { round, phase, what, advice: ADVICE });
        }
        let sums = sums.iter().zip(class_counts(&anchors.labels, context.classes));
        Ok(sums.map(|(sum, count)| sum / f64::from((count * views).max(1))).collect())
    }

    /// Labels by class probabilities, the softmax of a client's cosines, times its class shares. A cosine score
    /// stays the cosine with the label that was chosen. Where the probabilities are not finite, no label is better
    /// than the others, and the score is NaN.
    fn weighted(
        &self,
        cosines: &Tensor,
        clients: &[LocalImages],
        temperature: f64,
        fleet: &[f64],
        by_both: Option<&[f32]>,
    ) -> Result<(Vec<f32>, Vec<u16>)> {
        let classes = cosines.size()[1] as usize;
        let cosines = cosines.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
        let mut rest = &Vec::<f32>::try_from(cosines)?[..];
        let (mut scores, mut labels) = (Vec::new(), Vec::new());
        let mut at = 0;
        for client in clients {
            let own;
            (own, rest) = rest.split_at(client.local.len() * classes);
            let mut probability = softmax(own, classes, temperature);
            if let Some(logs) = by_both {
                let logs = &logs[at..at + own.len()];
                probability.iter_mut().zip(logs).for_each(|(p, log)| *p *= f64::from(*log).exp());
                for image in probability.chunks_mut(classes) {
                    let total: f64 = image.iter().sum();
                    image.iter_mut().for_each(|p| *p /= total);
                }
            }
            at += own.len();
            let mut shares = class_shares(&probability, classes);
            if !fleet.is_empty() {
                shares.iter_mut().zip(fleet).for_each(|(share, fleet)| *share /= fleet.max(0.02));
                let total: f64 = shares.iter().sum();
                shares.iter_mut().for_each(|share| *share /= total);
            }
            if effective_classes(&shares) >= self.local_prior * classes as f64 {
                shares = vec![1.0; classes];
            }
            for (cosines, probability) in own.chunks(classes).zip(probability.chunks(classes)) {
                let joint = || probability.iter().zip(&shares).map(|(p, share)| p * share);
                let (label, best) = joint().enumerate().fold((0, f64::MIN), |best, next| {
                    if next.1 > best.1 { next } else { best } // the first of equals
                });
                let total: f64 = joint().sum();
                scores.push(match self.score {
                    _ if !total.is_finite() => f32::NAN,
                    Score::Cosine => cosines[label],
                    Score::Softmax => (best / total) as f32,
                });
                labels.push(label as u16);
            }
        }
        Ok((scores, labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::Threshold;
    use fedanchor_data::{ImageSet, Shape};

    /// Two clients with the same images but for one: each has class shares of its own.
    #[test]
    fn labels_by_a_clients_own_shares_by_hand() {
        let images = ImageSet {
            shape: Shape { side: 1, channels: 1 },
            pixels: vec![0; 3],
            features: None,
            labels: None,
            classes: vec!["a".to_owned(), "b".to_owned()],
        };
        let client = |local| LocalImages { client: 0, images: &images, local };
        let clients = [client(&[0, 1][..]), client(&[2])];
        // Probabilities (4/5, 1/5) and (3/5, 2/5); the other client has (4/5, 1/5) alone.
        let rows = [4f32.ln(), 0.0, 1.5f32.ln(), 0.0, 4f32.ln(), 0.0];
        let cosines = Tensor::from_slice(&rows).view([3, 2]);
        let labelling = |local_prior, score| Labelling {
            source: LatentSource::Anchor,
            send: AnchorPayload::ClassMeans,
            score,
            temperature: 1.0,
            last_temperature: 1.0,
            classifier_share: 0.0,
            views: 0,
            local_prior,
            logit_adjustment: 0.0,
            threshold: Threshold::Fixed(0.0).build(score).unwrap(),
        };
        let close = |found: &[f32], expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            let mut pairs = found.iter().zip(expected);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} is not {expected:?}");
        };
        let of = |images: &[f64]| class_shares(images, 2);
        let (shares, other) = (of(&[0.8, 0.2, 0.6, 0.4]), of(&[0.8, 0.2]));
        let posterior = |p: f64, shares: &[f64]| {
            (p * shares[0] / (p * shares[0] + (1.0 - p) * shares[1])) as f32
        };
        // The first class gains.
        let (score, label) =
            labelling(1.0, Score::Softmax).weighted(&cosines, &clients, 1.0, &[], None).unwrap();
        assert_eq!(label, [0, 0, 0]);
        assert!(shares[0] > 0.5 && score[1] > 0.6, "{shares:?} {score:?}");
        close(&score, &[posterior(0.8, &shares), posterior(0.6, &shares), posterior(0.8, &other)]);
        // A cosine stays a cosine.
        let (score, _) =
            labelling(1.0, Score::Cosine).weighted(&cosines, &clients, 1.0, &[], None).unwrap();
        close(&score, &[4f32.ln(), 1.5f32.ln(), 4f32.ln()]);
        // A client that seems to hold more of the classes labels as if all were equally frequent.
        let held = [effective_classes(&shares), effective_classes(&other)];
        assert!(held[0] < held[1], "{held:?}");
        let between = labelling((held[0] + held[1]) / 4.0, Score::Softmax);
        let (score, _) = between.weighted(&cosines, &clients, 1.0, &[], None).unwrap();
        close(&score, &[posterior(0.8, &shares), posterior(0.6, &shares), 0.8]);
        assert_eq!(between.weighted(&cosines, &[], 1.0, &[], None).unwrap(), (vec![], vec![]));
    }
}
