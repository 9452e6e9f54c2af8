//! Features: the vectors that a pretrained trunk makes of pictures, once, on the machine that owns them.
//!
//! Of every picture there are several: one as it is, some of weakly and some of strongly augmented views. Training draws
//! one of them where it would augment an image. Pictures are read, augmented and encoded one by one, so memory holds a
//! few of them whatever their number, and the features of a picture depend on nothing but the picture: neither on the
//! others nor on the number of threads. A run keeps the features and a thumbnail for people, never the picture.

mod cache;

use crate::augment::{self, Strong};
use crate::formats::{MAX_SIDE, Options};
use crate::pictures::{self, Fit};
use crate::skipped::Reason;
use crate::stream::{Purpose, SERVER, Stream};
use crate::{DataError, DataSet, ImageSet, Normalisation, Result, Shape};
use cache::Cache;
use half::f16;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Vectors of weakly augmented views, and as many of strongly augmented ones.
    pub views: usize,
}

impl FeatureFormat {
    /// Bytes per vector.
    pub fn bytes(&self) -> usize {
        2 * self.width
    }

    /// Vectors per picture: of the picture as it is, of the weak views, of the strong ones.
    pub fn vectors(&self) -> usize {
        1 + 2 * self.views
    }
}

/// The features of a set of pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// What they are.
    pub format: FeatureFormat,
    /// `[pictures, vectors, width]` in half precision.
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

    /// Mean and standard deviation by number, of pictures as they are.
    fn normalisation(&self) -> Normalisation {
        let width = self.format.width;
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

/// Encodes pictures `[count, side, side, channels]` as vectors in half precision, `[count, width]`.
type Encode = dyn Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync;

/// Turns pictures into features.
#[derive(Clone)]
pub struct Extractor {
    /// What it makes.
    pub format: FeatureFormat,
    /// Its trunk. Cached features of another are not used.
    pub trunk: TrunkInfo,
    /// How strong views are made.
    pub strong: Strong,
    /// Whether views are mirrored [default: as the data set allows].
    pub flip: Option<bool>,
    /// What the trunk computes.
    pub encode: Arc<Encode>,
}

/// The most pixels per side of a thumbnail.
const THUMBNAIL: usize = 64;

/// A thumbnail and the features of one picture.
struct Extracted {
    thumbnail: Vec<u8>,
    vectors: Vec<u8>,
}

impl Extractor {
    fn thumbnail(&self) -> Shape {
        let Shape { side, channels } = self.format.picture;
        Shape { side: side.min(THUMBNAIL), channels }
    }

    /// The features of a picture. Its views are drawn from `key`, a hash of its content.
    fn extract(&self, pixels: &[u8], flip: bool, key: &blake3::Hash) -> Result<Extracted, String> {
        let FeatureFormat { picture, views, .. } = self.format;
        let bytes = picture.bytes();
        let mut all = vec![0; self.format.vectors() * bytes];
        let (raw, augmented) = all.split_at_mut(bytes);
        raw.copy_from_slice(pixels);
        let (seed, _) = key.as_bytes().split_at(8);
        let seed = seed.iter().fold(0u64, |seed, &byte| seed << 8 | u64::from(byte));
        let stream = Stream::new(seed, Purpose::Features, 0, SERVER);
        for (view, out) in augmented.chunks_exact_mut(bytes).enumerate() {
            let mut rng = stream.at(view as u64);
            match view < views {
                true => augment::weak(picture, flip, pixels, &mut rng, out),
                false => augment::strong(self.strong, picture, flip, pixels, &mut rng, out),
            }
        }
        let vectors = (self.encode)(&all)?;
        let expected = self.format.vectors() * self.format.bytes();
        if vectors.len() != expected {
            return Err(format!(
                "the trunk made {} bytes of features instead of {expected}",
                vectors.len()
            ));
        }
        let (side, shape) = (picture.side as u32, self.thumbnail());
        let thumbnail = pictures::fit(shape, Fit::Stretch, side, side, pixels.to_vec());
        Ok(Extracted { thumbnail, vectors })
    }

    /// From the cache or, where it has none, from a picture that `decode` returns in the trunk's shape.
    fn cached(
        &self,
        cache: &Cache,
        key: blake3::Hash,
        flip: bool,
        decode: impl FnOnce() -> Result<Vec<u8>, Reason>,
    ) -> Result<Extracted, Failure> {
        if let Some(found) = cache.load(&key) {
            return Ok(found);
        }
        let pixels = decode().map_err(Failure::Picture)?;
        let extracted = self.extract(&pixels, flip, &key).map_err(Failure::Trunk)?;
        cache.store(&key, &extracted);
        Ok(extracted)
    }

    /// A hash of everything that the features of a picture depend on but the picture.
    fn key(&self, flip: bool, fit: Fit) -> String {
        let FeatureFormat { picture, width, views } = self.format;
        let strong = serde_json::json!(self.strong);
        let trunk = (&self.trunk.hash, &self.trunk.normalisation);
        let parts = serde_json::json!([trunk, picture, width, views, strong, flip, fit]);
        blake3::hash(parts.to_string().as_bytes()).to_hex()[..32].to_owned()
    }

    fn cache(&self, options: &Options, flip: bool) -> Cache {
        let sizes = [self.thumbnail().bytes(), self.format.vectors() * self.format.bytes()];
        Cache::new(options.cache.as_deref(), &self.key(flip, options.fit), sizes)
    }

    /// The features of picture files, in order, with thumbnails as their pixels, and the files that cannot be read.
    pub(crate) fn of_files(
        &self,
        files: &[PathBuf],
        options: &Options,
        done: impl Fn() + Sync,
    ) -> Result<FromFiles> {
        let flip = self.flip.unwrap_or(true);
        let cache = self.cache(options, flip);
        let of = |file: &PathBuf| {
            let shape = self.format.picture;
            let bytes = pictures::content(file).map_err(Failure::Picture)?;
            let decode = || pictures::try_decode(&bytes, shape, options.fit);
            let found = self.cached(&cache, blake3::hash(&bytes), flip, decode);
            done();
            found
        };
        let all: Vec<Result<Extracted, Failure>> = files.par_iter().map(of).collect();
        let mut found = FromFiles { images: self.empty(), unreadable: Vec::new() };
        for (file, outcome) in all.into_iter().enumerate() {
            match outcome {
                Ok(extracted) => found.images.push(&extracted),
                Err(Failure::Picture(reason)) => found.unreadable.push((file, reason)),
                Err(Failure::Trunk(problem)) => {
                    return Err(failed(&files[file], &problem));
                }
            }
        }
        Ok(found)
    }

    /// The features of images in memory, which get thumbnails as their pixels. `flip` says whether they may be mirrored.
    pub fn of_images(&self, images: ImageSet, flip: bool, options: &Options) -> Result<ImageSet> {
        let flip = self.flip.unwrap_or(flip);
        let cache = self.cache(options, flip);
        let count = options.progress.count(images.len());
        let (from, to) = (images.shape, self.format.picture);
        let of = |pixels: &[u8]| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&(from.channels as u64).to_le_bytes()).update(pixels);
            let decode = || {
                let pixels = pixels.to_vec();
                let one = ImageSet::new(from, pixels, None, Vec::new()).with_channels(to.channels);
                let side = from.side as u32;
                Ok(pictures::fit(to, Fit::Stretch, side, side, one.pixels))
            };
            let found = self.cached(&cache, hasher.finalize(), flip, decode);
            count.add(1);
            found
        };
        let all: Vec<_> = images.pixels.par_chunks_exact(from.bytes()).map(of).collect();
        let mut set = ImageSet { labels: images.labels, classes: images.classes, ..self.empty() };
        for outcome in all {
            let place = Path::new("an image");
            match outcome {
                Ok(extracted) => set.push(&extracted),
                Err(Failure::Picture(reason)) => return Err(DataError::picture(place, reason)),
                Err(Failure::Trunk(problem)) => return Err(failed(place, &problem)),
            }
        }
        Ok(set)
    }

    /// The same for all parts of a data set that have none yet.
    pub fn of_data(&self, data: DataSet, options: &Options) -> Result<DataSet> {
        if data.train.features.is_some() {
            return Ok(data);
        }
        let flip = data.flip;
        let of = |images| self.of_images(images, flip, options);
        let unlabelled = data
            .unlabelled
            .map(|part| Ok::<_, DataError>(crate::Unlabelled { images: of(part.images)?, ..part }));
        Ok(DataSet {
            train: of(data.train)?,
            test: of(data.test)?,
            unlabelled: unlabelled.transpose()?,
            ..data
        }
        .with_trunk(self))
    }

    /// No pictures.
    fn empty(&self) -> ImageSet {
        let features = Features { format: self.format, values: Vec::new() };
        let set = ImageSet::new(self.thumbnail(), Vec::new(), None, Vec::new());
        ImageSet { features: Some(features), ..set }
    }

    /// Refuses pictures that are too large for memory and arithmetic alike.
    pub fn check(&self) -> Result<()> {
        let side = self.format.picture.side;
        if side > MAX_SIDE {
            return Err(DataError::Unusable(format!(
                "data.size: expected at most {MAX_SIDE} pixels per side, got {side}"
            )));
        }
        Ok(())
    }
}

impl Extractor {
    /// The data set of features that this has made.
    pub fn complete(&self, data: DataSet) -> DataSet {
        data.with_trunk(self)
    }
}

impl DataSet {
    /// Of features, which are normalised as the training part's.
    pub(crate) fn with_trunk(mut self, extractor: &Extractor) -> Self {
        if let Some(features) = &self.train.features {
            self.normalisation = features.normalisation();
            self.trunk = Some(extractor.trunk.clone());
        }
        self
    }
}

impl ImageSet {
    fn push(&mut self, one: &Extracted) {
        self.pixels.extend(&one.thumbnail);
        if let Some(features) = &mut self.features {
            features.values.extend(&one.vectors);
        }
    }
}

/// The pictures of some files.
pub(crate) struct FromFiles {
    pub images: ImageSet,
    /// Sorted by file number.
    pub unreadable: Vec<(usize, Reason)>,
}

/// Why a picture has no features.
enum Failure {
    Picture(Reason),
    Trunk(String),
}

fn failed(place: &Path, problem: &str) -> DataError {
    DataError::malformed(place, "features", "a picture that the trunk can encode", problem)
}

#[cfg(test)]
mod tests;
