//! FedMatch, labels at the server: Jeong, Yoon, Yang and Hwang, "Federated Semi-Supervised Learning
//! with Inter-Client Consistency & Disjoint Learning", 2021.
//!
//! Every weight is a sum, w = sigma + psi. The server trains sigma on its labels with psi fixed, the
//! clients train psi with sigma fixed: on samples that their model is confident of they train for
//! agreement with helpers, models of other clients that behave alike, and train the strong view on the
//! label that model and helpers vote for; psi is kept sparse and near sigma. Clients send psi only.
//!
//! Differences from the published code:
//!
//! - psi starts at 0 instead of 0.2 sigma, so that the network is the initial one, as for every other method.
//! - Helpers take part in every round instead of every tenth, since the paper describes no such pause.
//! - psi is neither thresholded nor sent sparsely, since what other methods send is not compressed either.
//! - Helpers are chosen every `method.refresh` rounds, only among the clients that have sent psi since the last
//!   choice: the server keeps at most one psi for each of these. The code keeps the last psi of every client that
//!   has ever sent one.
//! - A client that has not been probed gets the helpers nearest to the global model; in the code it gets none.
//! - The probe's pixels are normal with mean 127.5 and deviation 50, rounded to bytes; in the code they are
//!   normal with mean 125 and deviation 125, cut off at 0 and 255.
//! - A tied vote goes to the client's own label, then to the lowest class; in the code to the lowest class. Of
//!   equally near helpers the client with the lower number is taken; the code has no rule.
//! - The networks here have batch norm, unlike that of the code: all samples of a batch pass through the client's
//!   network, while helpers use their running statistics.

use super::two_views::two_views;
use super::{Client, ClientReport, ClientTrainer, Cohort, Contribution, MeanLosses, Method};
use super::{Properties, losses, read_settings};
use crate::config::{Augmentation, Experiment, at_most, ensure, within};
use crate::error::{Error, Result};
use crate::labels::{PseudoLabels, outputs, probabilities};
use crate::messages::{Broadcast, ExtraModels, Update};
use crate::server::{Server, step_towards, supervised_epoch};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::Result as EngineResult;
use fedanchor_engine::batches::{TwoViewFormat, View};
use fedanchor_engine::model::{Network, Pass, Statistics};
use fedanchor_engine::tensors::{Entry, Params, Part};
use fedanchor_engine::training::losses::cross_entropy_each;
use fedanchor_engine::training::{Context, FixMix, FixMixLoss, Inputs, Objective, StepLoss, Terms};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Kind, Tensor};
use toml::Table;

const NAME: &str = "fedmatch";

// Names in the server's state. The global model is sigma + psi.
const SIGMA: &str = "sigma";
const PSI: &str = "psi";
/// The last psi of every client that has sent one since helpers were last chosen, by client.
const RECENT: &str = "recent.";
/// The psi of those that can be helpers, by client; in a broadcast, the psi of a client's helpers.
const HELPER: &str = "helper.";
/// The answer of each client's model to the probe picture, by client.
const PROBE: &str = "probe.";

/// FedMatch: clients train a sparse part of the weights to agree with helper clients (Jeong et al., 2021).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FedMatch {
    /// A sample is confident if its largest probability is at least this.
    pub threshold: f64,
    /// Models of other clients that are sent to each client as helpers.
    pub helpers: usize,
    /// Rounds after which helpers are chosen again.
    pub refresh: u32,
    /// Weight of agreement with the helpers and of training on the common label.
    pub consistency: f64,
    /// Weight of the sum of |psi|.
    pub sparsity: f64,
    /// Weight of the squared distance between sigma and psi.
    pub distance: f64,
    /// Weight of the server's cross entropy.
    pub supervised: f64,
}

