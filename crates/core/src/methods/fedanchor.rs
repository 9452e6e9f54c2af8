//! FedAnchor: Qiu et al., "FedAnchor: Enhancing Federated Semi-Supervised Learning with Label
//! Contrastive Loss for Unlabeled Clients", 2024 (arXiv 2402.10191).
//!
//! Algorithm 1, in its order. The server computes the anchors' latents; each client labels its own
//! images by average cosine similarity to them, keeps those with a score above the threshold (the
//! fix set), and trains on L_fix + b L_mix; the server averages, then trains one supervised epoch
//! on the classification head and one label contrastive epoch on the anchor head.

use super::{ClientReport, ClientTrainer, Cohort, Method};
use super::{check_mixup, in_plain_words, read_settings};
use crate::config::{Augmentation, Experiment, Heads, MixupConfig, Views, at_most, within};
use crate::error::{Error, Result};
use crate::labels::{
    AnchorPayload, Anchors, LabelledBy, LatentSource, Score, Scoring, Threshold, ThresholdRule,
    by_anchors, own_scores, relative_thresholds,
};
use crate::messages::Broadcast;
use crate::server::{ContrastiveConfig, Server, ServerEpochs};
use fedanchor_engine::InPhase;
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::FixMix;
use fedanchor_record::Losses;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

const NAME: &str = "fedanchor";

/// FedAnchor's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FedAnchorConfig {
    /// t of eq. 5, or the rule that finds it.
    pub threshold: Threshold,
    /// What the threshold is compared with.
    pub score: Score,
    /// Temperature of [`Score::Softmax`].
    pub score_temperature: f64,
    /// What is broadcast of the anchors.
    pub send: AnchorPayload,
    /// Where latents are read [default: the anchor head where a contrastive loss trains it].
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

struct FedAnchor {
    config: FedAnchorConfig,
}

impl Method for FedAnchor {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Before line 3: an epoch on the anchors.
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        self.server_epochs().pretrain(server, epoch)
    }

    /// Line 5: compute Z_anchor; and one threshold per class, where they follow from the anchors.
    fn broadcast(&self, server: &Server, round: u32, _: &[u32]) -> Result<Option<Broadcast>> {
        let Server { context, params, anchors, .. } = server;
        let scoring = self.scoring();
        let mut broadcast = Broadcast::new(NAME, round, params.copy()?);
        let payload = Anchors::compute(context, params, *anchors, scoring.source, self.config.send)
            .in_phase("computing the anchors' latents")?;
        broadcast.anchors = Some(payload);
        if let Threshold::Rule(ThresholdRule::AnchorRelative { share, least, most, views }) =
            self.config.threshold
        {
            let own = own_scores(context, params, *anchors, scoring, views, round)
                .in_phase("scoring the anchors")?;
            broadcast.thresholds = relative_thresholds(&own, share, least, most);
        }
        Ok(Some(broadcast))
    }

    /// Lines 6 to 9, for all clients of the cohort at once.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, .. } = cohort;
        let Broadcast { params: model, anchors, thresholds, .. } = broadcast;
        let Some(anchors) = anchors else {
            return Err(Error::method(NAME, "the broadcast holds no anchors"));
        };

        // Line 7: pseudo-labels (eq. 3-4), once per round, with the broadcast model. The fix set holds
        // the samples whose score is above the threshold (eq. 5).
        let by = LabelledBy {
            anchors,
            scoring: self.scoring(),
            views: self.config.label_views,
            threshold: &self.config.threshold,
            thresholds,
            progress: experiment.progress(round),
        };
        let labels = by_anchors(context, model, &by, round, &cohort.images())
            .in_phase("labelling the clients' images")?;

        // Line 8: E epochs of L_fix + b L_mix (eq. 6-10). The anchor head gets no gradient here.
        let mixup = self.config.client_mixup.then_some(&self.config.mixup);
        let softmatch =
            matches!(self.config.threshold, Threshold::Rule(ThresholdRule::Softmatch { .. }));
        let loss = FixMix::plain(context, round, experiment.client.batch, Augmentation::Strong)
            .with_mixup(mixup, self.config.views)
            .with_weights(softmatch);
        ClientTrainer::new(self, model, &loss).train(cohort, labels)
    }

    /// Lines 10 and 11: the mean becomes the global model, which then learns from the anchors.
    fn server_update(
        &self,
        server: &mut Server,
        aggregate: Option<Params>,
        round: u32,
    ) -> Result<Losses> {
        server.take_mean(aggregate.as_ref())?;
        self.server_epochs().round(server, round)
    }

    /// L_s and L_c (eq. 1-2), with L_mix on the anchors in FedAnchor (mix).
    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs {
            augment: None,
            mixup: self.config.server_mixup.then_some(&self.config.mixup),
            views: self.config.views,
            contrastive: Some(&self.config.contrastive),
        }
    }

    fn heads(&self) -> Heads {
        Heads { anchor: true, predictor: None }
    }

    fn depends_on_rounds(&self) -> bool {
        matches!(self.config.threshold, Threshold::Rule(ThresholdRule::Quantile { .. }))
    }

    fn latent_source(&self) -> LatentSource {
        let trained = self.config.contrastive.epochs > 0;
        let by_default = if trained { LatentSource::Anchor } else { LatentSource::Pooled };
        self.config.latents.unwrap_or(by_default)
    }

    /// Clean rounds lost at most 12.8 points in 1,000 rounds on CIFAR-10.
    fn default_anchor_margin(&self) -> f64 {
        30.0
    }

    fn settle(&self, experiment: &Experiment, classes: usize) -> Result<Table> {
        let mut config = self.config.clone();
        config.latents = Some(self.latent_source());
        let contrastive = &mut config.contrastive;
        contrastive.batch = Some(contrastive.batch_for(classes, experiment.data.anchors)?);
        Table::try_from(config).map_err(|error| Error::config("method", error.to_string()))
    }
}

