//! The double-headed cohort network: a backbone, the classification head, and the anchor head that projects pooled
//! features to the latent space (section 4.1 of the paper).
//!
//! A model is a function that describes its layers once ([`Builder`]), registered under its name ([`register`]). Config
//! value -> [`Network::new`] (layers, no tensors) -> [`Network::init`] (tensors). The anchor head reads the pooled output
//! of the last stage by default, or of an earlier one: the paper allows any layer and suggests a late one.

mod built_in;
mod description;
mod efficientnet;
mod forward;
mod import;
mod registry;
mod tail;
#[cfg(test)]
mod tests;

pub use description::{Builder, EPSILON, IMAGES, Layer, Operation, Padding, Value};
pub use forward::{Pass, Statistics};
pub use import::{Imported, import, import_bytes};
pub use registry::{Registration, names_schema, register};

use crate::config::{Heads, ModelConfig, NormKind, Stem, Unfreeze};
use crate::error::{Error, Result};
use crate::tensors::{Entry, Layout, Params, Part, channels_last};
use fedanchor_data::stream::{ChaCha8Rng, SERVER, Stream};
use fedanchor_data::{Purpose, Shape};
use forward::{Plan, Run, linear};
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// The fewest pixels per side of a network's images.
pub const MIN_SIDE: usize = 16;

/// A network as a description: its layers, and the tensors that they read.
#[derive(Debug)]
pub struct Network {
    /// Name and shape of every tensor.
    pub layout: Layout,
    /// The settings that it was described by.
    pub config: ModelConfig,
    /// The layers, in the order of their computation; the first computes value 1. The predictor, which serves training
    /// only, is not among them.
    pub layers: Vec<Layer>,
    /// Pooled features, `[batch, F]`.
    pub pooled: Value,
    /// The classification head's output, `[batch, classes]`.
    pub logits: Value,
    /// The anchor head's output before it is scaled to length 1, `[batch, latent_dim]`.
    pub latents: Option<Value>,
    /// Number of pooled features F.
    pub features_width: i64,
    /// The stage whose pooled output the anchor head reads, from 1.
    pub latent_stage: usize,
    /// Numbers that all convolutions compute for one image: training keeps at least these until the gradients have been
    /// computed.
    pub convolved: u64,
    /// What the last stage reads: the output of the stage before it, or the images.
    pub last_input: Value,
    /// The pooled output of `latent_stage`, if that is not the last.
    latent_input: Option<Value>,
    /// A predictor of pooled features: two linear layers with a normalisation and ReLU between them.
    predictor: Option<[(usize, usize); 2]>,
    plan: Plan,
}

/// Checks that a model has the settings that are asked of it.
pub fn check(config: &ModelConfig) -> Result<()> {
    registry::find(&config.name)?;
    let is_resnet18 = config.name == "resnet18";
    if config.preactivation && !is_resnet18 {
        return Err(Error::config("model.preactivation", "is an option of resnet18 only"));
    }
    if config.stem != Stem::Cifar && (!is_resnet18 || config.preactivation) {
        let problem = "`imagenet` is an option of resnet18 without preactivation only";
        return Err(Error::config("model.stem", problem));
    }
    let is_torchvision = is_resnet18 && !config.preactivation && config.norm == NormKind::Batch;
    if config.unfreeze != Unfreeze::None && config.norm != NormKind::Batch {
        return Err(Error::config("model.norm", "trunks have batch norm: remove the key"));
    }
    if config.unfreeze != Unfreeze::None && config.init_from.is_some() {
        let problem = "training starts from the trunk already: remove the key, or model.unfreeze";
        return Err(Error::config("model.init_from", problem));
    }
    if config.init_from.is_some() && !is_torchvision {
        let problem = "needs model.name = \"resnet18\" with batch norm and without preactivation: \
                       torchvision's weights fit no other model";
        return Err(Error::config("model.init_from", problem));
    }
    Ok(())
}

/// What the backbone computes for a batch.
#[derive(Debug)]
pub struct Features {
    /// Pooled features after the last activation: `[K, batch, F]`.
    pub pooled: Tensor,
    /// What the anchor head reads: the same, or the pooled output of an earlier stage.
    latent_input: Option<Tensor>,
}

