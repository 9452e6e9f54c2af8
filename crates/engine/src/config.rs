//! The settings of a cohort's training: plain structs, as they stand in an experiment file. Their
//! defaults and their checks belong to the experiment, not to this crate.

use fedanchor_data::augment::Strong;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Declares an enum of plain words, written in kebab case in a config.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident),+ $(,)? })+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$inner])* $variant),+ }
    )+ };
}

words! {
    /// Number format of activations; weights are always kept in single precision.
    Precision { /** Single precision. */ F32, /** bfloat16. */ Bf16 }
    /// Normalisation layers.
    NormKind { /** Batch norm. */ Batch, /** Group norm, in `model.groups` groups. */ Group }
    /// Where the statistics used for labels and tests come from.
    StatisticsSource {
        /// The running statistics of the clients, averaged with the weights.
        Average,
        /// Measured again before every test and broadcast on a sample of all images, without augmentation; only a
        /// simulation has them.
        StaticAll,
        /// Measured again before every test and broadcast on the anchors.
        StaticServer,
    }
    /// How the learning rate changes over the rounds.
    LrSchedule { /** Not at all. */ Constant, /** Along half a cosine, down to 0. */ Cosine }
    /// How an image is augmented before it is trained on.
    Augmentation {
        /// No augmentation.
        None,
        /// Shifted by a few pixels and, with `augment.flip`, mirrored.
        Weak,
        /// Weakly, then by RandAugment as in `augment.strong`.
        Strong,
    }
    /// How batch norm sees the fix and the mix view.
    Views { /** Each by itself. */ Separate, /** As one batch. */ Joint }
    /// How often a mixup coefficient is drawn.
    MixDraw { /** Once per batch. */ Batch, /** Once per sample. */ Sample }
    /// When images are weakly augmented.
    MixAugment { /** Each image before mixing. */ Before, /** The mixture. */ After }
    /// How often the mix set is drawn.
    MixSet { /** Once per epoch. */ Epoch, /** Once per round. */ Round }
    /// What of a trunk is trained.
    #[derive(Default)]
    Unfreeze {
        /// Nothing: pictures become vectors once, which a small network is trained on.
        #[default]
        None,
        /// Its last stage: pictures become what that reads once.
        Last,
        /// All of it, on the pictures themselves.
        All,
    }
    /// How resnet18 begins.
    #[derive(Default)]
    Stem {
        /// A 3x3 convolution, for images of about 32 pixels.
        #[default]
        Cifar,
        /// A 7x7 convolution of stride 2 and a 3x3 maximum of stride 2, for photographs.
        Imagenet,
    }
}

impl Stem {
    fn is_cifar(&self) -> bool {
        *self == Self::Cifar
    }
}

impl Unfreeze {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The network.
    pub name: String,
    /// With `resnet18`: normalise and activate before each convolution.
    pub preactivation: bool,
    /// Normalisation layers.
    pub norm: NormKind,
    /// Number of groups of group norm.
    pub groups: usize,
    /// Width of the anchor head.
    pub latent_dim: usize,
    /// The stage whose pooled output the anchor head reads [default: the last].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent_stage: Option<usize>,
    /// With `resnet18`: how it begins.
    // Written down only if it is not the default, so that configs and models from before it existed are
    // still the same.
    #[serde(default, skip_serializing_if = "Stem::is_cifar")]
    pub stem: Stem,
    /// A pretrained network that turns every picture into a vector once, which `adapter` trains on: a name
    /// from `make trunks`, or a file of weights or TorchScript, relative as `data.path` [default: none].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunk: Option<String>,
    /// What of the trunk is trained, from its weights; `model.name` is then the trunk's network.
    #[serde(default, skip_serializing_if = "Unfreeze::is_none")]
    pub unfreeze: Unfreeze,
    /// With `resnet18`: start from the backbone in this safetensors file, which has torchvision's names; relative
    /// as `data.path` [default: a random start].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"))]
    pub init_from: Option<PathBuf>,
}

impl ModelConfig {
    /// The model of this name with batch norm and default options, for tests and examples.
    pub fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            preactivation: false,
            norm: NormKind::Batch,
            groups: 8,
            latent_dim: 12,
            latent_stage: None,
            stem: Stem::Cifar,
            trunk: None,
            unfreeze: Unfreeze::None,
            init_from: None,
        }
    }
}

/// Heads of the network in addition to the classification head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heads {
    /// The anchor head.
    pub anchor: bool,
    /// A predictor of pooled features, with its hidden width.
    pub predictor: Option<usize>,
}

/// Treatment of batch norm's running statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchNormConfig {
    /// Where the statistics used for labels and tests come from.
    pub statistics: StatisticsSource,
    /// Weight of a batch in the running statistics.
    pub momentum: f64,
    /// Images that `static-all` measures on, drawn from all of them; 0 for all.
    pub images: usize,
}

/// Augmentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AugmentConfig {
    /// Recipe of strong augmentation, applied after the weak one.
    pub strong: Strong,
    /// Mirror images at random as part of weak augmentation [default: `true`, except for digits].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flip: Option<bool>,
    /// With a trunk: weakly augmented views of every picture that it encodes, and as many strongly augmented ones.
    // Written down only if it is not the default, so that earlier configs are still the same.
    #[serde(skip_serializing_if = "is_two")]
    pub views: usize,
}

fn is_two(views: &usize) -> bool {
    *views == 2
}

/// SGD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimiserConfig {
    /// Learning rate of the clients, and of the server unless `server.lr` is set.
    pub lr: f64,
    /// Momentum of SGD.
    pub momentum: f64,
    /// Use Nesterov's form of momentum.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: f64,
    /// Largest gradient norm per client; 0 for no clipping.
    pub clip: f64,
    /// How the learning rate changes over the rounds.
    pub schedule: LrSchedule,
}

/// How mixtures are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixupConfig {
    /// Parameter a of the distribution Beta(a, a) that mixup coefficients are drawn from (eq. 8).
    pub alpha: f64,
    /// Weight of the mix loss relative to the fix loss: b of eq. 10.
    pub weight: f64,
    /// How often a coefficient is drawn.
    pub draw: MixDraw,
    /// When images are weakly augmented.
    pub augment: MixAugment,
    /// How often the mix set is drawn.
    pub mix_set: MixSet,
}

/// The most bytes of a loss: it holds code, no weights.
pub(crate) const LARGEST_LOSS: u64 = 1 << 24;

/// A loss written in PyTorch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LossConfig {
    /// The file that `fedanchor.save_loss` wrote.
    pub file: PathBuf,
    /// The hash (blake3) of the file: a run whose file has another one is refused [default: that of the file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Values of the loss's own arguments, by their names.
    #[serde(default)]
    pub arguments: BTreeMap<String, f64>,
}

impl LossConfig {
    /// Sets the hash, if the file can be read; a run says why it cannot.
    pub fn identify(&mut self) {
        if self.hash.is_none() {
            let content = fedanchor_disk::read(&self.file, LARGEST_LOSS).ok();
            self.hash = content.map(|content| blake3::hash(&content).to_hex().to_string());
        }
    }
}
