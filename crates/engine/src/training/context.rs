//! All that a computation needs except parameters and data: the network, the device and number format, the
//! settings of training, and the way from pixels to inputs. A simulated client, a deployed client and
//! the server each hold one; nothing in it changes during a run.

use super::gpu::Gpu;
use super::own_loss::OwnLoss;
use super::steps::Recorder;
use crate::batches::{ImagePipeline, RoundStreams};
use crate::config::{
    AugmentConfig, BatchNormConfig, Heads, LossConfig, LrSchedule, ModelConfig, OptimiserConfig,
    Precision, StatisticsSource, Unfreeze,
};
use crate::error::{Error, Result};
use crate::model::{Network, Pass, Statistics, import};
use crate::tensors::Params;
use crate::trunk::{Place, TrunkFile};
use fedanchor_cuda as cuda;
use fedanchor_data::augment::Strong;
use fedanchor_data::{InputFormat, Normalisation};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};

/// The settings of a cohort's training. Everything random follows from the seed.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the types have comments
pub struct Settings {
    pub seed: u64,
    pub device: Device,
    pub precision: Precision,
    pub model: ModelConfig,
    pub heads: Heads,
    pub batch_norm: BatchNormConfig,
    pub augment: AugmentConfig,
    pub optimiser: OptimiserConfig,
    /// What clients minimise instead of the method's loss.
    pub loss: Option<LossConfig>,
}

/// Everything that stays the same from round to round.
#[derive(Debug)]
#[allow(missing_docs)] // the types have comments
pub struct Context {
    pub seed: u64,
    pub network: Network,
    pub images: ImagePipeline,
    pub device: Device,
    /// The number of classes.
    pub classes: usize,
    pub optimiser: OptimiserConfig,
    pub batch_norm: BatchNormConfig,
    /// What clients minimise instead of the method's loss.
    pub loss: Option<Arc<OwnLoss>>,
    /// Whether activations are bfloat16.
    pub(crate) half: bool,
    /// Notices for the user about the device and the initial model.
    notices: Mutex<VecDeque<String>>,
    /// What a GPU keeps between steps; none on a CPU.
    pub(crate) gpu: Option<Gpu>,
    /// Captures and replays steps on a CPU, for tests.
    recorder: Option<Mutex<Recorder>>,
}

impl Context {
    /// For inputs of this format and this number of classes. `flip` says whether images may be mirrored where
    /// the settings leave it open; `workers` threads augment images [default: one per core].
    pub fn new(
        settings: Settings,
        format: impl Into<InputFormat>,
        classes: usize,
        normalisation: &Normalisation,
        flip: bool,
        workers: Option<usize>,
    ) -> Result<Self> {
        let Settings {
            seed,
            device,
            precision,
            model,
            heads,
            batch_norm,
            augment,
            optimiser,
            loss,
        } = settings;
        if let Device::Cuda(index) = device {
            crate::load_cuda();
            let found = tch::Cuda::device_count();
            if index as i64 >= found {
                let advice = match found {
                    0 => "use `cpu`, or libtorch with CUDA (`make libtorch CUDA=1`, or in Python a `torch` with CUDA) on a machine with a GPU"
                        .to_owned(),
                    1 => "use `cuda:0`".to_owned(),
                    _ => format!("use one of `cuda:0` to `cuda:{}`", found - 1),
                };
                let problem =
                    format!("there is no `cuda:{index}`: {found} CUDA devices found: {advice}");
                return Err(Error::config("device", problem));
            }
        }
        let format = format.into();
        let network = Network::new(&model, heads, format.network(), classes)?;
        let loss = loss
            .map(|loss| OwnLoss::load(&loss, &network, classes, device).map(Arc::new))
            .transpose()?;
        let gpu = Gpu::new(device, precision)?;
        // GPUs without kernels may not support bfloat16.
        let alone = device.is_cuda() && gpu.is_none();
        let half = precision == Precision::Bf16 && !alone;
        let notices = alone.then(|| {
            "computing with libtorch alone, in single precision: this GPU has no kernels, or \
             FEDANCHOR_KERNELS=none"
                .to_owned()
        });
        let kernels = (half, gpu.is_some());
        let images =
            ImagePipeline::new(format, normalisation, &augment, flip, device, kernels, workers)?;
        Ok(Self {
            seed,
            network,
            images,
            device,
            classes,
            optimiser,
            batch_norm,
            loss,
            half,
            notices: Mutex::new(notices.into_iter().collect()),
            gpu,
            recorder: None,
        })
    }

    /// The model that training starts from: drawn, or with the backbone of a trunk or of a file.
    pub fn initial(&self) -> Result<Params> {
        let mut params = self.network.init(self.seed, self.device)?;
        let config = &self.network.config;
        if let (Some(trunk), true) = (&config.trunk, config.unfreeze != Unfreeze::None) {
            let size = Some(self.images.format.shape.side);
            let half = Normalisation { mean: vec![0.5; 3], std: vec![0.5; 3] }; // weights do not depend on it
            let file = TrunkFile::read(&Place::find(trunk)?, size, Some(&half))?;
            file.assign_to(&mut params, config)?;
        }
        let Some(path) = &config.init_from else { return Ok(params) };
        let imported = import(&self.network.layout, path, self.device)?;
        params.assign(&imported.backbone)?;
        if let [first, ..] = &imported.ignored[..] {
            let (path, count) = (path.display(), imported.ignored.len());
            let text = format!(
                "model.init_from: {path}: heads are newly initialised; ignored {count} unused tensors ({first})"
            );
            self.notices.lock().unwrap_or_else(PoisonError::into_inner).push_back(text);
        }
        Ok(params)
    }

