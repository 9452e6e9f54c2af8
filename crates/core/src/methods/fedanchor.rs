//! FedAnchor: Qiu et al., "FedAnchor: Enhancing Federated Semi-Supervised Learning with Label
//! Contrastive Loss for Unlabeled Clients", 2024 (arXiv 2402.10191).
//!
//! Algorithm 1, in its order. The server computes the anchors' latents; each client labels its own
//! images by average cosine similarity to them, keeps those with a score above the threshold (the
//! fix set), and trains on L_fix + b L_mix; the server averages, then trains one supervised epoch
//! on the classification head and one label contrastive epoch on the anchor head.

use super::two_views::TwoViewLoss;
use super::{Client, ClientReport, ClientTrainer, Cohort, Method, Own};
use super::{check_mixup, read_settings};
use crate::config::{Augmentation, Experiment, Heads, MixupConfig, Views};
use crate::config::{at_least_one, at_most, in_plain_words, within};
use crate::error::{Error, Result};
use crate::labels::{
    AnchorPayload, Anchors, ClassShares, LabelledBy, LatentSource, PseudoLabels, Score, Scoring,
    Threshold, ThresholdRule, by_anchors, own_scores, relative_thresholds,
};
use crate::messages::Broadcast;
use crate::server::{ContrastiveConfig, Server, ServerEpochs};
use fedanchor_engine::batches::TwoViews;
use fedanchor_engine::tensors::{Params, Part};
use fedanchor_engine::training::{FixMix, Objective};
use fedanchor_engine::{InPhase, words};
use fedanchor_record::Losses;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

const NAME: &str = "fedanchor";

/// FedAnchor: clients label their images by similarity to the anchors (Qiu et al., 2024).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FedAnchorConfig {
    /// A sample is kept if its score is above this number, t of eq. 5; or the name of a rule, or a table with
    /// `rule` and some of its keys.
    pub threshold: Threshold,
    /// What the threshold is compared with.
    pub score: Score,
    /// Temperature of the score `softmax`, of `method.alignment` and of `method.local_prior`.
    pub score_temperature: f64,
    /// Fit that temperature on each client, so that the probability of its labels is on average this; 0 for
    /// `method.score_temperature`.
    pub confidence: f64,
    /// What is broadcast of the anchors.
    pub send: AnchorPayload,
    /// Where latents are read [default: `anchor`, or `pooled` if no contrastive loss trains the anchor head].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latents: Option<LatentSource>,
    /// The model that labels the clients' images.
    pub labelled_by: Labeller,
    /// Keep a sample only if both heads give it the same label.
    pub agreement: bool,
    /// How far a client's pseudo-labels are aligned with the class shares of the anchors: 0 not at all, 1 in
    /// full. Right only where the clients' classes are balanced.
    pub alignment: f64,
    /// Weigh a client's labels by its own class shares, which it estimates from all its images, if it seems to hold
    /// less than this share of the classes, so that a client with two classes does not label as if it had all. What it
    /// holds is counted as the number of equally frequent classes with the same entropy. 0: never, 1: always.
    pub local_prior: f64,
    /// Weight of the log of the frequencies of all the client's pseudo-labels, which is added to its logits in
    /// training, so that rare classes are not unlearnt; 0 for none.
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

words! {
    /// The model that labels the clients' images.
    Labeller {
        /// The global model, which they train.
        Global,
        /// Its moving average (`server.average`), which is then broadcast beside it.
        Average,
    }
}

/// The first rounds, in which clients learn without labels from two views of each image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUpConfig {
    /// Number of such rounds; 0 for none.
    pub rounds: u32,
    /// Hidden width of the predictor.
    pub predictor: usize,
    /// Share of the target network that stays in each step.
    pub target_decay: f64,
}

