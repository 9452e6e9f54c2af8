//! How good a model is on labelled images.

use super::Prediction;
use crate::labels::{Calibration, percent};
use serde::Serialize;

/// A comparison of a model's predictions with the true labels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Assessment {
    /// Number of images.
    pub images: usize,
    /// The classification head.
    pub classifier: HeadScores,
    /// The nearest class by anchors.
    pub anchors: HeadScores,
    /// How far the classification head's confidence can be believed.
    pub calibration: Calibration,
}

/// The results of one head.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeadScores {
    /// Accuracy in percent.
    pub accuracy: f64,
    /// Every class.
    pub classes: Vec<ClassScore>,
    /// `confusion[truth][prediction]`: number of images.
    pub confusion: Vec<Vec<u64>>,
}

/// One class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassScore {
    /// Its name.
    pub class: String,
    /// Its images.
    pub images: u64,
    /// Of the images predicted to be of this class, those that are, in percent; null if there are none.
    pub precision: Option<f64>,
    /// Of the images of this class, those predicted to be, in percent; null if there are none.
    pub recall: Option<f64>,
}

/// Compares predictions with the true labels, one per prediction.
pub fn assess(predictions: &[Prediction], labels: &[u16], classes: &[String]) -> Assessment {
    Assessment {
        images: predictions.len(),
        classifier: head(predictions, labels, classes, Prediction::class),
        anchors: head(predictions, labels, classes, Prediction::anchor_class),
        calibration: Calibration::of(predictions.iter().zip(labels).map(|(prediction, &label)| {
            (f64::from(prediction.confidence()), prediction.class() == usize::from(label))
        })),
    }
}

fn head(
    predictions: &[Prediction],
    labels: &[u16],
    names: &[String],
    class: impl Fn(&Prediction) -> usize,
) -> HeadScores {
    let mut confusion = vec![vec![0u64; names.len()]; names.len()];
    for (prediction, &label) in predictions.iter().zip(labels) {
        confusion[usize::from(label)][class(prediction)] += 1;
    }
    let right: u64 = (0..names.len()).map(|class| confusion[class][class]).sum();
    let scores = names.iter().enumerate().map(|(class, name)| {
        let images: u64 = confusion[class].iter().sum();
        let predicted: u64 = confusion.iter().map(|row| row[class]).sum();
        let right = confusion[class][class] as f64;
        ClassScore {
            class: name.clone(),
            images,
            precision: percent(right, predicted as f64),
            recall: percent(right, images as f64),
        }
    });
    let classes = scores.collect();
    let accuracy = percent(right as f64, predictions.len() as f64).unwrap_or_default();
    HeadScores { accuracy, classes, confusion }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(probabilities: [f32; 2], scores: [f32; 2]) -> Prediction {
        Prediction { probabilities: probabilities.to_vec(), scores: scores.to_vec() }
    }

    #[test]
    fn four_predictions_by_hand() {
        let predictions = [
            prediction([0.95, 0.05], [0.5, 0.1]),  // cat, both right
            prediction([0.65, 0.35], [0.1, 0.2]),  // cat, only the classifier right
            prediction([0.25, 0.75], [0.3, 0.4]),  // cat, both wrong
            prediction([0.45, 0.55], [0.3, -0.4]), // dog, only the classifier right
        ];
        let names = ["cat".to_owned(), "dog".to_owned()];
        let found = assess(&predictions, &[0, 0, 0, 1], &names);
        assert_eq!((found.images, found.classifier.accuracy), (4, 75.0));
        assert_eq!(found.classifier.confusion, [[2, 1], [0, 1]]);
        let [cat, dog] = &found.classifier.classes[..] else { panic!("two classes") };
        assert_eq!((cat.images, cat.precision), (3, Some(100.0)));
        assert!((cat.recall.unwrap() - 200.0 / 3.0).abs() < 1e-9);
        assert_eq!((dog.precision, dog.recall), (Some(50.0), Some(100.0)));
        assert_eq!(found.anchors.confusion, [[1, 2], [1, 0]]);
        assert_eq!((found.anchors.accuracy, found.anchors.classes[1].recall), (25.0, Some(0.0)));
        // Distances 0.05, 0.35, 0.75 and 0.45, each alone in its bin.
        assert!((found.calibration.error - 40.0).abs() < 1e-4, "{:?}", found.calibration);
        assert_eq!(found.calibration.bins[9].images, 1);
        assert_eq!(found.calibration.bins[0].accuracy, None);
    }

    #[test]
    fn nothing_to_assess_is_no_error() {
        let found = assess(&[], &[], &["cat".to_owned()]);
        assert_eq!(
            (found.images, found.classifier.accuracy, found.calibration.error),
            (0, 0.0, 0.0)
        );
        assert_eq!(found.classifier.classes[0].recall, None);
    }
}
