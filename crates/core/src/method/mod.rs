//! What a method is: four functions, one before the rounds and three of a round. One method, one file.
//!
//! `Broadcast` and `Update` are plain structs, the same in simulation and on the wire. A method does
//! not know whether its clients are simulated; it sees a cohort and answers with reports.

mod fedanchor;

use crate::anchors::{Anchors, PseudoLabels};
use crate::config::{MethodConfig, StatisticsSource};
use crate::error::Result;
use crate::optimiser::Momentum;
use crate::params::{Entry, Params, Part};
use crate::server::Server;
use crate::setting::Setting;
use fedanchor_data::ImageSet;
use fedanchor_record::Losses;
use safetensors::Dtype;

/// What the server sends to every client of a round.
#[derive(Debug)]
pub struct Broadcast {
    /// The global model, K = 1.
    pub params: Params,
    /// What the clients get of the anchors.
    pub anchors: Anchors,
}

impl Broadcast {
    /// A deep copy.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self { params: self.params.copy()?, anchors: self.anchors.copy()? })
    }

    /// Bytes of this message to one client.
    pub fn wire_bytes(&self) -> u64 {
        let anchors = self.anchors.wire_tensors();
        crate::wire::message_bytes(
            self.params
                .wire_tensors()
                .chain(anchors.iter().map(|(name, kind, shape)| (*name, *kind, shape.as_slice()))),
        )
    }
}

/// What a client sends back: weights only.
#[derive(Debug)]
pub struct Update {
    /// The client's number.
    pub client: u32,
    /// Its model, K = 1, without the anchor head.
    pub params: Params,
    /// Its local samples.
    pub samples: usize,
    /// The samples it kept.
    pub kept: usize,
}

impl Update {
    /// Bytes of this message.
    pub fn wire_bytes(&self) -> u64 {
        crate::wire::message_bytes(self.params.wire_tensors())
    }
}

/// Whether a client sends this entry up: not the anchor head, which the server alone trains, and
/// running statistics only where they are averaged.
pub(crate) fn goes_up(setting: &Setting, entry: &Entry) -> bool {
    let averaged = setting.experiment.batch_norm.statistics == StatisticsSource::Average;
    entry.part != Part::Anchor && (averaged || !entry.statistic)
}

/// A client of this round: its number and its images. Labels are nowhere in reach.
#[derive(Debug)]
pub struct Client<'a> {
    /// The client's number.
    pub id: u32,
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are this client's.
    pub local: &'a [u32],
    /// Momentum from its last round, where it is kept.
    pub momentum: Option<Momentum>,
}

/// The clients that are trained together, as one network.
#[derive(Debug)]
pub struct Cohort<'a> {
    /// What does not change.
    pub setting: &'a Setting,
    /// The round, from 1.
    pub round: u32,
    /// The clients.
    pub clients: Vec<Client<'a>>,
}

/// What became of one client in a round.
#[derive(Debug)]
pub struct ClientReport {
    /// What it sends, or `None` if it kept no sample.
    pub update: Option<Update>,
    /// Its pseudo-labels, which stay with it.
    pub labels: PseudoLabels,
    /// Its mean losses.
    pub losses: Losses,
    /// Its momentum, where it is kept until its next round.
    pub momentum: Option<Momentum>,
}

/// A federated method. `Sync`: simulated clients train on several threads at once.
pub trait Method: Sync {
    /// One epoch on the anchors before round 1.
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses>;

    /// What the server sends; `None` for a method without clients.
    fn broadcast(&self, server: &Server) -> Result<Option<Broadcast>>;

    /// Local training of a cohort, one report a client, in the cohort's order.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>>;

    /// Takes over the clients' mean, `None` if nobody kept a sample, and trains on the anchors.
    fn server_update(
        &self,
        server: &mut Server,
        mean: Option<Params>,
        round: u32,
    ) -> Result<Losses>;
}

impl MethodConfig {
    /// The method with these settings.
    pub fn build(&self) -> Box<dyn Method> {
        match self {
            Self::Fedanchor(config) => {
                Box::new(fedanchor::FedAnchor { config: config.clone(), clients: true })
            }
            Self::ServerOnly(config) => {
                Box::new(fedanchor::FedAnchor { config: config.clone(), clients: false })
            }
        }
    }
}

/// The tensors of a message: name, number type, shape.
pub(crate) type WireTensor<'a> = (&'a str, Dtype, &'a [i64]);
