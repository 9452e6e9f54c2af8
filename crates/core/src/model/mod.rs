//! Trained models: their files, which describe themselves, and their predictions.

mod assessment;
mod copies;
mod description;
mod doubts;
#[cfg(test)]
mod tests;

pub use crate::labels::{Bin, Calibration};
pub use assessment::{Assessment, ClassScore, HeadScores, assess};
pub use copies::{MOST_COMPARED, Signature, copies};
pub use description::{Description, Head};
pub use doubts::{Contradicted, Doubts, doubts};

use crate::config::{Heads, Unfreeze};
use crate::disk;
use crate::error::{Error, Result};
use crate::labels::{Anchors, latents, outputs, probabilities};
use fedanchor_data::features::{FeatureFormat, TrunkInfo};
use fedanchor_data::formats::MAX_SIDE;
use fedanchor_data::{InputFormat, Shape};
use fedanchor_engine::batches::View;
use fedanchor_engine::guard;
use fedanchor_engine::model::{Features, Network, Pass, Statistics};
use fedanchor_engine::tensors::{Data, Params, decode, encode};
use fedanchor_engine::training::Context;
use fedanchor_engine::training::losses::unit;
use fedanchor_engine::trunk::{Place, Trunk, TrunkFile};
use fedanchor_record::files;
use std::borrow::Cow;
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// A trained model, ready to predict.
#[derive(Debug)]
pub struct Model {
    /// The description in its file.
    pub description: Description,
    /// Its parameters, K = 1.
    pub params: Params,
    /// The mean of the unit latents of each class's anchors, `[C, D]`.
    pub class_means: Tensor,
    context: Context,
    trunk: Option<Trunk>,
}

/// The prediction of a model for one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The classification head's probability of every class.
    pub probabilities: Vec<f32>,
    /// The average cosine with the anchors of every class (eq. 3).
    pub scores: Vec<f32>,
}

impl Prediction {
    /// The classification head's class.
    pub fn class(&self) -> usize {
        best(&self.probabilities)
    }

    /// The classification head's probability of its class.
    pub fn confidence(&self) -> f32 {
        self.probabilities[self.class()]
    }

    /// The class whose anchors are nearest.
    pub fn anchor_class(&self) -> usize {
        best(&self.scores)
    }

    /// The average cosine with the anchors of that class.
    pub fn anchor_score(&self) -> f32 {
        self.scores[self.anchor_class()]
    }
}

/// The first of the largest values; 0 where there is none.
fn best(values: &[f32]) -> usize {
    let larger = |at: usize, next: usize| if values[next] > values[at] { next } else { at };
    (1..values.len()).fold(0, larger)
}

const CLASS_MEANS: &str = "class_means";

pub(crate) fn encode_model(
    description: &Description,
    params: &Params,
    class_means: &Tensor,
) -> Result<Vec<u8>> {
    let header =
        serde_json::to_string(description).map_err(|error| Error::file(files::MODEL, error))?;
    let shape = class_means.size();
    let mut tensors = params.named();
    tensors.push((CLASS_MEANS.to_owned(), Data::F32(class_means, &shape)));
    Ok(encode(&tensors, &header)?)
}

/// Says what to do where there is no model, whose file is `inside` in a run folder.
fn check_there(path: &Path, inside: &Path) -> Result<()> {
    let problem = match path.try_exists() {
        Ok(false) => "no such run folder or model file".to_owned(),
        Ok(true) if !path.is_dir() || inside.exists() => return Ok(()),
        Ok(true) if path.join(files::CONFIG).exists() => format!(
            "has no {} yet, which is written when the run ends: wait for it, or resume the run if it was stopped \
             (`fedanchor run --resume {}`)",
            files::MODEL,
            path.display()
        ),
        Ok(true) => format!("is not a run folder: it has no {}", files::MODEL),
        Err(_) => return Ok(()), // reading it says why
    };
    Err(Error::file(path, problem))
}

/// A model in the folder of its run must be the one that was written there.
fn check(path: &Path, bytes: &[u8]) -> Result<()> {
    let (Some(folder), true) = (path.parent(), path.file_name() == Some(files::MODEL.as_ref()))
    else {
        return Ok(());
    };
    let Some(manifest) = disk::read_manifest(folder)? else { return Ok(()) };
    manifest.check(files::MODEL, bytes).map_err(|mismatch| {
        Error::file(path, format!("{mismatch}; a copy outside of the run folder is used unchecked"))
    })
}

impl Model {
    /// Reads a model file written by a run, or the one in a run folder. In a run folder it must match its checksum. If
    /// it has a trunk, that is looked up by its name.
    pub fn load(path: &Path, device: Device) -> Result<Self> {
        Self::load_with(path, None, device)
    }

