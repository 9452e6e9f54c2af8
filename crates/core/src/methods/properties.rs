//! The properties of a method, as a value.

use crate::config::Heads;
use crate::labels::LatentSource;
use fedanchor_engine::tensors::Part;
use fedanchor_record::{ClientLabels, MethodProperties};

/// The batches of a loss: with a mixture or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the comment above describes them
pub enum LossBatches {
    Plain,
    Mixed,
}

impl LossBatches {
    /// Those of clients that train on mixtures if this is true.
    pub fn mixed(mixed: bool) -> Self {
        if mixed { Self::Mixed } else { Self::Plain }
    }
}

/// By default those of a method whose clients train backbone and classifier on pseudo-labels above a threshold.
#[derive(Debug, Clone)]
pub struct Properties {
    /// Whether it has clients.
    pub clients: bool,
    /// The labels that its clients train on.
    pub labels: ClientLabels,
    /// Whether clients train on some of their samples only, by a threshold.
    pub selects: bool,
    /// Whether the threshold gives samples weights, so that their number says little.
    pub weighs: bool,
    /// Names of the clients' losses, in the order of the loss's terms.
    pub client_losses: Vec<String>,
    /// The batches on which clients may minimise another loss (`client.loss`), if they may.
    pub loss_on: Option<LossBatches>,
    /// Names of the server's losses. The first is cross entropy on the anchors.
    pub server_losses: Vec<String>,
    /// The further heads of its network.
    pub heads: Heads,
    /// The parts of the network that clients train and send to the server.
    pub uploads: &'static [Part],
    /// Where the final model's class similarities are read.
    pub latents: LatentSource,
    /// Whether the server sees single updates, not only their aggregate.
    pub observes_updates: bool,
    /// The broadcast model that is added to the one that clients train: distances are relative to the sum.
    pub summand: Option<&'static str>,
    /// Whether a round depends on the number of rounds of the run, beyond the learning rate.
    pub depends_on_rounds: bool,
    /// The first rounds, in which the model's accuracy on the anchors means nothing yet.
    pub warm_up: u32,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            clients: true,
            labels: ClientLabels::Pseudo,
            selects: true,
            weighs: false,
            client_losses: losses(&["fix", "mix"]),
            loss_on: None,
            server_losses: losses(&["fix", "mix", "contrastive"]),
            heads: Heads::default(),
            uploads: &[Part::Backbone, Part::Classifier],
            latents: LatentSource::Pooled,
            observes_updates: false,
            summand: None,
            depends_on_rounds: false,
            warm_up: 0,
        }
    }
}

impl Properties {
    pub(crate) fn recorded(&self) -> MethodProperties {
        let client = self.client_losses.iter().map(|name| format!("client_{name}"));
        let server = self.server_losses.iter().map(|name| format!("server_{name}"));
        MethodProperties {
            clients: self.clients,
            labels: self.labels,
            selects: self.selects,
            losses: client.chain(server).collect(),
        }
    }
}

/// Names of losses.
pub fn losses(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
