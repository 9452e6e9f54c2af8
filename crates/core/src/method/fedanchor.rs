//! FedAnchor: Qiu et al., "FedAnchor: Enhancing Federated Semi-Supervised Learning with Label
//! Contrastive Loss for Unlabeled Clients", 2024 (arXiv 2402.10191).
//!
//! Algorithm 1, in its order. The server computes the anchors' latents; each client labels its own
//! images by average cosine similarity to them, keeps those with a score above the threshold (the
//! fix set), and trains on L_fix + b L_mix; the server averages, then trains one supervised epoch
//! on the classification head and one label contrastive epoch on the anchor head.

use super::{Broadcast, ClientReport, Cohort, Method};
use crate::anchors::{Anchors, own_scores};
use crate::config::{Augmentation, FedAnchorConfig, Threshold, ThresholdRule};
use crate::error::{Error, InPhase, Result};
use crate::fix_mix::FixMix;
use crate::labels::by_anchors;
use crate::local::Local;
use crate::params::Params;
use crate::selection::relative_thresholds;
use crate::server::Server;
use crate::server_epochs::ServerEpochs;
use fedanchor_record::Losses;

pub(super) struct FedAnchor {
    pub(super) config: FedAnchorConfig,
}

impl FedAnchor {
    /// L_s and L_c (eq. 1-2), with L_mix on the anchors in FedAnchor (mix).
    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs {
            mixup: self.config.server_mixup.then_some(&self.config.mixup),
            views: self.config.views,
            contrastive: Some(&self.config.contrastive),
        }
    }
}

impl Method for FedAnchor {
    /// Before line 3: an epoch on the anchors.
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        self.server_epochs().pretrain(server, epoch)
    }

    /// Line 5: compute Z_anchor; and the classes' thresholds, where they follow from the anchors.
    fn broadcast(&self, server: &Server, round: u32) -> Result<Option<Broadcast>> {
        let Server { setting, params, anchors, .. } = server;
        let (source, send) = (self.config.latent_source(), self.config.send);
        let mut broadcast = Broadcast::of(params.copy()?);
        let latents = Anchors::compute(setting, params, *anchors, source, send)
            .in_phase("computing the anchors' latents")?;
        broadcast.anchors = Some(latents);
        if let Threshold::Rule(ThresholdRule::AnchorRelative { share, least, most, views }) =
            self.config.threshold
        {
            let own = own_scores(setting, params, *anchors, &self.config, views, round)
                .in_phase("scoring the anchors")?;
            broadcast.thresholds = relative_thresholds(&own, share, least, most);
        }
        Ok(Some(broadcast))
    }

    /// Lines 6 to 9, for all clients of the cohort at once.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, ref clients } = cohort;
        let Broadcast { params: model, anchors, thresholds, .. } = broadcast;
        let Some(anchors) = anchors else {
            let message = "the server sent no anchors".to_owned();
            return Err(Error::Engine { phase: "labelling the clients' images", message });
        };

        // Line 7: pseudo-labels (eq. 3-4), once a round, with the broadcast model. The fix set holds
        // the samples whose score is above the threshold (eq. 5).
        let labels = by_anchors(setting, model, anchors, thresholds, &self.config, round, clients)
            .in_phase("labelling the clients' images")?;

        // Line 8: E epochs of L_fix + b L_mix (eq. 6-10). The anchor head gets no gradient here.
        let loss = FixMix {
            setting,
            round,
            batch: setting.experiment.client.batch,
            augment: Augmentation::Strong,
            mixup: self.config.client_mixup.then_some(&self.config.mixup),
            views: self.config.views,
            weighed: matches!(
                self.config.threshold,
                Threshold::Rule(ThresholdRule::Softmatch { .. })
            ),
        };
        Local::plain(model, &loss).train(cohort, labels)
    }

    /// Lines 10 and 11: the mean becomes the global model, which then learns from the anchors.
    fn server_update(
        &self,
        server: &mut Server,
        mean: Option<Params>,
        round: u32,
    ) -> Result<Losses> {
        server.take_mean(mean.as_ref())?;
        self.server_epochs().round(server, round)
    }
}