impl Method for FedMatch {
    fn name(&self) -> &'static str {
        NAME
    }

    /// sigma is the initial model, psi is 0 with the same statistics.
    fn start(&self, server: &mut Server) -> Result<()> {
        let mut psi = server.params.zeros_like()?;
        psi.assign(&server.params.subset(|entry| entry.statistic))?;
        server.state.models.insert(SIGMA.to_owned(), server.params.copy()?);
        server.state.models.insert(PSI.to_owned(), psi);
        Ok(())
    }

    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<MeanLosses> {
        self.train_sigma(server, 0, epoch..epoch + 1)
    }

    fn broadcast(&self, server: &Server, round: u32, clients: &[u32]) -> Result<Option<Broadcast>> {
        // Statistics travel with psi: they are the global model's.
        let mut broadcast = Broadcast::new(NAME, round, psi_of(server)?);
        broadcast.models = self.choose_helpers(server, clients)?;
        broadcast.models.insert(SIGMA, kept(server, SIGMA)?.copy()?);
        Ok(Some(broadcast))
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let (psi, sigma) = (&broadcast.params, sigma_of(broadcast)?);
        let views = two_views(&cohort, Augmentation::Strong);
        let loss = ClientLoss { format: views.format(), method: self.clone() };
        let contributes = |client: &Client| {
            let mut others = vec![sigma.copy()?];
            for (name, helper) in broadcast.models.of(client.id) {
                if name.starts_with(HELPER) {
                    others.push(sum(sigma, helper)?);
                }
            }
            Ok(Contribution { entries: None, others })
        };
        let trainer = ClientTrainer {
            contributes: Some(&contributes),
            ..ClientTrainer::new(self, psi, Objective::new(&views, loss))
        };
        trainer.train_on_all(cohort)
    }

    /// Training labels every batch by the client's own model.
    fn measure(&self, cohort: &Cohort, sent: &Broadcast) -> Result<Option<Vec<PseudoLabels>>> {
        let model = sum(sigma_of(sent)?, &sent.params)?;
        cohort.label(&model, self.threshold).map(Some)
    }

    fn properties(&self) -> Properties {
        Properties {
            client_losses: losses(&["agreement", "helpers"]),
            server_losses: losses(&["fix"]),
            observes_updates: true,
            summand: Some(SIGMA),
            ..Properties::default()
        }
    }

    fn observe_update(&self, server: &mut Server, client: u32, update: &Update) -> Result<()> {
        // If clients send no statistics, a helper has the global model's.
        let mut psi = psi_of(server)?;
        psi.assign(&update.params)?;
        server.state.models.insert(of_client(RECENT, client), psi);
        Ok(())
    }

    fn server_update(
        &self,
        server: &mut Server,
        aggregate: Option<Params>,
        round: u32,
    ) -> Result<MeanLosses> {
        let experiment = server.experiment;
        if let Some(mean) = aggregate {
            let Server { state, velocity, params, .. } = server;
            if let Some(psi) = state.models.get_mut(PSI) {
                step_towards(psi, velocity, &mean, experiment.server.momentum)?;
            }
            params.assign(&mean.subset(|entry| entry.statistic))?;
        }
        let losses = self.train_sigma(server, round, 0..experiment.server.epochs)?;
        server.end_round();
        if round.is_multiple_of(self.refresh) {
            refresh_helpers(server)?;
        }
        Ok(losses)
    }

    /// Clients send psi, which is not a model alone.
    fn check(&self, experiment: &Experiment) -> Result<()> {
        let problem = "must be 0 with method fedmatch: the aggregate is not a model by itself";
        ensure(experiment.checks.anchor_margin <= 0.0, "checks.anchor_margin", problem)?;
        let problem = "method fedmatch needs a rule that uses no update of the server: only clients \
                       train psi";
        ensure(!experiment.aggregation.rule.find()?.needs_root, "aggregation.rule", problem)
    }
}

impl FedMatch {
    /// Trains sigma and leaves the global model as sigma + psi.
    fn train_sigma(
        &self,
        server: &mut Server,
        round: u32,
        epochs: std::ops::Range<u32>,
    ) -> Result<MeanLosses> {
        let (experiment, context) = (server.experiment, server.context);
        let sigma = kept(server, SIGMA)?.subset(|entry| !entry.statistic);
        server.params.assign(&sigma)?;
        let (batch, augment) = (experiment.server.batch, experiment.server.augment);
        let fix = FixMix::plain(context, round, batch, augment);
        let loss = ServerLoss { fix: fix.loss(), weight: self.supervised };
        let objective = Objective::new(&fix, loss);
        let mut loss = None;
        for epoch in epochs {
            let psi = kept(server, PSI)?.copy()?;
            let means = supervised_epoch(server, &objective, vec![psi], round, epoch)?;
            loss = means.first().copied();
        }
        let sigma = server.params.copy()?;
        // With sigma's statistics: they were trained with it.
        server.params = sum(kept(server, PSI)?, &sigma)?;
        server.state.models.insert(SIGMA.to_owned(), sigma);
        Ok(vec![loss])
    }

