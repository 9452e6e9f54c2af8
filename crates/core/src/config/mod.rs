//! An experiment is a value: plain structs that a TOML file fills.
//!
//! Layers: preset < experiment file < `--set key=value`. The defaults stand in `paper.toml` beside this
//! file, so that a reader sees all of them with their reasons at once, and the resolved config in a
//! run folder repeats all of them. Defaults spread over `#[serde(default)]` attributes were rejected
//! for that reason. Left to the code are the few that depend on another setting or on the data; the
//! preset lists each of them as a comment, and their doc comments end in `[default: ...]`.
//!
//! The doc comments are also the reference of the keys in `docs/config.md`, which `cargo xtask docs` writes from the
//! schemas derived here: they name keys, not types.

mod check;
mod differences;
mod privacy;
mod schema;

pub use check::{MAX_SEED, at_most, ensure, positive, within};
pub use differences::{Difference, differences, fingerprint};
pub use fedanchor_engine::config::{
    AugmentConfig, Augmentation, BatchNormConfig, Heads, LossConfig, LrSchedule, MixAugment,
    MixDraw, MixSet, MixupConfig, ModelConfig, NormKind, OptimiserConfig, Precision,
    StatisticsSource, Unfreeze, Views,
};

pub use privacy::PrivacyConfig;

pub(crate) use check::MAX_BATCH;
pub(crate) use schema::{Node, check as check_keys, dotted, read};

use crate::aggregation::RuleName;
use crate::error::{Error, Result};
use crate::messages::MessagePrecision;
use fedanchor_data::partition::Scheme;
use fedanchor_data::split::AnchorChoice;
use fedanchor_data::{Fit, Normalisation};
use fedanchor_engine::load_cuda;
use fedanchor_engine::model::names_schema;
use fedanchor_engine::training::Settings;
use fedanchor_engine::words;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Describes the model's settings with the names of all models.
fn model_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = ModelConfig::json_schema(generator);
    if let Some(name) = schema.pointer_mut("/properties/name").and_then(|name| name.as_object_mut())
    {
        name.remove("type");
        name.extend(names_schema().as_object().cloned().unwrap_or_default());
    }
    schema
}

/// All settings of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The preset that the experiment changes: `paper`, `best` or `semifl` [default: `best`].
    pub preset: String,
    /// Seed of every random draw: the same seed gives the same run.
    pub seed: u64,
    /// Number of rounds.
    pub rounds: u32,
    /// Device to compute on: `cpu` or `cuda:N`.
    pub device: String,
    /// Number format of activations; weights are always kept in single precision [default: `f32` on a CPU,
    /// `bf16` on a GPU].
    pub precision: Precision,
    /// Also train the same model on the anchors alone, and report both.
    pub compare: bool,
    /// Data, anchors and number of clients.
    pub data: DataConfig,
    /// How the unlabelled images are spread over the clients.
    pub partition: Scheme,
    /// The network.
    #[schemars(schema_with = "model_schema")]
    pub model: ModelConfig,
    /// Treatment of batch norm's running statistics.
    pub batch_norm: BatchNormConfig,
    /// Augmentation of images before they are trained on.
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
    /// Differential privacy of the clients [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacyConfig>,
    /// Checks of updates before they count, and of the aggregated model.
    pub checks: ChecksConfig,
    /// Faulty clients in a simulation, to test robustness.
    pub faults: FaultsConfig,
    /// Checkpoints are written after every round, and the last two are kept.
    pub checkpoint: CheckpointConfig,
    /// Additional data to save for figures; it does not affect training.
    // Omitted if it is the default, so that configs of earlier runs stay equal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub record: RecordConfig,
    /// Messages between server and clients.
    #[serde(default, skip_serializing_if = "is_default")]
    pub messages: MessagesConfig,
    /// A fleet of real clients; simulated ones are always in time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fleet: FleetConfig,
    /// The method and its settings.
    pub method: MethodConfig,
}

/// The method by name, with its settings as a table: which keys there are is up to the method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MethodConfig {
    /// The method, which decides what other keys the section has.
    pub name: String,
    /// Its settings.
    #[serde(flatten)]
    #[schemars(skip)]
    pub settings: toml::Table,
}

impl Experiment {
    /// Sets the number of anchors that there are, and what follows from it.
    pub(crate) fn count_anchors(&mut self, anchors: usize) {
        self.data.anchors = anchors;
        self.choose_server_batch();
        if anchors > 0 {
            self.server.batch = self.server.batch.min(anchors.max(2));
        }
    }

    /// Chooses the server's batch by the number of anchors, if it is left open and their number is known.
    pub(crate) fn choose_server_batch(&mut self) {
        match (self.server.batch, self.data.anchors) {
            (0, 1..=1000) => self.server.batch = 10,
            (0, 1001..) => self.server.batch = 250,
            _ => {}
        }
    }

    /// The clients' learning rate in a round.
    pub fn lr(&self, round: u32) -> f64 {
        self.scheduled(self.optimiser.lr, round)
    }

