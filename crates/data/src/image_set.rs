//! Images in memory: 8-bit, square, channels last.

use crate::skipped::Skipped;
use crate::{DataError, Result};
use half::f16;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of every image of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Width and height in pixels.
    pub side: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let colour = if self.channels == 1 { "grey" } else { "colour" };
        write!(f, "{colour} images of {0} x {0} pixels", self.side)
    }
}

impl Shape {
    /// Bytes per image.
    pub fn bytes(&self) -> usize {
        self.side * self.side * self.channels
    }
}

/// What is known of a trunk; it travels in model files and to nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrunkInfo {
    /// Its name, or that of its file.
    pub name: String,
    /// The hash of its file: two trunks are the same if this is.
    pub hash: String,
    /// Pixels per side of the pictures that it reads.
    pub size: usize,
    /// How their pixels are normalised.
    pub normalisation: Normalisation,
    /// The licence of its weights, as their publisher states it.
    pub licence: String,
    /// Where they come from.
    pub source: String,
}

impl TrunkInfo {
    /// The shape of the pictures that it reads.
    pub fn shape(&self) -> Shape {
        Shape { side: self.size, channels: 3 }
    }
}

/// What the features of a picture are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureFormat {
    /// The pictures that the trunk reads.
    pub picture: Shape,
    /// Numbers per vector, in half precision.
    pub width: usize,
    /// Vectors per row and column of a view: 1, or more where the last stage of the trunk is trained on what it reads.
    #[serde(default = "one")]
    pub side: usize,
    /// Vectors of weakly augmented views, and as many of strongly augmented ones.
    pub views: usize,
}

fn one() -> usize {
    1
}

impl FeatureFormat {
    /// Bytes per view.
    pub fn bytes(&self) -> usize {
        2 * self.width * self.side * self.side
    }

    /// Views per picture: of the picture as it is, of the weak views, of the strong ones.
    pub fn vectors(&self) -> usize {
        1 + 2 * self.views
    }
}

/// The features of a set of pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// What they are.
    pub format: FeatureFormat,
    /// `[pictures, views, side, side, width]` in half precision.
    pub values: Vec<u8>,
}

impl Features {
    fn stride(&self) -> usize {
        self.format.vectors() * self.format.bytes()
    }

    /// All vectors of a picture.
    pub fn of(&self, index: usize) -> &[u8] {
        &self.values[index * self.stride()..][..self.stride()]
    }

    /// Mean and standard deviation by number, of pictures as they are; a stage of the trunk reads them unchanged.
    pub(crate) fn normalisation(&self) -> Normalisation {
        let width = self.format.width;
        if self.format.side > 1 {
            return Normalisation { mean: vec![0.0; width], std: vec![1.0; width] };
        }
        let (mut sum, mut square) = (vec![0.0; width], vec![0.0; width]);
        let count = self.values.len() / self.stride();
        for index in 0..count {
            let numbers = self.of(index)[..2 * width].as_chunks().0.iter();
            for (at, number) in
                numbers.map(|&bytes| f64::from(f16::from_le_bytes(bytes))).enumerate()
            {
                sum[at] += number;
                square[at] += number * number;
            }
        }
        let count = count.max(1) as f64;
        let mean: Vec<f64> = sum.iter().map(|sum| sum / count).collect();
        let variance =
            square.iter().zip(&mean).map(|(square, mean)| (square / count - mean * mean).max(0.0));
        let variance: Vec<f64> = variance.collect();
        // Numbers that hardly vary on few pictures would otherwise be enlarged.
        let least = 0.25 * (variance.iter().sum::<f64>() / width as f64).sqrt().max(1e-4);
        Normalisation {
            mean: mean.iter().map(|&mean| mean as f32).collect(),
            std: variance.iter().map(|variance| variance.sqrt().max(least) as f32).collect(),
        }
    }

    /// Those of some pictures.
    pub fn select(&self, indices: &[u32]) -> Self {
        let values = indices.iter().flat_map(|&index| self.of(index as usize)).copied().collect();
        Self { format: self.format, values }
    }
}

/// Images of one shape, with or without labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSet {
    /// The shape of every image; where there are features, that of thumbnails.
    pub shape: Shape,
    /// All pixels: `[count, side, side, channels]`.
    pub pixels: Vec<u8>,
    /// What a network reads in place of the pixels, where a trunk has made it of the pictures.
    pub features: Option<Features>,
    /// One class number per image; `None` for an unlabelled set.
    pub labels: Option<Vec<u16>>,
    /// Names of the classes, by class number.
    pub classes: Vec<String>,
}