/// What the average of the global model is called in a broadcast.
const AVERAGE: &str = "average";

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
        let Server { context, anchors, .. } = server;
        let scoring = self.scoring();
        let warms_up = self.warms_up(round);
        let sent = server.params.subset(|entry| warms_up || entry.part != Part::Predictor);
        let mut broadcast = Broadcast::new(NAME, round, sent.copy()?);
        let mut params = &server.params;
        if let (Labeller::Average, Some(average)) = (self.config.labelled_by, &server.average) {
            let labeller = average.subset(|entry| entry.part != Part::Predictor);
            broadcast.models.insert(AVERAGE, labeller.copy()?);
            params = average;
        }
        let payload = Anchors::compute(context, params, *anchors, scoring.source, self.config.send)
            .in_phase("computing the anchors' latents")?;
        broadcast.anchors = Some(payload);
        if self.config.alignment > 0.0 {
            broadcast.class_shares = anchors.class_shares(context.classes);
        }
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
        let Broadcast { params: model, anchors, thresholds, class_shares, .. } = broadcast;
        let Some(anchors) = anchors else {
            return Err(Error::method(NAME, "the broadcast holds no anchors"));
        };

        // Line 7: pseudo-labels (eq. 3-4), once per round, with the broadcast model. The fix set holds
        // the samples whose score is above the threshold (eq. 5).
        let by = LabelledBy {
            anchors,
            scoring: self.scoring(),
            confidence: self.config.confidence,
            views: self.config.label_views,
            classes: match (self.config.local_prior, self.config.alignment) {
                (0.0, 0.0) => ClassShares::Ignored,
                (0.0, weight) => ClassShares::Aligned { anchors: class_shares, weight },
                (below, _) => ClassShares::Own { below },
            },
            agreement: self.config.agreement,
            threshold: &self.config.threshold,
            thresholds,
            progress: experiment.progress(round),
        };
        let labeller = match self.config.labelled_by {
            Labeller::Global => model,
            Labeller::Average => broadcast
                .models
                .get(AVERAGE)
                .ok_or_else(|| Error::method(NAME, "the broadcast holds no average to label by"))?,
        };
        if self.config.alignment > 0.0 && class_shares.is_empty() {
            return Err(Error::method(NAME, "the broadcast holds no class shares to align with"));
        }
        let mut labels = by_anchors(context, labeller, &by, round, &cohort.images())
            .in_phase("labelling the clients' images")?;
        if self.warms_up(round) {
            return self.warm_up(cohort, model, labels);
        }

        // Line 8: E epochs of L_fix + b L_mix (eq. 6-10). The anchor head gets no gradient here.
        let mixup = self.config.client_mixup.then_some(&self.config.mixup);
        let softmatch =
            matches!(self.config.threshold, Threshold::Rule(ThresholdRule::Softmatch { .. }));
        let adjustment = self.config.logit_adjustment;
        if adjustment > 0.0 {
            for labels in &mut labels {
                labels.adjustment = labels.log_frequencies(context.classes, adjustment);
            }
        }
        let loss = FixMix::plain(context, round, experiment.client.batch, Augmentation::Strong)
            .with_mixup(mixup, self.config.views)
            .with_weights(softmatch)
            .with_adjustment(adjustment > 0.0);
        ClientTrainer::new(self, model, loss.objective()).train(cohort, labels)
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
        let WarmUpConfig { rounds, predictor, .. } = self.config.warm_up;
        Heads { anchor: true, predictor: (rounds > 0).then_some(predictor) }
    }

    /// The predictor is there in warm-up rounds alone.
    fn uploads(&self, part: Part) -> bool {
        part != Part::Anchor
    }

    fn depends_on_rounds(&self) -> bool {
        use ThresholdRule::{Quantile, Rising};
        matches!(self.config.threshold, Threshold::Rule(Quantile { .. } | Rising { .. }))
    }

    fn starts_anew(&self, round: u32) -> bool {
        round == self.config.warm_up.rounds + 1
    }

    fn latent_source(&self) -> LatentSource {
        let trained = self.config.contrastive.epochs > 0;
        let by_default = if trained { LatentSource::Anchor } else { LatentSource::Pooled };
        self.config.latents.unwrap_or(by_default)
    }

    fn check(&self, experiment: &Experiment) -> Result<()> {
        if self.config.labelled_by == Labeller::Average && experiment.server.average == 0.0 {
            let problem = "there is no average to label by: set server.average above 0";
            return Err(Error::config("method.labelled_by", problem));
        }
        let (rounds, warm_up) = (experiment.rounds, self.config.warm_up.rounds);
        if warm_up > 0 && warm_up >= rounds {
            let problem = format!("leaves none of the {rounds} rounds to learn from labels");
            return Err(Error::config("method.warm_up.rounds", problem));
        }
        Ok(())
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
    fn warms_up(&self, round: u32) -> bool {
        round <= self.config.warm_up.rounds
    }

    /// A round without labels: those that were found are for the record only. Unlike FedCon's, the predictor
    /// is averaged with the backbone, and the target starts from the broadcast model.
    fn warm_up(
        &self,
        cohort: Cohort,
        model: &Params,
        labels: Vec<PseudoLabels>,
    ) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, .. } = cohort;
        let own = |_: &Client| {
            let target = model.subset(|entry| entry.part == Part::Backbone);
            Ok(Own { entries: model.subset(|_| false), others: vec![target.copy()?] })
        };
        let views = TwoViews {
            images: &context.images,
            streams: context.streams(round),
            batch: experiment.client.batch,
            second: Augmentation::Strong,
        };
        let target_decay = self.config.warm_up.target_decay;
        let loss = TwoViewLoss { format: views.format(), target_decay };
        let trainer = ClientTrainer {
            keeps_momentum: false, // of another loss
            trains: |part| matches!(part, Part::Backbone | Part::Predictor),
            own: Some(&own),
            whole: true,
            ..ClientTrainer::new(self, model, Objective::new(&views, loss))
        };
        trainer.train(cohort, labels)
    }

    fn scoring(&self) -> Scoring {
        let FedAnchorConfig { score, score_temperature: temperature, .. } = self.config;
        Scoring { source: self.latent_source(), score, temperature }
    }
}

