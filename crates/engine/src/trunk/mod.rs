//! Trunks: pretrained networks that turn pictures into features, once per picture.
//!
//! A trunk is a file of this machine. By name it is looked up where `make trunks` and the archive of the program put
//! them; a file is a trunk that was set up, torchvision's weights of ResNet-18, or TorchScript. TorchScript is a program:
//! it is loaded only where it was named on this machine, never because a coordinator names it.

mod files;
mod folded;

pub use files::{Place, folders, names_a_file};

use crate::config::{Heads, ModelConfig, Stem};
use crate::error::{Error, Result};
use crate::model::{Network, import_bytes};
use crate::threads::set_threads;
use fedanchor_data::Normalisation;
use fedanchor_data::features::TrunkInfo;
pub use folded::TrunkLayers;
use rayon::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::{CModule, Device, Kind, Tensor};

/// A trunk in memory.
pub struct Trunk {
    /// What is known of it.
    pub info: TrunkInfo,
    /// Numbers per vector.
    pub width: usize,
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

    /// `[count, 3, size, size]` to `[count, width]`.
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let count = images.size()[0];
        let features = match self {
            Self::Layers(folded) => folded.forward(images)?,
            Self::Script(module, _) => module.forward_ts(&[images])?,
        };
        let features = match features.dim() {
            4 => features.f_mean_dim(&[2i64, 3][..], false, Kind::Float)?, // not pooled yet
            _ => features,
        };
        match features.size()[..] {
            [rows, width] if rows == count && width > 0 => Ok(features.f_to_kind(Kind::Float)?),
            _ => {
                let problem = "expected one vector per picture";
                Err(Error::tensors(format!("{problem}, got a tensor {:?}", features.size())))
            }
        }
    }
}

impl Trunk {
    /// Loads the trunk of `model.trunk`. `size` and `normalisation` replace what the file states; TorchScript states
    /// neither.
    pub fn load(
        named: &str,
        size: Option<usize>,
        normalisation: Option<&Normalisation>,
        device: Device,
    ) -> Result<Self> {
        Self::open(&Place::find(named)?, size, normalisation, device)
    }

    /// The same for a file.
    pub fn open(
        place: &Place,
        size: Option<usize>,
        normalisation: Option<&Normalisation>,
        device: Device,
    ) -> Result<Self> {
        let bad = |problem: String| place.problem(problem);
        let bytes = place.read()?;
        let hash = blake3::hash(&bytes).to_hex().to_string();
        let is_script = bytes.starts_with(b"PK");
        if is_script && place.by_name {
            return Err(bad(
                "TorchScript is a program: it is loaded only as a file that is named".to_owned()
            ));
        }
        let stated = match is_script {
            true => files::Stated::default(),
            false => files::stated(&bytes).map_err(bad)?,
        };
        let (Some(size), Some(normalisation)) =
            (size.or(stated.size), normalisation.cloned().or(stated.normalisation))
        else {
            let problem = "does not state the size and normalisation of its pictures: set data.size and \
                           data.normalisation";
            return Err(bad(problem.to_owned()));
        };
        let info = TrunkInfo {
            name: stated.name.unwrap_or_else(|| place.name()),
            hash,
            size,
            normalisation,
            licence: stated.licence.unwrap_or_else(|| "not stated".to_owned()),
            source: stated.source.unwrap_or_else(|| "a file".to_owned()),
        };
        let encoder = if is_script {
            let script = Encoder::script(Arc::new(bytes), device);
            script.map_err(|error| bad(format!("not TorchScript that can be loaded: {error}")))?
        } else {
            let stem = if stated.model == "resnet18" { Stem::Imagenet } else { Stem::Cifar };
            let config = ModelConfig { stem, ..ModelConfig::plain(&stated.model) };
            let network = Network::new(&config, Heads::default(), info.shape(), 1)?;
            let imported = import_bytes(&network.layout, &bytes, Device::Cpu).map_err(bad)?;
            Encoder::Layers(TrunkLayers::new(&network, &imported.backbone)?.on(device)?)
        };
        let (original, copies) = (Mutex::new(encoder), Mutex::new(Vec::new()));
        let mut trunk = Self { info, width: 0, device, original, copies };
        trunk.width = trunk.probe().map_err(|error| bad(error.to_string()))?;
        Ok(trunk)
    }

    /// Its layers, for an export; `None` for TorchScript, which has none that are known.
    pub fn layers(&self) -> Result<Option<TrunkLayers>> {
        match &*lock(&self.original) {
            Encoder::Layers(layers) => Ok(Some(layers.on(Device::Cpu)?)),
            Encoder::Script(..) => Ok(None),
        }
    }

    /// The width of its vectors, found with a grey picture.
    fn probe(&self) -> Result<usize> {
        const MOST: usize = 1 << 14;
        let grey = vec![128; self.info.shape().bytes()];
        let features = self.vectors(&lock(&self.original), &grey)?;
        let width = features.size()[1] as usize;
        if width > MOST || features.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            let problem =
                format!("expected a vector of at most {MOST} finite numbers, got {width}");
            return Err(Error::tensors(problem));
        }
        Ok(width)
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
        encoder.forward(images.f_permute([0, 3, 1, 2])?)
    }

    /// Encodes pictures one by one, on all cores.
    pub fn encode_each(&self, pictures: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        pictures.par_iter().map(|picture| self.encode(picture)).collect()
    }

    /// Encodes pictures `[count, side, side, 3]` as vectors in half precision, `[count, width]`. Threads may do so at the
    /// same time, each with one core.
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
