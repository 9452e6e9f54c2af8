//! The double-headed cohort network: a backbone, the classification head, and the anchor head that
//! projects pooled features to the latent space (section 4.1 of the paper).
//!
//! Config value -> [`Network::new`] (a description, no tensors) -> [`Network::init`] (tensors). The
//! anchor head reads the pooled output of the last stage by default, or of an earlier one: the
//! paper allows any layer and suggests a late one.

mod cnn;
mod import;
mod layers;
mod operations;
mod resnet;
#[cfg(test)]
mod tests;
mod wide;

pub use import::{Imported, import};
pub use layers::{Pass, Statistics};
pub use operations::{Operation, Operations, Value};

use crate::config::{Heads, ModelConfig, ModelName, NormKind, Stem};
use crate::error::{Error, Result};
use crate::tensors::{Entry, Layout, Params, Part, channels_last};
use cnn::Cnn;
use fedanchor_data::stream::{SERVER, Stream};
use fedanchor_data::{Purpose, Shape};
use layers::{Builder, Linear, Norm, pool};
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use resnet::Body;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// The fewest pixels per side of a network's images.
pub const MIN_SIDE: usize = 16;

/// A network as a description: layers that know which entries are theirs.
#[derive(Debug)]
pub struct Network {
    /// Name and shape of every tensor.
    pub layout: Layout,
    /// The settings that it was described by.
    pub config: ModelConfig,
    backbone: Backbone,
    classifier: Linear,
    anchor: Option<Linear>,
    predictor: Option<Predictor>,
    latent_stage: usize,
}

#[derive(Debug)]
enum Backbone {
    Residual(Body),
    Cnn(Cnn),
}

/// A predictor of pooled features: two linear layers with a normalisation and ReLU between them.
#[derive(Debug)]
struct Predictor {
    first: Linear,
    second: Linear,
}

