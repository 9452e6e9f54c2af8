//! Where trunks are, and what their files state about them.

use crate::config::{Heads, ModelConfig, Stem};
use crate::error::{Error, Result};
use crate::model::{MIN_SIDE, Network, import_bytes};
use crate::tensors::{Entry, Params};
use fedanchor_data::features::TrunkInfo;
use fedanchor_data::formats::MAX_SIDE;
use fedanchor_data::{Normalisation, cache};
use safetensors::tensor::SafeTensors;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tch::Device;

/// The file of a trunk, and how it was named.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    /// Whether it was looked up.
    by_name: bool,
}

/// Whether a value of `model.trunk` is a file, which has a folder or an ending.
pub fn names_a_file(named: &str) -> bool {
    let path = Path::new(named);
    path.extension().is_some() || path.components().count() > 1
}

/// Where trunks are looked up by name: `FEDANCHOR_TRUNKS`, `trunks` beside the program, `trunks` in the cache.
pub fn folders() -> Vec<PathBuf> {
    let given = std::env::var_os("FEDANCHOR_TRUNKS").map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("trunks"));
    [given, beside(), cache::folder("trunks")].into_iter().flatten().collect()
}

impl Place {
    /// By the value of `model.trunk`: a file if it has a folder or an ending, else a name.
    pub fn find(named: &str) -> Result<Self> {
        match names_a_file(named) {
            true => Ok(Self { path: named.into(), by_name: false }),
            false => Self::by_name(named),
        }
    }

    /// By name alone, which may come from elsewhere: it reaches no other folder.
    pub fn by_name(name: &str) -> Result<Self> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if name.is_empty() || !name.chars().all(is_plain) {
            let problem = format!("expected letters, digits, `-` and `_`, got {name:?}");
            return Err(Error::config("model.trunk", problem));
        }
        let folders = folders();
        let mut files = folders.iter().map(|folder| folder.join(format!("{name}.safetensors")));
        files.find(|path| path.is_file()).map(|path| Self { path, by_name: true }).ok_or_else(
            || {
                let folders: Vec<String> =
                    folders.iter().map(|folder| folder.display().to_string()).collect();
                let problem = format!(
                    "no trunk `{name}` in {}: run `make trunks` (`python -m fedanchor.trunks` with the Python \
                     package), or name a file with its ending",
                    folders.join(", ")
                );
                Error::config("model.trunk", problem)
            },
        )
    }

    /// An error if there is no such file.
    pub fn check(&self) -> Result<()> {
        match self.path.is_file() {
            true => Ok(()),
            false => Err(self.problem("no such file".to_owned())),
        }
    }

    /// The name of the file without its ending.
    fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn problem(&self, problem: String) -> Error {
        Error::config("model.trunk", format!("{}: {problem}", self.path.display()))
    }

    fn read(&self) -> Result<Vec<u8>> {
        fedanchor_disk::read(&self.path, fedanchor_disk::MAX_FILE)
            .map_err(|error| self.problem(error.to_string()))
    }
}

/// The file of a trunk in memory, and what is known of it.
#[derive(Debug)]
pub struct TrunkFile {
    /// What travels in model files and to nodes.
    pub info: TrunkInfo,
    pub(super) place: Place,
    pub(super) bytes: Vec<u8>,
    /// The network whose weights they are; none for TorchScript.
    pub(super) model: Option<String>,
}