/// What a network reads of an image: its pixels, or features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFormat {
    /// The shape of images or, with a trunk, of the pictures that it reads.
    pub shape: Shape,
    /// What the trunk makes of them.
    pub features: Option<FeatureFormat>,
}

impl From<Shape> for InputFormat {
    fn from(shape: Shape) -> Self {
        Self { shape, features: None }
    }
}

impl InputFormat {
    /// Bytes per image that a network reads.
    pub fn bytes(&self) -> usize {
        self.features.map_or(self.shape.bytes(), |features| features.bytes())
    }

    /// The shape of a network's input: a vector is an image of one pixel.
    pub fn network(&self) -> Shape {
        self.features
            .map_or(self.shape, |FeatureFormat { side, width, .. }| Shape { side, channels: width })
    }
}

impl ImageSet {
    /// Images without features.
    pub fn new(
        shape: Shape,
        pixels: Vec<u8>,
        labels: Option<Vec<u16>>,
        classes: Vec<String>,
    ) -> Self {
        Self { shape, pixels, features: None, labels, classes }
    }

    /// What a network reads of these images.
    pub fn format(&self) -> InputFormat {
        let features = self.features.as_ref().map(|features| features.format);
        InputFormat { shape: features.map_or(self.shape, |format| format.picture), features }
    }

    /// What a network reads of image `index`, before augmentation: all of its features, or its pixels.
    pub fn input(&self, index: usize) -> &[u8] {
        match &self.features {
            Some(features) => features.of(index),
            None => self.image(index),
        }
    }

    /// Adds images of the same format, without their labels.
    pub fn append(&mut self, other: ImageSet) {
        self.pixels.extend(other.pixels);
        if let (Some(features), Some(others)) = (&mut self.features, other.features) {
            features.values.extend(others.values);
        }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.pixels.len() / self.shape.bytes()
    }

    /// True if there is no image.
    pub fn is_empty(&self) -> bool {
        self.pixels.is_empty()
    }

    /// The pixels of image `index`: `[side, side, channels]`.
    pub fn image(&self, index: usize) -> &[u8] {
        let bytes = self.shape.bytes();
        &self.pixels[index * bytes..(index + 1) * bytes]
    }

    /// These images, in this order.
    pub fn select(&self, indices: &[u32]) -> Self {
        let image = |index: &u32| self.image(*index as usize);
        let label = |labels: &Vec<u16>| indices.iter().map(|&i| labels[i as usize]).collect();
        Self {
            shape: self.shape,
            pixels: indices.iter().flat_map(image).copied().collect(),
            features: self.features.as_ref().map(|features| features.select(indices)),
            labels: self.labels.as_ref().map(label),
            classes: self.classes.clone(),
        }
    }

    /// The same images with this number of channels: colours become their luma (Rec. 601).
    pub fn with_channels(mut self, channels: usize) -> Self {
        if self.shape.channels != channels {
            let pixels = self.pixels.chunks_exact(self.shape.channels);
            self.pixels = match channels {
                1 => pixels.map(luma).collect(),
                _ => pixels.flat_map(|pixel| [pixel[0]; 3]).collect(),
            };
            self.shape.channels = channels;
        }
        self
    }

    /// The labels, or an error that says what needs them.
    pub fn require_labels(&self, user: &str) -> Result<&[u16]> {
        self.labels.as_deref().ok_or_else(|| {
            DataError::Unusable(format!(
                "{user} needs labels, but these images have none: use one subfolder per class"
            ))
        })
    }

    /// Images per class; all zero for an unlabelled set.
    pub fn class_counts(&self) -> Vec<usize> {
        self.by_class().iter().map(Vec::len).collect()
    }

    /// The images of every class; none for an unlabelled set.
    pub fn by_class(&self) -> Vec<Vec<u32>> {
        by_class(self.labels.as_deref().unwrap_or_default(), self.classes.len())
    }
}

/// The images of every class, in order, by the labels of all images.
pub(crate) fn by_class(labels: &[u16], classes: usize) -> Vec<Vec<u32>> {
    let mut members = vec![Vec::new(); classes];
    for (image, &label) in (0..).zip(labels) {
        members[usize::from(label)].push(image);
    }
    members
}

/// The brightness of a colour.
fn luma(pixel: &[u8]) -> u8 {
    let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
    ((299 * red + 587 * green + 114 * blue + 500) / 1000) as u8
}

/// Mean and standard deviation, by channel, of pixels scaled to the range from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Normalisation {
    /// Mean of pixels scaled to the range from 0 to 1, one number per channel.
    #[serde(serialize_with = "shortest")]
    pub mean: Vec<f32>,
    /// Standard deviation of the same, one number per channel.
    #[serde(serialize_with = "shortest")]
    pub std: Vec<f32>,
}