fn absent(head: &str) -> Error {
    Error::tensors(format!("this method's network has no {head}"))
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
    fn map(&self, change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let latent_input = self.latent_input.as_ref().map(&change).transpose()?;
        Ok(Self { pooled: change(&self.pooled)?, latent_input })
    }

    /// The same memory once more.
    pub(crate) fn share(&self) -> Self {
        let latent_input = self.latent_input.as_ref().map(Tensor::shallow_clone);
        Self { pooled: self.pooled.shallow_clone(), latent_input }
    }

    /// Those of the first `count` images; they share memory.
    pub(crate) fn first(&self, count: usize) -> Result<Self> {
        self.map(|tensor| Ok(tensor.f_narrow(1, 0, count as i64)?))
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
        if shape.side < MIN_SIDE {
            return Err(Error::config(
                "data.size",
                format!(
                    "the models need images of {MIN_SIDE} pixels or more, these have {}: set data.size",
                    shape.side
                ),
            ));
        }
        if config.stem != Stem::Cifar
            && (config.name != ModelName::Resnet18 || config.preactivation)
        {
            let problem = "`imagenet` is an option of resnet18 without preactivation only";
            return Err(Error::config("model.stem", problem));
        }
        if config.init_from.is_some()
            && (config.name != ModelName::Resnet18
                || config.preactivation
                || config.norm != NormKind::Batch)
        {
            let problem = "needs model.name = \"resnet18\" with batch norm and without preactivation: \
                           torchvision's weights fit no other model";
            return Err(Error::config("model.init_from", problem));
        }
        let norm = match config.norm {
            NormKind::Batch => Norm::Batch,
            NormKind::Group => Norm::Group(config.groups as i64),
        };
        let mut builder = Builder { entries: Vec::new(), norm };
        let channels = shape.channels as i64;
        let parts = &mut builder;
        let backbone = match config.name {
            ModelName::Resnet18 => {
                let (preactivation, stem) = (config.preactivation, config.stem);
                Backbone::Residual(resnet::resnet18(parts, channels, preactivation, stem))
            }
            ModelName::Wrn28x2 => Backbone::Residual(wide::wrn28x2(parts, channels)),
            ModelName::Small => Backbone::Residual(wide::small(parts, channels)),
            ModelName::Cnn => Backbone::Cnn(Cnn::new(parts, channels, shape.side as i64)),
        };
        let widths = match &backbone {
            Backbone::Residual(body) => &body.widths[..],
            Backbone::Cnn(_) => &[cnn::HIDDEN],
        };
        let stages = widths.len();
        let latent_stage = config.latent_stage.unwrap_or(stages);
        if latent_stage == 0 || latent_stage > stages {
            return Err(Error::config(
                "model.latent_stage",
                format!("this model has stages 1 to {stages}, not {latent_stage}"),
            ));
        }
        let pooled = widths[stages - 1];
        let classifier = builder.linear("classifier", pooled, classes as i64, Part::Classifier);
        let latent_from = widths[latent_stage - 1];
        let anchor = heads
            .anchor
            .then(|| builder.linear("anchor", latent_from, config.latent_dim as i64, Part::Anchor));
        let predictor = heads.predictor.map(|hidden| Predictor {
            first: builder.linear("predictor.0", pooled, hidden as i64, Part::Predictor),
            second: builder.linear("predictor.1", hidden as i64, pooled, Part::Predictor),
        });
        let layout = Arc::new(builder.entries);
        let config = config.clone();
        Ok(Self { layout, config, backbone, classifier, anchor, predictor, latent_stage })
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

    /// The stage whose pooled output the anchor head reads, from 1.
    pub fn latent_stage(&self) -> usize {
        self.latent_stage
    }

    /// Number of pooled features F.
    pub fn features_width(&self) -> i64 {
        match &self.backbone {
            Backbone::Residual(body) => body.widths[body.widths.len() - 1],
            Backbone::Cnn(_) => cnn::HIDDEN,
        }
    }

    /// Parameters without running statistics: of the backbone and classifier, of the anchor head.
    pub fn parameter_counts(&self) -> (i64, i64) {
        let count = |anchor: bool| {
            let part = |part| {
                if anchor {
                    part == Part::Anchor
                } else {
                    matches!(part, Part::Backbone | Part::Classifier)
                }
            };
            let wanted = |e: &&Entry| !e.statistic && part(e.part);
            self.layout.iter().filter(wanted).map(Entry::numel).sum()
        };
        (count(false), count(true))
    }

    /// The backbone on a normalised batch `[batch, K*C, H, W]`.
    pub fn features(&self, x: &Tensor, pass: &Pass) -> Result<Features> {
        let x = &x.f_to_kind(pass.kind)?;
        let body = match &self.backbone {
            Backbone::Residual(body) => body,
            Backbone::Cnn(cnn) => {
                return Ok(Features { pooled: cnn.forward(x, pass)?, latent_input: None });
            }
        };
        let mut flow = body.begin(x, pass)?;
        let mut latent_input = None;
        for (index, stage) in body.stages.iter().enumerate() {
            for block in stage {
                flow = block.forward(flow, pass)?;
            }
            if index + 1 == self.latent_stage && index + 1 < body.stages.len() {
                latent_input = Some(pool(&flow.x, pass)?);
            }
        }
        let x = match &body.end_norm {
            Some(norm) => norm.relu(&flow, pass)?,
            None => flow.x,
        };
        Ok(Features { pooled: pool(&x, pass)?, latent_input })
    }

    /// The classification head: `[K, batch, classes]`.
    pub fn logits(&self, features: &Features, pass: &Pass) -> Result<Tensor> {
        self.classifier.forward(&features.pooled, pass)
    }

    /// The anchor head: `[K, batch, latent_dim]`.
    pub fn latents(&self, features: &Features, pass: &Pass) -> Result<Tensor> {
        let head = self.anchor.as_ref().ok_or_else(|| absent("anchor head"))?;
        head.forward(features.latent_input.as_ref().unwrap_or(&features.pooled), pass)
    }

    /// What the network computes, operation by operation, without the predictor, which only serves
    /// training.
    pub fn operations(&self) -> Operations {
        let mut operations = Operations::default();
        let (pooled, latent_input) = match &self.backbone {
            Backbone::Residual(body) => body.describe(&mut operations, self.latent_stage),
            Backbone::Cnn(cnn) => {
                let pooled = cnn.describe(&mut operations);
                (pooled, pooled)
            }
        };
        operations.pooled = pooled;
        operations.logits = self.classifier.describe(&mut operations, pooled);
        let anchor = self.anchor.as_ref();
        operations.latents = anchor.map(|head| head.describe(&mut operations, latent_input));
        operations
    }

    /// The predictor on pooled features: `[K, batch, F]`. Between its layers every number is
    /// normalised over the batch, as batch norm without weights does.
    pub fn predictions(&self, features: &Features, pass: &Pass) -> Result<Tensor> {
        let predictor = self.predictor.as_ref().ok_or_else(|| absent("predictor"))?;
        let hidden = predictor.first.forward(&features.pooled, pass)?; // [K, batch, hidden]
        let mean = hidden.f_mean_dim(&[1i64][..], true, Kind::Float)?;
        let variance = hidden.f_var_dim(&[1i64][..], false, true)?;
        let scale = variance.f_add_scalar(1e-5)?.f_rsqrt()?;
        let hidden = hidden.f_sub(&mean)?.f_mul(&scale)?.f_relu()?;
        predictor.second.forward(&hidden, pass)
    }
}

fn initial(entry: &Entry, rng: &mut fedanchor_data::stream::ChaCha8Rng) -> Vec<f32> {
    let count = entry.numel() as usize;
    let constant = |value: f32| vec![value; count];
    match entry.shape[..] {
        [to, _, height, width] => {
            let std = (2.0 / (to * height * width) as f32).sqrt();
            (0..count)
                .map(|_| {
                    let normal: f32 = StandardNormal.sample(rng);
                    std * normal
                })
                .collect()
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