impl Features {
    /// Those of the first `count` images; they share memory.
    pub(crate) fn first(&self, count: usize) -> Result<Self> {
        let first = |tensor: &Tensor| tensor.f_narrow(1, 0, count as i64);
        let latent_input = self.latent_input.as_ref().map(first).transpose()?;
        Ok(Self { pooled: first(&self.pooled)?, latent_input })
    }

    /// Writes these over others of the same shape.
    pub(crate) fn copy_to(&self, other: &Self) -> Result<()> {
        other.pooled.shallow_clone().f_copy_(&self.pooled)?;
        if let (Some(to), Some(from)) = (&other.latent_input, &self.latent_input) {
            to.shallow_clone().f_copy_(from)?;
        }
        Ok(())
    }
}

impl Network {
    /// Describes the network for images of this shape and this many classes.
    pub fn new(config: &ModelConfig, heads: Heads, shape: Shape, classes: usize) -> Result<Self> {
        let is_tail = config.unfreeze == Unfreeze::Last;
        if shape.side > 1 && shape.side < MIN_SIDE && !is_tail {
            let problem = format!(
                "the models need images of {MIN_SIDE} pixels or more, these have {}: set data.size",
                shape.side
            );
            return Err(Error::config("data.size", problem));
        }
        check(config)?;
        let describe = registry::find(&config.name)?.describe;
        let (mut builder, pooled) = match is_tail {
            true => tail::describe(config, shape, &describe)?,
            false => {
                let mut builder = Builder::new(config, shape);
                let pooled = describe(&mut builder);
                (builder, pooled)
            }
        };
        if shape.side == 1 && builder.convolved > 0 {
            let problem = format!(
                "`{}` is for images; features of a trunk are for `adapter`: remove the key",
                config.name
            );
            return Err(Error::config("model.name", problem));
        }
        if builder.sizes[pooled].1 > 0 {
            let problem = format!("the features of `{}` must be pooled or flattened", config.name);
            return Err(Error::config("model.name", problem));
        }
        let stages = builder.stages.len() + 1;
        let latent_stage = config.latent_stage.unwrap_or(stages);
        if latent_stage == 0 || latent_stage > stages {
            let problem = format!("this model has stages 1 to {stages}, not {latent_stage}");
            return Err(Error::config("model.latent_stage", problem));
        }
        let last_input =
            if is_tail { IMAGES } else { builder.stages.last().copied().unwrap_or(IMAGES) };
        let (plan, latent_input) = (Plan::new(&builder.layers), builder.latent_input);
        let logits = builder.head("classifier", pooled, classes as i64, Part::Classifier);
        let latents = heads.anchor.then(|| {
            let (from, to) = (latent_input.unwrap_or(pooled), config.latent_dim as i64);
            builder.head("anchor", from, to, Part::Anchor)
        });
        let width = builder.channels(pooled);
        let predictor = heads.predictor.map(|hidden| {
            let mut tensors =
                |name, from, to| builder.linear_tensors(name, from, to, Part::Predictor);
            let hidden = hidden as i64;
            [tensors("predictor.0", width, hidden), tensors("predictor.1", hidden, width)]
        });
        if let Some(problem) = builder.problem {
            return Err(problem);
        }
        Ok(Self {
            layout: Arc::new(builder.entries),
            config: config.clone(),
            layers: builder.layers,
            pooled,
            logits,
            latents,
            features_width: width,
            latent_stage,
            convolved: builder.convolved,
            last_input,
            latent_input,
            predictor,
            plan,
        })
    }

    /// Draws initial weights on the host: convolutions Kaiming-normal by fan-out, heads uniform
    /// within 1/sqrt(fan-in) with zero bias, norms 1 and 0.
    pub fn init(&self, seed: u64, device: Device) -> Result<Params> {
        self.draw(Stream::new(seed, Purpose::Init, 0, SERVER), device)
    }

