//! FedAnchor's procedure Pseudo Label (section 4.2 of the paper): labels by average cosine similarity to the
//! anchors (eq. 3-5).

use super::anchors::{AnchorPayload, AnchorSet, Anchors, Score, Scoring, as_scored, latents};
use super::anchors::{own_scores, undecodable};
use super::prior::{class_shares, classes_held, probabilities};
use super::pseudo_labels::{LocalImages, PseudoLabels};
use super::pseudo_labels::{best, check_finite, class_probabilities, split, summed_over_views};
use super::thresholds::{Scored, Selection, ThresholdRule};
use crate::error::Result;
use crate::messages::{Array, Arrays};
use fedanchor_engine::model::{Features, Pass};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::Context;
use tch::{Device, Tensor};

/// How images are labelled by the anchors. Made once, from the settings.
#[derive(Debug)]
pub struct Labelling {
    /// How images are scored.
    pub scoring: Scoring,
    /// What is broadcast of the anchors.
    pub send: AnchorPayload,
    /// Weak views that vote on a label; 0: the image as it is.
    pub views: u32,
    /// A client that seems to hold less than this share of the classes weighs its labels by its own class shares.
    /// A model that prefers a class does so on every client; on clients with all classes their own shares would
    /// amplify the error.
    pub local_prior: f64,
    /// Which samples are kept.
    pub threshold: Box<dyn ThresholdRule>,
}

/// The name of the thresholds in a broadcast.
const THRESHOLDS: &str = "thresholds";

impl Labelling {
    /// The server's part: Z_anchor, and one threshold per class where the rule has them.
    pub fn broadcast(
        &self,
        context: &Context,
        model: &Params,
        anchors: AnchorSet,
        round: u32,
    ) -> Result<Arrays> {
        let mut arrays = Arrays::default();
        Anchors::compute(context, model, anchors, self.scoring.source, self.send)?
            .put_into(&mut arrays);
        let own = |views| own_scores(context, model, anchors, self.scoring, views, round);
        if let Some(thresholds) = self.threshold.class_thresholds(&own)? {
            arrays.insert(THRESHOLDS, Array::F64(thresholds));
        }
        Ok(arrays)
    }

    /// The client's part: the labels of all clients' images, given what was broadcast. `progress` is 0 in the first
    /// round and 1 in the last.
    pub fn label(
        &self,
        context: &Context,
        model: &Params,
        arrays: &Arrays,
        (round, progress): (u32, f64),
        clients: &[LocalImages],
    ) -> Result<Vec<PseudoLabels>> {
        let classes = context.classes;
        let Some(anchors) = Anchors::take_from(arrays, classes)? else {
            return Err(undecodable("the broadcast contains no anchors".to_owned()));
        };
        let class_thresholds = arrays.f64(THRESHOLDS).unwrap_or_default();
        if ![0, classes].contains(&class_thresholds.len()) {
            let length = class_thresholds.len();
            let problem = format!("`{THRESHOLDS}` has length {length} for {classes} classes");
            return Err(undecodable(problem));
        }
        let both = |features: &Features, pass: &Pass| {
            let latents = latents(context, self.scoring.source, features, pass)?;
            let scores = anchors.scores(&latents, classes)?;
            Ok([scores, class_probabilities(context, features, pass)?])
        };
        let [cosines, probability] =
            summed_over_views(context, model, self.views, round, clients, both)?;
        // Views vote with their scores.
        let cosines = cosines.f_div_scalar(f64::from(self.views.max(1)))?;
        let (score, label) = match self.local_prior {
            0.0 => best(&as_scored(&cosines, self.scoring)?)?,
            _ => self.weighted(&cosines, clients)?,
        };
        let advice = "raise method.score_temperature, or lower the learning rate";
        check_finite(round, clients, &score, advice)?;
        let (_, classifier) = best(&probability)?;
        let parts = split(clients, &score, &label).zip(split(clients, &score, &classifier));
        let labels = parts.map(|((scores, labels), (_, classifier))| {
            let samples = Scored { scores, labels, class_thresholds, progress };
            let Selection { kept, weight, thresholds } = self.threshold.select(&samples);
            PseudoLabels {
                label: labels.to_vec(),
                score: scores.to_vec(),
                kept,
                thresholds,
                weight,
                adjustment: Vec::new(),
                anchor: labels.to_vec(),
                classifier: classifier.to_vec(),
                only_measured: false,
            }
        });
        Ok(labels.collect())
    }