    /// The server's learning rate in a round; round 0 is pre-training.
    pub fn server_lr(&self, round: u32) -> f64 {
        if round == 0 {
            return self.pretrain.lr;
        }
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

    /// Progress of the run before this round: 0 in the first round, 1 in the last.
    pub fn progress(&self, round: u32) -> f64 {
        f64::from(round.saturating_sub(1)) / f64::from((self.rounds - 1).max(1))
    }

    /// The device named in the config.
    pub fn device(&self) -> Result<tch::Device> {
        device(&self.device)
    }

    /// The settings for training a cohort, for a network with these heads.
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
            loss: self.client.loss.clone(),
        })
    }
}

/// The device of this name.
pub fn device(name: &str) -> Result<tch::Device> {
    let wrong = || Error::config("device", format!("expected `cpu` or `cuda:N`, got `{name}`"));
    match name.split_once(':') {
        None if name == "cpu" => Ok(tch::Device::Cpu),
        Some(("cuda", number)) => {
            load_cuda();
            Ok(tch::Device::Cuda(number.parse().map_err(|_| wrong())?))
        }
        _ => Err(wrong()),
    }
}

/// Data, anchors and number of clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// `sample` for the embedded digits, a name from `fedanchor data list`, or a name of your own with
    /// `data.path`.
    pub name: String,
    /// Folder of the data set, or a CSV file that lists it; relative to the experiment file, or with `--set`
    /// to the working directory [default: `data/NAME` in the working directory].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"))]
    pub path: Option<PathBuf>,
    /// Resize all images to this many pixels per side [default: no resizing].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Labelled images on the server; 0 for all labelled images, where those of the clients have no labels.
    pub anchors: usize,
    /// How the anchors are drawn.
    pub choice: AnchorChoice,
    /// Labelled training images held out to choose settings by.
    pub validation: usize,
    /// Number of clients.
    pub clients: usize,
    /// How pictures that are not square become square.
    // Like the next one, omitted if it is the default, so that configs of earlier runs stay equal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fit: Fit,
    /// How to treat pictures that cannot be read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unreadable: Unreadable,
    /// If the data has no test part: the share of the labelled pictures of every class to test on
    /// [default: none].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_share: Option<f64>,
    /// Mean and standard deviation, one number per channel, that pixels are normalised with [default: the
    /// published values of a known data set, otherwise measured on the training images].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
}

/// Treatment of pictures that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unreadable {
    /// Refuse the data set.
    #[default]
    Refuse,
    /// Leave them out.
    Skip,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Training on the anchors before round 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PretrainConfig {
    /// Epochs of pre-training; the maximum if `pretrain.fitted` is above 0.
    pub epochs: u32,
    /// Pre-training ends by itself when the cross entropy on the augmented anchors, on average over ten epochs,
    /// has fallen to this; 0 for always `pretrain.epochs`.
    pub fitted: f64,
    /// Learning rate of pre-training.
    pub lr: f64,
    /// Follow each epoch with a contrastive one, for methods that have them.
    pub contrastive: bool,
}

/// Local training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// Clients drawn per round.
    pub per_round: usize,
    /// Local epochs per round: E in the paper.
    pub epochs: u32,
    /// Batch size of local training.
    pub batch: usize,
    /// Keep a client's momentum from one of its rounds to its next.
    pub keep_momentum: bool,
    /// What clients minimise instead of the method's loss: a loss written in PyTorch [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossConfig>,
}

/// Training on the anchors in every round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Supervised epochs on the anchors per round.
    pub epochs: u32,
    /// Learning rate of the server's epochs, under the same schedule [default: `optimiser.lr`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Batch size of the supervised epochs, at least 2 and at most the number of anchors; 0: 10 for up to 1,000 anchors,
    /// 250 for more.
    pub batch: usize,
    /// Augmentation of the anchors in the supervised epochs; `fedcon` and `supervised` have their own.
    pub augment: Augmentation,
    /// Keep the server's momentum from round to round.
    pub keep_momentum: bool,
    /// Momentum of the step from the old global model to the clients' mean; 0 to move there at once.
    pub momentum: f64,
}

/// How updates become one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AggregationConfig {
    /// How updates become one model. `trimmed-mean`, `median` and `fltrust` ignore `aggregation.weights`.
    pub rule: RuleName,
    /// Share of the updates that may be hostile, at most 0.5: what `trimmed-mean` cuts off at either end and
    /// `multi-krum` excludes.
    pub hostile: f64,
    /// The weight of a client's update: n_m in the paper.
    pub weights: Weights,
    /// How to treat clients with an empty fix set.
    pub without_samples: WithoutSamples,
}

