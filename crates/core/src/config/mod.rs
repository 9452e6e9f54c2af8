//! An experiment is a value: plain structs that a TOML file fills.
//!
//! Layers: preset < experiment file < `--set key=value`. The defaults stand in `paper.toml` beside this
//! file, so that a reader sees all of them with their reasons at once, and the resolved config in a
//! run folder repeats all of them. Defaults spread over `#[serde(default)]` attributes were rejected
//! for that reason. Left to the code are the few that depend on another setting or on the data; the
//! preset lists each of them as a comment.

mod check;
mod differences;
mod plain_words;

pub use check::{at_least_one, at_most, positive, within};
pub use differences::{differences, fingerprint};
pub use fedanchor_engine::config::{
    AugmentConfig, Augmentation, BatchNormConfig, Heads, LrSchedule, MixAugment, MixDraw, MixSet,
    MixupConfig, ModelConfig, ModelName, NormKind, OptimiserConfig, Precision, StatisticsSource,
    Views,
};

pub(crate) use plain_words::{in_plain_words, plain_words};

use crate::error::{Error, Result};
use fedanchor_data::partition::Scheme;
use fedanchor_data::split::AnchorChoice;
use fedanchor_data::{Fit, Normalisation};
use fedanchor_engine::training::Settings;
use fedanchor_engine::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// All settings of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The preset the other layers were laid over.
    pub preset: String,
    /// Everything random follows from it.
    pub seed: u64,
    /// Rounds to run.
    pub rounds: u32,
    /// `cpu` or `cuda:N`.
    pub device: String,
    /// Number format of activations.
    pub precision: Precision,
    /// Also train on the anchors alone, and report both.
    pub compare: bool,
    /// Data, anchors and number of clients.
    pub data: DataConfig,
    /// How the unlabelled images are spread over the clients.
    pub partition: Scheme,
    /// The network.
    pub model: ModelConfig,
    /// What happens to batch norm's running statistics.
    pub batch_norm: BatchNormConfig,
    /// Augmentation.
    pub augment: AugmentConfig,
    /// SGD, for clients and server alike.
    pub optimiser: OptimiserConfig,
    /// Training on the anchors before round 1.
    pub pretrain: PretrainConfig,
    /// Local training.
    pub client: ClientConfig,
    /// Training on the anchors in every round.
    pub server: ServerConfig,
    /// How updates become one model.
    pub aggregation: AggregationConfig,
    /// Limits on updates and rounds.
    pub checks: ChecksConfig,
    /// Faulty clients, to see what a setting withstands.
    pub faults: FaultsConfig,
    /// Which checkpoints are kept.
    pub checkpoint: CheckpointConfig,
    /// What is saved for figures. Written down only if it is not the default, so that configs of runs from
    /// before it existed are still the same.
    #[serde(default, skip_serializing_if = "is_default")]
    pub record: RecordConfig,
    /// The method and its settings.
    pub method: MethodConfig,
}

/// The method by name, with its settings as a table: which keys there are is up to the method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MethodConfig {
    /// A registered method.
    pub name: String,
    /// Its settings.
    #[serde(flatten)]
    pub settings: toml::Table,
}

impl Experiment {
    /// Batch size of the server's supervised epochs: as given, or by the number of anchors.
    pub fn server_batch(&self) -> usize {
        self.server.batch.unwrap_or(if self.data.anchors <= 1000 { 10 } else { 250 })
    }

    /// The clients' learning rate in a round.
    pub fn lr(&self, round: u32) -> f64 {
        self.scheduled(self.optimiser.lr, round)
    }

    /// The server's learning rate in a round.
    pub fn server_lr(&self, round: u32) -> f64 {
        self.scheduled(self.server.lr.unwrap_or(self.optimiser.lr), round)
    }

    fn scheduled(&self, lr: f64, round: u32) -> f64 {
        match self.optimiser.schedule {
            LrSchedule::Constant => lr,
            LrSchedule::Cosine => {
                let done = f64::from(round.saturating_sub(1)) / f64::from(self.rounds);
                lr * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        }
    }

    /// How far the run has come before this round: 0 in the first round, 1 in the last.
    pub fn progress(&self, round: u32) -> f64 {
        f64::from(round.saturating_sub(1)) / f64::from((self.rounds - 1).max(1))
    }

    /// The device named in the config.
    pub fn device(&self) -> Result<tch::Device> {
        device(&self.device)
    }

    /// What training a cohort needs to know, for a network with these heads.
    pub fn training(&self, heads: Heads) -> Result<Settings> {
        Ok(Settings {
            seed: self.seed,
            device: self.device()?,
            precision: self.precision,
            model: self.model.clone(),
            heads,
            batch_norm: self.batch_norm.clone(),
            augment: self.augment.clone(),
            optimiser: self.optimiser.clone(),
        })
    }
}

/// The device of this name.
pub fn device(name: &str) -> Result<tch::Device> {
    let wrong = || Error::config("device", format!("expected `cpu` or `cuda:N`, found `{name}`"));
    match name.split_once(':') {
        None if name == "cpu" => Ok(tch::Device::Cpu),
        Some(("cuda", number)) => Ok(tch::Device::Cuda(number.parse().map_err(|_| wrong())?)),
        _ => Err(wrong()),
    }
}

/// Data, anchors and number of clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// `sample`, a name from the catalogue, or a name of the user's own with `path`.
    pub name: String,
    /// Where it is [default: `data/NAME`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Resize all images to this many pixels per side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Labelled images on the server; 0 for all, where the clients' have no labels.
    pub anchors: usize,
    /// How they are drawn.
    pub choice: AnchorChoice,
    /// Labelled training images that nobody trains on, to choose settings by.
    pub validation: usize,
    /// Number of clients.
    pub clients: usize,
    /// How pictures that are not square become square. Like the next one, it is written down only if it
    /// is not the default, so that configs of runs from before it existed are still the same.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fit: Fit,
    /// What happens to pictures that cannot be read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unreadable: Unreadable,
    /// Without a test part: the share of the labelled pictures that becomes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_share: Option<f64>,
    /// Mean and standard deviation of pixels scaled to [0, 1] [default: published, or measured on the
    /// training images].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
}

