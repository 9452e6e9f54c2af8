//! How far the confidence of a classifier can be believed.

use serde::Serialize;

/// Confidence and accuracy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    /// The expected calibration error: the mean distance of confidence and accuracy, in points.
    pub error: f64,
    /// Ten bins of equal width.
    pub bins: Vec<Bin>,
}

/// Images with a confidence in one range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bin {
    /// The lowest confidence, in percent.
    pub from: f64,
    /// The highest, in percent.
    pub to: f64,
    /// Number of images.
    pub images: usize,
    /// Their mean confidence, in percent; null if there are none.
    pub confidence: Option<f64>,
    /// Their accuracy, in percent; null if there are none.
    pub accuracy: Option<f64>,
}

const BINS: usize = 10;

impl Calibration {
    /// From the confidence in every prediction, 0 to 1, and whether it is right.
    pub fn of(predictions: impl Iterator<Item = (f64, bool)>) -> Self {
        let mut sums = [(0usize, 0.0, 0.0); BINS]; // images, confidence, right
        for (confidence, right) in predictions {
            let bin = &mut sums[((confidence * BINS as f64) as usize).min(BINS - 1)];
            bin.0 += 1;
            bin.1 += confidence;
            bin.2 += f64::from(right);
        }
        let distance: f64 =
            sums.iter().map(|(_, confidence, right)| (confidence - right).abs()).sum();
        let count: usize = sums.iter().map(|(images, ..)| images).sum();
        let bins = sums.iter().enumerate().map(|(at, &(images, confidence, right))| Bin {
            from: 100.0 * at as f64 / BINS as f64,
            to: 100.0 * (at + 1) as f64 / BINS as f64,
            images,
            confidence: percent(confidence, images as f64),
            accuracy: percent(right, images as f64),
        });
        Self { error: percent(distance, count as f64).unwrap_or_default(), bins: bins.collect() }
    }
}

/// A share in percent; `None` of nothing.
pub(crate) fn percent(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| 100.0 * part / whole)
}
