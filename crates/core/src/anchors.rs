//! Labelled anchors and what the clients get of them: latents, class means, scores, pseudo-labels
//! (section 4.2 of the paper).

use crate::config::{FedAnchorConfig, LatentSource, Score, Send};
use crate::error::Result;
use crate::loss::unit;
use crate::method::Client;
use crate::model::Statistics;
use crate::params::Params;
use crate::setting::{Setting, View};
use fedanchor_data::{ImageSet, Purpose};
use tch::{Device, Kind, Tensor};

/// The server's labelled images.
#[derive(Debug, Clone, Copy)]
pub struct AnchorSet<'a> {
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are anchors.
    pub local: &'a [u32],
    /// The label of each anchor.
    pub labels: &'a [u16],
}

/// What is broadcast of the anchors.
#[derive(Debug)]
pub enum Anchors {
    /// Every latent `[S, D]` with its label.
    Latents {
        /// The output of the anchor head for every anchor.
        latents: Tensor,
        /// Their labels.
        labels: Vec<u16>,
    },
    /// The mean of the unit latents of each class `[C, D]`. The average of cosines is linear in unit
    /// vectors, so these give the same scores (eq. 3) as all latents, for C instead of S vectors
    /// and without showing a client any single anchor.
    ClassMeans {
        /// One mean a class.
        means: Tensor,
    },
}

impl Anchors {
    /// Computes Z_anchor (Algorithm 1, line 5) from the raw images in evaluation mode.
    pub fn compute(
        setting: &Setting,
        params: &Params,
        anchors: AnchorSet,
        method: &FedAnchorConfig,
    ) -> Result<Self> {
        let views: Vec<View> =
            anchors.local.iter().map(|&i| View::Raw(anchors.images.image(i as usize))).collect();
        let mut parts = Vec::new();
        setting.for_each_batch(
            params,
            |_| Statistics::Running,
            &views,
            |_, pass, features| {
                parts.push(match method.latent_source() {
                    LatentSource::Anchor => {
                        setting.network.latents(&features, pass)?.f_squeeze_dim(0)?
                    }
                    LatentSource::Pooled => features.pooled.f_squeeze_dim(0)?.f_detach_copy()?,
                });
                Ok(())
            },
        )?;
        let all = Anchors::Latents {
            latents: Tensor::f_cat(&parts, 0)?,
            labels: anchors.labels.to_vec(),
        };
        Ok(match method.send {
            Send::Latents => all,
            Send::ClassMeans => all.class_means(setting.classes)?,
        })
    }

    /// A deep copy.
    pub fn copy(&self) -> Result<Self> {
        Ok(match self {
            Anchors::Latents { latents, labels } => {
                Anchors::Latents { latents: latents.f_detach_copy()?, labels: labels.clone() }
            }
            Anchors::ClassMeans { means } => Anchors::ClassMeans { means: means.f_detach_copy()? },
        })
    }

    /// Reduces latents to class means.
    fn class_means(self, classes: usize) -> Result<Self> {
        let Anchors::Latents { latents, labels } = &self else { return Ok(self) };
        let means = class_average(labels, classes, latents.device())?.f_matmul(&unit(latents)?)?;
        Ok(Anchors::ClassMeans { means })
    }

    /// Eq. 3: s_avg of every sample with every class, `[N, D]` to `[N, C]`.
    pub fn scores(&self, latents: &Tensor, classes: usize) -> Result<Tensor> {
        let z = unit(latents)?;
        Ok(match self {
            Anchors::ClassMeans { means } => z.f_matmul(&means.f_tr()?)?,
            Anchors::Latents { latents: anchors, labels } => {
                let cosines = z.f_matmul(&unit(anchors)?.f_tr()?)?; // [N, S]
                cosines.f_matmul(&class_average(labels, classes, z.device())?.f_tr()?)?
            }
        })
    }

    /// The tensors as they are sent: name, number type, shape.
    pub fn wire_tensors(&self) -> Vec<(&'static str, safetensors::Dtype, Vec<i64>)> {
        use safetensors::Dtype::{F32, U16};
        match self {
            Anchors::Latents { latents, labels } => vec![
                ("anchors.latents", F32, latents.size()),
                ("anchors.labels", U16, vec![labels.len() as i64]),
            ],
            Anchors::ClassMeans { means } => vec![("anchors.means", F32, means.size())],
        }
    }

