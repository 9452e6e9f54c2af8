//! The methods' own settings, one struct a method. A key that a method does not use is not there, so
//! giving it is an error.

use super::{
    Augmentation, Denominator, DivideBy, LatentSource, MixAugment, MixDraw, MixSet, MomentumOf,
    Order, Sampler, Score, Send, Trains, Views,
};
use crate::params::Part;
use serde::{Deserialize, Serialize};

/// The method and its own settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum MethodConfig {
    /// The paper's method.
    Fedanchor(FedAnchorConfig),
    /// SemiFL (Diao et al., 2022).
    Semifl(SemiFlConfig),
    /// FixMatch on the clients, averaged (the paper's baseline).
    FedavgFixmatch(FixMatchConfig),
    /// FedCon (Long et al., 2021): consistency of two views.
    Fedcon(FedConConfig),
    /// FedMatch (Jeong et al., 2021), labels at the server.
    Fedmatch(FedMatchConfig),
    /// FedAvg with the clients' true labels: the bound above.
    Supervised(SupervisedConfig),
    /// The server without clients: the floor every method must beat.
    ServerOnly(ServerOnlyConfig),
}

/// Heads of the network beside the classification head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Heads {
    /// The anchor head.
    pub anchor: bool,
    /// FedCon's predictor, with its hidden width.
    pub predictor: Option<usize>,
}

impl MethodConfig {
    /// The name as written in a config.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fedanchor(_) => "fedanchor",
            Self::Semifl(_) => "semifl",
            Self::FedavgFixmatch(_) => "fedavg-fixmatch",
            Self::Fedcon(_) => "fedcon",
            Self::Fedmatch(_) => "fedmatch",
            Self::Supervised(_) => "supervised",
            Self::ServerOnly(_) => "server-only",
        }
    }

    /// The heads it trains.
    pub fn heads(&self) -> Heads {
        match self {
            Self::Fedanchor(_) => Heads { anchor: true, predictor: None },
            Self::ServerOnly(config) => {
                Heads { anchor: config.contrastive.epochs > 0, predictor: None }
            }
            Self::Fedcon(config) => Heads { anchor: false, predictor: Some(config.predictor) },
            _ => Heads::default(),
        }
    }

    /// Whether its clients are shown their true labels.
    pub fn sees_labels(&self) -> bool {
        matches!(self, Self::Supervised(_))
    }

    /// Whether its server remembers single clients.
    pub fn remembers_clients(&self) -> bool {
        matches!(self, Self::Fedmatch(_))
    }

    /// Whether its clients send this part of the network to the server: what they train.
    pub fn sends_up(&self, part: Part) -> bool {
        match self {
            Self::Fedcon(_) => part == Part::Backbone,
            _ => matches!(part, Part::Backbone | Part::Classifier),
        }
    }

    /// Its label contrastive epochs, where it has any.
    pub fn contrastive(&self) -> Option<&ContrastiveConfig> {
        match self {
            Self::Fedanchor(config) => Some(&config.contrastive),
            Self::ServerOnly(config) => Some(&config.contrastive),
            _ => None,
        }
    }
}

/// FedAnchor's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedAnchorConfig {
    /// t of eq. 5, or the rule it follows from.
    pub threshold: Threshold,
    /// What the threshold is compared with.
    pub score: Score,
    /// Temperature of [`Score::Softmax`].
    pub score_temperature: f64,
    /// What is broadcast beside the weights.
    pub send: Send,
    /// Where latents are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<LatentSource>,
    /// Weak views that vote on a label; 0: the image as it is.
    pub label_views: u32,
    /// Whether batch norm sees the fix and the mix view apart.
    pub views: Views,
    /// L_mix on the clients.
    pub client_mixup: bool,
    /// The same loss on the anchors: FedAnchor (mix).
    pub server_mixup: bool,
    /// How mixtures are made.
    pub mixup: MixupConfig,
    /// The label contrastive loss.
    pub contrastive: ContrastiveConfig,
}

impl FedAnchorConfig {
    /// Where latents are read: the anchor head where a contrastive loss trains it.
    pub fn latent_source(&self) -> LatentSource {
        let trained = self.contrastive.epochs > 0;
        self.latents.unwrap_or(if trained { LatentSource::Anchor } else { LatentSource::Pooled })
    }
}

