//! The images of a node, and the clients to which they belong.

use super::limits::MOST_ENLARGED;
use super::{Refusal, Settings};
use crate::protocol::JoinRequest;
use fedanchor::config::{AugmentConfig, Unreadable};
use fedanchor::engine::trunk::{Place, Trunk, TrunkFile};
use fedanchor::labels::LabelledImages;
use fedanchor::trunk;
use fedanchor::{Error, Experiment, Result};
use fedanchor_data::features::Extractor;
use fedanchor_data::formats::{self, Options};
use fedanchor_data::{ImageSet, Shape};
use fedanchor_record::words::excerpt;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where a node's images are.
#[derive(Debug, Clone)]
pub struct Source {
    /// A folder of pictures, or a file of images. Labels are not read.
    pub path: PathBuf,
    /// To which clients they belong.
    pub clients: Clients,
    /// Whether to skip pictures that cannot be read, even if the run does not.
    pub skip_unreadable: bool,
}

/// The clients of a node.
#[derive(Debug, Clone)]
pub enum Clients {
    /// One client of this name, with all images.
    One(String),
    /// Those in a text file, each line of which is the name of a client and of its folder below the path.
    Listed(PathBuf),
}

/// The images of all clients of a node.
#[derive(Debug)]
pub(super) struct LocalData {
    pub(super) images: ImageSet,
    /// The names of clients, with the indices of their images.
    pub(super) clients: Vec<(String, Vec<u32>)>,
    /// Labelled images on which the model is tested.
    pub(super) test: Option<LabelledImages>,
}

impl LocalData {
    /// Reads the images as the run needs them.
    pub(super) fn read(
        settings: &Settings,
        experiment: &Experiment,
        run: &JoinRequest,
    ) -> Result<Self, Refusal> {
        let (source, config, shape) = (&settings.source, &experiment.data, run.format.shape);
        const UNFIT: &str = "its images do not fit the run";
        let private = |error: Error| Refusal::private(409, UNFIT, &error);
        let options = Options {
            size: Some(shape.side),
            max_enlargement: Some(MOST_ENLARGED),
            fit: config.fit,
            unlabelled: true,
            skip_unreadable: source.skip_unreadable || config.unreadable == Unreadable::Skip,
            // No copy of a picture remains when its owner removes it.
            cache: None,
            features: extractor(settings, experiment, run)?,
            ..Options::default()
        };
        let folders = match &source.clients {
            Clients::One(name) => vec![(name.clone(), source.path.clone())],
            Clients::Listed(list) => {
                let names = names(list).map_err(private)?.into_iter();
                names.map(|name| (name.clone(), source.path.join(name))).collect()
            }
        };
        let mut images: Option<ImageSet> = None;
        let mut clients = Vec::new();
        for (name, path) in folders {
            let set =
                formats::open_images(&path, &options).map_err(|error| private(error.into()))?;
            let set = match run.trunk {
                Some(_) => set,
                None => fitted(set, shape)
                    .map_err(|problem| Refusal::new(409, format!("{UNFIT}: {problem}")))?,
            };
            let first = images.as_ref().map_or(0, ImageSet::len);
            clients.push((name, (first as u32..(first + set.len()) as u32).collect()));
            match &mut images {
                Some(images) => images.append(set),
                None => images = Some(ImageSet { labels: None, classes: vec![], ..set }),
            }
        }
        let images = images.unwrap_or_else(|| ImageSet::new(shape, vec![], None, vec![]));
        let test = match &settings.test {
            Some(path) if experiment.record.sites => {
                Some(test_images(path, Options { unlabelled: false, ..options }, run)?)
            }
            _ => None,
        };
        Ok(Self { images, clients, test })
    }
}

