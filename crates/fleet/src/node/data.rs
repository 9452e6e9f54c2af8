//! A node's images, and whose they are.

use super::limits::MOST_ENLARGED;
use super::refusal::Refusal;
use fedanchor::config::{DataConfig, Unreadable};
use fedanchor::{Error, Result};
use fedanchor_data::formats::{self, Options};
use fedanchor_data::{ImageSet, Shape};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where a node's images are.
#[derive(Debug, Clone)]
pub struct Source {
    /// A folder of pictures, or a file of images; their labels, if there are any, are not read.
    pub path: PathBuf,
    /// The name of its only client, or a file that lists the folders of several clients.
    pub clients: Clients,
    /// Whether to leave out pictures that cannot be read, even if the run does not.
    pub skip_unreadable: bool,
}

/// Whose images they are.
#[derive(Debug, Clone)]
pub enum Clients {
    /// All of one client of this name.
    One(String),
    /// Of several: a text file with the name of a folder below the path in each line.
    Listed(PathBuf),
}

/// The images of all clients here.
#[derive(Debug)]
pub(super) struct LocalData {
    pub(super) images: ImageSet,
    /// Names, and which images are theirs.
    pub(super) clients: Vec<(String, Vec<u32>)>,
}

impl LocalData {
    /// Reads the images in the shape that the run asks for.
    pub(super) fn read(
        source: &Source,
        config: &DataConfig,
        shape: Shape,
    ) -> Result<Self, Refusal> {
        const WHAT: &str = "its images do not fit the run";
        let private = |error: Error| Refusal::private(409, WHAT, &error);
        let options = Options {
            size: Some(shape.side),
            max_enlargement: Some(MOST_ENLARGED),
            fit: config.fit,
            skip_unreadable: source.skip_unreadable || config.unreadable == Unreadable::Skip,
            // Nothing is left of a picture that its owner removes.
            cache: None,
            ..Options::default()
        };
        let read = |path: &Path| {
            let images =
                formats::open_images(path, &options).map_err(|error| private(error.into()))?;
            in_shape(images, shape)
                .map_err(|problem| Refusal::new(409, format!("{WHAT}: {problem}")))
        };
        let list = match &source.clients {
            Clients::Listed(list) => list,
            Clients::One(name) => {
                let images = read(&source.path)?;
                let all = (0..images.len() as u32).collect();
                return Ok(Self { images, clients: vec![(name.clone(), all)] });
            }
        };
        let names = names(list).map_err(private)?;
        let mut all: Option<ImageSet> = None;
        let mut clients = Vec::new();
        for name in names {
            let images = read(&source.path.join(&name))?;
            let first = all.as_ref().map_or(0, ImageSet::len) as u32;
            clients.push((name, (first..first + images.len() as u32).collect()));
            match &mut all {
                Some(all) => all.pixels.extend(images.pixels),
                None => all = Some(images),
            }
        }
        let images = all.ok_or_else(|| private(Error::file(list, "names no client")))?;
        Ok(Self { images, clients })
    }
}

/// The clients that a file lists.
fn names(list: &Path) -> Result<Vec<String>> {
    const LONGEST: u64 = 1 << 20;
    let text =
        fedanchor_disk::read_text(list, LONGEST).map_err(|error| Error::file(list, error))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let names: Vec<String> = lines.map(str::to_owned).collect();
    match names.iter().find(|name| Path::new(name).file_name() != Some(OsStr::new(name))) {
        Some(name) => Err(Error::file(
            list,
            format!("expected the name of a folder in each line, found {name:?}"),
        )),
        None => Ok(names),
    }
}

/// Images with the channels of the run, without labels. Grey ones become coloured, as in a simulation; colour is not
/// thrown away.
fn in_shape(images: ImageSet, shape: Shape) -> Result<ImageSet, String> {
    let pixels = match (images.shape.channels, shape.channels) {
        (1, 3) => images.pixels.iter().flat_map(|&grey| [grey; 3]).collect(),
        (there, wanted) if there == wanted => images.pixels,
        (there, wanted) => {
            let channels = |count| match count {
                1 => "1 channel".to_owned(),
                count => format!("{count} channels"),
            };
            let (there, wanted) = (channels(there), channels(wanted));
            return Err(format!("they have {there}, those of the run have {wanted}"));
        }
    };
    if images.shape.side != shape.side {
        let (there, wanted) = (images.shape.side, shape.side);
        return Err(format!("they have {there} pixels per side, those of the run have {wanted}"));
    }
    Ok(ImageSet { shape, pixels, labels: None, classes: Vec::new() })
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
            assert!(refused.contains(&format!("found {name:?}")), "{refused}");
        }
    }
}
