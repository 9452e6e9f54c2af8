//! The server by itself: what the anchors alone teach, and the floor every method must beat. FedAnchor's
//! server epochs without its clients; with `contrastive.epochs = 0` everybody else's.

use super::{Broadcast, ClientReport, Cohort, Method};
use crate::config::ServerOnlyConfig;
use crate::error::Result;
use crate::params::Params;
use crate::server::Server;
use crate::server_epochs::ServerEpochs;
use fedanchor_record::Losses;

pub(super) struct ServerOnly {
    pub(super) config: ServerOnlyConfig,
}

impl ServerOnly {
    fn epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs {
            mixup: self.config.server_mixup.then_some(&self.config.mixup),
            views: self.config.views,
            contrastive: Some(&self.config.contrastive),
        }
    }
}

impl Method for ServerOnly {
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        self.epochs().pretrain(server, epoch)
    }

    fn broadcast(&self, _: &Server, _: u32) -> Result<Option<Broadcast>> {
        Ok(None)
    }

    fn client_update(&self, _: Cohort, _: &Broadcast) -> Result<Vec<ClientReport>> {
        Ok(Vec::new())
    }

    fn server_update(&self, server: &mut Server, _: Option<Params>, round: u32) -> Result<Losses> {
        self.epochs().round(server, round)
    }
}
