//! Facts about the published data sets that their files do not contain: class names, normalisation,
//! whether a mirrored image keeps its class.
//!
//! Measuring the normalisation every time was rejected: the values in common use keep results
//! comparable with other code, and they can differ from measured ones. The deviation commonly used
//! for CIFAR-10 is the mean over images of each image's deviation (0.20); over all pixels it is
//! 0.25.

use crate::Normalisation;

/// Facts about one published data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// Its common name.
    pub title: &'static str,
    /// Class names, by class number.
    pub classes: &'static [&'static str],
    /// Mean of the training pixels scaled to [0, 1], one per channel.
    pub mean: &'static [f32],
    /// Standard deviation commonly used, one per channel.
    pub std: &'static [f32],
    /// Whether a mirrored image still belongs to its class.
    pub flip: bool,
}

impl Known {
    /// The class names as an image set holds them.
    pub fn class_names(&self) -> Vec<String> {
        self.classes.iter().map(|&name| name.to_owned()).collect()
    }

    /// The published normalisation.
    pub fn normalisation(&self) -> Normalisation {
        Normalisation { mean: self.mean.to_vec(), std: self.std.to_vec() }
    }
}

/// CIFAR-10: 32 x 32 colour photographs.
pub const CIFAR10: Known = Known {
    title: "CIFAR-10",
    classes: &CIFAR10_CLASSES,
    mean: &[0.4914, 0.4822, 0.4465],
    std: &[0.2023, 0.1994, 0.2010],
    flip: true,
};

/// CIFAR-100 with its fine labels.
pub const CIFAR100: Known = Known {
    title: "CIFAR-100",
    classes: &CIFAR100_CLASSES,
    mean: &[0.5071, 0.4865, 0.4409],
    std: &[0.2673, 0.2564, 0.2762],
    flip: true,
};

/// SVHN, cropped digits: 32 x 32 colour photographs of house numbers.
pub const SVHN: Known = Known {
    title: "SVHN",
    classes: &DIGITS,
    mean: &[0.4377, 0.4438, 0.4728],
    std: &[0.1980, 0.2010, 0.1970],
    flip: false,
};

/// MNIST: 28 x 28 handwritten digits.
pub const MNIST: Known =
    Known { title: "MNIST", classes: &DIGITS, mean: &[0.1307], std: &[0.3081], flip: false };

/// Fashion-MNIST: 28 x 28 grey images of clothing, with the file names of MNIST.
pub const FASHION_MNIST: Known = Known {
    title: "Fashion-MNIST",
    classes: &FASHION_CLASSES,
    mean: &[0.2860],
    std: &[0.3530],
    flip: true,
};

/// The ten digits as class names.
pub const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The classes of CIFAR-10.
pub const CIFAR10_CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The classes of Fashion-MNIST.
pub const FASHION_CLASSES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

/// The fine classes of CIFAR-100.
#[rustfmt::skip]
pub const CIFAR100_CLASSES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_consistent() {
        for known in [CIFAR10, CIFAR100, SVHN, MNIST, FASHION_MNIST] {
            let Normalisation { mean, std } = known.normalisation();
            assert_eq!(mean.len(), std.len(), "{}", known.title);
            assert!(std.iter().all(|&s| s > 0.0), "{}", known.title);
            let mut names = known.class_names();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), known.classes.len(), "{}: duplicate class name", known.title);
        }
    }

    #[test]
    fn fine_classes_are_alphabetical() {
        assert!(CIFAR100_CLASSES.is_sorted());
        assert_eq!((CIFAR100_CLASSES[0], CIFAR100_CLASSES[99]), ("apple", "worm"));
    }
}
