//! FedAvg with the true labels of the clients' images and the same server epochs. A comparison for semi-supervised methods, not an upper bound: neither clients nor server use strong
//! augmentation (appendix of the paper; `method.augment` sets it for both), mixup or adjusted logits.

use super::{ClientReport, ClientTrainer, Cohort, Method, Properties, read_settings};
use crate::config::{Augmentation, MixupConfig, Views};
use crate::error::{Error, Result};
use crate::labels::PseudoLabels;
use crate::messages::Broadcast;
use crate::server::ServerEpochs;
use fedanchor_engine::training::FixMix;
use fedanchor_record::ClientLabels;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

/// FedAvg with the true labels of the clients' images, for comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Supervised {
    /// How images are augmented, on the clients and on the server.
    augment: Augmentation,
    /// Weight of the log of the frequencies of the client's labels, which is added to its logits in training; 0 for
    /// none.
    logit_adjustment: f64,
    /// How batch norm sees the fix and the mix view.
    views: Views,
    /// Train the clients on the mix loss L_mix, too.
    client_mixup: bool,
    /// Train the server on the mix loss, too.
    server_mixup: bool,
    /// How mixtures are made.
    mixup: MixupConfig,
}

impl Method for Supervised {
    fn name(&self) -> &'static str {
        "supervised"
    }

    /// E epochs of cross entropy on all samples.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, ref clients } = cohort;
        let unlabelled = || Error::method(self.name(), "the clients' images have no labels");
        let known = |labels: &Option<Vec<u16>>| labels.clone().ok_or_else(unlabelled);
        let labels = clients.iter().map(|client| {
            Ok(PseudoLabels::known(known(&client.labels)?)
                .adjusted(context.classes, self.logit_adjustment))
        });
        let labels = labels.collect::<Result<_>>()?;
        let mixup = self.client_mixup.then_some(&self.mixup);
        let loss = FixMix::plain(context, round, experiment.client.batch, self.augment)
            .with_mixup(mixup, self.views)
            .with_adjustment(self.logit_adjustment > 0.0);
        ClientTrainer::new(self, &broadcast.params, loss.objective()).train(cohort, labels)
    }

    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs {
            augment: Some(self.augment),
            mixup: self.server_mixup.then_some(&self.mixup),
            views: self.views,
            ..ServerEpochs::PLAIN
        }
    }

    fn properties(&self) -> Properties {
        Properties { labels: ClientLabels::True, selects: false, ..Properties::default() }
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    Ok(Box::new(read_settings::<Supervised>(settings)?))
}
