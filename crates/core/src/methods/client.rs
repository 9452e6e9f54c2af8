//! Clients as a method sees them.

use crate::config::Experiment;
use crate::error::Result;
use crate::labels::{Labelling, LocalImages, PseudoLabels, by_classifier};
use crate::messages::{Broadcast, ClientOutcome};
use crate::server::{restore_models, save_models};
use fedanchor_data::ImageSet;
use fedanchor_engine::tensors::{Bundle, Params};
use fedanchor_engine::training::{Context, Momentum};
use std::collections::BTreeMap;

/// A client of this round. Only a method with [`ClientLabels::True`](fedanchor_record::ClientLabels) is shown labels.
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
    /// Its state from its last round.
    pub state: ClientState,
}

/// What a client keeps between its rounds. It never leaves the client.
#[derive(Debug, Default)]
pub struct ClientState {
    /// Momentum, where `client.keep_momentum` asks for it.
    pub momentum: Option<Momentum>,
    /// The method's own models, by name.
    pub models: BTreeMap<String, Params>,
}

const MOMENTUM: &str = "momentum";

impl ClientState {
    /// A deep copy.
    pub fn copy(&self) -> Result<Self> {
        let models = self.models.iter().map(|(name, params)| Ok((name.clone(), params.copy()?)));
        Ok(Self {
            momentum: self.momentum.as_ref().map(Momentum::copy).transpose()?,
            models: models.collect::<Result<_>>()?,
        })
    }

    /// Whether there is anything to keep.
    pub fn is_empty(&self) -> bool {
        self.momentum.is_none() && self.models.is_empty()
    }

    /// As the content of a file; `like` is a model of the network.
    pub fn save(&self, like: &Params) -> Result<Bundle> {
        let mut bundle = Bundle::default();
        if let Some(momentum) = &self.momentum {
            momentum.put_into(&mut bundle, MOMENTUM, like)?;
        }
        save_models(&self.models, &mut bundle)?;
        Ok(bundle)
    }

    /// Reads what [`ClientState::save`] wrote.
    pub fn restore(bundle: &Bundle, like: &Params) -> Result<Self> {
        let there = !bundle.group(MOMENTUM).is_empty();
        let momentum = there.then(|| Momentum::take_from(bundle, MOMENTUM, like)).transpose()?;
        Ok(Self { momentum, models: restore_models(bundle, like)? })
    }
}

/// The clients that are trained together, as one network.
#[derive(Debug)]
#[allow(missing_docs)] // the types have comments
pub struct Cohort<'a> {
    pub experiment: &'a Experiment,
    pub context: &'a Context,
    /// The round, from 1.
    pub round: u32,
    pub clients: Vec<Client<'a>>,
}

impl<'a> Cohort<'a> {
    /// The clients' images.
    pub fn images(&self) -> Vec<LocalImages<'a>> {
        let local = |client: &Client<'a>| LocalImages {
            client: client.id,
            images: client.images,
            local: client.local,
        };
        self.clients.iter().map(local).collect()
    }

    /// Labels of the clients' images by the anchors in a broadcast.
    pub fn label_by_anchors(&self, by: &Labelling, sent: &Broadcast) -> Result<Vec<PseudoLabels>> {
        by.label(self.context, sent, self.experiment.progress(self.round), &self.images())
    }

    /// Labels of the clients' images by a model's classification head, kept if the probability is at least `threshold`.
    pub fn label(&self, model: &Params, threshold: f64) -> Result<Vec<PseudoLabels>> {
        by_classifier(self.context, model, threshold, self.round, &self.images())
    }
}

/// The result of one client's round.
#[derive(Debug)]
pub struct ClientReport {
    /// Its answer.
    pub outcome: ClientOutcome,
    /// Its pseudo-labels, which stay with it.
    pub labels: PseudoLabels,
    /// Its state until its next round, which stays with it too.
    pub state: ClientState,
}
