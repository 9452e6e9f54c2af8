//! What a method is: four functions, one before the rounds and three of a round. One method, one file.
//!
//! `Broadcast` and `Update` are plain structs, the same in simulation and on the wire. A method does
//! not know whether its clients are simulated; it sees a cohort and answers with reports.

mod fedanchor;
mod fedavg_fixmatch;
mod fedcon;
pub mod fedmatch;
mod semifl;
mod server_only;
mod supervised;

use crate::anchors::Anchors;
use crate::checkpoint::Bundle;
use crate::config::{MethodConfig, StatisticsSource};
use crate::error::Result;
use crate::labels::PseudoLabels;
use crate::optimiser::Momentum;
use crate::params::{Entry, Params, Part};
use crate::server::Server;
use crate::setting::Setting;
use fedanchor_data::ImageSet;
use fedanchor_record::Losses;
use safetensors::Dtype;
use std::collections::BTreeMap;

/// What the server sends to the clients of a round.
#[derive(Debug)]
pub struct Broadcast {
    /// The model to start from, K = 1.
    pub params: Params,
    /// What the clients get of the anchors, where they are labelled by them.
    pub anchors: Option<Anchors>,
    /// A threshold a class, where the server finds them.
    pub thresholds: Vec<f64>,
    /// Further models that a method sends: FedMatch's sigma.
    pub others: Vec<Params>,
    /// FedMatch's helpers.
    pub helpers: Helpers,
}

/// Models of other clients, and who is sent which.
#[derive(Debug, Default)]
pub struct Helpers {
    models: BTreeMap<u32, Params>,
    chosen: BTreeMap<u32, Vec<u32>>,
    /// For those who are not in `chosen`.
    others: Vec<u32>,
}

impl Broadcast {
    /// The model and nothing else.
    pub fn of(params: Params) -> Self {
        let (others, thresholds) = (Vec::new(), Vec::new());
        Self { params, anchors: None, thresholds, others, helpers: Helpers::default() }
    }

    /// A deep copy.
    pub fn copy(&self) -> Result<Self> {
        let Helpers { models, chosen, others } = &self.helpers;
        let models = models.iter().map(|(&id, params)| Ok((id, params.copy()?)));
        Ok(Self {
            params: self.params.copy()?,
            anchors: self.anchors.as_ref().map(Anchors::copy).transpose()?,
            thresholds: self.thresholds.clone(),
            others: self.others.iter().map(Params::copy).collect::<Result<_>>()?,
            helpers: Helpers {
                models: models.collect::<Result<_>>()?,
                chosen: chosen.clone(),
                others: others.clone(),
            },
        })
    }

    /// The helpers of a client.
    pub fn helpers_of(&self, client: u32) -> impl Iterator<Item = &Params> {
        let Helpers { models, chosen, others } = &self.helpers;
        let ids = chosen.get(&client).unwrap_or(others);
        ids.iter().filter_map(|id| models.get(id))
    }

    /// Bytes of this message to one client.
    pub fn wire_bytes(&self, client: u32) -> u64 {
        let anchors = self.anchors.as_ref().map(Anchors::wire_tensors).unwrap_or_default();
        let thresholds = [self.thresholds.len() as i64];
        let thresholds = (!self.thresholds.is_empty()).then_some(thresholds);
        let anchors = anchors.iter().map(|(name, kind, shape)| (*name, *kind, shape.as_slice()));
        let thresholds =
            thresholds.iter().map(|shape| ("thresholds", Dtype::F32, shape.as_slice()));
        let models = self.others.iter().chain(self.helpers_of(client));
        let further: u64 = models.map(|m| crate::wire::message_bytes(m.wire_tensors())).sum();
        let first = self.params.wire_tensors().chain(anchors).chain(thresholds);
        crate::wire::message_bytes(first) + further
    }
}

