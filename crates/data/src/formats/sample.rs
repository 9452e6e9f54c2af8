//! The sample embedded in the program, so that a first experiment needs no download.
//!
//! A balanced subset of MNIST (CC BY-SA 3.0, `assets/mnist.LICENSE`): the first 600
//! training and 100 test images of every class, in file order, made by `scripts/make_sample.py`. It
//! is one zlib stream of raw pixels, one image of each class in turn, so labels follow from
//! positions. PNG sheets were rejected: hardly smaller, and slower to decode.

use super::idx::MNIST;
use crate::{DataError, DataSet, ImageSet, Result, Shape};
use std::io::Read;

/// The name of the sample in an experiment's `data.name`.
pub const NAME: &str = "sample";

/// Images per class in the training part.
const TRAIN: usize = 600;
/// Images per class in the test part.
const TEST: usize = 100;
const SHAPE: Shape = Shape { side: 28, channels: 1 };

/// Unpacks the sample.
pub fn load() -> Result<DataSet> {
    let asset = include_bytes!("../../assets/mnist.zlib");
    let mut pixels = flate2::read::ZlibDecoder::new(&asset[..]);
    let mut part = |per_class: usize| {
        let count = MNIST.classes.len() * per_class;
        let mut images = vec![0; count * SHAPE.bytes()];
        let read = pixels.read_exact(&mut images);
        read.map_err(|error| DataError::io("assets/mnist.zlib", error))?;
        let labels = (0..count).map(|image| (image % MNIST.classes.len()) as u16).collect();
        let classes = MNIST.class_names();
        Ok::<_, DataError>(ImageSet::new(SHAPE, images, Some(labels), classes))
    };
    let (normalisation, flip) = (MNIST.normalisation(), MNIST.flip);
    Ok(DataSet { normalisation, flip, ..DataSet::new(NAME, part(TRAIN)?, part(TEST)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Normalisation;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_sample_is_balanced_and_unchanged() {
        let sample = load().unwrap();
        assert_eq!((sample.train.len(), sample.test.len()), (6000, 1000));
        assert_eq!(sample.train.class_counts(), [600; 10]);
        assert_eq!(sample.test.class_counts(), [100; 10]);
        let hash = |images: &ImageSet| -> String {
            Sha256::digest(&images.pixels).iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(
            hash(&sample.train),
            "50197ff3c2559e7159db09223e9dd5b1fd233b248ef1ccdfa1ecf0048ac5558e"
        );
        assert_eq!(
            hash(&sample.test),
            "501ea962d3888c85dbe46f44fe52d6cdbac808d88b775be13f3b2bb762b5b0a6"
        );
    }

    #[test]
    fn the_class_of_an_image_follows_from_its_position() {
        // The first image of the official training file is a five: the first of class 5.
        let train = load().unwrap().train;
        assert_eq!(train.classes[usize::from(train.labels.as_ref().unwrap()[5])], "5");
        let five = train.image(5);
        assert_eq!(five[..28 * 5], [0; 28 * 5]); // the background above it
        assert_eq!(five[5 * 28 + 12..5 * 28 + 16], [3, 18, 18, 18]);
    }

    #[test]
    fn the_published_normalisation_fits_the_subset() {
        let sample = load().unwrap();
        let measured = Normalisation::measure(&sample.train);
        assert!((measured.mean[0] - sample.normalisation.mean[0]).abs() < 0.01);
        assert!((measured.std[0] - sample.normalisation.std[0]).abs() < 0.01);
    }
}
