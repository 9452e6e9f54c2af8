//! Features: the vectors that a pretrained trunk makes of pictures, once, on the machine that owns them.
//!
//! Of every picture there are several: one as it is, some of weakly and some of strongly augmented views. Training draws
//! one of them where it would augment an image. Pictures are read, augmented and encoded one by one, so memory holds a
//! few of them whatever their number, and the features of a picture depend on nothing but the picture: neither on the
//! others nor on the number of threads. A run keeps the features and a thumbnail for people, never the picture.

mod cache;

use crate::augment::{self, Strong};
pub use crate::image_set::{FeatureFormat, Features, TrunkInfo};
use crate::pictures::{self, Fit};
use crate::skipped::Reason;
use crate::stream::{Purpose, SERVER, Stream};
use crate::{Cache, DataError, DataSet, ImageSet, Progress, Result, Shape};
use cache::FeatureCache;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// The version of decoder and augmentation: to be raised whenever they give other pixels.
const VERSION: u32 = 1;

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
        cache: &FeatureCache,
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
        let FeatureFormat { picture, width, side, views } = self.format;
        let strong = serde_json::json!(self.strong);
        let trunk = (&self.trunk.hash, &self.trunk.normalisation);
        let output = (width, side);
        let parts = serde_json::json!([VERSION, trunk, picture, output, views, strong, flip, fit]);
        blake3::hash(parts.to_string().as_bytes()).to_hex()[..32].to_owned()
    }

    fn cache(&self, cache: Option<&Cache>, fit: Fit, flip: bool) -> FeatureCache {
        let sizes = [self.thumbnail().bytes(), self.format.vectors() * self.format.bytes()];
        FeatureCache::new(cache, &self.key(flip, fit), sizes)
    }

    /// The features of picture files, in order, with thumbnails as their pixels, and the files that cannot be read.
    pub(crate) fn of_files(
        &self,
        files: &[PathBuf],
        fit: Fit,
        cache: Option<&Cache>,
        done: impl Fn() + Sync,
    ) -> Result<FromFiles> {
        let flip = self.flip.unwrap_or(true);
        let cache = self.cache(cache, fit, flip);
        let of = |file: &PathBuf| {
            let shape = self.format.picture;
            let bytes = pictures::content(file).map_err(Failure::Picture)?;
            let decode = || pictures::try_decode(&bytes, shape, fit);
            let found = self.cached(&cache, blake3::hash(&bytes), flip, decode);
            done();
            found
        };
        self.gather(files.par_iter().map(of).collect(), |file| &files[file])
    }

    /// The features of pictures at these places, and those that cannot be read.
    fn gather<'a>(
        &self,
        all: Vec<Result<Extracted, Failure>>,
        place: impl Fn(usize) -> &'a Path,
    ) -> Result<FromFiles> {
        let mut found = FromFiles { images: self.empty(), unreadable: Vec::new() };
        for (number, outcome) in all.into_iter().enumerate() {
            match outcome {
                Ok(extracted) => found.images.push(&extracted),
                Err(Failure::Picture(reason)) => found.unreadable.push((number, reason)),
                Err(Failure::Trunk(problem)) => {
                    let expected = "a picture that the trunk can encode";
                    return Err(DataError::malformed(place(number), "features", expected, problem));
                }
            }
        }
        Ok(found)
    }

    /// The features of images in memory, which get thumbnails as their pixels. `flip` says whether they may be mirrored.
    pub fn of_images(
        &self,
        images: ImageSet,
        flip: bool,
        cache: Option<&Cache>,
        progress: &Progress,
    ) -> Result<ImageSet> {
        let flip = self.flip.unwrap_or(flip);
        let cache = self.cache(cache, Fit::Stretch, flip);
        let count = progress.count(images.len());
        let (from, to) = (images.shape, self.format.picture);
        let of = |pixels: &[u8]| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&(from.channels as u64).to_le_bytes()).update(pixels);
            let decode = || {
                let one = ImageSet::new(from, pixels.to_vec(), None, Vec::new());
                Ok(one.fitted(to).pixels)
            };
            let found = self.cached(&cache, hasher.finalize(), flip, decode);
            count.add(1);
            found
        };
        let all = images.pixels.par_chunks_exact(from.bytes()).map(of).collect();
        let found = self.gather(all, |_| Path::new("an image"))?; // pixels can always be read
        Ok(ImageSet { labels: images.labels, classes: images.classes, ..found.images })
    }

    /// The same for all parts of a data set that have none yet.
    pub fn of_data(
        &self,
        data: DataSet,
        cache: Option<&Cache>,
        progress: &Progress,
    ) -> Result<DataSet> {
        if data.train.features.is_some() {
            return Ok(data);
        }
        let flip = data.flip;
        let of = |images| self.of_images(images, flip, cache, progress);
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
}

impl DataSet {
    /// Of features, which are normalised as the training part's.
    pub fn with_trunk(mut self, extractor: &Extractor) -> Self {
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