/// The labelled images of the site, by the names that the run has for classes.
fn test_images(
    path: &Path,
    options: Options,
    run: &JoinRequest,
) -> Result<LabelledImages, Refusal> {
    const UNFIT: &str = "its test pictures do not fit the run";
    let private = |error: Error| Refusal::private(409, UNFIT, &error);
    let refused = |problem: &str| private(Error::file(path, problem));
    let mut set = formats::open_images(path, &options).map_err(|error| private(error.into()))?;
    let labels =
        set.labels.take().ok_or_else(|| refused("has no folders with names of classes"))?;
    let number = |name: &String| {
        let at = run.class_names.iter().position(|class| class == name);
        at.and_then(|at| u16::try_from(at).ok())
            .ok_or_else(|| refused(&format!("`{}` is no class of the run", excerpt(name))))
    };
    let numbers = set.classes.iter().map(number).collect::<Result<Vec<u16>, _>>()?;
    let labels = labels.iter().map(|&label| numbers[usize::from(label)]).collect();
    let images = match run.trunk {
        Some(_) => set,
        None => fitted(set, run.format.shape).map_err(|problem| refused(&problem))?,
    };
    Ok(LabelledImages { images, labels })
}

/// The names in a list of clients.
fn names(list: &Path) -> Result<Vec<String>> {
    const LONGEST: u64 = 1 << 20;
    let problem = |problem| Error::file(list, problem);
    let text =
        fedanchor_disk::read_text(list, LONGEST).map_err(|error| Error::file(list, error))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let names: Vec<String> = lines.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(problem("lists no clients".to_owned()));
    }
    match names.iter().find(|name| Path::new(name).file_name() != Some(OsStr::new(name))) {
        Some(name) => Err(problem(format!("expected the name of a folder per line, got {name:?}"))),
        None => Ok(names),
    }
}

/// What makes the features of the run. The trunk is one of this machine: a coordinator sends its name and hash, and
/// neither a path nor weights.
fn extractor(
    settings: &Settings,
    experiment: &Experiment,
    run: &JoinRequest,
) -> Result<Option<Extractor>, Refusal> {
    let (Some(info), Some(format)) = (&run.trunk, run.format.features) else { return Ok(None) };
    const UNFIT: &str = "this node lacks the trunk of the run";
    let private = |error: Error| Refusal::private(409, UNFIT, &error);
    let place = match &settings.trunk {
        Some(named) => Place::find(named),
        None => Place::by_name(&info.name),
    };
    let place = place.map_err(|error| private(error.into()))?;
    let device = experiment.device().map_err(private)?;
    let file = TrunkFile::read(&place, Some(info.size), Some(&info.normalisation));
    let file = file.map_err(|error| private(error.into()))?;
    let refused = |problem: String| Err(Refusal::new(409, format!("{UNFIT}: {problem}")));
    if file.info.hash != info.hash {
        let (expected, found) = (excerpt(&info.hash), &file.info.hash);
        return refused(format!("expected the hash {expected}, found {found}"));
    }
    let trunk = Trunk::load(&file, experiment.model.unfreeze, device);
    let trunk = trunk.map_err(|error| private(error.into()))?;
    let (expected, found) = ((format.side, format.width), trunk.output);
    if expected != (found.side, found.channels) {
        return refused(format!("expected features {expected:?}, found {found:?}"));
    }
    let augment = AugmentConfig { views: format.views, flip: Some(run.flip), ..experiment.augment };
    Ok(Some(trunk::extractor(trunk, &augment)))
}

/// Images in the shape of the run. As in a simulation, grey images become colour images, and colour is never dropped.
fn fitted(images: ImageSet, shape: Shape) -> Result<ImageSet, String> {
    let Shape { channels, side, .. } = images.shape;
    if side != shape.side {
        return Err(format!("expected {} pixels per side, got {side}", shape.side));
    }
    match (channels, shape.channels) {
        (1, 3) => Ok(images.with_channels(3)),
        (got, expected) if got == expected => Ok(images),
        (got, expected) => Err(format!("expected {expected} channels, got {got}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_folders_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let list = place.path().join("list");
        std::fs::write(&list, " ward-7\n\nward 8.5\n").unwrap();
        assert_eq!(names(&list).unwrap(), ["ward-7", "ward 8.5"]);
        for name in ["/", "..", ".", "a/b", "a/", "./a", "/a", "a/.."] {
            std::fs::write(&list, format!("ward-7\n{name}\n")).unwrap();
            let refused = names(&list).unwrap_err().to_string();
            assert!(refused.contains(&format!("got {name:?}")), "{refused}");
        }
    }
}
