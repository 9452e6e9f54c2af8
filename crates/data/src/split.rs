//! Which training images become the server's labelled anchors, and which are held out for validation; the
//! others form the clients' pool.
//!
//! The paper says "randomly split" and also "25 samples per label" for 250 anchors of ten classes;
//! only a class-balanced draw fits both, so it is the default. A uniform draw is available to study
//! the cost of an unbalanced anchor set. Either way every class needs an anchor: without one it has
//! no mean to compare latents with, which would give NaN in round 1. Each class draws from its own
//! stream, so adding a class does not change the anchors of the others.

use crate::error::unusable;
use crate::stream::SERVER;
use crate::{ImageSet, Purpose, Result, Stream};
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How anchors are drawn from the training images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AnchorChoice {
    /// The same number per class; a remainder goes to random classes.
    #[default]
    Balanced,
    /// Every image with the same probability.
    Uniform,
}

/// The training images in three parts, as sorted indices into the training set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The labelled images on the server.
    pub anchors: Vec<u32>,
    /// Labelled images that settings are chosen by, not used for training.
    pub validation: Vec<u32>,
    /// All other images, to be distributed over the clients.
    pub pool: Vec<u32>,
}

/// Draws `anchors` of the training images, then `validation` of the others. The anchors of a seed are the
/// same with and without validation images.
pub fn split(
    train: &ImageSet,
    anchors: usize,
    validation: usize,
    choice: AnchorChoice,
    seed: u64,
) -> Result<Split> {
    let labels = labels(train)?;
    let (classes, images) = (train.classes.len(), labels.len());
    if anchors < classes {
        return unusable(format!(
            "{anchors} anchors are too few for {classes} classes: every class needs at least one"
        ));
    }
    if anchors > images {
        return unusable(format!("cannot draw {anchors} anchors from {images} training images"));
    }
    let stream = Stream::new(seed, Purpose::Anchors, 0, SERVER);
    let all = 0..images as u32;
    let mut chosen = match choice {
        AnchorChoice::Balanced => balanced(train, anchors, stream)?,
        AnchorChoice::Uniform => {
            all.clone().collect::<Vec<u32>>().partial_shuffle(&mut stream.rng(), anchors).0.to_vec()
        }
    };
    chosen.sort_unstable();
    if let Some(class) = class_without_anchor(train, labels, &chosen) {
        return unusable(format!(
            "none of the {anchors} anchors is of class `{class}`: draw more anchors, or balanced ones"
        ));
    }
    let mut pool: Vec<u32> = all.filter(|index| chosen.binary_search(index).is_err()).collect();
    if validation > 0 && validation >= pool.len() {
        return unusable(format!(
            "{validation} validation images leave none of the {} that are not anchors to the clients",
            pool.len()
        ));
    }
    let validation = hold_out(&mut pool, validation, seed);
    Ok(Split { anchors: chosen, validation, pool })
}

/// Makes every labelled image an anchor, except for `validation` drawn ones: for data sets with separate images
/// of the clients.
pub fn split_all(labelled: &ImageSet, validation: usize, seed: u64) -> Result<Split> {
    let labels = labels(labelled)?;
    let mut anchors: Vec<u32> = (0..labels.len() as u32).collect();
    let validation = hold_out(&mut anchors, validation.min(labels.len()), seed);
    if let Some(class) = class_without_anchor(labelled, labels, &anchors) {
        return unusable(format!(
            "{} validation images leave no anchor of class `{class}`: label more, or validate on fewer",
            validation.len()
        ));
    }
    Ok(Split { anchors, validation, pool: Vec::new() })
}

/// The labels of a set with at least two classes.
fn labels(train: &ImageSet) -> Result<&[u16]> {
    let labels = train.require_labels("the choice of anchors")?;
    match train.classes.len() {
        2.. => Ok(labels),
        classes => unusable(format!(
            "a classifier needs at least two classes, but these images have {classes}"
        )),
    }
}

/// The first class that no anchor has.
fn class_without_anchor<'a>(
    train: &'a ImageSet,
    labels: &[u16],
    anchors: &[u32],
) -> Option<&'a str> {
    let mut has_anchor = vec![false; train.classes.len()];
    anchors.iter().for_each(|&anchor| has_anchor[usize::from(labels[anchor as usize])] = true);
    Some(&train.classes[has_anchor.iter().position(|has| !has)?])
}

/// Moves `count` drawn images to the validation part and returns it; both are sorted.
fn hold_out(images: &mut Vec<u32>, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = Stream::new(seed, Purpose::Validation, 0, SERVER).rng();
    let mut validation = images.partial_shuffle(&mut rng, count).0.to_vec();
    validation.sort_unstable();
    images.retain(|index| validation.binary_search(index).is_err());
    images.sort_unstable();
    validation
}