/// What a client sends back: weights only.
#[derive(Debug)]
pub struct Update {
    /// The client's number.
    pub client: u32,
    /// The round it is for.
    pub round: u32,
    /// What it trained, K = 1.
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

/// Whether a client sends this entry up: of the parts that its method's clients train, and running
/// statistics only where they are averaged.
pub(crate) fn goes_up(setting: &Setting, entry: &Entry) -> bool {
    let averaged = setting.experiment.batch_norm.statistics == StatisticsSource::Average;
    setting.experiment.method.sends_up(entry.part) && (averaged || !entry.statistic)
}

/// A client of this round: its number and its images. Labels are out of reach but for the one method
/// that is shown them.
#[derive(Debug)]
pub struct Client<'a> {
    /// The client's number.
    pub id: u32,
    /// The images `local` points into.
    pub images: &'a ImageSet,
    /// Which of them are this client's.
    pub local: &'a [u32],
    /// Their labels, for supervised training.
    pub labels: Option<Vec<u16>>,
    /// What it kept from its last round.
    pub kept: Kept,
}

/// What `Kept::params` holds, in a checkpoint.
const KEPT_PARAMS: [&str; 2] = ["predictor", "target"];

/// What a client keeps from one of its rounds to the next.
#[derive(Debug, Default)]
pub struct Kept {
    /// Momentum, where the experiment keeps it.
    pub momentum: Option<Momentum>,
    /// FedCon: its predictor and its target network.
    pub params: Vec<Params>,
}

impl Kept {
    /// A deep copy.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self {
            momentum: self.momentum.as_ref().map(Momentum::copy).transpose()?,
            params: self.params.iter().map(Params::copy).collect::<Result<_>>()?,
        })
    }

    /// As a part of a checkpoint.
    pub(crate) fn save(&self, like: &Params) -> Result<Bundle> {
        let mut bundle = Bundle::default();
        if let Some(momentum) = &self.momentum {
            momentum.put_into(&mut bundle, "momentum", like)?;
        }
        for (params, group) in self.params.iter().zip(KEPT_PARAMS) {
            params.put_into(&mut bundle, group)?;
        }
        Ok(bundle)
    }

    /// Back from a checkpoint.
    pub(crate) fn restore(bundle: &Bundle, like: &Params) -> Result<Self> {
        let there = |group| !bundle.group(group).is_empty();
        let momentum = there("momentum").then(|| Momentum::take_from(bundle, "momentum", like));
        let mut params = Vec::new();
        for (group, part) in KEPT_PARAMS.into_iter().zip([Part::Predictor, Part::Backbone]) {
            if there(group) {
                params.push(like.subset(|entry| entry.part == part).take_from(bundle, group)?);
            }
        }
        Ok(Self { momentum: momentum.transpose()?, params })
    }

    /// Whether there is anything to keep.
    pub fn is_empty(&self) -> bool {
        self.momentum.is_none() && self.params.is_empty()
    }
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
    /// What it keeps until its next round.
    pub kept: Kept,
}

/// A federated method. `Sync`: simulated clients train on several threads at once.
pub trait Method: Sync {
    /// One epoch on the anchors before round 1.
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses>;

    /// What the server sends in a round; `None` for a method without clients.
    fn broadcast(&self, server: &Server, round: u32) -> Result<Option<Broadcast>>;

    /// Local training of a cohort, one report a client, in the cohort's order.
    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>>;

    /// Lets the server remember a client by its update. Most methods see the mean alone.
    fn hear(&self, _server: &mut Server, _update: &Update) -> Result<()> {
        Ok(())
    }

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
        match self.clone() {
            Self::Fedanchor(config) => Box::new(fedanchor::FedAnchor { config }),
            Self::Semifl(config) => Box::new(semifl::SemiFl { config }),
            Self::FedavgFixmatch(config) => Box::new(fedavg_fixmatch::FedAvgFixMatch { config }),
            Self::Fedcon(config) => Box::new(fedcon::FedCon { config }),
            Self::Fedmatch(config) => Box::new(fedmatch::FedMatch { config }),
            Self::Supervised(config) => Box::new(supervised::Supervised { config }),
            Self::ServerOnly(config) => Box::new(server_only::ServerOnly { config }),
        }
    }
}

/// The tensors of a message: name, number type, shape.
pub(crate) type WireTensor<'a> = (&'a str, Dtype, &'a [i64]);
