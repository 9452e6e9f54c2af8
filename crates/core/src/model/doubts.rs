//! Labelled images that the others contradict.
//!
//! Every image is compared with the class means of the others: its own latent would speak for any label. Another
//! class wins clearly if the image is as near to it as the images of that class are themselves on average, and as
//! much nearer than to its own class. As in confident learning (Northcutt et al. 2021), there is no constant to
//! choose: cosines lie closer together for one model than for another. Without the second condition, 0.63 to 0.85
//! of the images named had a wrong label, with it 0.85 to 0.99: 20 or 50 of scikit-learn's digits per class, a
//! tenth of the labels wrong, pixels or features after 5 epochs as latents. It finds about 7 of 10 wrong labels
//! there. A model that was trained on them until it knows them by heart shows fewer: 2 of 10 after 200 epochs.
//!
//! Where the class means of the others recognise few images, most contradictions are mistakes of the model. So below
//! [`WEAK`] only the surest are named, [`SUREST`] of the images. With a tenth of the labels wrong, latents that
//! recognise 21 to 33 % of the images (pixels of flowers, signs, photographs) name a fifth to a half of them all, of
//! which 0.14 to 0.21 have a wrong label, and 0.25 to 0.7 of the surest hundredth; above the limit it is 0.52 to 1 of
//! all that are named.

use crate::error::Result;
use serde::Serialize;
use tch::{Kind, Tensor};

/// What the labelled images say about each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Doubts {
    /// Images that look like those of another class, the clearest first: all, or the surest if few are recognised.
    pub contradicted: Vec<Contradicted>,
    /// The number of all.
    pub contradictions: usize,
    /// The share of the images that are nearest to the others of their class. `None` without images that can be
    /// compared.
    pub recognised: Option<f64>,
}

/// An image that looks like those of another class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contradicted {
    /// Its number.
    pub image: usize,
    /// Its label.
    pub label: u16,
    /// The other class.
    pub other: u16,
    /// How much higher its average cosine is with the images of the other class.
    pub margin: f32,
}

/// The share of recognised images below which only the surest contradictions are named.
const WEAK: f64 = 0.7;
/// The share of the images that are named then, and the least number.
const SUREST: (f64, usize) = (0.01, 10);

impl Doubts {
    /// Whether so few images are recognised that only the surest contradictions are named.
    pub fn is_weak(&self) -> bool {
        self.recognised.is_some_and(|share| share < WEAK)
    }
}

