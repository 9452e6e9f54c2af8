//! What a computation needs beside parameters and data: the network, the device and number format,
//! the experiment, and the way from 8-bit pixels to a normalised batch. A simulated client, a
//! deployed client and the server each hold one; nothing in it changes during a run.

use crate::config::{Experiment, Precision};
use crate::error::{Error, Result};
use crate::model::{Network, Pass, Statistics};
use crate::params::Params;
use fedanchor_data::augment;
use fedanchor_data::{Normalisation, Purpose, Shape, Stream};
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
}

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
        let network = Network::new(&experiment.model, shape, classes)?;
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(workers.unwrap_or(0))
            .build()
            .map_err(|error| Error::config("workers", error.to_string()))?;
        let scale = normalisation.std.iter().map(|std| 1.0 / (255.0 * std)).collect();
        let shift = normalisation.mean.iter().zip(&normalisation.std).map(|(m, s)| m / s).collect();
        let flip = experiment.augment.flip.unwrap_or(flip);
        Ok(Self { experiment, network, device, classes, shape, flip, scale, shift, workers })
    }

    /// A forward pass in the configured precision.
    pub fn pass<'a>(&self, tensors: &'a [Tensor], statistics: Statistics) -> Pass<'a> {
        let kind = match self.experiment.precision {
            Precision::F32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        };
        Pass { tensors, statistics, kind }
    }

    /// The stream of this run for a purpose, round and client.
    pub fn stream(&self, purpose: Purpose, round: u32, client: u32) -> Stream {
        Stream::new(self.experiment.seed, purpose, round, client)
    }

    /// Makes the images of a batch on the host: `views` holds sample 0 of every client, then
    /// sample 1 of every client, and so on. The result is 8-bit: `[batch, K, H, W, C]`.
    pub fn render(&self, views: &[View], clients: usize) -> Result<Tensor> {
        let bytes = self.shape.bytes();
        let mut pixels = vec![0; views.len() * bytes];
        let (shape, flip, preset) = (self.shape, self.flip, self.experiment.augment.strong);
        self.workers.install(|| {
            pixels.par_chunks_exact_mut(bytes).zip(views).for_each(|(out, view)| match *view {
                View::Raw(image) => out.copy_from_slice(image),
                View::Weak(image, stream, at) => {
                    augment::weak(shape, flip, image, &mut stream.at(at), out);
                }
                View::Strong(image, stream, at) => {
                    augment::strong(preset, shape, flip, image, &mut stream.at(at), out);
                }
            });
        });
        let (side, channels) = (self.shape.side as i64, self.shape.channels as i64);
        let size = [(views.len() / clients.max(1)) as i64, clients as i64, side, side, channels];
        Ok(Tensor::f_from_data_size(&pixels, &size, Kind::Uint8)?.f_to_device(self.device)?)
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

    /// Runs a plain network over many images without gradients, in batches of a fixed size, and
    /// hands each batch's range and features to `take`.
    pub fn for_each_batch(
        &self,
        params: &Params,
        statistics: impl Fn(usize) -> Statistics,
        views: &[View],
        mut take: impl FnMut(std::ops::Range<usize>, &Pass, crate::model::Features) -> Result<()>,
    ) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (index, batch) in views.chunks(INFERENCE_BATCH).enumerate() {
            let pass = self.pass(&params.tensors, statistics(index));
            let x = self.to_input(&self.normalise(&self.render(batch, 1)?)?)?;
            let features = self.network.features(&x, &pass)?;
            let start = index * INFERENCE_BATCH;
            take(start..start + batch.len(), &pass, features)?;
        }
        Ok(())
    }
}

/// Images in a forward pass without gradients (SemiFL's 250).
const INFERENCE_BATCH: usize = 250;
