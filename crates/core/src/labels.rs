//! What a client thinks of its images: a label, a score and whether it is trained on. One pass of the
//! broadcast model over the clients' images, all clients of a cohort together.

use crate::anchors::{Anchors, as_scored, latents};
use crate::config::FedAnchorConfig;
use crate::error::Result;
use crate::method::Client;
use crate::model::{Features, Pass, Statistics};
use crate::params::Params;
use crate::selection::{Selection, select};
use crate::setting::{Setting, View};
use fedanchor_data::Purpose;
use tch::{Device, Kind, Tensor};

/// Labels of a client's samples. They never leave the client; a simulation compares them with the
/// truth.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PseudoLabels {
    /// The label of every sample (eq. 4).
    pub label: Vec<u16>,
    /// The score that label was chosen by; none for true labels.
    pub score: Vec<f32>,
    /// Whether the sample is trained on (eq. 5).
    pub kept: Vec<bool>,
    /// Its weight in the loss; none where all count alike.
    pub weight: Vec<f32>,
    /// The anchor head's labels, where it was asked.
    pub anchor: Vec<u16>,
    /// The classification head's labels, where it was asked.
    pub classifier: Vec<u16>,
}

impl PseudoLabels {
    /// Labels that are known to be right: all samples are trained on.
    pub fn known(label: Vec<u16>) -> Self {
        Self { kept: vec![true; label.len()], label, ..Self::default() }
    }

    /// Local numbers of the kept samples: the fix set.
    pub fn fix_set(&self) -> Vec<u32> {
        (0..).zip(&self.kept).filter(|(_, kept)| **kept).map(|(index, _)| index).collect()
    }
}

/// FedAnchor's procedure Pseudo Label: by average cosine similarity to the anchors (eq. 3-5).
pub fn by_anchors(
    setting: &Setting,
    params: &Params,
    anchors: &Anchors,
    thresholds: &[f64],
    method: &FedAnchorConfig,
    round: u32,
    clients: &[Client],
) -> Result<Vec<PseudoLabels>> {
    let source = method.latent_source();
    let both = |features: &Features, pass: &Pass| {
        let cosines =
            anchors.scores(&latents(setting, source, features, pass)?, setting.classes)?;
        Ok([cosines, probabilities(setting, features, pass)?])
    };
    let [cosines, probability] =
        summed_over_views(setting, params, method.label_views, round, clients, both)?;
    // Views vote with their scores.
    let cosines = cosines.f_div_scalar(f64::from(method.label_views.max(1)))?;
    let (score, label) = best(&as_scored(&cosines, method)?)?;
    let (_, classifier) = best(&probability)?;
    let experiment = &setting.experiment;
    let parts = split(clients, &score, &label).zip(split(clients, &score, &classifier));
    let labels = parts.map(|((score, label), (_, classifier))| {
        let progress =
            f64::from(round.saturating_sub(1)) / f64::from((experiment.rounds - 1).max(1));
        let Selection { kept, weight } =
            select(&method.threshold, thresholds, score, label, progress);
        PseudoLabels {
            label: label.to_vec(),
            score: score.to_vec(),
            kept,
            weight,
            anchor: label.to_vec(),
            classifier: classifier.to_vec(),
        }
    });
    Ok(labels.collect())
}

/// SemiFL's: the classification head's, on weakly augmented images, kept from a probability of
/// `threshold` on.
pub fn by_classifier(
    setting: &Setting,
    params: &Params,
    threshold: f64,
    round: u32,
    clients: &[Client],
) -> Result<Vec<PseudoLabels>> {
    let [probability] = summed_over_views(setting, params, 1, round, clients, |features, pass| {
        Ok([probabilities(setting, features, pass)?])
    })?;
    let (score, label) = best(&probability)?;
    let labels = split(clients, &score, &label).map(|(score, label)| PseudoLabels {
        label: label.to_vec(),
        score: score.to_vec(),
        kept: score.iter().map(|&score| f64::from(score) >= threshold).collect(),
        classifier: label.to_vec(),
        ..PseudoLabels::default()
    });
    Ok(labels.collect())
}

fn probabilities(setting: &Setting, features: &Features, pass: &Pass) -> Result<Tensor> {
    let logits = setting.network.logits(features, pass)?;
    Ok(logits.f_softmax(-1, Kind::Float)?.f_squeeze_dim(0)?)
}

/// Runs all clients' images through the model, as they are (`views` 0) or in so many weak views, and
/// adds up what `of` makes of them: `[samples, C]` each, client after client.
fn summed_over_views<const N: usize>(
    setting: &Setting,
    params: &Params,
    views: u32,
    round: u32,
    clients: &[Client],
    of: impl Fn(&Features, &Pass) -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let nothing = || Tensor::f_zeros([0, setting.classes as i64], (Kind::Float, setting.device));
    let mut sums = [(); N].map(|()| None::<Tensor>);
    for view in 0..views.max(1) {
        let images = clients.iter().flat_map(|client| {
            let stream = setting.stream(Purpose::LabelViews, round, client.id).epoch(view);
            (0..).zip(client.local).map(move |(at, &i)| {
                let image = client.images.image(i as usize);
                if views == 0 { View::Raw(image) } else { View::Weak(image, stream, at) }
            })
        });
        let mut parts = [(); N].map(|()| Vec::new());
        setting.for_each_batch(
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

/// The largest number of every row and its place.
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
    clients: &'a [Client],
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
}
