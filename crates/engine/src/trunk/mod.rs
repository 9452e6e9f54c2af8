//! Trunks: pretrained networks that turn pictures into features, once per picture.
//!
//! A trunk is a file of this machine. By name it is looked up where `make trunks` and the archive of the program put
//! them; a file is a trunk that was set up, torchvision's weights of ResNet-18, or TorchScript. TorchScript is a program:
//! it is loaded only where it was named on this machine, never because a coordinator names it.

mod files;
mod folded;

pub use files::{Place, TrunkFile, folders, names_a_file};

use crate::config::Unfreeze;
use crate::error::{Error, Result};
use crate::threads::set_threads;
use fedanchor_data::features::TrunkInfo;
use fedanchor_data::{Normalisation, Shape};
pub use folded::TrunkLayers;
use rayon::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::{CModule, Device, Kind, Tensor};

/// A trunk in memory.
pub struct Trunk {
    /// What is known of it.
    pub info: TrunkInfo,
    /// What it makes of a picture: a vector, which has side 1, or what its last stage reads.
    pub output: Shape,
    is_map: bool,
    device: Device,
    original: Mutex<Encoder>,
    /// Copies for threads: a tensor belongs to one thread at a time.
    copies: Mutex<Vec<Encoder>>,
}

/// How a trunk computes.
enum Encoder {
    /// A network of this program.
    Layers(TrunkLayers),
    /// TorchScript, with the file's bytes to read it again.
    Script(CModule, Arc<Vec<u8>>),
}

impl Encoder {
    /// For another thread.
    fn copy(&self, device: Device) -> Result<Self> {
        match self {
            Self::Layers(folded) => Ok(Self::Layers(folded.on(device)?)),
            Self::Script(_, bytes) => Self::script(bytes.clone(), device),
        }
    }

    fn script(bytes: Arc<Vec<u8>>, device: Device) -> Result<Self> {
        let mut module = CModule::load_data_on_device(&mut bytes.as_slice(), device)?;
        module.f_set_eval()?;
        Ok(Self::Script(module, bytes))
    }

    /// `[count, 3, size, size]` to `[count, side, side, channels]`; vectors have side 1.
    fn forward(&self, images: Tensor, is_map: bool) -> Result<Tensor> {
        let count = images.size()[0];
        let features = match self {
            Self::Layers(folded) => folded.forward(images)?,
            Self::Script(module, _) => module.forward_ts(&[images])?,
        };
        let features = match features.dim() {
            4 if is_map => features.f_permute([0, 2, 3, 1])?,
            4 => features.f_mean_dim(&[2i64, 3][..], true, Kind::Float)?.f_permute([0, 2, 3, 1])?,
            2 => features.f_unsqueeze(1)?.f_unsqueeze(1)?,
            _ => features,
        };
        match features.size()[..] {
            [rows, _, _, width] if rows == count && width > 0 => {
                Ok(features.f_to_kind(Kind::Float)?)
            }
            _ => {
                let problem = "expected one vector per picture";
                Err(Error::tensors(format!("{problem}, got a tensor {:?}", features.size())))
            }
        }
    }
}

impl Trunk {
    /// With a frozen trunk its pooled features, with `unfreeze = "last"` what its last stage reads.
    pub fn load(file: &TrunkFile, unfreeze: Unfreeze, device: Device) -> Result<Self> {
        let bad = |problem: String| file.place.problem(problem);
        let encoder = match &file.model {
            None if unfreeze != Unfreeze::None => {
                return Err(bad("TorchScript cannot be trained: remove model.unfreeze".to_owned()));
            }
            None => {
                let script = Encoder::script(Arc::new(file.bytes.clone()), device);
                script
                    .map_err(|error| {
                    let advice = "save weights with safetensors.torch.save_file, and programs with torch.jit.save";
                    bad(format!("not TorchScript that can be loaded: {advice} ({error})"))
                })?
            }
            Some(model) => {
                let (network, backbone) = file.network(model)?;
                let output = match unfreeze {
                    Unfreeze::Last => network.last_input,
                    _ => network.pooled,
                };
                Encoder::Layers(TrunkLayers::new(&network, &backbone, output)?.on(device)?)
            }
        };
        let (original, copies) = (Mutex::new(encoder), Mutex::new(Vec::new()));
        let (info, output) = (file.info.clone(), Shape { side: 1, channels: 0 });
        let is_map = unfreeze == Unfreeze::Last;
        let mut trunk = Self { info, output, is_map, device, original, copies };
        trunk.output = trunk.probe().map_err(|error| bad(error.to_string()))?;
        Ok(trunk)
    }