    /// For a trained network: forward passes in single precision, and no training.
    pub fn for_inference(
        model: &ModelConfig,
        heads: Heads,
        format: impl Into<InputFormat>,
        classes: usize,
        normalisation: &Normalisation,
        device: Device,
    ) -> Result<Self> {
        let settings = Settings {
            seed: 0,
            device,
            precision: Precision::F32,
            model: model.clone(),
            heads,
            batch_norm: BatchNormConfig {
                statistics: StatisticsSource::Average,
                momentum: 0.0,
                images: 0,
            },
            augment: AugmentConfig { strong: Strong::Fixmatch, flip: Some(false), views: 2 },
            optimiser: OptimiserConfig {
                lr: 0.0,
                momentum: 0.0,
                nesterov: false,
                weight_decay: 0.0,
                clip: 0.0,
                schedule: LrSchedule::Constant,
            },
            loss: None,
        };
        Self::new(settings, format, classes, normalisation, false, None)
    }

    /// Puts this thread's work on the run's own queue of the GPU, until the guard is dropped. Rounds
    /// on a GPU need it: work on the common queue cannot be captured.
    pub fn enter(&self) -> Result<Option<cuda::Entered>> {
        Ok(self.gpu.as_ref().map(|gpu| gpu.queue.enter()).transpose()?)
    }

    /// Something that the user should know about the initial model or the GPU; each is reported once.
    pub fn take_notice(&self) -> Option<String> {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = || self.gpu.as_ref()?.lock().steps.notices.pop_front();
        notices.pop_front().or_else(steps).or_else(|| self.recorder()?.steps.notices.pop_front())
    }

    /// On a CPU, captures training steps and replays them by the rule for a GPU: a test can see there whether a replayed
    /// step is the one that was asked for.
    pub fn record_steps(&mut self) {
        self.recorder = Some(Mutex::default());
    }

    /// Steps that were replayed since then.
    pub fn replayed_steps(&self) -> u64 {
        self.recorder().map_or(0, |recorder| recorder.replayed)
    }

    pub(crate) fn recorder(&self) -> Option<MutexGuard<'_, Recorder>> {
        Some(self.recorder.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Frees the GPU of what training kept there, before another attempt with a smaller cohort.
    pub fn free(&self, clients: usize) -> Result<()> {
        match &self.gpu {
            Some(gpu) => gpu.free(clients),
            None if self.device.is_cuda() => Ok(cuda::empty_cache()?),
            None => Ok(()),
        }
    }

    /// Most memory held on the GPU so far, in bytes.
    pub fn peak_gpu_memory(&self) -> Option<u64> {
        cuda::peak_memory(self.gpu.as_ref()?.device).ok()
    }

    /// Whether a learner trains a copy on the GPU rather than the parameters it was given.
    pub fn trains_a_copy(&self) -> bool {
        self.gpu.is_some()
    }

    /// Whether running statistics are averaged with the weights, rather than measured separately.
    pub fn averages_statistics(&self) -> bool {
        self.batch_norm.statistics == StatisticsSource::Average
    }

    /// A forward pass in the configured precision.
    pub fn pass<'a>(&self, tensors: &'a [Tensor], statistics: Statistics) -> Pass<'a> {
        let kind = if self.half { Kind::BFloat16 } else { Kind::Float };
        let fused = self.gpu.is_some();
        Pass { tensors, weights: None, others: &[], statistics, kind, views: 1, fused }
    }

    /// The random streams of a round.
    pub fn streams(&self, round: u32) -> RoundStreams {
        RoundStreams { seed: self.seed, round }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Stem;
    use crate::tensors::{Part, encode};
    use fedanchor_data::Shape;

    #[test]
    fn a_file_replaces_the_backbone_and_no_head() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut model =
            ModelConfig { latent_dim: 4, stem: Stem::Imagenet, ..ModelConfig::plain("resnet18") };
        let context = |model: &ModelConfig| {
            let heads = Heads { anchor: true, predictor: None };
            let normalisation = Normalisation { mean: vec![0.0; 3], std: vec![1.0; 3] };
            let shape = Shape { side: 32, channels: 3 };
            Context::for_inference(model, heads, shape, 5, &normalisation, Device::Cpu).unwrap()
        };
        let plain = context(&model);
        let other = plain.network.init(9, Device::Cpu).unwrap(); // the seed of the context is 0
        fs_err::write(file.path(), encode(&other.named(), "").unwrap()).unwrap();
        model.init_from = Some(file.path().to_owned());
        let context = context(&model);
        let (drawn, initial) = (plain.initial().unwrap(), context.initial().unwrap());
        for (index, entry) in initial.layout.iter().enumerate() {
            let expected = if entry.part == Part::Backbone { &other } else { &drawn };
            assert_eq!(initial.tensors[index], expected.tensors[index], "{}", entry.name);
        }
        let notice = context.take_notice().unwrap();
        assert!(notice.contains("heads are newly initialised"), "{notice}");
        assert_eq!((context.take_notice(), plain.take_notice()), (None, None));
    }
}
