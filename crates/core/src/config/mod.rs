//! An experiment is a value: plain structs that a TOML file fills.
//!
//! Layers: preset < experiment file < `--set key=value`. Every default stands in `paper.toml`
//! beside this file and nowhere in the code, so a reader sees all of them with their reasons at
//! once, and the resolved config in a run folder repeats all of them. Defaults spread over
//! `#[serde(default)]` attributes were rejected for that reason.

mod check;
mod method;
mod resolve;
mod sweep;

pub use method::{
    ContrastiveConfig, FedAnchorConfig, FedConConfig, FedMatchConfig, FixMatchConfig, Heads,
    MethodConfig, MixupConfig, SemiFlConfig, ServerOnlyConfig, SupervisedConfig, Threshold,
    ThresholdRule,
};
pub use resolve::{PRESETS, resolve};
pub use sweep::{Cell, Sweep, sweep};

use fedanchor_data::augment::Strong;
use fedanchor_data::partition::Scheme;
use fedanchor_data::split::AnchorChoice;
use serde::{Deserialize, Serialize};
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
    /// Also train on the anchors alone and report both.
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
    /// What updates and rounds are checked for.
    pub checks: ChecksConfig,
    /// Faulty clients, to see what a setting survives.
    pub faults: FaultsConfig,
    /// Which checkpoints stay.
    pub checkpoint: CheckpointConfig,
    /// The method and its own settings.
    pub method: MethodConfig,
}

impl Experiment {
    /// Batch size of the server's supervised epochs: as given, or by the number of anchors.
    pub fn server_batch(&self) -> usize {
        self.server.batch.unwrap_or(if self.data.anchors <= 1000 { 10 } else { 250 })
    }
}

/// Data, anchors and number of clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// `sample`, a name from the catalogue, or a name of the user's own with `path`.
    pub name: String,
    /// Where it lies; `data/NAME` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Resize all images to this many pixels a side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Labelled images on the server.
    pub anchors: usize,
    /// How they are drawn.
    pub choice: AnchorChoice,
    /// Number of clients.
    pub clients: usize,
}

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Which one.
    pub name: ModelName,
    /// ResNet-18 alone: pre-activation blocks.
    pub preactivation: bool,
    /// Batch or group norm.
    pub norm: NormKind,
    /// Groups of group norm.
    pub groups: usize,
    /// Width of the anchor head.
    pub latent_dim: usize,
    /// The stage whose pooled output the anchor head reads; the last if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent_stage: Option<usize>,
}

/// What happens to batch norm's running statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNormConfig {
    /// Where the statistics used for labels and tests come from.
    pub statistics: StatisticsSource,
    /// Share of a batch in the running statistics.
    pub momentum: f64,
}

/// Augmentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AugmentConfig {
    /// The strong augmentation's recipe.
    pub strong: Strong,
    /// Mirror images; by data set if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flip: Option<bool>,
}

/// SGD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimiserConfig {
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// Largest gradient norm; 0 for none.
    pub clip: f64,
    /// How the learning rate changes over the rounds.
    pub schedule: Schedule,
}

/// Training on the anchors before round 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainConfig {
    /// Epochs.
    pub epochs: u32,
    /// Learning rate.
    pub lr: f64,
    /// Follow each epoch with a contrastive one.
    pub contrastive: bool,
}

/// Local training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// Clients drawn in a round.
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
    /// Supervised epochs a round.
    pub epochs: u32,
    /// Batch size; by number of anchors if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Augmentation of the anchors in the supervised epoch.
    pub augment: Augmentation,
    /// Keep the server's momentum from round to round.
    pub keep_momentum: bool,
    /// Momentum of the step from the old global model to the clients' mean.
    pub momentum: f64,
}

/// How updates become one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AggregationConfig {
    /// How updates are put together.
    pub rule: AggregationRule,
    /// Share of the updates that may be hostile: what `trimmed-mean` cuts off at either end and
    /// `multi-krum` leaves out.
    pub hostile: f64,
    /// The weight n_m of a client.
    pub weights: Weights,
    /// What a client that kept no sample counts as.
    pub without_samples: WithoutSamples,
}

/// What updates and rounds are checked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChecksConfig {
    /// Whether updates are checked at all.
    pub updates: bool,
    /// The largest message, in sizes of what is expected.
    pub size: f64,
    /// The furthest an update may go from what was sent, in lengths of what was sent; 0 for anywhere.
    pub distance: f64,
    /// Bad updates after which a client is set aside; 0 for never.
    pub offences: u32,
    /// Good answers that a round needs; with fewer it is skipped and the model stays as it is.
    pub quorum: usize,
    /// Points of accuracy on the anchors that an aggregated model may lose against the median of the
    /// last ten rounds; with more the round is rolled back. 0 for any number; by method if left out.
    pub anchor_margin: f64,
}