fn balanced(train: &ImageSet, anchors: usize, stream: Stream) -> Result<Vec<u32>> {
    let mut members = train.by_class();
    let each = anchors / members.len();
    let mut quota = vec![each; members.len()];
    let mut larger: Vec<usize> = (0..members.len()).filter(|&c| members[c].len() > each).collect();
    let rest = anchors % members.len();
    if let Some(class) = members.iter().position(|images| images.len() < each) {
        return unusable(format!(
            "{anchors} balanced anchors need {each} images per class, but class `{}` has {}",
            train.classes[class],
            members[class].len()
        ));
    }
    if larger.len() < rest {
        return unusable(format!(
            "{anchors} balanced anchors need {rest} classes with {} images, but only {} have them",
            each + 1,
            larger.len()
        ));
    }
    for &mut class in larger.partial_shuffle(&mut stream.rng(), rest).0 {
        quota[class] += 1;
    }
    let mut chosen = Vec::with_capacity(anchors);
    for (class, images) in members.iter_mut().enumerate() {
        let mut rng = stream.at(class as u64);
        chosen.extend_from_slice(images.partial_shuffle(&mut rng, quota[class]).0);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    /// Image i is of class i % `classes`; one grey pixel each.
    fn images(count: usize, classes: u16) -> ImageSet {
        ImageSet {
            shape: Shape { side: 1, channels: 1 },
            pixels: vec![0; count],
            features: None,
            labels: Some((0..count).map(|i| (i % usize::from(classes)) as u16).collect()),
            classes: (0..classes).map(|c| format!("class {c}")).collect(),
        }
    }

    fn counts(train: &ImageSet, indices: &[u32]) -> Vec<usize> {
        let mut counts = vec![0; train.classes.len()];
        for &index in indices {
            counts[usize::from(train.labels.as_ref().unwrap()[index as usize])] += 1;
        }
        counts
    }

    #[test]
    fn balanced_draws_the_same_number_per_class() {
        let train = images(100, 5);
        let split = split(&train, 25, 0, AnchorChoice::Balanced, 3).unwrap();
        assert_eq!(counts(&train, &split.anchors), [5; 5]);
        assert_eq!(counts(&train, &split.pool), [15; 5]);
        let mut all = [split.anchors.clone(), split.pool.clone()].concat();
        assert!(split.anchors.is_sorted() && split.pool.is_sorted());
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn the_remainder_goes_to_random_classes() {
        let train = images(100, 5);
        let extra = |seed| {
            let split = split(&train, 12, 0, AnchorChoice::Balanced, seed).unwrap();
            let counts = counts(&train, &split.anchors);
            assert_eq!(counts.iter().sum::<usize>(), 12);
            assert!(counts.iter().all(|count| [2, 3].contains(count)));
            counts
        };
        assert_eq!(extra(1), extra(1));
        assert!((2..20).any(|seed| extra(seed) != extra(1)));
    }

    #[test]
    fn draws_depend_on_the_seed_and_uniform_is_not_balanced() {
        let train = images(1000, 4);
        for choice in [AnchorChoice::Balanced, AnchorChoice::Uniform] {
            let first = split(&train, 40, 0, choice, 1).unwrap();
            assert_eq!(first, split(&train, 40, 0, choice, 1).unwrap());
            assert_ne!(first, split(&train, 40, 0, choice, 2).unwrap());
            assert_eq!((first.anchors.len(), first.pool.len()), (40, 960));
        }
        let unequal = (0..5).any(|seed| {
            counts(&train, &split(&train, 40, 0, AnchorChoice::Uniform, seed).unwrap().anchors)
                != [10; 4]
        });
        assert!(unequal);
    }

    #[test]
    fn validation_images_are_separate_and_do_not_change_the_anchors() {
        let train = images(1000, 4);
        let of = |validation, seed| split(&train, 40, validation, AnchorChoice::Balanced, seed);
        let (without, with) = (of(0, 1).unwrap(), of(100, 1).unwrap());
        assert_eq!(with.anchors, without.anchors);
        assert_eq!((with.validation.len(), with.pool.len()), (100, 860));
        let mut all = [with.anchors, with.validation.clone(), with.pool].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<u32>>());
        assert!(with.validation.is_sorted() && with.validation != of(100, 2).unwrap().validation);
        let error = of(960, 1).unwrap_err().to_string();
        assert!(error.contains("960 validation images leave none of the 960"), "{error}");
    }

    #[test]
    fn all_labelled_images_are_anchors_but_for_the_validation_images() {
        let labelled = images(10, 2);
        let whole = split_all(&labelled, 0, 1).unwrap();
        assert_eq!((whole.anchors, whole.pool), ((0..10).collect(), vec![]));
        let some = split_all(&labelled, 3, 1).unwrap();
        assert_eq!((some.anchors.len(), some.validation.len()), (7, 3));
        let mut all = [some.anchors, some.validation].concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<u32>>());
        let error = split_all(&labelled, 10, 1).unwrap_err().to_string();
        assert!(error.contains("10 validation images leave no anchor of class"), "{error}");
    }

    #[test]
    fn impossible_splits_are_errors_that_say_why() {
        let why = |train: &ImageSet, anchors, choice| {
            split(train, anchors, 0, choice, 0).unwrap_err().to_string()
        };
        let train = images(10, 5);
        assert!(why(&train, 4, AnchorChoice::Balanced).contains("too few for 5 classes"));
        assert!(why(&train, 11, AnchorChoice::Uniform).contains("from 10 training images"));
        let lopsided = ImageSet { labels: Some(vec![0, 0, 0, 0, 0, 1]), ..images(6, 2) };
        assert_eq!(
            why(&lopsided, 4, AnchorChoice::Balanced),
            "4 balanced anchors need 2 images per class, but class `class 1` has 1"
        );
        assert!(split(&lopsided, 3, 0, AnchorChoice::Balanced, 0).is_ok());
        let absent = ImageSet { labels: Some(vec![0; 6]), ..images(6, 2) };
        assert!(why(&absent, 4, AnchorChoice::Uniform).contains("of class `class 1`"));
        let unlabelled = ImageSet { labels: None, ..images(6, 2) };
        assert!(why(&unlabelled, 4, AnchorChoice::Balanced).contains("needs labels"));
    }
}
