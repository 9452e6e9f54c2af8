//! FedAvg with the true labels of the clients' images and the same server epochs. By default a comparison for
//! semi-supervised methods, not an upper bound: neither clients nor server use strong augmentation (appendix of the
//! paper), mixup or adjusted logits. With these set as for FedAnchor, the remaining gap is the cost of pseudo-labels.

use super::{ClientReport, ClientTrainer, Cohort, LossBatches, Method, Properties};
use super::{check_mixup, read_settings};
use crate::config::{Augmentation, MixAugment, MixDraw, MixSet, MixupConfig, Views, within};
use crate::error::{Error, Result};
use crate::labels::PseudoLabels;
use crate::messages::Broadcast;
use crate::server::ServerEpochs;
use fedanchor_engine::training::{FixMix, client_objective};
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
    /// Train the clients on the mix loss, too.
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
            let labels = PseudoLabels::known(known(&client.labels)?);
            Ok(labels.adjusted(context.classes, self.logit_adjustment))
        });
        let labels = labels.collect::<Result<_>>()?;
        let loss = FixMix::plain(context, round, experiment.client.batch, self.augment)
            .with_mixup(self.client_mixup.then_some(&self.mixup), Views::Separate)
            .with_adjustment(self.logit_adjustment > 0.0);
        ClientTrainer::new(self, &broadcast.params, client_objective(&loss)).train(cohort, labels)
    }

    fn server_epochs(&self) -> ServerEpochs<'_> {
        let mixup = self.server_mixup.then_some(&self.mixup);
        ServerEpochs { augment: Some(self.augment), mixup, ..ServerEpochs::PLAIN }
    }

    fn properties(&self) -> Properties {
        Properties {
            labels: ClientLabels::True,
            selects: false,
            loss_on: Some(LossBatches::mixed(self.client_mixup)),
            ..Properties::default()
        }
    }
}

/// Cross entropy on weakly augmented images alone.
pub fn supervised() -> Box<dyn Method> {
    let mixup = MixupConfig {
        alpha: 0.75,
        weight: 1.0,
        draw: MixDraw::Batch,
        augment: MixAugment::Before,
        mix_set: MixSet::Epoch,
    };
    let (client_mixup, server_mixup, logit_adjustment) = Default::default();
    let augment = Augmentation::Weak;
    Box::new(Supervised { augment, logit_adjustment, client_mixup, server_mixup, mixup })
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: Supervised = read_settings(settings)?;
    within("method.logit_adjustment", method.logit_adjustment, 0.0, 10.0)?;
    check_mixup(&method.mixup)?;
    Ok(Box::new(method))
}
