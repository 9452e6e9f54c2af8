//! SemiFL: Diao, Ding and Tarokh, "SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients
//! with Alternate Training", 2022.
//!
//! The server trains on its labels, the clients on labels that the broadcast model gave their images
//! once, at the start of the round: fix and mix sets as FedAnchor has them, but by the classification
//! head, on weakly augmented images, from a probability of 0.95 on. Its own recipe (static batch norm,
//! cosine schedule, Nesterov, momentum of the global model) is preset `semifl`; the method is the same
//! under either preset.

use super::{Broadcast, ClientReport, Cohort, Method};
use crate::config::{Augmentation, SemiFlConfig};
use crate::error::{InPhase, Result};
use crate::fix_mix::FixMix;
use crate::labels::by_classifier;
use crate::local::Local;
use crate::params::Params;
use crate::server::Server;
use crate::server_epochs::ServerEpochs;
use fedanchor_record::Losses;

pub(super) struct SemiFl {
    pub(super) config: SemiFlConfig,
}

impl Method for SemiFl {
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        ServerEpochs::PLAIN.pretrain(server, epoch)
    }

    fn broadcast(&self, server: &Server, _: u32) -> Result<Option<Broadcast>> {
        Ok(Some(Broadcast::of(server.params.copy()?)))
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, ref clients } = cohort;
        let model = &broadcast.params;
        let labels = by_classifier(setting, model, self.config.threshold, round, clients)
            .in_phase("labelling the clients' images")?;
        let loss = FixMix {
            setting,
            round,
            batch: setting.experiment.client.batch,
            augment: Augmentation::Strong,
            mixup: self.config.client_mixup.then_some(&self.config.mixup),
            views: self.config.views,
            weighed: false,
        };
        Local::plain(model, &loss).train(cohort, labels)
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