    /// The same for what a client draws by itself.
    pub fn init_client(&self, seed: u64, client: u32, device: Device) -> Result<Params> {
        self.draw(Stream::new(seed, Purpose::ClientInit, 0, client), device)
    }

    fn draw(&self, stream: Stream, device: Device) -> Result<Params> {
        let tensors = self.layout.iter().enumerate().map(|(index, entry)| {
            let values = initial(entry, &mut stream.at(index as u64));
            let mut shape = vec![1];
            shape.extend(&entry.shape);
            let tensor = Tensor::f_from_slice(&values)?.f_view(&shape[..])?;
            Ok(channels_last(&tensor.f_to_device(device)?)?)
        });
        Ok(Params { tensors: tensors.collect::<Result<_>>()?, layout: self.layout.clone() })
    }

    /// Parameters without running statistics: of the backbone and classifier, of the anchor head.
    pub fn parameter_counts(&self) -> (i64, i64) {
        let count = |parts: &[Part]| {
            let counts = |entry: &&Entry| !entry.statistic && parts.contains(&entry.part);
            self.layout.iter().filter(counts).map(Entry::numel).sum()
        };
        (count(&[Part::Backbone, Part::Classifier]), count(&[Part::Anchor]))
    }

    /// The backbone on a normalised batch `[batch, K*C, H, W]`.
    pub fn features(&self, x: &Tensor, pass: &Pass) -> Result<Features> {
        let backbone = &self.layers[..self.pooled];
        let mut run = Run::new(backbone, &self.plan, pass, x.f_to_kind(pass.kind)?)?;
        let latent_input = self.latent_input.map(|value| run.take(value)).transpose()?;
        Ok(Features { pooled: run.take(self.pooled)?, latent_input })
    }

    /// The classification head: `[K, batch, classes]`.
    pub fn logits(&self, features: &Features, pass: &Pass) -> Result<Tensor> {
        self.head(self.logits, &features.pooled, pass)
    }

    /// The anchor head: `[K, batch, latent_dim]`.
    pub fn latents(&self, features: &Features, pass: &Pass) -> Result<Tensor> {
        let head = self.latents.ok_or_else(|| absent("anchor head"))?;
        self.head(head, features.latent_input.as_ref().unwrap_or(&features.pooled), pass)
    }

    fn head(&self, value: Value, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        match self.layers[value - 1].operation {
            Operation::Linear { weight, bias } => linear(x, (weight, bias), pass),
            _ => unreachable!("heads are linear layers"),
        }
    }

    /// The predictor on pooled features: `[K, batch, F]`. Between its layers every number is
    /// normalised over the batch, as batch norm without weights does.
    pub fn predictions(&self, features: &Features, pass: &Pass) -> Result<Tensor> {
        let [first, second] = self.predictor.ok_or_else(|| absent("predictor"))?;
        let hidden = linear(&features.pooled, first, pass)?; // [K, batch, hidden]
        let mean = hidden.f_mean_dim(&[1i64][..], true, Kind::Float)?;
        let variance = hidden.f_var_dim(&[1i64][..], false, true)?;
        let scale = variance.f_add_scalar(1e-5)?.f_rsqrt()?;
        let hidden = hidden.f_sub(&mean)?.f_mul(&scale)?.f_relu()?;
        linear(&hidden, second, pass)
    }
}

fn absent(head: &str) -> Error {
    Error::tensors(format!("this method's network has no {head}"))
}

fn initial(entry: &Entry, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let count = entry.numel() as usize;
    let constant = |value: f32| vec![value; count];
    match entry.shape[..] {
        [to, _, height, width] => {
            let std = (2.0 / (to * height * width) as f32).sqrt();
            let mut normal = || -> f32 { StandardNormal.sample(rng) };
            (0..count).map(|_| std * normal()).collect()
        }
        [_, from] => {
            let bound = 1.0 / (from as f32).sqrt();
            (0..count).map(|_| rng.random_range(-bound..bound)).collect()
        }
        _ if entry.name.ends_with("running_var") => constant(1.0),
        _ if entry.part == Part::Backbone && entry.name.ends_with("weight") => constant(1.0),
        _ => constant(0.0),
    }
}
