//! Labelled images of the server, their latents or class means for the clients, and scores by them.

use super::outputs::{LatentSource, latents, outputs};
use crate::error::Result;
use crate::messages::{Array, Arrays, undecodable};
use fedanchor_data::{ImageSet, Stream};
use fedanchor_engine::Result as EngineResult;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::{Pass, Statistics};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::Context;
use fedanchor_engine::training::losses::unit;
use fedanchor_engine::words;
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};

words! {
    /// The number that is compared with the threshold.
    Score {
        /// The average cosine with the anchors of the best class.
        Cosine,
        /// The softmax of these cosines over the classes.
        Softmax,
    }
    /// The form in which the anchors are broadcast.
    AnchorPayload {
        /// The mean of the unit latents of every class, which gives the same labels and scores.
        ClassMeans,
        /// Every anchor's latent and label.
        Latents,
    }
    /// How the anchors' images become the latents that are broadcast.
    #[derive(Default)]
    AnchorViews {
        /// As they are, normalised by the running statistics: as clients see their own images.
        #[default]
        Plain,
        /// Weakly augmented.
        Weak,
        /// As they are, normalised by the statistics of their own batch of up to 250.
        Batch,
    }
}

impl AnchorViews {
    /// Whether this is the default.
    pub fn is_plain(&self) -> bool {
        *self == Self::Plain
    }
}

impl Score {
    /// The lowest score that a threshold may have. A cosine threshold of -1 keeps everything but the exact opposite.
    pub(super) fn lowest(self) -> f64 {
        if self == Score::Cosine { -1.0 } else { 0.0 }
    }
}

/// Labelled images of the server.
#[derive(Debug)]
pub struct LabelledImages {
    /// The images.
    pub images: ImageSet,
    /// The label of each.
    pub labels: Vec<u16>,
}

impl LabelledImages {
    /// Some of these images.
    pub fn select(images: &ImageSet, labels: &[u16], chosen: &[u32]) -> Self {
        let labels = chosen.iter().map(|&index| labels[index as usize]).collect();
        Self { images: images.select(chosen), labels }
    }

    /// The images without augmentation.
    pub fn views(&self) -> Vec<View<'_>> {
        (0..self.images.len()).map(|index| View::Raw(self.images.input(index))).collect()
    }

    /// The images, weakly augmented.
    pub fn weak_views(&self, stream: Stream) -> Vec<View<'_>> {
        let weak = |at| View::Weak(self.images.input(at), stream, at as u64);
        (0..self.images.len()).map(weak).collect()
    }

    /// The share of every class.
    pub fn class_shares(&self, classes: usize) -> Vec<f64> {
        let counts = class_counts(&self.labels, classes).into_iter();
        counts.map(|count| f64::from(count) / self.labels.len() as f64).collect()
    }
}

pub(super) fn class_counts(labels: &[u16], classes: usize) -> Vec<u32> {
    let mut counts = vec![0; classes];
    labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
    counts
}

/// The broadcast form of the anchors.
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
    ClassMeans(Tensor),
}

/// Names in a broadcast.
const MEANS: &str = "anchors/means";
const LATENTS: &str = "anchors/latents";
const LABELS: &str = "anchors/labels";

impl Anchors {
    /// Computes Z_anchor (Algorithm 1, line 5) from these views of the images.
    pub fn compute(
        context: &Context,
        params: &Params,
        anchors: &LabelledImages,
        (views, statistics): (&[View], Statistics),
        source: LatentSource,
        payload: AnchorPayload,
    ) -> Result<Self> {
        let latents = latents_of(context, params, statistics, views, source)?;
        let all = Anchors::Latents { latents, labels: anchors.labels.clone() };
        Ok(match payload {
            AnchorPayload::Latents => all,
            AnchorPayload::ClassMeans => Anchors::ClassMeans(all.class_means(context.classes)?),
        })
    }

    /// As part of a broadcast.
    pub fn put_into(self, arrays: &mut Arrays) {
        match self {
            Anchors::Latents { latents, labels } => {
                arrays.insert(LATENTS.to_owned(), Array::f32(latents));
                arrays.insert(LABELS.to_owned(), Array::U16(labels));
            }
            Anchors::ClassMeans(means) => {
                arrays.insert(MEANS.to_owned(), Array::f32(means));
            }
        }
    }

