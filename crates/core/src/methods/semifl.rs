//! SemiFL: Diao, Ding and Tarokh, "SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients
//! with Alternate Training", 2022.
//!
//! The server trains on its labels, the clients on labels that the broadcast model gave their images
//! once, at the start of the round: fix and mix sets as FedAnchor has them, but labelled by the
//! classification head, on weakly augmented images, with a probability of at least 0.95. Its own recipe
//! (static batch norm, cosine schedule, Nesterov, momentum of the global model) is preset `semifl`; the
//! method is the same under either preset.

use super::{
    ClientReport, ClientTrainer, Cohort, LossBatches, Method, Properties, check_mixup,
    read_settings,
};
use crate::config::{Augmentation, MixupConfig, Views, within};
use crate::error::Result;
use crate::messages::Broadcast;
use fedanchor_engine::training::{FixMix, client_objective};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

/// SemiFL: clients label their images with the broadcast classifier, once per round (Diao et al., 2022).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SemiFl {
    /// A sample is kept if its largest probability is at least this.
    threshold: f64,
    /// How batch norm sees the fix and the mix view.
    views: Views,
    /// Train the clients on the mix loss, too.
    client_mixup: bool,
    /// How mixtures are made.
    mixup: MixupConfig,
}

impl Method for SemiFl {
    fn name(&self) -> &'static str {
        "semifl"
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, .. } = cohort;
        let labels = cohort.label(&broadcast.params, self.threshold)?;
        let mixup = self.client_mixup.then_some(&self.mixup);
        let loss = FixMix::plain(context, round, experiment.client.batch, Augmentation::Strong)
            .with_mixup(mixup, self.views);
        ClientTrainer::new(self, &broadcast.params, client_objective(&loss)).train(cohort, labels)
    }

    fn properties(&self) -> Properties {
        let loss_on = Some(LossBatches::mixed(self.client_mixup));
        Properties { loss_on, ..Properties::default() }
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: SemiFl = read_settings(settings)?;
    within("method.threshold", method.threshold, 0.0, 1.0)?;
    check_mixup(&method.mixup)?;
    Ok(Box::new(method))
}
