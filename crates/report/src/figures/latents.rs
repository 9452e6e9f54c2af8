//! The latent space in a plane, by t-SNE.
//!
//! The start is fixed, so that the same latents give about the same picture, and the result is kept in a
//! cache: 2,000 latents take seconds.

use super::{Figure, Frame, MOST_MODELS, Options, short};
use crate::chart::{Chart, ClassPoints};
use crate::study::Section;
use bhtsne::tSNE;
use fedanchor_record::Latents;
use std::path::Path;

/// With fewer points there is nothing to see.
const FEWEST: usize = 12;
const PERPLEXITY: f32 = 30.0;
const EPOCHS: usize = 750;
/// How exact the forces between far points are: smaller is more exact.
const THETA: f32 = 0.5;

/// Latents of test images by t-SNE, one frame per experiment and saved round, of the first seed with latents.
pub(super) fn plane(section: &Section, options: &Options) -> Option<Figure> {
    let mut frames = Vec::new();
    let saved = section.experiments.iter().filter_map(|experiment| {
        Some((experiment, experiment.runs.iter().find(|run| !run.latents.is_empty())?))
    });
    let all = saved.clone().count();
    for (experiment, run) in saved.take(MOST_MODELS) {
        for (round, latents) in &run.latents {
            let points = points(latents, options.cache.as_deref());
            let classes = run.classes().into_iter().enumerate().map(|(class, name)| {
                let own = points.iter().zip(&latents.labels);
                let own = own.filter(|(_, label)| usize::from(**label) == class);
                ClassPoints { name, points: own.map(|(point, _)| *point).collect() }
            });
            let chart = Chart::Points(classes.collect());
            frames.push(Frame { name: format!("{}, round {round}", experiment.name), chart });
        }
    }
    let caption = "Latents of test images in a plane by t-SNE (cosine distance, perplexity 30, fixed start), \
                   coloured by true class; stars are the classes' centroids. Distances between far groups \
                   mean little.";
    let figure = Figure::new(section, "latents", "Latent space", caption);
    let mut figure = figure.limited(all.min(MOST_MODELS), all).framed("round", frames)?;
    figure.chosen = figure.frames.len() - 1;
    Some(figure)
}

/// A point per latent; none if there are too few of them.
fn points(latents: &Latents, cache: Option<&Path>) -> Vec<[f64; 2]> {
    let count = latents.labels.len();
    if count < FEWEST {
        return Vec::new();
    }
    let file = cache.map(|folder| folder.join(format!("{}.json", key(latents))));
    let kept = file.as_ref().and_then(|file| {
        let bytes = fedanchor_disk::read(file, fedanchor_disk::limit(file)).ok()?;
        serde_json::from_slice::<Vec<[f64; 2]>>(&bytes).ok()
    });
    if let Some(points) = kept.filter(|points| points.len() == count) {
        return points;
    }
    let points = embed(latents);
    if let Some(file) = file {
        // A cache that cannot be written costs time, nothing else.
        let _ = keep(&file, &points);
    }
    points
}

fn keep(file: &Path, points: &[[f64; 2]]) -> std::io::Result<()> {
    fs_err::create_dir_all(file.parent().unwrap_or(file))?;
    fedanchor_disk::write(file, &[&serde_json::to_vec(points)?])
}

/// Names the result: the latents, and how they are laid out.
fn key(latents: &Latents) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(format!("t-SNE {PERPLEXITY} {EPOCHS} {THETA} {}", latents.width).as_bytes());
    for value in &latents.latents {
        hash.update(&value.to_le_bytes());
    }
    hash.finalize().to_hex()[..32].to_owned()
}

fn embed(latents: &Latents) -> Vec<[f64; 2]> {
    // Labels go by cosine: directions count, lengths do not.
    let units: Vec<Vec<f32>> = latents
        .rows()
        .map(|row| {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            row.iter().map(|value| if length > 0.0 { value / length } else { 0.0 }).collect()
        })
        .collect();
    let count = units.len();
    let start: Vec<f32> = (0..count).flat_map(spiral).collect();
    let distance = |a: &Vec<f32>, b: &Vec<f32>| {
        let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
        squares.sum::<f32>().sqrt()
    };
    let embedding = tSNE::<f32, Vec<f32>, 2>::new(&units)
        .perplexity(PERPLEXITY.min((count - 1) as f32 / 3.0 - 1.0))
        .epochs(EPOCHS)
        .initial_embedding(start)
        .barnes_hut(THETA, distance)
        .embedding();
    embedding
        .chunks_exact(2)
        .map(|point| [point[0], point[1]].map(|value| short(f64::from(value))))
        .collect()
}

/// A small start without structure: the points of a sunflower.
fn spiral(place: usize) -> [f32; 2] {
    let angle = place as f32 * 2.399_963;
    let radius = 1e-4 * (place as f32).sqrt();
    [radius * angle.cos(), radius * angle.sin()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bundles of directions in 8 dimensions, 60 latents each.
    fn bundles() -> Latents {
        let latent = |place: usize| {
            let class = place % 2;
            (0..8).map(move |axis| {
                let noise = ((place * 31 + axis * 17) % 23) as f32 / 50.0;
                if axis == class { 5.0 + place as f32 / 20.0 } else { noise }
            })
        };
        Latents {
            width: 8,
            latents: (0..120).flat_map(latent).collect(),
            labels: (0..120).map(|place| place % 2).collect(),
            ..Latents::default()
        }
    }

    #[test]
    fn classes_that_point_elsewhere_are_apart() {
        let points = points(&bundles(), None);
        assert_eq!(points.len(), 120);
        let of_class = |class: usize| points.iter().copied().skip(class).step_by(2).collect();
        let [first, second] =
            [0, 1].map(|class| ClassPoints { name: String::new(), points: of_class(class) });
        let between = distance(first.centre(), second.centre());
        let spread = |class: &ClassPoints| {
            let sum: f64 = class.points.iter().map(|point| distance(*point, class.centre())).sum();
            sum / 60.0
        };
        assert!(between > 2.0 * spread(&first).max(spread(&second)), "{between}");
    }

    fn distance(a: [f64; 2], b: [f64; 2]) -> f64 {
        (a[0] - b[0]).hypot(a[1] - b[1])
    }

    #[test]
    fn results_are_kept_and_damaged_ones_computed_anew() {
        let cache = tempfile::tempdir().unwrap();
        let points = |latents: &Latents| points(latents, Some(cache.path()));
        let latents = bundles();
        let first = points(&latents);
        let file = cache.path().join(format!("{}.json", key(&latents)));
        let text = fs_err::read_to_string(&file).unwrap();
        assert_eq!(serde_json::from_str::<Vec<[f64; 2]>>(&text).unwrap(), first);
        fs_err::write(&file, format!("[{}]", vec!["[1.0,2.0]"; 120].join(","))).unwrap();
        assert_eq!(points(&latents)[7], [1.0, 2.0]);
        fs_err::write(&file, "[[1.0,2.0]]").unwrap();
        assert_eq!(points(&latents).len(), 120);
    }

    #[test]
    fn few_points_are_no_picture() {
        let few =
            Latents { width: 2, latents: vec![0.0; 6], labels: vec![0; 3], ..Latents::default() };
        assert!(points(&few, None).is_empty());
    }
}