    /// Reads what [`Anchors::put_into`] added to a broadcast; `None` if it has no anchors.
    pub fn take_from(arrays: &Arrays, classes: usize) -> Result<Option<Self>> {
        match (arrays.get(MEANS), arrays.get(LATENTS), arrays.get(LABELS)) {
            (None, None, None) => Ok(None),
            (Some(Array::F32(means, _)), None, None) => match means.size()[..] {
                [rows, _] if rows == classes as i64 => {
                    Ok(Some(Anchors::ClassMeans(means.shallow_clone())))
                }
                _ => Err(undecodable(format!("`{MEANS}` is not one row per class"))),
            },
            (None, Some(Array::F32(latents, _)), Some(Array::U16(labels))) => {
                let rows = matches!(latents.size()[..], [rows, _] if rows == labels.len() as i64);
                let known = labels.iter().all(|&label| usize::from(label) < classes);
                let present: BTreeSet<u16> = labels.iter().copied().collect();
                if !rows || !known || present.len() != classes {
                    let problem = format!("`{LABELS}` does not fit the latents and classes");
                    return Err(undecodable(problem));
                }
                let (latents, labels) = (latents.shallow_clone(), labels.to_vec());
                Ok(Some(Anchors::Latents { latents, labels }))
            }
            _ => Err(undecodable("expected class means or labelled latents of the anchors")),
        }
    }

    /// The mean of the unit latents of each class, `[C, D]`.
    pub fn class_means(&self, classes: usize) -> Result<Tensor> {
        Ok(match self {
            Anchors::ClassMeans(means) => means.shallow_clone(),
            Anchors::Latents { latents, labels } => {
                class_average(labels, classes, latents.device())?.f_matmul(&unit(latents)?)?
            }
        })
    }

    /// Eq. 3: s_avg of every sample with every class, `[N, D]` to `[N, C]`.
    pub fn scores(&self, latents: &Tensor, classes: usize) -> EngineResult<Tensor> {
        let z = unit(latents)?;
        Ok(match self {
            Anchors::ClassMeans(means) => z.f_matmul(&means.f_tr()?)?,
            Anchors::Latents { latents: anchors, labels } => {
                let cosines = z.f_matmul(&unit(anchors)?.f_tr()?)?; // [N, S]
                cosines.f_matmul(&class_average(labels, classes, z.device())?.f_tr()?)?
            }
        })
    }

    /// Cosine of every class's mean direction with every other's, `C x C`: how well the latent
    /// space keeps the classes apart.
    pub fn similarity(&self, classes: usize) -> Result<Vec<Vec<f64>>> {
        let directions = unit(&self.class_means(classes)?)?;
        let cosines = directions.f_matmul(&directions.f_tr()?)?.f_to_device(Device::Cpu)?;
        let flat = Vec::<f64>::try_from(cosines.f_to_kind(Kind::Double)?.f_flatten(0, -1)?)?;
        let flat: Vec<f64> = flat.iter().map(|cosine| (cosine * 1e6).round() / 1e6).collect();
        Ok(flat.chunks(classes).map(<[f64]>::to_vec).collect())
    }

    /// The mean of [`Anchors::similarity`] over pairs of different classes; `None` for a single class.
    pub fn mean_similarity(&self, classes: usize) -> Result<Option<f64>> {
        let similarity = self.similarity(classes)?;
        let pairs = classes * classes.saturating_sub(1);
        let sum: f64 = similarity.iter().flatten().sum();
        let own: f64 = (0..classes).map(|class| similarity[class][class]).sum();
        Ok((pairs > 0).then(|| (sum - own) / pairs as f64))
    }
}

/// The latents of all images, `[images, D]`.
pub(super) fn latents_of(
    context: &Context,
    params: &Params,
    statistics: Statistics,
    views: &[View],
    source: LatentSource,
) -> Result<Tensor> {
    let of = |features: &_, pass: &Pass| Ok([latents(context, source, features, pass)?]);
    let [latents] = outputs(context, params, statistics, views, of)?;
    Ok(latents)
}