    /// Cosine of every class's mean direction with every other's, `C x C`: how well the latent
    /// space keeps the classes apart.
    pub fn similarity(&self, classes: usize) -> Result<Vec<Vec<f64>>> {
        let means = match self {
            Anchors::ClassMeans { means } => means.shallow_clone(),
            Anchors::Latents { latents, labels } => {
                class_average(labels, classes, latents.device())?.f_matmul(&unit(latents)?)?
            }
        };
        let directions = unit(&means)?;
        let cosines = directions.f_matmul(&directions.f_tr()?)?.f_to_device(Device::Cpu)?;
        let flat = Vec::<f64>::try_from(cosines.f_to_kind(Kind::Double)?.f_flatten(0, -1)?)?;
        let flat: Vec<f64> = flat.iter().map(|cosine| (cosine * 1e6).round() / 1e6).collect();
        Ok(flat.chunks(classes).map(<[f64]>::to_vec).collect())
    }
}

/// The matrix that averages rows by class, `[C, S]`. Every class has an anchor: the split sees to it.
fn class_average(labels: &[u16], classes: usize, device: Device) -> Result<Tensor> {
    let mut counts = vec![0f32; classes];
    labels.iter().for_each(|&label| counts[label as usize] += 1.0);
    let mut average = vec![0f32; classes * labels.len()];
    for (index, &label) in labels.iter().enumerate() {
        average[label as usize * labels.len() + index] = 1.0 / counts[label as usize];
    }
    Ok(Tensor::f_from_slice(&average)?.f_view([classes as i64, -1])?.f_to_device(device)?)
}

/// What a client thinks of its images. It never leaves the client; a simulation compares it with
/// the truth.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PseudoLabels {
    /// The anchor head's label of every sample (eq. 4).
    pub label: Vec<u16>,
    /// The score that label was chosen by.
    pub score: Vec<f32>,
    /// Whether the score passed the threshold (eq. 5).
    pub kept: Vec<bool>,
    /// The classification head's label, for comparison.
    pub classifier: Vec<u16>,
}

impl PseudoLabels {
    /// Takes the first `count` samples off.
    fn split_off_first(&mut self, count: usize) -> Self {
        Self {
            label: self.label.drain(..count).collect(),
            score: self.score.drain(..count).collect(),
            kept: self.kept.drain(..count).collect(),
            classifier: self.classifier.drain(..count).collect(),
        }
    }

    /// Local numbers of the kept samples: the fix set.
    pub fn fix_set(&self) -> Vec<u32> {
        (0..).zip(&self.kept).filter(|(_, kept)| **kept).map(|(index, _)| index).collect()
    }
}

/// Algorithm 1's procedure Pseudo Label for clients that all hold the same broadcast model: their
/// images go through it together, their labels are handed out to each.
pub fn pseudo_labels(
    setting: &Setting,
    params: &Params,
    anchors: &Anchors,
    method: &FedAnchorConfig,
    round: u32,
    clients: &[Client],
) -> Result<Vec<PseudoLabels>> {
    let samples: Vec<(u32, u64, &[u8])> = clients
        .iter()
        .flat_map(|client| {
            let images = client.local.iter().map(|&i| client.images.image(i as usize));
            (0..).zip(images).map(|(local, image)| (client.id, local, image))
        })
        .collect();
    let mut all = pseudo_label(setting, params, anchors, method, round, &samples)?;
    Ok(clients.iter().map(|client| all.split_off_first(client.local.len())).collect())
}

