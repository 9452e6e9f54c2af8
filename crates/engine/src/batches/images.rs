//! From 8-bit pixels, or a trunk's features, on the host to a network's normalised input on the device.
//!
//! Augmentation happens on the host, on 8-bit pixels, with random numbers keyed by sample: the same
//! bits on any number of threads. Normalisation happens on the device, in one fused kernel on a GPU.

use super::packing::Packing;
use crate::config::{AugmentConfig, Augmentation};
use crate::error::{Error, Result};
use cuda::Mixture;
use fedanchor_cuda as cuda;
use fedanchor_data::augment::{self, Strong};
use fedanchor_data::features::FeatureFormat;
use fedanchor_data::stream::ChaCha8Rng;
use fedanchor_data::{InputFormat, Normalisation, Stream};
use half::f16;
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use tch::{Device, Kind, Tensor};

/// How one image of a batch is made: from which pixels, and with which random numbers.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// As it is.
    Raw(&'a [u8]),
    /// Weakly augmented, with the generator at this index of the stream.
    Weak(&'a [u8], Stream, u64),
    /// Strongly augmented.
    Strong(&'a [u8], Stream, u64),
}

impl<'a> View<'a> {
    /// The image with this augmentation.
    pub fn new(augment: Augmentation, image: &'a [u8], stream: Stream, at: u64) -> Self {
        match augment {
            Augmentation::None => Self::Raw(image),
            Augmentation::Weak => Self::Weak(image, stream, at),
            Augmentation::Strong => Self::Strong(image, stream, at),
        }
    }
}

/// The way from 8-bit pixels to a normalised batch.
#[derive(Debug)]
pub struct ImagePipeline {
    /// What is read of an image.
    pub format: InputFormat,
    /// Whether images are mirrored.
    pub flip: bool,
    strong: Strong,
    device: Device,
    /// Input in bfloat16, made by the GPU's fused kernel.
    half: bool,
    fused: bool,
    /// The normalisation of the input.
    pub normalisation: Normalisation,
    /// (x / 255 - mean) / std as one multiplication and one subtraction, by channel.
    scale: Vec<f32>,
    shift: Vec<f32>,
    workers: rayon::ThreadPool,
}

/// More threads than any machine has cores for take longer to start than to use.
const MOST_WORKERS: usize = 1024;

impl ImagePipeline {
    /// For inputs of this format. `fused` says whether the GPU's kernels are there, `half` whether they
    /// write bfloat16, and `workers` how many threads augment [default: one per core].
    pub fn new(
        format: InputFormat,
        normalisation: &Normalisation,
        config: &AugmentConfig,
        flip: bool,
        device: Device,
        (half, fused): (bool, bool),
        workers: Option<usize>,
    ) -> Result<Self> {
        if let Some(workers) = workers.filter(|workers| *workers > MOST_WORKERS) {
            let problem = format!("expected at most {MOST_WORKERS} threads, got {workers}");
            return Err(Error::config("--workers", problem));
        }
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(workers.unwrap_or(0))
            .build()
            .map_err(|error| Error::config("--workers", error.to_string()))?;
        let most = if format.features.is_some() { 1.0 } else { 255.0 };
        let scale = normalisation.std.iter().map(|std| 1.0 / (most * std)).collect();
        let shift = normalisation.mean.iter().zip(&normalisation.std).map(|(m, s)| m / s).collect();
        // The kernel knows up to four channels of 8 bits.
        let (fused, flip) = (fused && format.network().channels <= 4, config.flip.unwrap_or(flip));
        let (strong, normalisation) = (config.strong, normalisation.clone());
        Ok(Self { format, flip, strong, device, half, fused, normalisation, scale, shift, workers })
    }

    /// An image of Gaussian noise: around the middle of the range of pixels, or around the mean of features.
    pub fn noise(&self, rng: &mut ChaCha8Rng) -> Vec<u8> {
        let mut noise = || -> f32 { StandardNormal.sample(rng) };
        if self.format.features.is_none() {
            // The cast saturates at 0 and 255.
            let pixels = (0..self.format.bytes()).map(|_| (127.5 + 50.0 * noise()).round() as u8);
            return pixels.collect();
        }
        let Normalisation { mean, std } = &self.normalisation;
        let places = self.format.bytes() / (2 * mean.len());
        let channels = mean.iter().zip(std).cycle().take(places * mean.len());
        let numbers = channels.map(|(mean, std)| f16::from_f32(mean + std * noise()));
        numbers.flat_map(f16::to_le_bytes).collect()
    }

    /// Makes the images of a batch on the host: `views` holds sample 0 of every client, then
    /// sample 1 of every client, and so on. The result is 8-bit: `[batch, K, H, W, C]`.
    pub fn render(&self, views: &[View], out: &mut [u8]) {
        if let Some(features) = self.format.features {
            return choose(features, views, out);
        }
        let bytes = self.format.bytes();
        let (shape, flip, strong) = (self.format.shape, self.flip, self.strong);
        self.workers.install(|| {
            out.par_chunks_exact_mut(bytes).zip(views).for_each(|(out, view)| match *view {
                View::Raw(image) => out.copy_from_slice(image),
                View::Weak(image, stream, at) => {
                    augment::weak(shape, flip, image, &mut stream.at(at), out);
                }
                View::Strong(image, stream, at) => {
                    augment::strong(strong, shape, flip, image, &mut stream.at(at), out);
                }
            });
        });
    }

    /// Rendered images in a step's bytes, as `[batch, K, H, W, C]`.
    pub fn view(
        &self,
        bytes: &Tensor,
        packing: &Packing,
        part: usize,
        batch: usize,
        clients: usize,
    ) -> Result<Tensor> {
        let shape = self.format.network();
        let (side, channels) = (shape.side as i64, shape.channels as i64);
        let size = [batch as i64, clients as i64, side, side, channels];
        let kind = if self.format.features.is_some() { Kind::Half } else { Kind::Uint8 };
        packing.view(bytes, part, kind, &size)
    }

    /// 8-bit images `[batch, K, H, W, C]` to the network's input `[batch, K*C, H, W]`, normalised,
    /// channels last in memory.
    pub fn input(&self, images: &Tensor) -> Result<Tensor> {
        match self.fused {
            true => self.fused_input(images, None),
            false => self.to_input(&self.normalise(images)?),
        }
    }

    /// The network's input of a mixture: x_mix = lambda x_fix + (1 - lambda) x_mixset (eq. 8).
    pub fn mixed_input(&self, mixture: &Mixture) -> Result<Tensor> {
        let (first, second) = (self.normalise(mixture.first)?, self.normalise(mixture.second)?);
        let lambda = mixture.lambda.f_tr()?; // [batch, K]
        let lambda = lambda.f_unsqueeze(-1)?.f_unsqueeze(-1)?.f_unsqueeze(-1)?;
        self.to_input(&second.f_lerp_tensor(&first, &lambda)?)
    }

    /// Both in one batch: the images, followed by the mixture.
    pub fn both_inputs(&self, images: &Tensor, mixture: &Mixture) -> Result<Tensor> {
        match self.fused {
            true => self.fused_input(images, Some(mixture)),
            false => Ok(Tensor::f_cat(&[self.input(images)?, self.mixed_input(mixture)?], 0)?),
        }
    }

    fn fused_input(&self, images: &Tensor, mixture: Option<&Mixture>) -> Result<Tensor> {
        Ok(cuda::images(images, mixture, &self.scale, &self.shift, self.half)?)
    }

    /// Normalises 8-bit images `[batch, K, H, W, C]`; the shape stays.
    fn normalise(&self, pixels: &Tensor) -> Result<Tensor> {
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

/// Copies the vectors of features: that of the picture as it is, or one of its augmented views.
fn choose(format: FeatureFormat, views: &[View], out: &mut [u8]) {
    let FeatureFormat { views: count, .. } = format;
    let bytes = format.bytes();
    let any = |stream: &Stream, at: u64| match count {
        0 => 0,
        _ => stream.at(at).random_range(0..count),
    };
    for (out, view) in out.chunks_exact_mut(bytes).zip(views) {
        let (vectors, chosen) = match view {
            View::Raw(vectors) => (vectors, 0),
            View::Weak(vectors, stream, at) if count > 0 => (vectors, 1 + any(stream, *at)),
            View::Strong(vectors, stream, at) if count > 0 => {
                (vectors, 1 + count + any(stream, *at))
            }
            View::Weak(vectors, ..) | View::Strong(vectors, ..) => (vectors, 0),
        };
        out.copy_from_slice(&vectors[chosen * bytes..][..bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_data::Shape;

    /// Packed images and shares are what the GPU's kernel takes: on a CPU, the device is all that it refuses.
    #[test]
    fn a_step_is_packed_for_the_fused_input() {
        let (shape, batch, clients) = (Shape { side: 5, channels: 3 }, 4, 2);
        let normalisation = Normalisation { mean: vec![0.5; 3], std: vec![0.2; 3] };
        let config = AugmentConfig { strong: Strong::Fixmatch, flip: None, views: 2 };
        let kernels = (true, true);
        let pipeline = ImagePipeline::new(
            shape.into(),
            &normalisation,
            &config,
            false,
            Device::Cpu,
            kernels,
            Some(1),
        )
        .unwrap();
        let images = batch * clients * pipeline.format.bytes();
        let packing = Packing::new(&[images, images, 4 * batch * clients, images]);
        let bytes = Tensor::zeros([packing.total() as i64], (Kind::Uint8, Device::Cpu));
        let view = |part| pipeline.view(&bytes, &packing, part, batch, clients).unwrap();
        let shares = [clients as i64, batch as i64];
        let lambda = packing.view(&bytes, 2, Kind::Float, &shares).unwrap();
        let mixture = Mixture { first: &view(1), second: &view(3), lambda: &lambda };
        let alone = pipeline.input(&view(0)).unwrap_err().to_string();
        let both = pipeline.both_inputs(&view(0), &mixture).unwrap_err().to_string();
        for error in [alone, both] {
            assert!(error.contains("fix: expected a tensor on a GPU"), "{error}");
        }
    }
}