    /// The same with the file or name of its trunk.
    pub fn load_with(path: &Path, trunk: Option<&str>, device: Device) -> Result<Self> {
        let inside = path.join(files::MODEL);
        check_there(path, &inside)?;
        let path = if path.is_dir() { &inside } else { path };
        let problem = |problem: &dyn ToString| Error::file(path, problem.to_string());
        let bytes = fedanchor_disk::read(path, fedanchor_disk::MAX_FILE)
            .map_err(|error| problem(&error))?;
        check(path, &bytes)?;
        let mut decoded = decode(&bytes).map_err(|error| {
            problem(&format!("not a model of fedanchor (safetensors): {error}"))
        })?;
        let mut description: Description = serde_json::from_str(&decoded.header).map_err(|error| {
            problem(&format!(
                "not a model of fedanchor, or one of an earlier version ({error}): models are in \
                 the run folders that `fedanchor run` writes"
            ))
        })?;
        // The tensors say which heads the network has, also in files that do not name them.
        let predictor = decoded.f32.get("predictor.0.bias").map(|bias| bias.numel());
        let heads = Heads { anchor: decoded.f32.contains_key("anchor.weight"), predictor };
        let (named, there) = (std::mem::take(&mut description.heads), Head::of(heads));
        if !named.is_empty() && named != there {
            let name = |head: &Head| format!("{head:?}").to_lowercase();
            let list = |heads: &[Head]| heads.iter().map(name).collect::<Vec<_>>().join(", ");
            let (named, there) = (list(&named), list(&there));
            let text = format!("expected tensors of the heads {named}, got those of {there}");
            return Err(problem(&text));
        }
        description.heads = there;
        let Description { model, shape, normalisation, classes, .. } = &description;
        if !(1..=MAX_SIDE).contains(&shape.side) || ![1, 3].contains(&shape.channels) {
            let Shape { side, channels } = shape;
            return Err(problem(&format!(
                "expected images of 1 to {MAX_SIDE} pixels per side and 1 or 3 channels, got {side} and {channels}"
            )));
        }
        let trunk = match &description.trunk {
            Some(info) if model.unfreeze != Unfreeze::All => {
                Some(load_trunk(info, trunk, model.unfreeze, device)?)
            }
            _ => None,
        };
        let features = trunk.as_ref().map(|trunk| FeatureFormat {
            picture: *shape,
            width: trunk.output.channels,
            side: trunk.output.side,
            views: 0,
        });
        let format = InputFormat { shape: *shape, features };
        let channels = format.network().channels;
        if normalisation.mean.len() != channels || normalisation.std.len() != channels {
            return Err(problem(&"one mean and one deviation per channel are missing"));
        }
        if normalisation.std.iter().any(|std| !(std.is_finite() && *std > 0.0)) {
            return Err(problem(&"the deviations of its normalisation are not all above 0"));
        }
        fedanchor_engine::model::check(model).map_err(|error| problem(&error))?;
        let context =
            Context::for_inference(model, heads, format, classes.len(), normalisation, device)?;
        let class_means = decoded
            .f32
            .remove(CLASS_MEANS)
            .filter(|means| means.size().first() == Some(&(classes.len() as i64)))
            .ok_or_else(|| problem(&"the class means of the anchors are missing"))?
            .f_to_device(device)
            .map_err(|error| problem(&error))?;
        let layout = &context.network.layout;
        let params = Params::from_decoded(layout, decoded.f32, device)
            .and_then(|params| params.complete(layout))
            .map_err(|error| problem(&error))?;
        let of_params = params.first_not_finite()?.into_iter().flatten().next();
        let means_finite = class_means.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0;
        if let Some(name) = of_params.or((!means_finite).then(|| CLASS_MEANS.to_owned())) {
            return Err(problem(&format!(
                "`{name}` contains values that are not finite, so predictions would be meaningless: use the \
                 model of another run or round"
            )));
        }
        Ok(Self { description, params, class_means, context, trunk })
    }