    /// Labels by class probabilities, the softmax of a client's cosines, times its class shares. A cosine score
    /// stays the cosine with the label that was chosen. Where the probabilities are not finite, no label is better
    /// than the others, and the score is NaN.
    fn weighted(&self, cosines: &Tensor, clients: &[LocalImages]) -> Result<(Vec<f32>, Vec<u16>)> {
        let classes = cosines.size()[1] as usize;
        let cosines = cosines.f_to_device(Device::Cpu)?.f_contiguous()?.f_view([-1])?;
        let mut rest = &Vec::<f32>::try_from(cosines)?[..];
        let (mut scores, mut labels) = (Vec::new(), Vec::new());
        for client in clients {
            let own;
            (own, rest) = rest.split_at(client.local.len() * classes);
            let probability = probabilities(own, classes, self.scoring.temperature);
            let mut shares = class_shares(&probability, classes);
            if classes_held(&shares) >= self.local_prior * classes as f64 {
                shares = vec![1.0; classes];
            }
            for (cosines, probability) in own.chunks(classes).zip(probability.chunks(classes)) {
                let joint = || probability.iter().zip(&shares).map(|(p, share)| p * share);
                let (label, best) = joint().enumerate().fold((0, f64::MIN), |best, next| {
                    if next.1 > best.1 { next } else { best } // the first of equals
                });
                let total: f64 = joint().sum();
                scores.push(match self.scoring.score {
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
    use crate::labels::{LatentSource, Threshold};
    use fedanchor_data::{ImageSet, Shape};

    /// Two clients with the same images but for one: each has class shares of its own.
    #[test]
    fn labels_by_a_clients_own_shares_by_hand() {
        let images = ImageSet {
            shape: Shape { side: 1, channels: 1 },
            pixels: vec![0; 3],
            labels: None,
            classes: vec!["a".to_owned(), "b".to_owned()],
        };
        let client = |local| LocalImages { client: 0, images: &images, local };
        let clients = [client(&[0, 1][..]), client(&[2])];
        // Probabilities (4/5, 1/5) and (3/5, 2/5); the other client has (4/5, 1/5) alone.
        let rows = [4f32.ln(), 0.0, 1.5f32.ln(), 0.0, 4f32.ln(), 0.0];
        let cosines = Tensor::from_slice(&rows).view([3, 2]);
        let labelling = |local_prior, score| Labelling {
            scoring: Scoring { source: LatentSource::Anchor, score, temperature: 1.0 },
            send: AnchorPayload::ClassMeans,
            views: 0,
            local_prior,
            threshold: Threshold::Fixed(0.0).build(0.0).unwrap(),
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
        let (score, label) = labelling(1.0, Score::Softmax).weighted(&cosines, &clients).unwrap();
        assert_eq!(label, [0, 0, 0]);
        assert!(shares[0] > 0.5 && score[1] > 0.6, "{shares:?} {score:?}");
        close(&score, &[posterior(0.8, &shares), posterior(0.6, &shares), posterior(0.8, &other)]);
        // A cosine stays a cosine.
        let (score, _) = labelling(1.0, Score::Cosine).weighted(&cosines, &clients).unwrap();
        close(&score, &[4f32.ln(), 1.5f32.ln(), 4f32.ln()]);
        // A client that seems to hold more of the classes labels as if all were equally frequent.
        let held = [classes_held(&shares), classes_held(&other)];
        assert!(held[0] < held[1], "{held:?}");
        let between = labelling((held[0] + held[1]) / 4.0, Score::Softmax);
        let (score, _) = between.weighted(&cosines, &clients).unwrap();
        close(&score, &[posterior(0.8, &shares), posterior(0.6, &shares), 0.8]);
        assert_eq!(between.weighted(&cosines, &[]).unwrap(), (vec![], vec![]));
    }
}