    /// Its layers, for an export; `None` for TorchScript, which has none that are known.
    pub fn layers(&self) -> Result<Option<TrunkLayers>> {
        match &*lock(&self.original) {
            Encoder::Layers(layers) => Ok(Some(layers.on(Device::Cpu)?)),
            Encoder::Script(..) => Ok(None),
        }
    }

    /// The shape of its output, found with two pictures. Views of a picture are encoded together, so that what it makes
    /// of one must not depend on the others.
    fn probe(&self) -> Result<Shape> {
        const MOST: usize = 1 << 16;
        const ROUNDING: f64 = 0.01;
        let bytes = self.info.shape().bytes();
        let picture = |step: usize| (0..bytes).map(move |at| (at / 3 * step) as u8);
        let pixels: Vec<u8> = picture(1).chain(picture(7)).collect();
        let encoder = lock(&self.original);
        let both = self.vectors(&encoder, &pixels)?;
        let (_, side, _, channels) = both.size4()?;
        let (side, channels) = (side as usize, channels as usize);
        let width = side * side * channels;
        if width > MOST || both.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            let problem =
                format!("expected a vector of at most {MOST} finite numbers, got {width}");
            return Err(Error::tensors(problem));
        }
        if self.is_map && side < 2 {
            let problem = "of pictures this small, a single place is left for the last stage: set a larger data.size";
            return Err(Error::tensors(problem));
        }
        let alone = self.vectors(&encoder, &pixels[bytes..])?;
        let largest = |values: &Tensor| values.f_abs()?.f_max()?.f_double_value(&[]);
        if largest(&both.f_narrow(0, 1, 1)?.f_sub(&alone)?)? > ROUNDING * largest(&both)? {
            let problem = "what it makes of a picture depends on chance or on the other pictures of a batch: expected a \
                           network as for inference";
            return Err(Error::tensors(problem));
        }
        Ok(Shape { side, channels })
    }

    fn vectors(&self, encoder: &Encoder, pixels: &[u8]) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let side = self.info.size as i64;
        let pixels =
            Tensor::f_from_slice(pixels)?.f_view([-1, side, side, 3])?.f_to_device(self.device)?;
        let channel = |values: &[f32]| Tensor::f_from_slice(values)?.f_to_device(self.device);
        let Normalisation { mean, std } = &self.info.normalisation;
        let scale: Vec<f32> = std.iter().map(|std| 1.0 / (255.0 * std)).collect();
        let shift: Vec<f32> = mean.iter().zip(std).map(|(mean, std)| mean / std).collect();
        let images =
            pixels.f_to_kind(Kind::Float)?.f_mul_(&channel(&scale)?)?.f_sub_(&channel(&shift)?)?;
        encoder.forward(images.f_permute([0, 3, 1, 2])?, self.is_map)
    }

    /// Encodes pictures one by one, on all cores.
    pub fn encode_each(&self, pictures: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        pictures.par_iter().map(|picture| self.encode(picture)).collect()
    }

    /// Encodes pictures `[count, side, side, 3]` in half precision. Threads may do so at the same time, each with one core.
    pub fn encode(&self, pixels: &[u8]) -> Result<Vec<u8>> {
        set_threads(1);
        let copy = lock(&self.copies).pop();
        let encoder = match copy {
            Some(encoder) => encoder,
            None => lock(&self.original).copy(self.device)?,
        };
        let vectors = self.vectors(&encoder, pixels)?;
        lock(&self.copies).push(encoder);
        if vectors.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Err(Error::tensors("the trunk made a number that is not finite"));
        }
        let vectors = vectors.f_clamp(-65504.0, 65504.0)?.f_to_kind(Kind::Half)?;
        let vectors = vectors.f_to_device(Device::Cpu)?.f_contiguous()?;
        let mut bytes = vec![0; 2 * vectors.numel()];
        vectors.f_copy_data_u8(&mut bytes, vectors.numel())?;
        Ok(bytes)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Trunk {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Trunk({}, {})", self.info.name, self.info.hash)
    }
}