    /// Names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.description.classes
    }

    /// The trunk that makes the features of pictures, if there is one.
    pub fn trunk(&self) -> Option<&Trunk> {
        self.trunk.as_ref()
    }

    /// The network's description.
    pub fn network(&self) -> &Network {
        &self.context.network
    }

    /// Predicts images, `[side, side, channels]` each or, if the model has a trunk, all alike as their features, some hundreds at a time: memory grows with them.
    pub fn predict(&self, images: &[&[u8]]) -> Result<Vec<Prediction>> {
        let (classes, means) = (self.classes().len(), self.class_means.shallow_clone());
        let anchors = Anchors::ClassMeans(means);
        let [probabilities, scores] = self.outputs(images, |features, pass| {
            let latents = latents(&self.context, self.description.latents, features, pass)?;
            let probabilities = probabilities(&self.context, features, pass)?;
            Ok([probabilities, anchors.scores(&latents, classes)?])
        })?;
        let (probabilities, scores) = (flat(&probabilities)?, flat(&scores)?);
        let rows = probabilities.chunks_exact(classes).zip(scores.chunks_exact(classes));
        let predictions = rows.map(|(probabilities, scores)| Prediction {
            probabilities: probabilities.to_vec(),
            scores: scores.to_vec(),
        });
        Ok(predictions.collect())
    }

    /// The unit latents of images, in the space of the class means: `[N, D]`.
    pub fn latents(&self, images: &[&[u8]]) -> Result<Tensor> {
        if images.is_empty() {
            let options = (Kind::Float, Device::Cpu);
            return Ok(Tensor::f_zeros([0, self.class_means.size()[1]], options)?);
        }
        let [latents] = self.outputs(images, |features, pass| {
            Ok([unit(&latents(&self.context, self.description.latents, features, pass)?)?])
        })?;
        Ok(latents.f_to_device(Device::Cpu)?)
    }

    /// The `count` nearest to each of these images among images with these [`latents`](Self::latents): number and
    /// cosine, the nearest first.
    pub fn nearest(
        &self,
        among: &Tensor,
        images: &[&[u8]],
        count: usize,
    ) -> Result<Vec<Vec<(usize, f32)>>> {
        let count = count.min(among.size()[0] as usize);
        if images.is_empty() || count == 0 {
            return Ok(vec![Vec::new(); images.len()]);
        }
        let cosines = self.latents(images)?.f_matmul(&among.f_tr()?)?;
        let (values, indices) = cosines.f_topk(count as i64, 1, true, true)?;
        let values: Vec<f32> = Vec::try_from(values.f_flatten(0, -1)?)?;
        let indices: Vec<i64> = Vec::try_from(indices.f_flatten(0, -1)?)?;
        let pairs = indices.into_iter().zip(values);
        let pairs: Vec<(usize, f32)> = pairs.map(|(at, value)| (at as usize, value)).collect();
        Ok(pairs.chunks_exact(count).map(<[_]>::to_vec).collect())
    }

    fn outputs<const N: usize>(
        &self,
        images: &[&[u8]],
        of: impl Fn(&Features, &Pass) -> fedanchor_engine::Result<[Tensor; N]>,
    ) -> Result<[Tensor; N]> {
        let (shape, bytes) = (self.description.shape, self.description.shape.bytes());
        let features = self.context.images.format.features.map(|format| format.bytes());
        let are_features = features.is_some_and(|vector| {
            images.iter().all(|image| image.len() != bytes && image.len() % vector == 0)
        });
        let odd = images.iter().find(|image| image.len() != bytes);
        if let Some(image) = odd.filter(|_| !are_features) {
            let problem = format!("expected {shape}, {bytes} bytes each, got {}", image.len());
            return Err(Error::config("image", problem));
        }
        let inputs: Vec<Cow<[u8]>> = match &self.trunk {
            Some(trunk) if !are_features => {
                trunk.encode_each(images)?.into_iter().map(Cow::Owned).collect()
            }
            _ => images.iter().map(|image| Cow::Borrowed(*image)).collect(),
        };
        let views: Vec<View> = inputs.iter().map(|input| View::Raw(input)).collect();
        guard(|| {
            let _queue = self.context.enter()?;
            Ok(outputs(&self.context, &self.params, Statistics::Running, &views, of)?)
        })
    }
}

/// The trunk that a model was trained with.
fn load_trunk(
    info: &TrunkInfo,
    named: Option<&str>,
    unfreeze: Unfreeze,
    device: Device,
) -> Result<Trunk> {
    let place = match named {
        Some(named) => Place::find(named)?,
        None => Place::by_name(&info.name).map_err(|error| {
            let problem = format!(
                "the model needs its trunk `{}`: name its file with --trunk ({error})",
                info.name.escape_default()
            );
            Error::config("model.trunk", problem)
        })?,
    };
    let file = TrunkFile::read(&place, Some(info.size), Some(&info.normalisation))?;
    if file.info.hash != info.hash {
        let problem = format!(
            "the model was trained with another trunk of the name `{}`: expected the file with the blake3 hash {}, \
             found {}",
            info.name, info.hash, file.info.hash
        );
        return Err(Error::config("model.trunk", problem));
    }
    Ok(Trunk::load(&file, unfreeze, device)?)
}

fn flat(tensor: &Tensor) -> fedanchor_engine::Result<Vec<f32>> {
    Ok(Vec::try_from(tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_flatten(0, -1)?)?)
}
