//! The settings of a cohort's training: plain structs, as they stand in an experiment file. Their
//! defaults and their checks belong to the experiment, not to this crate.

use fedanchor_data::augment::Strong;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Declares an enum of plain words, written in kebab case in a config.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident),+ $(,)? })+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
        /// A small residual network for CPU work.
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
        /// Measured again on a sample of all images, without augmentation.
        StaticAll,
        /// Measured again on the anchors.
        StaticServer,
    }
    /// How the learning rate changes over the rounds.
    LrSchedule { /** Not at all. */ Constant, /** Half a cosine, down to 0. */ Cosine }
    /// How an image is augmented before it is trained on.
    Augmentation { /** Not at all. */ None, /** Flip and crop. */ Weak, /** RandAugment. */ Strong }
    /// Whether batch norm sees the fix and the mix view apart.
    Views { /** Apart. */ Separate, /** As one batch. */ Joint }
    /// How often a mixup coefficient is drawn.
    MixDraw { /** Once per batch. */ Batch, /** Once per sample. */ Sample }
    /// Weak augmentation before or after mixing.
    MixAugment { /** Of each image, before. */ Before, /** Of the mixture, after. */ After }
    /// How often the mix set is drawn.
    MixSet { /** Once per epoch. */ Epoch, /** Once per round. */ Round }
}

/// How resnet18 begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stem {
    /// A 3x3 convolution, for images of some 32 pixels.
    #[default]
    Cifar,
    /// A 7x7 convolution of stride 2 and a 3x3 maximum of stride 2, for photographs.
    Imagenet,
}

impl Stem {
    fn is_cifar(&self) -> bool {
        *self == Self::Cifar
    }
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

/// The network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Which network.
    pub name: ModelName,
    /// ResNet-18 only: pre-activation blocks.
    pub preactivation: bool,
    /// Batch or group norm.
    pub norm: NormKind,
    /// Groups of group norm.
    pub groups: usize,
    /// Width of the anchor head.
    pub latent_dim: usize,
    /// The stage whose pooled output the anchor head reads [default: the last].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent_stage: Option<usize>,
    /// ResNet-18 only: how it begins. Written down only if it is not the default, so that configs and models
    /// from before it existed are still the same.
    #[serde(default, skip_serializing_if = "Stem::is_cifar")]
    pub stem: Stem,
    /// ResNet-18 only: a safetensors file with torchvision's names whose backbone replaces the drawn one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_from: Option<PathBuf>,
}

impl ModelConfig {
    /// A network with batch norm and nothing unusual, for tests and examples.
    pub fn plain(name: ModelName) -> Self {
        Self {
            name,
            preactivation: false,
            norm: NormKind::Batch,
            groups: 8,
            latent_dim: 12,
            latent_stage: None,
            stem: Stem::Cifar,
            init_from: None,
        }
    }
}

/// Heads of the network beside the classification head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heads {
    /// The anchor head.
    pub anchor: bool,
    /// A predictor of pooled features, with its hidden width.
    pub predictor: Option<usize>,
}

/// What happens to batch norm's running statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNormConfig {
    /// Where the statistics used for labels and tests come from.
    pub statistics: StatisticsSource,
    /// Share of a batch in the running statistics.
    pub momentum: f64,
    /// How many images `static-all` measures on, drawn from all of them; 0 for all.
    pub images: usize,
}

/// Augmentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AugmentConfig {
    /// The recipe of strong augmentation.
    pub strong: Strong,
    /// Mirror images [default: by data set].
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
    /// Largest gradient norm; 0 for no clipping.
    pub clip: f64,
    /// How the learning rate changes over the rounds.
    pub schedule: LrSchedule,
}

/// How mixtures are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixupConfig {
    /// Parameter of the beta distribution.
    pub alpha: f64,
    /// b of eq. 10.
    pub weight: f64,
    /// How often the coefficient is drawn.
    pub draw: MixDraw,
    /// Weak augmentation before or after mixing.
    pub augment: MixAugment,
    /// How often the mix set is drawn.
    pub mix_set: MixSet,
}