fn pseudo_label(
    setting: &Setting,
    params: &Params,
    anchors: &Anchors,
    method: &FedAnchorConfig,
    round: u32,
    samples: &[(u32, u64, &[u8])], // client, local number, pixels
) -> Result<PseudoLabels> {
    let views = method.label_views.max(1);
    let mut scores: Option<Tensor> = None;
    let mut classifier: Option<Tensor> = None;
    for view in 0..views {
        let images: Vec<View> = samples
            .iter()
            .map(|&(client, local, image)| match method.label_views {
                0 => View::Raw(image),
                _ => View::Weak(
                    image,
                    setting.stream(Purpose::LabelViews, round, client).epoch(view),
                    local,
                ),
            })
            .collect();
        let (mut score, mut probability) = (Vec::new(), Vec::new());
        setting.for_each_batch(
            params,
            |_| Statistics::Running,
            &images,
            |_, pass, features| {
                let latents = match method.latent_source() {
                    LatentSource::Anchor => setting.network.latents(&features, pass)?,
                    LatentSource::Pooled => features.pooled.shallow_clone(),
                };
                score.push(anchors.scores(&latents.f_squeeze_dim(0)?, setting.classes)?);
                let logits = setting.network.logits(&features, pass)?;
                probability.push(logits.f_softmax(-1, Kind::Float)?.f_squeeze_dim(0)?);
                Ok(())
            },
        )?;
        // Views vote with their scores.
        let add = |sum: Option<Tensor>, parts: &[Tensor]| -> Result<Option<Tensor>> {
            let next = Tensor::f_cat(parts, 0)?;
            Ok(Some(match sum {
                Some(sum) => sum.f_add(&next)?,
                None => next,
            }))
        };
        scores = add(scores, &score)?;
        classifier = add(classifier, &probability)?;
    }
    let (Some(scores), Some(classifier)) = (scores, classifier) else {
        return Ok(PseudoLabels::default());
    };
    let scores = scores.f_div_scalar(f64::from(views))?;
    let scores = match method.score {
        Score::Cosine => scores,
        Score::Softmax => {
            scores.f_div_scalar(method.score_temperature)?.f_softmax(-1, Kind::Float)?
        }
    };
    let (score, label) = scores.f_max_dim(1, false)?;
    let score = Vec::<f32>::try_from(score.f_to_device(Device::Cpu)?)?;
    let kept = score.iter().map(|&score| f64::from(score) > method.threshold).collect();
    Ok(PseudoLabels {
        label: to_labels(&label)?,
        kept,
        score,
        classifier: to_labels(&classifier.f_argmax(1, false)?)?,
    })
}

fn to_labels(tensor: &Tensor) -> Result<Vec<u16>> {
    let labels = Vec::<i64>::try_from(tensor.f_to_device(Device::Cpu)?)?;
    Ok(labels.into_iter().map(|label| label as u16).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latents() -> Anchors {
        // Class 0: (2, 0) and (0, 5); class 1: (-3, 0).
        let latents = Tensor::from_slice(&[2f32, 0.0, -3.0, 0.0, 0.0, 5.0]).view([3, 2]);
        Anchors::Latents { latents, labels: vec![0, 1, 0] }
    }

    fn rows(scores: &Tensor) -> Vec<f64> {
        Vec::<f64>::try_from(scores.to_kind(Kind::Double).flatten(0, -1)).unwrap()
    }

    #[test]
    fn scores_by_hand() {
        let z = Tensor::from_slice(&[3f32, 4.0, 0.0, -2.0]).view([2, 2]);
        // (3, 4)/5: cosines .6 and .8 with class 0, -.6 with class 1. (0, -1): 0 and -1; 0.
        let expected = [0.7, -0.6, -0.5, 0.0];
        for anchors in [latents(), latents().class_means(2).unwrap()] {
            let found = rows(&anchors.scores(&z, 2).unwrap());
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
        }
    }

    #[test]
    fn class_means_give_the_scores_of_all_latents() {
        tch::manual_seed(3);
        let options = (Kind::Float, Device::Cpu);
        let labels: Vec<u16> = (0..500).map(|i| i % 10).collect();
        let all = || Anchors::Latents {
            latents: Tensor::randn([500, 128], options),
            labels: labels.clone(),
        };
        tch::manual_seed(4);
        let full = all();
        tch::manual_seed(4);
        let means = all().class_means(10).unwrap();
        let z = Tensor::randn([300, 128], options);
        let (a, b) = (full.scores(&z, 10).unwrap(), means.scores(&z, 10).unwrap());
        assert!((&a - &b).abs().max().double_value(&[]) < 1e-6);
        assert_eq!(a.argmax(1, false), b.argmax(1, false));
        assert!((a.abs().max().double_value(&[])) > 0.01);
    }

    #[test]
    fn similarity_is_one_on_the_diagonal() {
        let similarity = latents().similarity(2).unwrap();
        assert!((similarity[0][0] - 1.0).abs() < 1e-6 && (similarity[1][1] - 1.0).abs() < 1e-6);
        // (1, 1)/sqrt 2 and (-1, 0).
        assert!((similarity[0][1] + 0.5f64.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn the_fix_set_is_what_passed_the_threshold() {
        let labels = PseudoLabels { kept: vec![true, false, true], ..PseudoLabels::default() };
        assert_eq!(labels.fix_set(), [0, 2]);
    }
}
