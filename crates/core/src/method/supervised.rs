//! FedAvg with true labels: what the clients could do if someone labelled their images. The bound that
//! semi-supervised methods are measured against, with the same server epochs and the same start.

use super::{Broadcast, ClientReport, Cohort, Method};
use crate::config::{SupervisedConfig, Views};
use crate::error::{Error, Result};
use crate::fix_mix::FixMix;
use crate::labels::PseudoLabels;
use crate::local::Local;
use crate::params::Params;
use crate::server::Server;
use crate::server_epochs::ServerEpochs;
use fedanchor_record::Losses;

pub(super) struct Supervised {
    pub(super) config: SupervisedConfig,
}

impl Method for Supervised {
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        ServerEpochs::PLAIN.pretrain(server, epoch)
    }

    fn broadcast(&self, server: &Server, _: u32) -> Result<Option<Broadcast>> {
        Ok(Some(Broadcast::of(server.params.copy()?)))
    }

    /// E epochs of cross entropy on all samples, without strong augmentation.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, ref clients } = cohort;
        let unlabelled = || Error::Engine {
            phase: "training clients",
            message: "supervised training needs the clients' labels".to_owned(),
        };
        let known = |labels: &Option<Vec<u16>>| labels.clone().ok_or_else(unlabelled);
        let labels = clients.iter().map(|client| Ok(PseudoLabels::known(known(&client.labels)?)));
        let labels = labels.collect::<Result<_>>()?;
        let loss = FixMix {
            setting,
            round,
            batch: setting.experiment.client.batch,
            augment: self.config.augment,
            mixup: None,
            views: Views::Separate,
            weighed: false,
        };
        Local::plain(&broadcast.params, &loss).train(cohort, labels)
    }

    fn server_update(
        &self,
        server: &mut Server,
        mean: Option<Params>,
        round: u32,
    ) -> Result<Losses> {
        server.take_mean(mean.as_ref())?;
        ServerEpochs::PLAIN.round(server, round)
    }
}