/// Writes single-precision numbers with the fewest digits that tell them apart: widened to double precision, 0.1 would
/// become 0.10000000149011612, and a config would differ from its copy in a run folder.
fn shortest<S: serde::Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    let shortest = |value: &f32| value.to_string().parse().unwrap_or(f64::from(*value));
    serializer.collect_seq(values.iter().map(shortest))
}

impl Normalisation {
    /// Measures a set of images; for data sets without published values.
    pub fn measure(images: &ImageSet) -> Self {
        let channels = images.shape.channels;
        let mut sum = vec![0u64; channels];
        let mut square = vec![0u64; channels];
        for pixel in images.pixels.chunks_exact(channels) {
            for (channel, &value) in pixel.iter().enumerate() {
                sum[channel] += u64::from(value);
                square[channel] += u64::from(value) * u64::from(value);
            }
        }
        let count = (images.pixels.len() / channels).max(1) as f64;
        let mean: Vec<f64> = sum.iter().map(|&s| s as f64 / count / 255.0).collect();
        let std = square.iter().zip(&mean).map(|(&s, m)| {
            let variance = s as f64 / count / (255.0 * 255.0) - m * m;
            // A constant channel has no deviation: 1 maps it to zero and avoids dividing by 0.
            if variance > 1e-8 { variance.sqrt() as f32 } else { 1.0 }
        });
        Self { std: std.collect(), mean: mean.iter().map(|&m| m as f32).collect() }
    }
}

/// The clients' images, which have no labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlabelled {
    /// The images of all clients, without labels.
    pub images: ImageSet,
    /// The images of every client, as indices; empty if the images are not assigned to clients.
    pub clients: Vec<Vec<u32>>,
    /// The names of the clients; empty if the images are not assigned to clients.
    pub client_names: Vec<String>,
}

/// A data set of an experiment: a training part, from which anchors and clients' images are drawn, and a
/// test part. If there are unlabelled images, these are the clients', and only the server has the training part.
#[derive(Debug, Clone)]
pub struct DataSet {
    /// Its published or registered name, or the path it was read from.
    pub name: String,
    /// Labelled images, for anchors and clients; for the server alone if there are unlabelled images.
    pub train: ImageSet,
    /// The clients' images, if they are not from the training part.
    pub unlabelled: Option<Unlabelled>,
    /// Images for testing.
    pub test: ImageSet,
    /// The normalisation of the network input.
    pub normalisation: Normalisation,
    /// Whether a mirrored image still belongs to its class (false for digits).
    pub flip: bool,
    /// Files that were not read.
    pub skipped: Vec<Skipped>,
    /// The trunk that made the features of its images, if they have any.
    pub trunk: Option<TrunkInfo>,
}

impl DataSet {
    /// A data set of a training and a test part. Its normalisation is measured, and mirroring is allowed.
    pub fn new(name: impl Into<String>, train: ImageSet, test: ImageSet) -> Self {
        let normalisation = Normalisation::measure(&train);
        let (name, skipped) = (name.into(), Vec::new());
        let (unlabelled, trunk) = (None, None);
        Self { name, train, unlabelled, test, normalisation, flip: true, skipped, trunk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_become_grey_and_grey_becomes_a_colour() {
        let shape = Shape { side: 1, channels: 3 };
        let colours = ImageSet {
            shape,
            pixels: vec![255, 0, 0, 10, 20, 30],
            features: None,
            labels: Some(vec![0, 1]),
            classes: vec!["red".to_owned(), "dark".to_owned()],
        };
        let grey = colours.clone().with_channels(1);
        // 0.299 x 255 = 76.2; 0.299 x 10 + 0.587 x 20 + 0.114 x 30 = 18.2.
        assert_eq!((&grey.pixels[..], grey.shape.channels, grey.len()), (&[76, 18][..], 1, 2));
        assert_eq!(grey.with_channels(3).pixels, [76, 76, 76, 18, 18, 18]);
        assert_eq!(colours.clone().with_channels(3), colours);
    }

    #[test]
    fn a_normalisation_is_the_same_after_it_was_read_back() {
        let measured = Normalisation { mean: vec![0.1239], std: vec![0.1, 1.0 / 3.0] };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(text, r#"{"mean":[0.1239],"std":[0.1,0.33333334]}"#);
        let read: Normalisation = serde_json::from_str(&text).unwrap();
        assert_eq!((&read, serde_json::to_string(&read).unwrap()), (&measured, text));
    }
}