impl FedAnchor {
    fn scoring(&self) -> Scoring {
        let FedAnchorConfig { score, score_temperature: temperature, .. } = self.config;
        Scoring { source: self.latent_source(), score, temperature }
    }
}

/// Makes the method, or says which setting is wrong.
pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let config: FedAnchorConfig = read_settings(settings)?;
    // A cosine threshold of -1 keeps everything but the exact opposite.
    let least = if config.score == Score::Cosine { -1.0 } else { 0.0 };
    config.threshold.check(least)?;
    within("method.score_temperature", config.score_temperature, 0.001, 1000.0)?;
    at_most("method.label_views", config.label_views as usize, 100)?;
    check_mixup(&config.mixup)?;
    config.contrastive.check()?;
    Ok(Box::new(FedAnchor { config }))
}

/// Fills in the rule of a threshold that is not a number, from the preset's `[thresholds]`: the rule's
/// name, or a table with some of its keys.
pub(super) fn expand(settings: &mut Table, preset: &Table) -> Result<()> {
    let mut given = match settings.get("threshold") {
        Some(Value::String(rule)) => Table::from_iter([("rule".to_owned(), rule.clone().into())]),
        Some(Value::Table(table)) => table.clone(),
        _ => return Ok(()),
    };
    let rule = match given.remove("rule") {
        Some(Value::String(rule)) => rule,
        other => {
            let found = other.map_or("none".to_owned(), |value| value.to_string());
            let problem = format!("expected the name of a rule, found {found}");
            return Err(Error::config("method.threshold.rule", problem));
        }
    };
    let rules = preset.get("thresholds").and_then(Value::as_table).cloned().unwrap_or_default();
    let Some(Value::Table(mut threshold)) = rules.get(&rule).cloned() else {
        let known: Vec<&str> = rules.keys().map(String::as_str).collect();
        let problem =
            format!("unknown rule `{rule}`; expected a number or one of {}", known.join(", "));
        return Err(Error::config("method.threshold", problem));
    };
    for (key, value) in given {
        match (threshold.get_mut(&key), value) {
            (Some(Value::Float(known)), Value::Integer(given)) => *known = given as f64,
            (_, value) => drop(threshold.insert(key, value)),
        }
    }
    threshold.insert("rule".to_owned(), Value::String(rule));
    // Read by itself: an error inside the settings would not name the key.
    Value::Table(threshold.clone())
        .try_into::<ThresholdRule>()
        .map_err(|error| in_plain_words(Error::config("method.threshold", error.message())))?;
    settings.insert("threshold".to_owned(), Value::Table(threshold));
    Ok(())
}
