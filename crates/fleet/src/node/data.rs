//! The images of a node, and the clients to which they belong.

use super::Refusal;
use super::limits::MOST_ENLARGED;
use fedanchor::config::{DataConfig, Unreadable};
use fedanchor::{Error, Result};
use fedanchor_data::formats::{self, Options};
use fedanchor_data::{ImageSet, Shape};
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
}

impl LocalData {
    /// Reads the images in the shape of the run.
    pub(super) fn read(
        source: &Source,
        config: &DataConfig,
        shape: Shape,
    ) -> Result<Self, Refusal> {
        const UNFIT: &str = "its images do not fit the run";
        let private = |error: Error| Refusal::private(409, UNFIT, &error);
        let options = Options {
            size: Some(shape.side),
            max_enlargement: Some(MOST_ENLARGED),
            fit: config.fit,
            skip_unreadable: source.skip_unreadable || config.unreadable == Unreadable::Skip,
            // No copy of a picture remains when its owner removes it.
            cache: None,
            ..Options::default()
        };
        let folders = match &source.clients {
            Clients::One(name) => vec![(name.clone(), source.path.clone())],
            Clients::Listed(list) => {
                let names = names(list).map_err(private)?.into_iter();
                names.map(|name| (name.clone(), source.path.join(name))).collect()
            }
        };
        let mut images = ImageSet { shape, pixels: vec![], labels: None, classes: vec![] };
        let mut clients = Vec::new();
        for (name, path) in folders {
            let set =
                formats::open_images(&path, &options).map_err(|error| private(error.into()))?;
            let first = images.len() as u32;
            let pixels = pixels(set, shape)
                .map_err(|problem| Refusal::new(409, format!("{UNFIT}: {problem}")))?;
            match first {
                0 => images.pixels = pixels,
                _ => images.pixels.extend(pixels),
            }
            clients.push((name, (first..images.len() as u32).collect()));
        }
        Ok(Self { images, clients })
    }
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

/// The pixels of images in the shape of the run. As in a simulation, grey images become colour images, and colour is
/// never dropped.
fn pixels(images: ImageSet, shape: Shape) -> Result<Vec<u8>, String> {
    let Shape { channels, side, .. } = images.shape;
    if side != shape.side {
        return Err(format!("expected {} pixels per side, got {side}", shape.side));
    }
    match (channels, shape.channels) {
        (1, 3) => Ok(images.pixels.iter().flat_map(|&grey| [grey; 3]).collect()),
        (got, expected) if got == expected => Ok(images.pixels),
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
