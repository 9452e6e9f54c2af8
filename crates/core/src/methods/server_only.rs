//! The server alone: the floor that every method must exceed. FedAnchor's server epochs without its clients; with
//! `contrastive.epochs = 0` those of the other methods.

use super::{ClientReport, Cohort, Method, Properties, losses};
use super::{check_mixup, read_settings, write_settings};
use crate::config::{Experiment, Heads, MixupConfig, Views};
use crate::error::{Error, Result};
use crate::labels::LatentSource;
use crate::messages::Broadcast;
use crate::server::{ContrastiveConfig, Server, ServerEpochs};
use fedanchor_record::ClientLabels;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Table;

/// The server by itself, without clients: the floor that the others must exceed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerOnly {
    /// How batch norm sees the fix and the mix view.
    views: Views,
    /// Train on the mix loss, too.
    server_mixup: bool,
    /// How mixtures are made.
    mixup: MixupConfig,
    /// The label contrastive loss.
    contrastive: ContrastiveConfig,
}

impl Method for ServerOnly {
    fn name(&self) -> &'static str {
        "server-only"
    }

    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs {
            mixup: self.server_mixup.then_some(&self.mixup),
            views: self.views,
            contrastive: Some(&self.contrastive),
            ..ServerEpochs::PLAIN
        }
    }

    fn broadcast(&self, _: &Server, _: u32, _: &[u32]) -> Result<Option<Broadcast>> {
        Ok(None)
    }

    fn client_update(&self, _: Cohort, _: &Broadcast) -> Result<Vec<ClientReport>> {
        Err(Error::method(self.name(), "it has no clients"))
    }

    fn properties(&self) -> Properties {
        let anchor = self.contrastive.epochs > 0;
        Properties {
            clients: false,
            labels: ClientLabels::None,
            selects: false,
            client_losses: losses(&[]),
            heads: Heads { anchor, predictor: None },
            latents: if anchor { LatentSource::Anchor } else { LatentSource::Pooled },
            ..Properties::default()
        }
    }

    fn settle(&self, experiment: &Experiment, classes: usize) -> Result<Table> {
        let mut config = self.clone();
        config.contrastive.settle(classes, experiment.data.anchors)?;
        write_settings(&config)
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: ServerOnly = read_settings(settings)?;
    check_mixup(&method.mixup)?;
    method.contrastive.check()?;
    Ok(Box::new(method))
}
