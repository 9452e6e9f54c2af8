//! Federated methods: their trait, and one file per method.
//!
//! A method does not know where its clients are: it sees a cohort and returns reports. It has no state: what it
//! carries from round to round is in the server's and the clients' states, which are saved and restored for it.

mod client;
mod client_trainer;
pub mod fedanchor;
mod fedavg_fixmatch;
mod fedcon;
pub mod fedmatch;
pub mod fl2;
mod properties;
mod registry;
mod semifl;
mod server_only;
mod supervised;
mod two_views;
mod warm_up;

pub use client::{Client, ClientReport, ClientState, Cohort};
pub use client_trainer::{ClientTrainer, Contribution};
pub use properties::{LossBatches, Properties, losses};
pub use registry::{Registration, build, find, names, register};
pub use supervised::supervised;

use crate::config::{Augmentation, Experiment, MixupConfig, positive, read, within};
use crate::error::{Error, Result};
use crate::labels::PseudoLabels;
use crate::messages::{Broadcast, ClientOutcome, Update};
use crate::server::{Server, ServerEpochs};
use fedanchor_data::stream::ROOT;
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::{Context, FixMix};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Mean losses in the order of the method's names for them; `None` for a loss that was not computed.
pub type MeanLosses = Vec<Option<f64>>;

/// A federated method. Four functions are its algorithm: `pretrain` before the rounds, and `broadcast`,
/// `client_update` and `server_update` in each. Only `client_update` has no default; the others default to FedAvg with
/// supervised epochs on the server. `Sync`: clients of one process train on several threads.
pub trait Method: Send + Sync {
    /// The name as written in a config.
    fn name(&self) -> &'static str;

    /// The properties of the method.
    fn properties(&self) -> Properties {
        Properties::default()
    }

    /// How the server trains on the anchors, before the rounds and in each of them.
    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs::PLAIN
    }

    /// One epoch on the anchors before round 1.
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<MeanLosses> {
        self.server_epochs().pretrain(server, epoch)
    }

    /// The message to these clients; `None` for a method without clients.
    fn broadcast(
        &self,
        server: &Server,
        round: u32,
        _clients: &[u32],
    ) -> Result<Option<Broadcast>> {
        Ok(Some(Broadcast::new(self.name(), round, server.params.copy()?)))
    }

    /// Local training of a cohort: one report per client, in the cohort's order.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>>;

    /// Moves to the clients' aggregate, `None` if there is none, and trains on the anchors.
    fn server_update(
        &self,
        server: &mut Server,
        aggregate: Option<Params>,
        round: u32,
    ) -> Result<MeanLosses> {
        server.take_mean(aggregate.as_ref())?;
        self.server_epochs().round(server, round)
    }

    /// The labels that the broadcast model gives the clients' images, for a method whose training does not label
    /// them once per round. Only to measure them: a node does not compute them.
    fn measure(&self, _cohort: &Cohort, _: &Broadcast) -> Result<Option<Vec<PseudoLabels>>> {
        Ok(None)
    }

    /// Prepares the method's state on the server, before pre-training.
    fn start(&self, _server: &mut Server) -> Result<()> {
        Ok(())
    }

    /// n_m of an update where `aggregation.weights` is `method`: finite and above 0, whatever the client claims.
    fn weight(&self, _update: &Update) -> Option<f64> {
        None
    }

    /// Sees a single accepted update, if [`Properties::observes_updates`].
    fn observe_update(&self, _server: &mut Server, _client: u32, _update: &Update) -> Result<()> {
        Ok(())
    }

    /// Checks the method against the other settings.
    fn check(&self, _experiment: &Experiment) -> Result<()> {
        Ok(())
    }

    /// The method's settings, complete with those that depend on the data; checks them against the data.
    fn settle(&self, experiment: &Experiment, _classes: usize) -> Result<toml::Table> {
        Ok(experiment.method.settings.clone())
    }
}

/// The server's own update on the anchors, the root of trust of `aggregation.rule = "fltrust"`: from the same
/// broadcast, by cross entropy on strongly augmented anchors, for as many epochs and in the same batches as
/// a client.
pub(crate) fn root_update(
    method: &dyn Method,
    server: &Server,
    broadcast: &Broadcast,
) -> Result<Params> {
    let Server { experiment, context, anchors, .. } = *server;
    let (images, state, round) = (&anchors.images, ClientState::default(), broadcast.round);
    let local: Vec<u32> = (0..anchors.labels.len() as u32).collect();
    let clients = vec![Client { id: ROOT, images, local: &local, labels: None, state }];
    let cohort = Cohort { experiment, context, round, clients };
    let labels = vec![PseudoLabels::known(anchors.labels.clone())];
    let loss = FixMix::plain(context, round, experiment.client.batch, Augmentation::Strong);
    let trainer = ClientTrainer::new(method, &broadcast.params, loss.objective());
    match trainer.train(cohort, labels)?.pop().map(|report| report.outcome) {
        // On a GPU the update is a view of the workspace in which the clients train next.
        Some(ClientOutcome::Update(update)) => Ok(update.params.copy()?),
        other => {
            let problem = format!("the server made no update: {other:?}");
            Err(Error::method(method.name(), problem))
        }
    }
}

/// The entries that clients send: of the parts that they train, and running statistics only if they are averaged.
pub fn uploaded(context: &Context, method: &dyn Method, params: &Params) -> Params {
    let (averaged, uploads) = (context.averages_statistics(), method.properties().uploads);
    params.subset(|entry| uploads.contains(&entry.part) && (averaged || !entry.statistic))
}

/// Reads a method's settings; an error names the key.
pub fn read_settings<T: DeserializeOwned + JsonSchema>(settings: &toml::Table) -> Result<T> {
    read("method", settings.clone())
}

/// A method's settings as a table.
pub fn write_settings(settings: &impl Serialize) -> Result<toml::Table> {
    toml::Table::try_from(settings).map_err(|error| Error::config("method", error.to_string()))
}

/// Checks the keys of `method.mixup`.
pub fn check_mixup(mixup: &MixupConfig) -> Result<()> {
    positive("method.mixup.alpha", mixup.alpha)?;
    within("method.mixup.weight", mixup.weight, 0.0, 1e6)
}