/// s_avg of anchors `[S, D]` with every class of the anchors `among`, without the anchor
/// itself in its own class, unless it is the only one there. Both are unit vectors in the same order.
pub(super) fn scores_among(
    z: &Tensor,
    among: &Tensor,
    labels: &[u16],
    classes: usize,
) -> Result<Tensor> {
    let average = class_average(labels, classes, z.device())?;
    let cosines = z.f_matmul(&among.f_tr()?)?; // [S, S]
    let scores = cosines.f_matmul(&average.f_tr()?)?; // [S, C]
    let by_class = class_counts(labels, classes);
    let counts: Vec<f32> = labels.iter().map(|&l| by_class[usize::from(l)] as f32).collect();
    let count = Tensor::f_from_slice(&counts)?.f_to_device(z.device())?; // [S]
    let target: Vec<i64> = labels.iter().map(|&label| i64::from(label)).collect();
    let target = Tensor::f_from_slice(&target)?.f_unsqueeze(1)?.f_to_device(z.device())?;
    let own = scores.f_gather(1, &target, false)?.f_squeeze_dim(1)?; // [S]
    let itself = cosines.f_diagonal(0, 0, 1)?;
    let others =
        own.f_mul(&count)?.f_sub(&itself)?.f_div(&count.f_sub_scalar(1)?.f_clamp_min(1)?)?;
    let own = others.f_where_self(&count.f_gt(1)?, &own)?;
    Ok(scores.f_scatter(1, &target, &own.f_unsqueeze(1)?)?)
}

/// The matrix that averages rows by class, `[C, S]`. Every class has an anchor: the split sees to it.
fn class_average(labels: &[u16], classes: usize, device: Device) -> EngineResult<Tensor> {
    let counts = class_counts(labels, classes);
    let mut average = vec![0f32; classes * labels.len()];
    for (index, &label) in labels.iter().enumerate() {
        average[label as usize * labels.len() + index] = 1.0 / counts[label as usize] as f32;
    }
    Ok(Tensor::f_from_slice(&average)?.f_view([classes as i64, -1])?.f_to_device(device)?)
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
        let means = latents().class_means(2).unwrap();
        for anchors in [latents(), Anchors::ClassMeans(means)] {
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
        let means = Anchors::ClassMeans(all().class_means(10).unwrap());
        let z = Tensor::randn([300, 128], options);
        let (a, b) = (full.scores(&z, 10).unwrap(), means.scores(&z, 10).unwrap());
        assert!((&a - &b).abs().max().double_value(&[]) < 1e-6);
        assert_eq!(a.argmax(1, false), b.argmax(1, false));
        assert!((a.abs().max().double_value(&[])) > 0.01);
    }

    #[test]
    fn what_is_broadcast_must_fit_the_classes() {
        let read = |anchors: Anchors| {
            let mut arrays = Arrays::default();
            anchors.put_into(&mut arrays);
            Anchors::take_from(&arrays, 2)
        };
        let Some(Anchors::Latents { labels, .. }) = read(latents()).unwrap() else { panic!() };
        assert_eq!(labels, [0, 1, 0]);
        assert!(Anchors::take_from(&Arrays::default(), 2).unwrap().is_none());
        let refused = |anchors, problem: &str| {
            let error = read(anchors).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        };
        let means = Tensor::from_slice(&[1f32, 2.0, 3.0]).view([3, 1]);
        refused(Anchors::ClassMeans(means), "not one row per class");
        let latents = Tensor::from_slice(&[1f32, 2.0]).view([2, 1]);
        refused(Anchors::Latents { latents, labels: vec![0, 2] }, "does not fit");
    }

    #[test]
    fn similarity_is_one_on_the_diagonal() {
        let similarity = latents().similarity(2).unwrap();
        assert!((similarity[0][0] - 1.0).abs() < 1e-6 && (similarity[1][1] - 1.0).abs() < 1e-6);
        // (1, 1)/sqrt 2 and (-1, 0).
        assert!((similarity[0][1] + 0.5f64.sqrt()).abs() < 1e-6);
        let mean = latents().mean_similarity(2).unwrap().unwrap();
        assert!((mean + 0.5f64.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn anchors_are_scored_without_themselves() {
        // Class 0: (1, 0), (0, 1), (0, 1); class 1: (-1, 0) alone.
        let z = Tensor::from_slice(&[1f32, 0.0, 0.0, 1.0, 0.0, 1.0, -1.0, 0.0]).view([4, 2]);
        let scores = rows(&scores_among(&z, &z, &[0, 0, 0, 1], 2).unwrap());
        // The first sees two at right angles; the second one at a right angle and one like itself;
        // class 1 has only itself.
        let expected = [0.0, -1.0, 0.5, 0.0, 0.5, 0.0, -1.0 / 3.0, 1.0];
        assert!(scores.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{scores:?}");
    }
}