/// Faulty clients in a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultsConfig {
    /// What they do.
    pub kind: FaultKind,
    /// Share of all clients that do.
    pub share: f64,
}

/// Which checkpoints stay beside the last two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Whether there are any.
    pub write: bool,
    /// Every so many rounds one that stays; 0 for none.
    pub every: u32,
    /// The best round's, by test accuracy.
    pub best: bool,
}

impl std::fmt::Display for ModelName {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resnet18 => "resnet18",
            Self::Wrn28x2 => "wrn28x2",
            Self::Small => "small",
            Self::Cnn => "cnn",
        })
    }
}

/// Declares an enum of plain words, written in kebab case in a config.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident),+ $(,)? })+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$inner])* $variant),+ }
    )+ };
}

words! {
    /// Number format of activations; weights are always kept in single precision.
    Precision { /** 32-bit floats. */ F32, /** bfloat16. */ Bf16 }
    /// The networks.
    ModelName {
        /// ResNet-18 with the CIFAR stem.
        Resnet18,
        /// Wide ResNet-28-2.
        Wrn28x2,
        /// A small residual net for CPU work.
        Small,
        /// Two convolutions and two linear layers.
        Cnn,
    }
    /// Normalisation layers.
    NormKind { /** Batch norm. */ Batch, /** Group norm. */ Group }
    /// Where the statistics used for labels and tests come from.
    StatisticsSource {
        /// Running statistics, averaged with the weights.
        Average,
        /// Measured anew on all images, un-augmented.
        StaticAll,
        /// Measured anew on the anchors.
        StaticServer,
    }
    /// How the learning rate changes over the rounds.
    Schedule { /** Not at all. */ Constant, /** Half a cosine, down to 0. */ Cosine }
    /// What is done to an image before it is trained on.
    Augmentation { /** Nothing. */ None, /** Flip and crop. */ Weak, /** RandAugment. */ Strong }
    /// The weight n_m of a client.
    Weights { /** Its samples. */ Samples, /** The samples it kept. */ Kept, /** 1. */ Uniform }
    /// How updates become one model.
    AggregationRule {
        /// The weighted mean.
        Mean,
        /// The same of updates cut to the median length.
        ClippedMean,
        /// Number by number, without the lowest and highest.
        TrimmedMean,
        /// Number by number.
        Median,
        /// The mean of those nearest to one another.
        MultiKrum,
    }
    /// What a faulty client does.
    FaultKind {
        /// Nothing wrong.
        None,
        /// Sends nothing.
        DropOut,
        /// Sends after the round is over.
        Late,
        /// Sends numbers that are none.
        NonFinite,
        /// Sends a tensor of another shape.
        Shape,
        /// Sends its change a thousand times over.
        Scale,
        /// Sends the opposite of its change.
        Sign,
        /// Sends twice.
        Duplicate,
        /// Sends for the round before.
        Stale,
    }
    /// What a client that kept no sample counts as.
    WithoutSamples { /** Nothing. */ Skip, /** An unchanged model. */ Unchanged }
    /// What the threshold is compared with.
    Score { /** The best average cosine. */ Cosine, /** Its softmax over the classes. */ Softmax }
    /// What is broadcast beside the weights.
    Send { /** C means of unit latents. */ ClassMeans, /** Every anchor's latent and label. */ Latents }
    /// Where latents are read.
    LatentSource { /** The anchor head. */ Anchor, /** The pooled features. */ Pooled }
    /// Whether batch norm sees the fix and the mix view apart.
    Views { /** Apart. */ Separate, /** As one batch. */ Joint }
    /// One mixup coefficient for what.
    MixDraw { /** A batch. */ Batch, /** A sample. */ Sample }
    /// Weak augmentation before or after mixing.
    MixAugment { /** Each image by itself. */ Before, /** The mixture. */ After }
    /// How often the mix set is drawn.
    MixSet { /** Every epoch. */ Epoch, /** Once a round. */ Round }
    /// How contrastive batches are drawn.
    Sampler { /** From a shuffled epoch. */ Shuffled, /** The same number of each class. */ Balanced }
    /// What a contrastive epoch updates.
    Trains { /** Backbone and anchor head. */ All, /** The anchor head. */ Head }
    /// Which pairs stand in eq. 1's denominator.
    Denominator { /** All of different labels. */ Batch, /** Those with one in class c. */ Class }
    /// What eq. 2's sum is divided by.
    DivideBy { /** Classes with a pair. */ Present, /** C. */ All }
    /// Place of the contrastive epoch.
    Order { /** After the supervised one. */ Last, /** Before it. */ First }
    /// Whose momentum the contrastive epoch uses.
    MomentumOf { /** Its own. */ Separate, /** The supervised epoch's. */ Shared }
}
