//! Features of small pictures, by a trunk that only adds up.

use super::{Options, open};
use crate::augment::Strong;
use crate::features::{Extractor, FeatureFormat, Features, TrunkInfo};
use crate::{Cache, DataSet, ImageSet, Normalisation, Progress, Result, Shape};
use half::f16;
use image::{Rgb, RgbImage};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHAPE: Shape = Shape { side: 16, channels: 3 };

/// A trunk of two numbers per picture: the sums of the first and of the second half of its bytes, over 64. `calls`
/// counts the pictures that pass it.
fn extractor(views: usize, calls: &Arc<AtomicUsize>) -> Extractor {
    let calls = calls.clone();
    let encode = move |pixels: &[u8]| {
        calls.fetch_add(1, Ordering::Relaxed);
        let sum = |half: &[u8]| half.iter().map(|&byte| f32::from(byte)).sum::<f32>() / 64.0;
        let halves = pixels.chunks_exact(SHAPE.bytes() / 2).map(|half| f16::from_f32(sum(half)));
        Ok(halves.flat_map(f16::to_le_bytes).collect())
    };
    let normalisation = Normalisation { mean: vec![0.5; 3], std: vec![0.5; 3] };
    let trunk = TrunkInfo {
        name: "sums".to_owned(),
        hash: "1".to_owned(),
        size: SHAPE.side,
        normalisation,
        licence: "none".to_owned(),
        source: "a test".to_owned(),
    };
    Extractor {
        format: FeatureFormat { picture: SHAPE, width: 2, side: 1, views },
        trunk,
        strong: Strong::Fixmatch,
        flip: None,
        encode: Arc::new(encode),
    }
}

/// Pictures of a colour that depends on their name, and one file that is no picture.
fn pictures(folder: &Path) {
    for (number, name) in
        ["labelled/a/1", "labelled/b/2", "unlabelled/3", "unlabelled/4", "test/a/5", "test/b/6"]
            .into_iter()
            .enumerate()
    {
        let path = folder.join(name).with_extension("png");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let colour = |x: u32, y: u32| Rgb([number as u8 * 20 + x as u8, y as u8, 3]);
        RgbImage::from_fn(20, 14, colour).save(path).unwrap();
    }
    fs::write(folder.join("unlabelled/9.png"), "no picture").unwrap();
}

fn features(set: &ImageSet) -> &Features {
    set.features.as_ref().unwrap()
}

fn options(cache: &Path, extractor: Extractor) -> Options {
    let cache = Some(Cache::new(cache));
    Options { features: Some(extractor), skip_unreadable: true, cache, ..Options::default() }
}

