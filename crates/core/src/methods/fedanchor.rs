//! FedAnchor: Qiu et al., "FedAnchor: Enhancing Federated Semi-Supervised Learning with Label
//! Contrastive Loss for Unlabeled Clients", 2024 (arXiv 2402.10191).
//!
//! Algorithm 1, in its order. The server computes the anchors' latents; each client labels its images by average
//! cosine similarity to them, keeps those with a score above the threshold (the fix set), and trains on
//! L_fix + b L_mix; the server averages, then trains one supervised epoch on the classification head and one label
//! contrastive epoch on the anchor head.

use super::warm_up::WarmUpConfig;
use super::{ClientReport, ClientTrainer, Cohort, LossBatches, Method, Properties};
use super::{check_mixup, read_settings, write_settings};
use crate::config::{Augmentation, Experiment, Heads, MixupConfig, Views};
use crate::error::Result;
use crate::labels::{
    AnchorPayload, AnchorViews, Labelling, LatentSource, PseudoLabels, Score, Threshold,
};
use crate::messages::Broadcast;
use crate::server::{ContrastiveConfig, Server, ServerEpochs};
use fedanchor_engine::tensors::Part;
use fedanchor_engine::training::{FixMix, client_objective};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

/// FedAnchor: clients label their images by similarity to the anchors (Qiu et al., 2024).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FedAnchorConfig {
    /// A sample is kept if its score is above this number, t of eq. 5; or the name of a rule, or a table with
    /// `rule` and some of its keys.
    pub threshold: Threshold,
    /// The number that is compared with the threshold.
    pub score: Score,
    /// Temperature of the score `softmax` and of `method.local_prior`.
    pub score_temperature: f64,
    /// How the anchors' latents are computed [default: `plain`].
    // Written down only if it is not the default, so that earlier configs are still the same.
    #[serde(default, skip_serializing_if = "AnchorViews::is_plain")]
    pub anchor_views: AnchorViews,
    /// The form in which the anchors are broadcast.
    pub send: AnchorPayload,
    /// Where latents are read [default: `anchor`, or `pooled` if no contrastive loss trains the anchor head].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<LatentSource>,
    /// Weigh a client's labels by its own class shares, which it estimates from all its images, if it seems to hold
    /// less than this share of the classes, so that a client with two classes does not label as if it had all. What it
    /// holds is counted as the number of equally frequent classes with the same entropy. 0: never, 1: always.
    pub local_prior: f64,
    /// Weight of the log of the frequencies of all the client's pseudo-labels, which is added to its logits in
    /// training, so that rare classes are not forgotten; 0 for none.
    pub logit_adjustment: f64,
    /// Weakly augmented views that vote on a label; 0 for the image as it is.
    pub label_views: u32,
    /// How batch norm sees the fix and the mix view.
    pub views: Views,
    /// Train the clients on the mix loss L_mix, too.
    pub client_mixup: bool,
    /// Train the server on the mix loss, too: FedAnchor (mix) in the paper.
    pub server_mixup: bool,
    /// How mixtures are made.
    pub mixup: MixupConfig,
    /// The label contrastive loss.
    pub contrastive: ContrastiveConfig,
    /// The first rounds, in which clients learn without labels from two views of each image.
    pub warm_up: WarmUpConfig,
}

struct FedAnchor {
    config: FedAnchorConfig,
    labelling: Labelling,
}

impl Method for FedAnchor {
    fn name(&self) -> &'static str {
        "fedanchor"
    }

    /// Line 5: the model, and Z_anchor by it.
    fn broadcast(&self, server: &Server, round: u32, _: &[u32]) -> Result<Option<Broadcast>> {
        let Server { context, anchors, ref params, .. } = *server;
        let sent = self.config.warm_up.sent(params, round);
        let mut broadcast = Broadcast::new(self.name(), round, sent.copy()?);
        broadcast.arrays = self.labelling.broadcast(context, params, anchors, round)?;
        Ok(Some(broadcast))
    }

    /// Lines 6 to 9, for all clients of the cohort at once.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        if self.config.warm_up.includes(cohort.round) {
            return self.config.warm_up.train(self, cohort, &broadcast.params);
        }
        // Line 7: pseudo-labels (eq. 3-4), once per round, with the broadcast model. The fix set holds
        // the samples whose score is above the threshold (eq. 5).
        let labels = cohort.label_by_anchors(&self.labelling, broadcast)?;

        // Line 8: E epochs of L_fix + b L_mix (eq. 6-10). The anchor head gets no gradient here.
        let Cohort { experiment, context, round, .. } = cohort;
        let mixup = self.config.client_mixup.then_some(&self.config.mixup);
        let loss = FixMix::plain(context, round, experiment.client.batch, Augmentation::Strong)
            .with_mixup(mixup, self.config.views)
            .with_weights(self.labelling.threshold.weighs())
            .with_adjustment(self.labelling.logit_adjustment > 0.0);
        ClientTrainer::new(self, &broadcast.params, client_objective(&loss)).train(cohort, labels)
    }

    /// Lines 10 and 11 are the default `server_update`: the mean becomes the global model, which then learns from
    /// the anchors by L_s and L_c (eq. 1-2), in FedAnchor (mix) also by L_mix.
    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs {
            mixup: self.config.server_mixup.then_some(&self.config.mixup),
            views: self.config.views,
            contrastive: Some(&self.config.contrastive),
            ..ServerEpochs::PLAIN
        }
    }

    /// The labels of warm-up rounds, whose training does not use them.
    fn measure(&self, cohort: &Cohort, sent: &Broadcast) -> Result<Option<Vec<PseudoLabels>>> {
        let warm_up = self.config.warm_up.includes(cohort.round);
        warm_up.then(|| cohort.label_by_anchors(&self.labelling, sent)).transpose()
    }

    fn properties(&self) -> Properties {
        let warm_up = &self.config.warm_up;
        Properties {
            client_losses: warm_up.client_losses(),
            loss_on: Some(LossBatches::mixed(self.config.client_mixup)),
            heads: Heads { anchor: true, predictor: warm_up.predictor() },
            uploads: &[Part::Backbone, Part::Classifier, Part::Predictor],
            latents: self.labelling.source,
            weighs: self.labelling.threshold.weighs(),
            depends_on_rounds: self.labelling.threshold.depends_on_rounds(),
            warm_up: warm_up.rounds,
            ..Properties::default()
        }
    }

    fn check(&self, experiment: &Experiment) -> Result<()> {
        self.config.warm_up.check_rounds(experiment.rounds)
    }

    fn settle(&self, experiment: &Experiment, classes: usize) -> Result<Table> {
        let mut config = self.config.clone();
        config.contrastive.settle(classes, experiment.data.anchors)?;
        write_settings(&config)
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let mut config: FedAnchorConfig = read_settings(settings)?;
    let trains_head = config.contrastive.epochs > 0;
    let source = if trains_head { LatentSource::Anchor } else { LatentSource::Pooled };
    let labelling = Labelling {
        source: *config.latents.get_or_insert(source),
        anchor_views: config.anchor_views,
        send: config.send,
        score: config.score,
        temperature: config.score_temperature,
        views: config.label_views,
        local_prior: config.local_prior,
        logit_adjustment: config.logit_adjustment,
        threshold: config.threshold.build(config.score)?,
    };
    labelling.check()?;
    check_mixup(&config.mixup)?;
    config.contrastive.check()?;
    config.warm_up.check()?;
    Ok(Box::new(FedAnchor { config, labelling }))
}