    /// Every client's helpers: the nearest models of others. A client that has not been probed gets those nearest to
    /// the global model.
    fn choose_helpers(&self, server: &Server, clients: &[u32]) -> Result<ExtraModels> {
        let psis = by_client(&server.state.models, HELPER);
        let probes = by_client(&server.state.numbers, PROBE);
        // The same number for all, so that a cohort is one network: a helper is not its own.
        let count = self.helpers.min(psis.len().saturating_sub(1));
        let mut models = ExtraModels::default();
        if count == 0 {
            return Ok(models);
        }
        let global = probe(server.context, &server.params)?;
        let mut recipients: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for &client in clients {
            let to = probes.get(&client).copied().unwrap_or(&global);
            let distance =
                |probe: &[f32]| -> f32 { probe.iter().zip(to).map(|(a, b)| (a - b).powi(2)).sum() };
            let others = psis.keys().filter(|id| **id != client);
            let others = others.filter_map(|id| Some((distance(probes.get(id)?), *id)));
            let mut order: Vec<(f32, u32)> = others.collect();
            order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            for (_, helper) in order.into_iter().take(count) {
                recipients.entry(helper).or_default().insert(client);
            }
        }
        for (helper, clients) in recipients {
            models.insert_for(of_client(HELPER, helper), psis[&helper].copy()?, clients);
        }
        Ok(models)
    }
}

pub(super) fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let method: FedMatch = read_settings(settings)?;
    within("method.threshold", method.threshold, 0.0, 1.0)?;
    at_most("method.helpers", method.helpers, 16)?;
    within("method.refresh", method.refresh.into(), 1.0, 1e6)?;
    for (key, weight) in [
        ("method.consistency", method.consistency),
        ("method.sparsity", method.sparsity),
        ("method.distance", method.distance),
        ("method.supervised", method.supervised),
    ] {
        within(key, weight, 0.0, 1e6)?;
    }
    Ok(Box::new(method))
}

fn sigma_of(broadcast: &Broadcast) -> Result<&Params> {
    let sigma = broadcast.models.get(SIGMA);
    sigma.ok_or_else(|| Error::method(NAME, "the broadcast contains no sigma"))
}

/// A copy of psi with the statistics of the global model.
fn psi_of(server: &Server) -> Result<Params> {
    let mut psi = kept(server, PSI)?.copy()?;
    psi.assign(&server.params.subset(|entry| entry.statistic))?;
    Ok(psi)
}

fn kept<'a>(server: &'a Server, name: &str) -> Result<&'a Params> {
    let model = server.state.models.get(name);
    model.ok_or_else(|| Error::method(NAME, format!("the server has no {name}")))
}

/// A name for each client; names sort as the numbers do.
fn of_client(prefix: &str, client: u32) -> String {
    format!("{prefix}{client:010}")
}

fn by_client<'a, T>(all: &'a BTreeMap<String, T>, prefix: &str) -> BTreeMap<u32, &'a T> {
    let client = |name: &str| name.strip_prefix(prefix)?.parse::<u32>().ok();
    all.iter().filter_map(|(name, value)| Some((client(name)?, value))).collect()
}

/// The clients that have sent an update since the last choice become the helpers.
fn refresh_helpers(server: &mut Server) -> Result<()> {
    let recent: Vec<u32> = by_client(&server.state.models, RECENT).into_keys().collect();
    server.state.models.retain(|name, _| !name.starts_with(HELPER));
    for client in recent {
        let Some(psi) = server.state.models.remove(&of_client(RECENT, client)) else { continue };
        let found = probe(server.context, &sum(kept(server, SIGMA)?, &psi)?)?;
        server.state.numbers.insert(of_client(PROBE, client), found);
        server.state.models.insert(of_client(HELPER, client), psi);
    }
    Ok(())
}

/// The probabilities of a model for one picture of Gaussian noise, the same for all: models are compared by them.
fn probe(context: &Context, params: &Params) -> Result<Vec<f32>> {
    let mut rng = context.streams(0).of(Purpose::Probe, SERVER).rng();
    let picture = context.images.noise(&mut rng);
    let of = |features: &_, pass: &Pass| Ok([probabilities(context, features, pass)?]);
    let [found] = outputs(context, params, Statistics::Running, &[View::Raw(&picture)], of)?;
    Ok(Vec::try_from(found.f_flatten(0, -1)?.f_to_device(tch::Device::Cpu)?)?)
}

/// sigma + psi, with psi's statistics.
fn sum(sigma: &Params, psi: &Params) -> EngineResult<Params> {
    Ok(Params { layout: psi.layout.clone(), tensors: summed(sigma, &psi.tensors)? })
}

/// The weights of a pass: the half that is trained, which a gradient flows to, plus the fixed one.
/// Statistics are the trained half's.
pub fn summed(fixed: &Params, trained: &[Tensor]) -> EngineResult<Vec<Tensor>> {
    let entries = fixed.layout.iter().zip(trained).zip(&fixed.tensors);
    let add = |((entry, trained), fixed): ((&Entry, &Tensor), &Tensor)| {
        Ok(if entry.statistic { trained.shallow_clone() } else { trained.f_add(fixed)? })
    };
    entries.map(add).collect()
}

