//! What a computation needs beside parameters and data: the network, the device and number format,
//! the experiment, and the way from 8-bit pixels to a normalised batch. A simulated client, a
//! deployed client and the server each hold one; nothing in it changes during a run.

use crate::config::{Experiment, MethodConfig, Precision};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::model::{Network, Pass, Statistics};
use crate::packing::Packing;
use fedanchor_data::augment;
use fedanchor_data::{Normalisation, Purpose, Shape, Stream};
use fedanchor_graph as graph;
use rayon::prelude::*;
use tch::{Device, Kind, Tensor};

/// Everything that stays the same from round to round.
#[derive(Debug)]
pub struct Setting {
    /// The settings of the run.
    pub experiment: Experiment,
    /// The network's description.
    pub network: Network,
    /// Where tensors live.
    pub device: Device,
    /// Number of classes C.
    pub classes: usize,
    shape: Shape,
    flip: bool,
    /// (x / 255 - mean) / std as one multiplication and one subtraction, by channel.
    scale: Vec<f32>,
    shift: Vec<f32>,
    workers: rayon::ThreadPool,
    /// What a GPU keeps between steps; none on a CPU.
    pub(crate) engine: Option<Engine>,
}

/// The second view of a batch: `lambda` `[K, batch]` of the first images and the rest of the second.
pub(crate) use graph::Mixture;

