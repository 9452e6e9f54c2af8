//! Class probabilities of a client's images, and the class shares that follow from them without a label. A
//! client that holds two classes of ten should not label as if it held all ten alike: once its shares are
//! known, an image between a class that the client has and one that it has not is no longer in doubt.

/// Expectation maximisation converges geometrically; the shares hardly move after this many steps.
const STEPS: usize = 30;
/// Images of every class added to the counts of the client's own, so that no class is ruled out and few images do
/// not decide: a client with less than some 20 images of one class of ten counts as holding most of them.
const PSEUDOCOUNT: f64 = 5.0;

/// The softmax of each image's cosines with `classes` classes.
pub(super) fn softmax(cosines: &[f32], classes: usize, temperature: f64) -> Vec<f64> {
    let mut probabilities = Vec::with_capacity(cosines.len());
    for image in cosines.chunks_exact(classes) {
        let largest = image.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |cosine: &f32| (f64::from(cosine - largest) / temperature).exp();
        let total: f64 = image.iter().map(weight).sum();
        probabilities.extend(image.iter().map(|cosine| weight(cosine) / total));
    }
    probabilities
}

/// The class shares under which a client's images are most likely (Saerens, Latinne and Decaestecker, 2002), from
/// their probabilities if all classes were equally frequent.
pub(super) fn class_shares(probabilities: &[f64], classes: usize) -> Vec<f64> {
    let mut shares = vec![1.0 / classes as f64; classes];
    for _ in 0..STEPS {
        let mut counts = vec![PSEUDOCOUNT; classes];
        for image in probabilities.chunks_exact(classes) {
            let joint = || image.iter().zip(&shares).map(|(p, share)| p * share);
            let total: f64 = joint().sum();
            if total > 0.0 {
                counts.iter_mut().zip(joint()).for_each(|(count, joint)| *count += joint / total);
            }
        }
        let total: f64 = counts.iter().sum();
        shares = counts.into_iter().map(|count| count / total).collect();
    }
    shares
}

/// The number of equally frequent classes with the same entropy as these shares.
pub(crate) fn effective_classes(shares: &[f64]) -> f64 {
    let entropy = |share: &f64| if *share > 0.0 { -share * share.ln() } else { 0.0 };
    shares.iter().map(entropy).sum::<f64>().exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], expected: &[f64], within: f64) {
        assert_eq!(found.len(), expected.len());
        let mut pairs = found.iter().zip(expected);
        assert!(pairs.all(|(a, b)| (a - b).abs() < within), "{found:?} is not {expected:?}");
    }

    #[test]
    fn probabilities_by_hand() {
        let found = softmax(&[3f32.ln(), 0.0, 0.0, 9f32.ln()], 2, 2.0);
        let root = 3f64.sqrt();
        close(&found, &[root / (root + 1.0), 1.0 / (root + 1.0), 0.25, 0.75], 1e-6);
    }

    #[test]
    fn certain_images_are_counted() {
        let images = [1.0, 0.0, 0.0].repeat(75).into_iter().chain([0.0, 1.0, 0.0].repeat(10));
        let found = class_shares(&images.collect::<Vec<_>>(), 3);
        close(&found, &[0.8, 0.15, 0.05], 1e-12);
    }

    /// A labeller that is right with probability 0.7 finds 0.66 of the first class where there are 0.9; the
    /// estimate takes its errors back.
    #[test]
    fn errors_of_the_labeller_are_taken_back() {
        let images = [0.7, 0.3].repeat(6_600).into_iter().chain([0.3, 0.7].repeat(3_400));
        close(&class_shares(&images.collect::<Vec<_>>(), 2), &[0.9, 0.1], 0.02);
    }

    #[test]
    fn effective_classes_by_hand() {
        assert!((effective_classes(&[0.25; 4]) - 4.0).abs() < 1e-12);
        assert!((effective_classes(&[0.5, 0.0, 0.5, 0.0]) - 2.0).abs() < 1e-12);
        assert!((effective_classes(&[0.0, 1.0]) - 1.0).abs() < 1e-12);
        assert!(effective_classes(&[0.9, 0.1]) > 1.3 && effective_classes(&[0.9, 0.1]) < 1.4);
    }

    #[test]
    fn no_images_and_no_probability_leave_the_classes_alike() {
        close(&class_shares(&[], 4), &[0.25; 4], 1e-12);
        close(&class_shares(&[0.0; 8], 4), &[0.25; 4], 1e-12);
    }
}