/// What happens to pictures that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unreadable {
    /// The data set is refused.
    #[default]
    Refuse,
    /// They are left out.
    Skip,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Training on the anchors before round 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainConfig {
    /// Epochs, or the most of them.
    pub epochs: u32,
    /// Cross entropy on the augmented anchors, on average over ten epochs, at which they are fitted and
    /// pre-training ends; 0 for no such end.
    pub fitted: f64,
    /// Learning rate.
    pub lr: f64,
    /// Follow each epoch with a contrastive one.
    pub contrastive: bool,
}

/// Local training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// Clients drawn per round.
    pub per_round: usize,
    /// Local epochs E.
    pub epochs: u32,
    /// Batch size.
    pub batch: usize,
    /// Keep a client's momentum until its next round.
    pub keep_momentum: bool,
}

/// Training on the anchors in every round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Supervised epochs per round.
    pub epochs: u32,
    /// Learning rate of the server's epochs [default: that of the clients].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Batch size [default: by number of anchors].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Augmentation of the anchors in the supervised epoch.
    pub augment: Augmentation,
    /// Keep the server's momentum from round to round.
    pub keep_momentum: bool,
    /// Momentum of the step from the old global model to the clients' mean.
    pub momentum: f64,
    /// Share of a moving average of the global model that stays in a round; 0 for no average. Where there
    /// is one, it is what is tested and saved.
    pub average: f64,
}

/// How updates become one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AggregationConfig {
    /// How updates are combined.
    pub rule: AggregationRule,
    /// Share of the updates that may be hostile: what `trimmed-mean` cuts off at either end and
    /// `multi-krum` excludes.
    pub hostile: f64,
    /// The weight n_m of a client.
    pub weights: Weights,
    /// What a client that kept no sample counts as.
    pub without_samples: WithoutSamples,
}

/// Limits on updates and rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChecksConfig {
    /// Whether updates are checked at all.
    pub updates: bool,
    /// The largest message, as a multiple of the expected size.
    pub size: f64,
    /// The largest distance of an update from the broadcast model, as a multiple of that model's norm;
    /// 0 for no limit.
    pub distance: f64,
    /// Rejected updates after which a client is excluded; 0 for never.
    pub offences: u32,
    /// Valid answers that a round needs; with fewer it is skipped and the model stays as it is.
    pub quorum: usize,
    /// Points of accuracy on the anchors that an aggregated model may lose against the median of the
    /// last ten rounds; a round that loses more is rolled back. 0 for no limit [default: by method].
    pub anchor_margin: f64,
}

/// Faulty clients in a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultsConfig {
    /// What they do wrong.
    pub kind: FaultKind,
    /// Share of all clients that do.
    pub share: f64,
}

/// Which checkpoints are kept beside the last two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Whether checkpoints are written.
    pub write: bool,
    /// Keep one every so many rounds; 0 for none.
    pub every: u32,
    /// Keep the best round's, by validation accuracy, or by test accuracy without validation images.
    pub best: bool,
}

/// What a run saves for figures, beside what every run records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordConfig {
    /// Rounds after which the latents of test images are saved; 0 is after pre-training.
    pub latents: BTreeSet<u32>,
    /// The most pseudo-labelled images of each kind that are saved.
    pub samples: usize,
}

words! {
    /// The weight n_m of a client.
    Weights { /** Its samples. */ Samples, /** The samples it kept. */ Kept, /** 1. */ Uniform }
    /// How updates become one model.
    AggregationRule {
        /// The weighted mean.
        Mean,
        /// The weighted mean of updates shortened to the median length.
        ClippedMean,
        /// Number by number, without the lowest and highest values.
        TrimmedMean,
        /// Number by number.
        Median,
        /// The mean of the updates nearest to one another.
        MultiKrum,
        /// Weighted by agreement with the server's own update on the anchors.
        Fltrust,
    }
    /// What a faulty client does.
    FaultKind {
        /// Nothing.
        None,
        /// Sends nothing.
        DropOut,
        /// Sends after the round is over.
        Late,
        /// Sends a NaN.
        NonFinite,
        /// Sends a tensor of another shape.
        Shape,
        /// Sends its change multiplied by 1,000.
        Scale,
        /// Sends the opposite of its change.
        Sign,
        /// Sends the same answer twice.
        Duplicate,
        /// Sends two different answers.
        Conflicting,
        /// Sends for the round before.
        Stale,
    }
    /// What a client that kept no sample counts as.
    WithoutSamples { /** Nothing. */ Skip, /** An unchanged model. */ Unchanged }
}