/// Compares labelled images by their [latents](super::Model::latents). Those that are alone in their class have no
/// others to be compared with.
pub fn doubts(latents: &Tensor, labels: &[u16], classes: usize) -> Result<Doubts> {
    if labels.is_empty() {
        let contradicted = Vec::new();
        return Ok(Doubts { contradicted, contradictions: 0, recognised: None });
    }
    let numbers: Vec<i64> = labels.iter().map(|&label| i64::from(label)).collect();
    let of_class =
        Tensor::f_from_slice(&numbers)?.f_one_hot(classes as i64)?.f_to_kind(Kind::Float)?;
    let sums = of_class.f_tr()?.f_matmul(latents)?;
    let cosines = latents.f_matmul(&sums.f_tr()?)?.f_flatten(0, -1)?;
    let cosines: Vec<f32> = Vec::try_from(cosines)?;
    let mut sizes = vec![0.0f32; classes];
    labels.iter().for_each(|&label| sizes[usize::from(label)] += 1.0);
    // A latent has length 1, so that it adds 1 to the sum of its own class.
    let scores: Vec<Vec<f32>> = cosines
        .chunks_exact(classes)
        .zip(labels)
        .map(|(row, &label)| {
            let own = usize::from(label);
            let score = |class: usize| match class == own {
                true => (row[class] - 1.0) / (sizes[class] - 1.0),
                false => row[class] / sizes[class],
            };
            (0..classes).map(score).collect()
        })
        .collect();
    let mut usual = vec![0.0f32; classes];
    // `leads[class * classes + other]`: how much nearer images of a class are to it than to the other.
    let mut leads = vec![0.0f32; classes * classes];
    for (row, &label) in scores.iter().zip(labels) {
        let own = usize::from(label);
        usual[own] += row[own] / sizes[own];
        for (other, score) in row.iter().enumerate() {
            leads[own * classes + other] += (row[own] - score) / sizes[own];
        }
    }
    let compared = |class: usize| sizes[class] > 1.0;
    let mut contradicted = Vec::new();
    let (mut right, mut count) = (0u32, 0u32);
    for (image, (row, &label)) in scores.iter().zip(labels).enumerate() {
        let own = row[usize::from(label)];
        let highest = row.iter().copied().filter(|score| score.is_finite()).reduce(f32::max);
        if compared(usize::from(label)) {
            right += u32::from(Some(own) == highest);
            count += 1;
        }
        let wins = |class: &usize| {
            let (class, score) = (*class, row[*class]);
            let lead = leads[class * classes + usize::from(label)];
            let clearly = score >= usual[class] && score - own >= lead.max(0.0);
            compared(class) && class != usize::from(label) && clearly
        };
        let other = (0..classes).filter(wins).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        if let Some(other) = other.filter(|_| compared(usize::from(label))) {
            let (other, margin) = (other as u16, row[other] - own);
            contradicted.push(Contradicted { image, label, other, margin });
        }
    }
    contradicted.sort_by(|a, b| b.margin.total_cmp(&a.margin));
    let recognised = (count > 0).then(|| f64::from(right) / f64::from(count));
    let contradictions = contradicted.len();
    let mut found = Doubts { contradicted, contradictions, recognised };
    if found.is_weak() {
        let (share, least) = SUREST;
        found.contradicted.truncate(((share * labels.len() as f64) as usize).max(least));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unit vectors at these angles.
    fn at(degrees: &[f32]) -> Tensor {
        let rows: Vec<f32> = degrees
            .iter()
            .flat_map(|angle| [angle.to_radians().cos(), angle.to_radians().sin()])
            .collect();
        Tensor::from_slice(&rows).view([-1, 2])
    }

    #[test]
    fn an_image_among_those_of_another_class_is_named() {
        let latents = at(&[0.0, 10.0, 94.0, 90.0, 100.0, 95.0, 45.0]);
        // The third is labelled like the first two, but lies among the next three; the last is alone.
        let found = doubts(&latents, &[0, 0, 0, 1, 1, 1, 2], 3).unwrap();
        let [only] = &found.contradicted[..] else { panic!("{found:?}") };
        assert_eq!((only.image, only.label, only.other), (2, 0, 1));
        let cos = |degrees: f32| degrees.to_radians().cos();
        let margin = (cos(4.0) + cos(6.0) + cos(1.0)) / 3.0 - (cos(94.0) + cos(84.0)) / 2.0;
        assert!((only.margin - margin).abs() < 1e-5, "{only:?}");
        assert_eq!((found.contradictions, found.recognised), (1, Some(0.5)));
    }

    #[test]
    fn of_a_weak_model_only_the_surest_are_named() {
        // Two groups, and labels that have nothing to do with them.
        let angles: Vec<f32> =
            (0..50).map(|at| if at % 25 < 12 { at as f32 / 10.0 } else { 90.0 }).collect();
        let labels: Vec<u16> = (0..50).map(|at| at % 2).collect();
        let found = doubts(&at(&angles), &labels, 2).unwrap();
        assert!(found.is_weak() && found.contradictions > 10, "{found:?}");
        assert_eq!(found.contradicted.len(), 10);
        assert!(found.contradicted.is_sorted_by(|a, b| a.margin >= b.margin));
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        let none = doubts(&at(&[]), &[], 2).unwrap();
        assert_eq!((none.contradicted.len(), none.recognised), (0, None));
        // Alone in their classes, but for one that is empty.
        let found = doubts(&at(&[0.0, 90.0]), &[0, 1], 3).unwrap();
        assert!(found.contradicted.is_empty() && found.recognised.is_none(), "{found:?}");
    }
}