/// SemiFL's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SemiFlConfig {
    /// A sample is kept if its largest probability is at least this.
    pub threshold: f64,
    /// Whether batch norm sees the fix and the mix view apart.
    pub views: Views,
    /// The mix loss on the clients.
    pub client_mixup: bool,
    /// How mixtures are made.
    pub mixup: MixupConfig,
}

/// The settings of FixMatch on the clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixMatchConfig {
    /// A sample of a batch is trained on if its largest probability is at least this.
    pub threshold: f64,
}

/// FedCon's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedConConfig {
    /// Hidden width of the predictor.
    pub predictor: usize,
    /// Share of the target network that stays in a step.
    pub target_decay: f64,
    /// Rounds over which the server's consistency loss rises to its full weight.
    pub ramp_up: u32,
}

/// FedMatch's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedMatchConfig {
    /// A sample is confident if its largest probability is at least this.
    pub threshold: f64,
    /// Helper models sent to every client.
    pub helpers: usize,
    /// Rounds between two choices of helpers.
    pub refresh: u32,
    /// Weight of the two consistency terms.
    pub consistency: f64,
    /// Weight of sum |psi|.
    pub sparsity: f64,
    /// Weight of the squared distance between sigma and psi.
    pub distance: f64,
    /// Weight of the server's cross entropy.
    pub supervised: f64,
}

/// The settings of training with true labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupervisedConfig {
    /// What is done to the clients' images.
    pub augment: Augmentation,
}

/// The settings of the server by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerOnlyConfig {
    /// Whether batch norm sees the fix and the mix view apart.
    pub views: Views,
    /// The mix loss on the anchors.
    pub server_mixup: bool,
    /// How mixtures are made.
    pub mixup: MixupConfig,
    /// The label contrastive loss.
    pub contrastive: ContrastiveConfig,
}

/// How mixtures are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixupConfig {
    /// Parameter of the beta distribution.
    pub alpha: f64,
    /// b of eq. 10.
    pub weight: f64,
    /// One coefficient a batch or a sample.
    pub draw: MixDraw,
    /// Weak augmentation before or after mixing.
    pub augment: MixAugment,
    /// How often the mix set is drawn.
    pub mix_set: MixSet,
}

/// Which samples are kept: t of eq. 5 as a number, or a rule that finds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Threshold {
    /// The same for all.
    Fixed(f64),
    /// By a rule.
    Rule(ThresholdRule),
}

/// Rules that adapt the threshold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ThresholdRule {
    /// A share of how well the anchors of a class score among themselves (AdaMatch's idea).
    AnchorRelative {
        /// That share.
        share: f64,
        /// The lowest threshold.
        least: f64,
        /// The highest.
        most: f64,
        /// Weakly augmented views of the anchors that are scored.
        views: u32,
    },
    /// The mean score of the client's samples ((FL)^2's CAT, on cosines).
    ClientMean {
        /// The highest threshold.
        most: f64,
    },
    /// All samples, weighed: 1 above the client's mean, less below (SoftMatch).
    Softmatch {
        /// Standard deviations over which the weight falls; SoftMatch's 1/2.
        width: f64,
    },
    /// The best-scored share of a client's samples, growing over the rounds.
    Quantile {
        /// In the first round.
        from: f64,
        /// In the last.
        to: f64,
    },
}

/// The label contrastive loss and its epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContrastiveConfig {
    /// Epochs a round; 0 for none.
    pub epochs: u32,
    /// tau of eq. 1.
    pub temperature: f64,
    /// Batch size; by number of classes and anchors if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// How batches are drawn.
    pub sampler: Sampler,
    /// Augmentation of the anchors in this epoch.
    pub augment: Augmentation,
    /// What this epoch updates.
    pub trains: Trains,
    /// Pairs (i, i) in the numerator.
    pub self_pairs: bool,
    /// Which pairs stand in the denominator.
    pub denominator: Denominator,
    /// What the sum over classes is divided by.
    pub divide_by: DivideBy,
    /// After or before the supervised epoch.
    pub order: Order,
    /// Momentum of its own or the supervised epoch's.
    pub momentum: MomentumOf,
}