/// The lowest temperature at which labels can be aligned.
const LEAST_ALIGNED: f64 = 0.003;

/// Makes the method, or says which setting is wrong.
pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let config: FedAnchorConfig = read_settings(settings)?;
    // A cosine threshold of -1 keeps everything but the exact opposite.
    let least = if config.score == Score::Cosine { -1.0 } else { 0.0 };
    config.threshold.check(least)?;
    within("method.score_temperature", config.score_temperature, 0.001, 1000.0)?;
    // Cosines differ by 2 at most. Below this temperature, the probability of a class can be 0 on all images of a client,
    // and no weight makes it as frequent as among the anchors.
    let aligns = config.alignment > 0.0 && config.confidence == 0.0;
    if aligns && config.score_temperature < LEAST_ALIGNED {
        let problem = format!(
            "must be at least {LEAST_ALIGNED} where method.alignment is above 0, found {}",
            config.score_temperature
        );
        return Err(Error::config("method.score_temperature", problem));
    }
    if config.confidence != 0.0 {
        within("method.confidence", config.confidence, 0.3, 0.99)?;
    }
    at_most("method.label_views", config.label_views as usize, 100)?;
    within("method.alignment", config.alignment, 0.0, 1.0)?;
    within("method.local_prior", config.local_prior, 0.0, 1.0)?;
    if config.local_prior > 0.0 && config.alignment > 0.0 {
        let problem = "labels follow a client's own class shares or the anchors', not both: \
                       set method.alignment to 0";
        return Err(Error::config("method.local_prior", problem));
    }
    within("method.logit_adjustment", config.logit_adjustment, 0.0, 10.0)?;
    at_most("method.warm_up.rounds", config.warm_up.rounds as usize, 1_000_000)?;
    at_least_one("method.warm_up.predictor", config.warm_up.predictor)?;
    at_most("method.warm_up.predictor", config.warm_up.predictor, 65_536)?;
    within("method.warm_up.target_decay", config.warm_up.target_decay, 0.0, 1.0)?;
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
