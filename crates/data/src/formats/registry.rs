//! Data sets by name. A published data set is one line in [`PUBLISHED`]; a data set of another program is one call of
//! [`register`].

use super::checks::{every_class, finish, same_shape};
use super::folder::listing::superfluous_share;
use super::sample;
use super::{Options, check_parts, cifar, idx, mat};
use crate::catalog::Published;
use crate::error::unusable;
use crate::{DataSet, ImageSet, Result, Unlabelled};
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// The published data sets, which can be downloaded.
pub const PUBLISHED: [&Published; 5] =
    [&cifar::CIFAR10, &cifar::CIFAR100, &mat::SVHN, &idx::MNIST, &idx::FASHION_MNIST];

/// Makes a registered data set. It gets `data.path`, if the config sets it.
pub type Loader = fn(Option<&Path>) -> Result<DataSet>;

static REGISTERED: RwLock<Vec<(&str, Loader)>> = RwLock::new(Vec::new());

/// Registers a data set for this process, under a name for `data.name`. A name can be registered once.
pub fn register(name: &'static str, load: Loader) -> Result<()> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let published = PUBLISHED.iter().map(|published| published.name);
    let mut names = published.chain([sample::NAME]).chain(registered.iter().map(|other| other.0));
    if names.any(|other| other == name) {
        return unusable(format!("the data set `{name}` is already registered"));
    }
    registered.push((name, load));
    Ok(())
}

/// The published data set with this name, or an error that lists the known names.
pub fn published(name: &str) -> Result<&'static Published> {
    let names = PUBLISHED.map(|published| published.name);
    match names.iter().position(|known| *known == name) {
        Some(number) => Ok(PUBLISHED[number]),
        None if name == sample::NAME => {
            unusable("the data set `sample` is part of the program and needs no download")
        }
        None => {
            let names = names.join(", ");
            unusable(format!("unknown data set `{name}`: expected one of {names}"))
        }
    }
}

/// Whether a program has registered a data set with this name.
pub fn is_registered(name: &str) -> bool {
    loader(name).is_some()
}

fn loader(name: &str) -> Option<Loader> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    registered.iter().find(|other| other.0 == name).map(|&(_, load)| load)
}

/// Loads the registered data set with this name, if there is one. It is resized and checked like one that is read from
/// files.
pub fn load_registered(
    name: &str,
    path: Option<&Path>,
    options: &Options,
) -> Option<Result<DataSet>> {
    Some(loader(name)?(path).and_then(|data| checked(name, data, options)))
}

fn checked(name: &str, mut data: DataSet, options: &Options) -> Result<DataSet> {
    options.check()?;
    let place = Path::new(name);
    if options.test_share.is_some() {
        return Err(superfluous_share(place));
    }
    let part = |set: ImageSet| {
        let ImageSet { shape, pixels, labels, classes, .. } = set;
        options.resize(finish(place, shape, pixels, labels, classes)?)
    };
    data.train = every_class(place, part(data.train)?)?;
    data.test = part(data.test)?;
    check_parts(place, &data.train, &data.test)?;
    if let Some(unlabelled) = data.unlabelled {
        let images = part(unlabelled.images)?;
        same_shape(place, data.train.shape, "unlabelled part", images.shape)?;
        data.unlabelled = Some(Unlabelled { images, ..unlabelled });
    }
    options.extract(DataSet { name: name.to_owned(), ..data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Normalisation, Shape};

    #[test]
    fn published_data_sets_are_well_formed() {
        for data in PUBLISHED {
            assert_eq!(published(data.name).unwrap().title, data.title);
            assert!(!data.files.is_empty() && !data.base_url.ends_with('/'));
            for file in data.files {
                let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                assert!(file.sha256.len() == 64 && file.sha256.chars().all(hex), "{}", file.name);
                assert!(!file.name.contains(['/', '\\']));
            }
            let Normalisation { mean, std } = data.normalisation();
            assert_eq!(mean.len(), std.len(), "{}", data.title);
            assert!(std.iter().all(|&s| s > 0.0), "{}", data.title);
            let mut names = data.class_names();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), data.classes.len(), "{}: duplicate class name", data.title);
        }
    }

    #[test]
    fn addresses_are_the_official_ones() {
        let Published { base_url, files, .. } = published("cifar10").unwrap();
        assert_eq!(
            (*base_url, files[0].name),
            ("https://www.cs.toronto.edu/~kriz", "cifar-10-binary.tar.gz")
        );
        assert_eq!(published("svhn").unwrap().bytes(), 246_316_178);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert_eq!(
            published("cifar").unwrap_err().to_string(),
            "unknown data set `cifar`: expected one of cifar10, cifar100, svhn, mnist, \
             fashion-mnist"
        );
    }

    #[test]
    fn registered_data_sets_are_resized_and_checked() {
        fn dots(_: Option<&Path>) -> Result<DataSet> {
            let part = ImageSet {
                shape: Shape { side: 1, channels: 1 },
                pixels: vec![0, 9],
                features: None,
                labels: Some(vec![0, 1]),
                classes: vec!["dark".to_owned(), "light".to_owned()],
            };
            Ok(DataSet { train: part.clone(), test: part, ..sample::load()? })
        }
        fn broken(_: Option<&Path>) -> Result<DataSet> {
            let data = dots(None)?;
            Ok(DataSet { test: ImageSet { labels: Some(vec![0]), ..data.test.clone() }, ..data })
        }
        let load = |name, options: &Options| load_registered(name, None, options).unwrap();
        assert!(
            !is_registered("dots") && load_registered("dots", None, &Options::default()).is_none()
        );
        register("dots", dots).unwrap();
        register("broken", broken).unwrap();
        for taken in ["dots", "sample", "mnist"] {
            assert!(register(taken, dots).is_err(), "{taken}");
        }
        let larger = Options { size: Some(2), ..Options::default() };
        let data = load("dots", &larger).unwrap();
        assert_eq!((data.name.as_str(), data.train.image(1)), ("dots", &[9; 4][..]));
        let share = Options { test_share: Some(0.5), ..Options::default() };
        assert!(load("dots", &share).unwrap_err().to_string().contains("data.test_share"));
        let error = load("broken", &larger).unwrap_err().to_string();
        assert_eq!(error, "broken: labels: expected 2, one per image, found 1");
    }
}