impl TrunkFile {
    /// Reads it. `size` and `normalisation` replace what the file states; TorchScript states neither.
    pub fn read(
        place: &Place,
        size: Option<usize>,
        normalisation: Option<&Normalisation>,
    ) -> Result<Self> {
        let bad = |problem: &str| place.problem(problem.to_owned());
        let bytes = place.read()?;
        let hash = blake3::hash(&bytes).to_hex().to_string();
        let is_script = bytes.starts_with(b"PK");
        if is_script && place.by_name {
            return Err(bad("TorchScript is a program: it is loaded only as a file that is named"));
        }
        let stated = match is_script {
            true => Stated::default(),
            false => stated(&bytes).map_err(|problem| place.problem(problem))?,
        };
        let (Some(size), Some(normalisation)) =
            (size.or(stated.size), normalisation.cloned().or(stated.normalisation))
        else {
            let problem = "does not state the size and normalisation of its pictures: set data.size and \
                           data.normalisation";
            return Err(bad(problem));
        };
        if !(MIN_SIDE..=MAX_SIDE).contains(&size) {
            let problem = format!(
                "expected pictures of {MIN_SIDE} to {MAX_SIDE} pixels per side, got {size}"
            );
            return Err(place.problem(problem));
        }
        if !fits(&normalisation) {
            return Err(bad(
                "its pictures need one mean and one deviation for each of three channels",
            ));
        }
        let info = TrunkInfo {
            name: stated.name.unwrap_or_else(|| place.name()),
            hash,
            size,
            normalisation,
            licence: stated.licence.unwrap_or_else(|| "not stated".to_owned()),
            source: stated.source.unwrap_or_else(|| "a file".to_owned()),
        };
        let model = (!is_script).then_some(stated.model);
        Ok(Self { info, place: place.clone(), bytes, model })
    }

    /// Its network and the weights of the backbone.
    pub(super) fn network(&self, model: &str) -> Result<(Network, Params)> {
        let stem = if model == "resnet18" { Stem::Imagenet } else { Stem::Cifar };
        let config = ModelConfig { stem, ..ModelConfig::plain(model) };
        let network = Network::new(&config, Heads::default(), self.info.shape(), 1)?;
        let imported = import_bytes(&network.layout, &self.bytes, Device::Cpu);
        Ok((network, imported.map_err(|problem| self.place.problem(problem))?.backbone))
    }

    /// Overwrites those weights of a network that the trunk has: what is trained starts from them.
    pub fn assign_to(&self, params: &mut Params, config: &ModelConfig) -> Result<()> {
        let model = self.model.as_deref().unwrap_or("TorchScript");
        if model != config.name {
            let problem = match &self.model {
                Some(_) => {
                    format!("must be the network of the trunk, `{model}`, got `{}`", config.name)
                }
                None => "TorchScript cannot be trained: remove model.unfreeze".to_owned(),
            };
            return Err(Error::config("model.name", problem));
        }
        let (_, backbone) = self.network(model)?;
        let has = |entry: &Entry| params.layout.iter().any(|own| own.name == entry.name);
        let shared = backbone.subset(has);
        params.assign(&shared)
    }
}

/// What a file states. Torchvision's weights of ResNet-18 state nothing: their pictures are known.
#[derive(Debug, Default, Deserialize)]
struct Stated {
    name: Option<String>,
    model: String,
    size: Option<usize>,
    normalisation: Option<Normalisation>,
    licence: Option<String>,
    source: Option<String>,
}

/// The key of the statement in a file's metadata.
const KEY: &str = "fedanchor.trunk";

/// What a file of weights states; an error says what is wrong with it.
fn stated(bytes: &[u8]) -> Result<Stated, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|error| format!("neither safetensors ({error}) nor TorchScript"))?;
    let Some(text) = metadata.metadata().as_ref().and_then(|all| all.get(KEY)) else {
        return Ok(Stated {
            model: "resnet18".to_owned(),
            size: Some(224),
            normalisation: Some(Normalisation {
                mean: vec![0.485, 0.456, 0.406],
                std: vec![0.229, 0.224, 0.225],
            }),
            source: Some("a file with torchvision's names".to_owned()),
            ..Stated::default()
        });
    };
    let stated: Stated = serde_json::from_str(text)
        .map_err(|error| format!("its statement `{KEY}` is damaged: {error}"))?;
    let texts = [&stated.name, &stated.licence, &stated.source].into_iter().flatten();
    if texts.into_iter().any(|text| text.chars().any(char::is_control)) {
        return Err(format!("its statement `{KEY}` has characters that cannot be printed"));
    }
    Ok(stated)
}

fn fits(normalisation: &Normalisation) -> bool {
    let Normalisation { mean, std } = normalisation;
    mean.len() == 3 && std.len() == 3 && std.iter().all(|std| *std > 0.0)
}