/// Limits on updates and rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChecksConfig {
    /// Check updates before aggregation; `false` accepts every update, to measure the loss of plain averaging.
    pub updates: bool,
    /// Largest message, as a multiple of the expected size.
    pub size: f64,
    /// Largest distance of an update from the broadcast model, as a multiple of that model's norm; an update that is
    /// further away is rejected. 0 for no limit.
    pub distance: f64,
    /// Largest norm of an update, as a multiple of the usual norm: the median over the last ten rounds, adjusted to the
    /// learning rate. A larger update is clipped to it and its client named in the record; 0 for no limit.
    pub clip: f64,
    /// Rejected updates after which a client is excluded; 0 for never.
    pub offences: u32,
    /// Minimum number of valid answers per round; with fewer, the round is skipped and the model kept.
    pub quorum: usize,
    /// Largest loss of accuracy on the anchors, in points, of an aggregated model against the median of the last ten
    /// rounds; a round that loses more is rolled back. 0 for no limit. Preset `best` sets it by method: 30
    /// for `fedanchor`, 0 for the others.
    pub anchor_margin: f64,
}

/// Faulty clients in a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultsConfig {
    /// Behaviour of the faulty clients.
    pub kind: FaultKind,
    /// Share of all clients that are faulty, drawn from the seed.
    pub share: f64,
    /// Factor of the change (or of its norm) for `scale`, `sign`, `noise`, `labels` and `backdoor` [default: 1000 for
    /// `scale`, 1 for the others].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The number of images that faulty clients claim, as a multiple of the true one.
    pub claim: f64,
}

/// Which checkpoints are kept in addition to the last two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Write checkpoints; without them an interrupted run can only be started over.
    pub write: bool,
    /// Also keep every N-th round's; 0 for none.
    pub every: u32,
    /// Also keep the best round's: by validation accuracy, or without `data.validation` by test accuracy.
    pub best: bool,
}

/// Additional data that a run saves for figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordConfig {
    /// Rounds after which to save the latents of up to 2,000 test images in `latents`; 0 is after pre-training.
    pub latents: BTreeSet<u32>,
    /// Pseudo-labelled images of each kind to save in `samples.json`, 200 at most; 0 for none.
    pub samples: usize,
    /// Record how many pseudo-labels of each class the clients found. Every client then sends its counts, which tell the
    /// server what images it has.
    pub label_counts: bool,
    /// Have nodes that have labelled pictures of their own (`fedanchor node --test`) test the model that they receive, and
    /// send how many pictures of each class there are and how many of them it gets right.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sites: bool,
}

/// Messages between server and clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesConfig {
    /// Number format of models in messages.
    pub precision: MessagePrecision,
}

/// A fleet of real clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetConfig {
    /// Seconds that a round waits for answers; 0 waits until every client has answered or is gone.
    pub deadline: f64,
    /// Clients asked in addition to `client.per_round`: a round ends once `client.per_round` have answered, without
    /// waiting for the slowest.
    pub ask: usize,
    /// Maximum number of clients per node, including those it had earlier in the run, so that one machine cannot
    /// outvote the others, and an excluded client cannot return under another name.
    pub clients_per_node: usize,
    /// Bind each client's name to the key of the node that first joins with it, so that no other node can have it, not
    /// even after restarts. Needs registered keys (Flower's `--enable-supernode-auth`): without them a node has a new
    /// key after each start, and its client stays outside.
    pub keys: bool,
}

words! {
    /// The weight n_m of a client.
    Weights {
        /// The number of its samples, as it claims: only for clients that are trusted.
        Samples,
        /// The number of samples it kept, as it claims.
        Kept,
        /// 1 for every client.
        Uniform,
        /// The method's own, where it has one (`fl2`: 1 minus the client's threshold, as it claims), otherwise the number
        /// of samples.
        Method,
    }
    /// The behaviour of a faulty client.
    FaultKind {
        /// No faulty clients.
        None,
        /// Sends no answer.
        DropOut,
        /// Sends after the round is over.
        Late,
        /// Sends a NaN.
        NonFinite,
        /// Sends a tensor of another shape.
        Shape,
        /// Sends its change multiplied by `faults.factor`.
        Scale,
        /// Sends the opposite of its change, multiplied by `faults.factor`.
        Sign,
        /// Sends a random change with the norm of its own change, multiplied by `faults.factor`.
        Noise,
        /// Sends the opposite of its change, as large as `checks.distance` accepts.
        Inside,
        /// Sends its change of the weights, and running statistics as large as `checks.distance` accepts.
        Statistics,
        /// Trains on its true labels, mirrored in the list of classes: the first becomes the last.
        Labels,
        /// Trains on its true labels, with a trigger on every second image, which is labelled as the first class.
        Backdoor,
        /// Sends the honest clients' mean change plus a random change of a fifth of its norm, the same in every round.
        Drift,
        /// Sends the same answer twice.
        Duplicate,
        /// Sends two different answers.
        Conflicting,
        /// Sends an answer for the round before.
        Stale,
    }
    /// How to treat clients with an empty fix set.
    WithoutSamples { /** The client is skipped. */ Skip, /** It counts as an unchanged model. */ Unchanged }
}