#[test]
fn a_picture_passes_the_trunk_once() {
    let place = tempfile::tempdir().unwrap();
    let (data, cache) = (place.path().join("data"), place.path().join("cache"));
    pictures(&data);
    let calls = Arc::default();
    let read = |views| open(&data, &options(&cache, extractor(views, &calls))).unwrap();
    let first = read(2);
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    assert_eq!(first.skipped.len(), 1);
    let unlabelled = &first.unlabelled.as_ref().unwrap().images;
    assert_eq!((first.train.len(), unlabelled.len(), first.test.len()), (2, 2, 2));
    assert_eq!(unlabelled.input(1).len(), 5 * 2 * 2);
    let format = first.train.format();
    assert_eq!((format.shape, format.bytes(), format.network().channels), (SHAPE, 4, 2));
    assert_eq!(first.trunk.as_ref().unwrap().name, "sums");
    assert_eq!(first.normalisation.mean.len(), 2);
    // Kept: the same again without the trunk.
    let again = read(2);
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    assert_eq!((&again.train, &again.test), (&first.train, &first.test));
    // A picture with the same content under another name is not encoded; a new one is, and nothing else.
    fs::copy(data.join("unlabelled/3.png"), data.join("unlabelled/7.png")).unwrap();
    RgbImage::from_pixel(9, 9, Rgb([1, 2, 3])).save(data.join("unlabelled/8.png")).unwrap();
    let more = read(2).unlabelled.unwrap().images;
    assert_eq!(calls.load(Ordering::Relaxed), 7);
    assert_eq!((more.len(), more.input(2)), (4, more.input(0)));
    // Other views are other features; the picture as it is stays. (Of two equal pictures that are read at the same
    // moment, both may pass the trunk.)
    fs::remove_file(data.join("unlabelled/7.png")).unwrap();
    let fewer = read(1);
    assert_eq!(calls.load(Ordering::Relaxed), 14);
    assert_eq!(fewer.train.input(0)[..4], first.train.input(0)[..4]);
    // Damage costs the time to make them again.
    let mut damaged = 0;
    for folder in fs::read_dir(cache.join("features")).unwrap() {
        for shard in fs::read_dir(folder.unwrap().path()).unwrap() {
            for file in fs::read_dir(shard.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                let mut bytes = fs::read(&path).unwrap();
                bytes[5] ^= 1;
                fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    let again = read(2);
    assert_eq!((damaged, calls.load(Ordering::Relaxed)), (14, 21));
    assert_eq!(again.train, first.train);
}

#[test]
fn features_do_not_depend_on_other_pictures_or_on_a_cache() {
    let place = tempfile::tempdir().unwrap();
    let (data, blocked) = (place.path().join("data"), place.path().join("file"));
    pictures(&data);
    fs::write(&blocked, "not a folder").unwrap();
    let calls = Arc::default();
    let with = |cache| {
        let extractor = extractor(2, &calls);
        let options = Options {
            features: Some(extractor),
            skip_unreadable: true,
            cache,
            ..Options::default()
        };
        open(&data, &options).unwrap()
    };
    let all = with(None);
    assert_eq!(with(Some(Cache::new(blocked))).train, all.train);
    fs::remove_file(data.join("labelled/a/1.png")).unwrap();
    RgbImage::from_pixel(9, 9, Rgb([1, 2, 3])).save(data.join("labelled/a/0.png")).unwrap();
    assert_eq!(with(None).train.input(1), all.train.input(1));
}

type Encode = dyn Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync;

#[test]
fn a_trunk_that_fails_names_the_picture() {
    let place = tempfile::tempdir().unwrap();
    pictures(place.path());
    let failing = |encode: Arc<Encode>| {
        let options = Options {
            features: Some(Extractor { encode, ..extractor(0, &Arc::default()) }),
            skip_unreadable: true,
            ..Options::default()
        };
        open(place.path(), &options).unwrap_err().to_string()
    };
    let error = failing(Arc::new(|_| Err("it is made for sounds".to_owned())));
    assert!(error.contains("labelled/a/1.png: features: expected a picture"), "{error}");
    assert!(error.contains("made for sounds"), "{error}");
    let error = failing(Arc::new(|_| Ok(vec![0; 3])));
    assert!(error.contains("made 3 bytes of features instead of 4"), "{error}");
}

#[test]
fn images_in_memory_have_features_too() {
    let calls = Arc::default();
    let shape = Shape { side: 4, channels: 1 };
    let images =
        ImageSet::new(shape, (0..32).collect(), Some(vec![0, 1]), vec!["a".into(), "b".into()]);
    let data = DataSet::new("mine", images.clone(), images);
    let found = extractor(1, &calls).of_data(data, None, &Progress::default()).unwrap();
    assert_eq!(found.train, found.test);
    assert_eq!((found.train.len(), found.train.shape), (2, Shape { side: 16, channels: 3 }));
    assert_eq!(found.train.labels, Some(vec![0, 1]));
    let second = found.train.select(&[1]);
    assert_eq!(features(&second).values, features(&found.train).of(1));
    // Of two sums, mean and deviation by number.
    let numbers = |index: usize| -> Vec<f64> {
        let bytes = found.train.input(index)[..4].as_chunks().0.iter();
        bytes.map(|&bytes| f64::from(f16::from_le_bytes(bytes))).collect()
    };
    let mean = (numbers(0)[0] + numbers(1)[0]) / 2.0;
    assert!((f64::from(found.normalisation.mean[0]) - mean).abs() < 1e-3);
    let deviation = (numbers(0)[0] - numbers(1)[0]).abs() / 2.0;
    assert!((f64::from(found.normalisation.std[0]) - deviation).abs() < 1e-2);
}