/// How one image of a batch is made: from which pixels, and with which random numbers.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// As it is.
    Raw(&'a [u8]),
    /// Weakly augmented with the generator at this place of the stream.
    Weak(&'a [u8], Stream, u64),
    /// Strongly augmented.
    Strong(&'a [u8], Stream, u64),
}

impl Experiment {
    /// The device named in the config.
    pub fn device(&self) -> Result<Device> {
        let wrong = || {
            Error::config("device", format!("expected `cpu` or `cuda:N`, found `{}`", self.device))
        };
        match self.device.split_once(':') {
            None if self.device == "cpu" => Ok(Device::Cpu),
            Some(("cuda", number)) => Ok(Device::Cuda(number.parse().map_err(|_| wrong())?)),
            _ => Err(wrong()),
        }
    }
}

impl Setting {
    /// Builds the network's description and the host's workers.
    pub fn new(
        experiment: Experiment,
        shape: Shape,
        classes: usize,
        normalisation: &Normalisation,
        flip: bool,
        workers: Option<usize>,
    ) -> Result<Self> {
        let device = experiment.device()?;
        if let Device::Cuda(index) = device {
            let found = tch::Cuda::device_count();
            if index as i64 >= found {
                let problem =
                    format!("`{}` asked for, but {found} CUDA devices found", experiment.device);
                return Err(Error::config("device", problem));
            }
        }
        let network = Network::new(&experiment.model, experiment.method.heads(), shape, classes)?;
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(workers.unwrap_or(0))
            .build()
            .map_err(|error| Error::config("workers", error.to_string()))?;
        let scale = normalisation.std.iter().map(|std| 1.0 / (255.0 * std)).collect();
        let shift = normalisation.mean.iter().zip(&normalisation.std).map(|(m, s)| m / s).collect();
        let flip = experiment.augment.flip.unwrap_or(flip);
        let engine = Engine::new(device, experiment.precision)?;
        Ok(Self {
            experiment,
            network,
            device,
            classes,
            shape,
            flip,
            scale,
            shift,
            workers,
            engine,
        })
    }

    /// The experiment with every choice written down that was left to the data or the model.
    pub(crate) fn settled(&self) -> Result<Experiment> {
        Self::settle(&self.experiment, self.shape, self.classes, self.flip)
    }

    /// The same without a setting: for images of this shape, so many classes, and whether they may be
    /// mirrored.
    pub(crate) fn settle(
        experiment: &Experiment,
        shape: Shape,
        classes: usize,
        flip: bool,
    ) -> Result<Experiment> {
        let mut experiment = experiment.clone();
        let network = Network::new(&experiment.model, experiment.method.heads(), shape, classes)?;
        let anchors = experiment.data.anchors;
        experiment.augment.flip = Some(experiment.augment.flip.unwrap_or(flip));
        experiment.model.latent_stage = Some(network.latent_stage());
        experiment.server.batch = Some(experiment.server_batch());
        let contrastive = match &mut experiment.method {
            MethodConfig::Fedanchor(method) => {
                method.latents = Some(method.latent_source());
                &mut method.contrastive
            }
            MethodConfig::ServerOnly(method) => &mut method.contrastive,
            _ => return Ok(experiment),
        };
        contrastive.batch = Some(contrastive.batch_for(classes, anchors)?);
        Ok(experiment)
    }

    /// Puts this thread's work on the run's own queue of the GPU, until the answer is dropped.
    pub(crate) fn enter(&self) -> Result<Option<graph::Entered>> {
        self.engine.as_ref().map(Engine::enter).transpose()
    }

    /// Something about the GPU that the user should know; each is said once.
    pub(crate) fn take_notice(&self) -> Option<String> {
        self.engine.as_ref()?.take_notice()
    }

    /// Frees the GPU of what training kept there, to try again with smaller cohorts.
    pub(crate) fn start_smaller(&self, clients: usize) -> Result<()> {
        self.engine.as_ref().map_or(Ok(()), |engine| engine.start_smaller(clients))
    }

    /// Most memory held on the GPU so far, in bytes.
    pub(crate) fn peak_gpu_memory(&self) -> Option<u64> {
        self.engine.as_ref()?.peak_memory()
    }

    /// Whether activations are bfloat16.
    pub(crate) fn half(&self) -> bool {
        self.experiment.precision == Precision::Bf16
    }

    /// A forward pass in the configured precision.
    pub fn pass<'a>(&self, tensors: &'a [Tensor], statistics: Statistics) -> Pass<'a> {
        let kind = if self.half() { Kind::BFloat16 } else { Kind::Float };
        Pass { tensors, others: &[], statistics, kind, views: 1, fused: self.engine.is_some() }
    }

    /// The stream of this run for a purpose, round and client.
    pub fn stream(&self, purpose: Purpose, round: u32, client: u32) -> Stream {
        Stream::new(self.experiment.seed, purpose, round, client)
    }

    /// Bytes of an image.
    pub(crate) fn image_bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// Makes the images of a batch on the host: `views` holds sample 0 of every client, then
    /// sample 1 of every client, and so on. The result is 8-bit: `[batch, K, H, W, C]`.
    pub fn render(&self, views: &[View], out: &mut [u8]) {
        let bytes = self.image_bytes();
        let (shape, flip, preset) = (self.shape, self.flip, self.experiment.augment.strong);
        self.workers.install(|| {
            out.par_chunks_exact_mut(bytes).zip(views).for_each(|(out, view)| match *view {
                View::Raw(image) => out.copy_from_slice(image),
                View::Weak(image, stream, at) => {
                    augment::weak(shape, flip, image, &mut stream.at(at), out);
                }
                View::Strong(image, stream, at) => {
                    augment::strong(preset, shape, flip, image, &mut stream.at(at), out);
                }
            });
        });
    }

    /// Rendered images in a step's bytes, as `[batch, K, H, W, C]`.
    pub(crate) fn view_images(
        &self,
        bytes: &Tensor,
        packing: &Packing,
        part: usize,
        batch: usize,
        clients: usize,
    ) -> Result<Tensor> {
        let (side, channels) = (self.shape.side as i64, self.shape.channels as i64);
        packing.view(
            bytes,
            part,
            Kind::Uint8,
            &[batch as i64, clients as i64, side, side, channels],
        )
    }

    /// 8-bit images `[batch, K, H, W, C]` to the network's input `[batch, K*C, H, W]`, normalised,
    /// channels last in memory.
    pub(crate) fn network_input(&self, images: &Tensor) -> Result<Tensor> {
        match self.fused_input(images, None)? {
            Some(x) => Ok(x),
            None => self.to_input(&self.normalise(images)?),
        }
    }

    /// The network's input of a mixture: x_mix = lambda x_fix + (1 - lambda) x_mixset (eq. 8).
    pub(crate) fn mixed_input(&self, mixture: &Mixture) -> Result<Tensor> {
        let (first, second) = (self.normalise(mixture.first)?, self.normalise(mixture.second)?);
        let lambda = mixture.lambda.f_tr()?; // [batch, K]
        let lambda = lambda.f_unsqueeze(-1)?.f_unsqueeze(-1)?.f_unsqueeze(-1)?;
        self.to_input(&second.f_lerp_tensor(&first, &lambda)?)
    }

    /// Both in one batch: the images, and behind them the mixture.
    pub(crate) fn both_inputs(&self, images: &Tensor, mixture: &Mixture) -> Result<Tensor> {
        match self.fused_input(images, Some(mixture))? {
            Some(x) => Ok(x),
            None => {
                Ok(Tensor::f_cat(&[self.network_input(images)?, self.mixed_input(mixture)?], 0)?)
            }
        }
    }

    fn fused_input(&self, images: &Tensor, mixture: Option<&Mixture>) -> Result<Option<Tensor>> {
        if self.engine.is_none() || self.shape.channels > 4 {
            return Ok(None);
        }
        Ok(Some(graph::images(images, mixture, &self.scale, &self.shift, self.half())?))
    }

    /// Normalises 8-bit images `[batch, K, H, W, C]`; the shape stays.
    pub fn normalise(&self, pixels: &Tensor) -> Result<Tensor> {
        let channel = |values: &[f32]| Tensor::f_from_slice(values)?.f_to_device(self.device);
        let (scale, shift) = (channel(&self.scale)?, channel(&self.shift)?);
        Ok(pixels.f_to_kind(Kind::Float)?.f_mul_(&scale)?.f_sub_(&shift)?)
    }

    /// `[batch, K, H, W, C]` to the network's input `[batch, K*C, H, W]`, channels last in memory.
    pub fn to_input(&self, images: &Tensor) -> Result<Tensor> {
        let images = images.f_permute([0, 2, 3, 1, 4])?; // [batch, H, W, K, C]; no copy for K = 1
        Ok(images.f_flatten(3, 4)?.f_permute([0, 3, 1, 2])?)
    }
}