/// L_u(psi) on a client: the networks it reads are sigma and its helpers.
#[derive(Debug, Clone, PartialEq)]
struct ClientLoss {
    format: TwoViewFormat,
    method: FedMatch,
}

impl StepLoss for ClientLoss {
    fn terms(&self) -> usize {
        4
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        let Inputs { context, bytes, .. } = *inputs;
        let batch = self.format.read(&context.images, bytes, pass.clients())?;
        let terms =
            client_terms(&context.network, &self.method, &batch.first, &batch.second, pass)?;
        Ok(terms.into())
    }
}

/// Agreement on the strong view, consistency with the helpers on the weak one, sparsity, distance.
/// `pass` holds psi, and sigma and the helpers as its other networks.
pub fn client_terms(
    network: &Network,
    method: &FedMatch,
    weak: &Tensor,
    strong: &Tensor,
    pass: &Pass,
) -> EngineResult<Vec<(f64, Tensor)>> {
    let [sigma, helpers @ ..] = pass.others else { return Ok(Vec::new()) };
    let psi = pass.weights()?;
    let w = summed(sigma, psi)?;
    let pass_w = pass.with_tensors(&w);
    let logits = |x: &Tensor, pass: &Pass| network.logits(&network.features(x, pass)?, pass);
    let own = logits(weak, &pass_w)?.f_log_softmax(-1, Kind::Float)?; // [K, batch, C]
    let (score, mine) = own.f_detach()?.f_exp()?.f_max_dim(-1, false)?;
    let confident = score.f_ge(method.threshold)?.f_to_kind(Kind::Float)?; // [K, batch]
    let count = confident.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?.f_clamp_min(1)?;
    let over_confident = |each: &Tensor| -> EngineResult<Tensor> {
        let sum = each.f_mul(&confident)?.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?;
        Ok(sum.f_div(&count)?) // [K]
    };
    let mut theirs = Vec::new();
    let mut consistency = own.f_detach()?.f_select(-1, 0)?.f_zeros_like()?;
    for helper in helpers {
        let pass = pass.with_tensors(&helper.tensors).with_statistics(Statistics::Running);
        let found = tch::no_grad(|| logits(weak, &pass))?.f_log_softmax(-1, Kind::Float)?;
        let each = found.f_exp()?.f_mul(&found.f_sub(&own)?)?;
        let each = each.f_sum_dim_intlist(&[-1i64][..], false, Kind::Float)?;
        consistency = consistency.f_add(&each.f_div_scalar(helpers.len() as f64)?)?;
        theirs.push(found.f_argmax(-1, false)?);
    }
    let label = vote(&mine, &theirs, own.size()[2])?;
    let agreement = cross_entropy_each(&logits(strong, &pass_w)?, &label)?;
    let (mut sparsity, mut distance) = (count.f_zeros_like()?, count.f_zeros_like()?);
    for ((entry, psi), sigma) in sigma.layout.iter().zip(psi).zip(&sigma.tensors) {
        if entry.statistic || !matches!(entry.part, Part::Backbone | Part::Classifier) {
            continue;
        }
        let total = |each: Tensor| -> EngineResult<Tensor> {
            Ok(each.f_flatten(1, -1)?.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?)
        };
        sparsity = sparsity.f_add(&total(psi.f_abs()?)?)?;
        distance = distance.f_add(&total(sigma.f_sub(psi)?.f_square()?)?)?;
    }
    Ok(vec![
        (method.consistency, over_confident(&agreement)?),
        (method.consistency, over_confident(&consistency)?),
        (method.sparsity, sparsity),
        (method.distance, distance),
    ])
}

/// The class with most votes; of equals the model's own, else the lowest.
pub fn vote(mine: &Tensor, theirs: &[Tensor], classes: i64) -> EngineResult<Tensor> {
    let votes = |label: &Tensor| label.f_one_hot(classes);
    let mut sum = votes(mine)?.f_mul_scalar(3)?; // two for the vote, one to win a tie
    for their in theirs {
        sum = sum.f_add(&votes(their)?.f_mul_scalar(2)?)?;
    }
    Ok(sum.f_argmax(-1, false)?)
}

/// The server's cross entropy with sigma + psi; psi is the other network.
#[derive(Debug, Clone, PartialEq)]
struct ServerLoss {
    fix: FixMixLoss,
    weight: f64,
}

impl StepLoss for ServerLoss {
    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        let w = summed(&pass.others[0], pass.weights()?)?;
        Ok(self.fix.loss(inputs, &pass.with_tensors(&w))?.times(self.weight))
    }
}
