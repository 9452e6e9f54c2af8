//! How long a run takes, predicted from the time of one epoch on the anchors.

use crate::config::Experiment;

/// Views of an image that clients train on in one pass: fix and mix, or two views.
const VIEWS: f64 = 2.0;
/// Labels cost a pass forward, without the two passes back.
const LABELLING: f64 = 1.0 / 3.0;
/// The share of the images that clients keep, over a run.
const KEPT: f64 = 0.7;

/// Seconds that the parts of a run take on a CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the parts of a run
pub struct RunLength {
    pub pretraining: f64,
    pub rounds: f64,
    pub comparison: f64,
}

impl RunLength {
    /// With `epoch` seconds per epoch of pre-training on so many labelled images, and so many unlabelled ones on all
    /// clients together, on `cores` cores.
    pub fn predict(
        experiment: &Experiment,
        epoch: f64,
        labelled: usize,
        unlabelled: usize,
        cores: usize,
    ) -> Self {
        let per_epoch = if experiment.pretrain.contrastive { 2.0 } else { 1.0 };
        let image = epoch / (per_epoch * labelled.max(1) as f64);
        let client = &experiment.client;
        let drawn = client.per_round as f64 / experiment.data.clients.max(1) as f64;
        let seen = unlabelled as f64 * drawn.min(1.0);
        let passes = seen * (LABELLING + VIEWS * KEPT * f64::from(client.epochs));
        // An epoch on the anchors has all cores as well, but for a network on small images they help it little.
        let cores = cores.min(client.per_round).max(1) as f64;
        let (rounds, most) =
            (f64::from(experiment.rounds), f64::from(experiment.pretrain.epochs) * epoch);
        let (clients, server) = (rounds * passes * image / cores, rounds * epoch);
        let longer = [3.0, 1.0].into_iter().find(|factor| factor * most <= clients);
        let comparison = server + longer.unwrap_or(0.0) * most;
        Self {
            pretraining: most,
            rounds: clients + 1.2 * server, // and the test
            comparison: if experiment.compare { comparison } else { 0.0 },
        }
    }

    /// All together.
    pub fn total(&self) -> f64 {
        self.pretraining + self.rounds + self.comparison
    }
}
