//! FedAnchor: Qiu et al., "FedAnchor: Enhancing Federated Semi-Supervised Learning with Label
//! Contrastive Loss for Unlabeled Clients", 2024 (arXiv 2402.10191).
//!
//! Algorithm 1, in its order. The server computes the anchors' latents; each client labels its own
//! images by average cosine similarity to them, keeps those with a score above the threshold (the
//! fix set), and trains on L_fix + b L_mix; the server averages, then trains one supervised epoch
//! on the classification head and one label contrastive epoch on the anchor head.

use super::{Broadcast, ClientReport, Cohort, Method};
use crate::anchors::{Anchors, pseudo_labels};
use crate::config::{Augmentation, FedAnchorConfig, Order};
use crate::error::{InPhase, Result};
use crate::fix_mix::FixMix;
use crate::local::train_clients;
use crate::params::Params;
use crate::server::Server;
use crate::server_epochs::{contrastive_epoch, supervised_epoch};
use fedanchor_record::Losses;
use std::ops::Range;

/// FedAnchor, or with `clients` off its server alone: what the clients must add to.
pub(super) struct FedAnchor {
    pub(super) config: FedAnchorConfig,
    pub(super) clients: bool,
}

impl Method for FedAnchor {
    /// Before line 3: an epoch on the anchors. It is followed by a contrastive one, since line 7 of
    /// round 1 already labels by the anchor head.
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        let pretrain = &server.setting.experiment.pretrain;
        let contrastive = u32::from(pretrain.contrastive && self.config.contrastive.epochs > 0);
        let epochs = (epoch..epoch + 1, epoch..epoch + contrastive);
        self.server_epochs(server, 0, epochs, pretrain.lr)
    }

    /// Line 5: compute Z_anchor.
    fn broadcast(&self, server: &Server) -> Result<Option<Broadcast>> {
        if !self.clients {
            return Ok(None);
        }
        let anchors =
            Anchors::compute(server.setting, &server.params, server.anchors, &self.config)
                .in_phase("computing the anchors' latents")?;
        Ok(Some(Broadcast { params: server.params.copy()?, anchors }))
    }

    /// Lines 6 to 9, for all clients of the cohort at once.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, ref clients } = cohort;

        // Line 7: pseudo-labels (eq. 3-4), once a round, with the broadcast model. The fix set holds
        // the samples whose score is above the threshold (eq. 5).
        let (model, anchors) = (&broadcast.params, &broadcast.anchors);
        let labels = pseudo_labels(setting, model, anchors, &self.config, round, clients)
            .in_phase("labelling the clients' images")?;

        // Line 8: E epochs of L_fix + b L_mix (eq. 6-10). The anchor head gets no gradient here.
        let loss = FixMix {
            setting,
            round,
            batch: setting.experiment.client.batch,
            augment: Augmentation::Strong,
            mixup: self.config.mixup.client.then_some(&self.config.mixup),
            views: self.config.views,
        };
        train_clients(cohort, model, labels, &loss)
    }

    /// Lines 10 and 11: the mean becomes the global model, which then learns from the anchors.
    fn server_update(
        &self,
        server: &mut Server,
        mean: Option<Params>,
        round: u32,
    ) -> Result<Losses> {
        if let Some(mean) = mean {
            server.take_mean(&mean)?;
        }
        let experiment = &server.setting.experiment;
        let epochs = (0..experiment.server.epochs, 0..self.config.contrastive.epochs);
        let losses = self.server_epochs(server, round, epochs, experiment.lr(round))?;
        if !server.setting.experiment.server.keep_momentum {
            server.forget_momentum();
        }
        Ok(losses)
    }
}

impl FedAnchor {
    /// The supervised epochs (L_s on the classification head: the clients' loss with all anchors as
    /// the fix set, their true labels, and a mix set only in FedAnchor (mix)) and the label
    /// contrastive epochs (L_c, eq. 1-2, on the anchor head and, by default, the backbone).
    fn server_epochs(
        &self,
        server: &mut Server,
        round: u32,
        (supervised, contrastive): (Range<u32>, Range<u32>),
        lr: f64,
    ) -> Result<Losses> {
        let mixup = self.config.mixup.server.then_some(&self.config.mixup);
        let mut losses = Losses::default();
        let first = self.config.contrastive.order == Order::First;
        for contrast in [first, !first] {
            for epoch in if contrast { contrastive.clone() } else { supervised.clone() } {
                if contrast {
                    losses.server_contrastive =
                        contrastive_epoch(server, &self.config, round, epoch, lr)?;
                } else {
                    let means =
                        supervised_epoch(server, mixup, self.config.views, round, epoch, lr)?;
                    (losses.server_fix, losses.server_mix) =
                        (means.first().copied(), means.get(1).copied());
                }
            }
        }
        Ok(losses)
    }
}
