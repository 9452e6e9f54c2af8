//! FedMatch, labels at the server: Jeong, Yoon, Yang and Hwang, "Federated Semi-Supervised Learning
//! with Inter-Client Consistency & Disjoint Learning", 2021.
//!
//! Every weight is a sum, w = sigma + psi. The server trains sigma on its labels with psi as it is,
//! the clients train psi with sigma as it is: on samples that their model is sure of they ask for
//! agreement with helpers, models of other clients that behave alike, and train the strong view on the
//! label that model and helpers vote for; psi is kept sparse and near sigma. What clients send up is
//! psi alone. (The original sends psi sparsified; here messages are counted whole.)

use super::{Broadcast, Client, ClientReport, Cohort, Method, Update};
use crate::checkpoint::Bundle;
use crate::config::{Augmentation, FedMatchConfig};
use crate::error::{InPhase, Result};
use crate::fix_mix::FixMix;
use crate::labels::by_classifier;
use crate::local::{Local, Own};
use crate::loss::cross_entropy_each;
use crate::model::{Network, Pass, Statistics};
use crate::params::{Params, Part};
use crate::schedule::{Sample, Task};
use crate::server::{Server, step_towards};
use crate::server_epochs::supervised_epoch;
use crate::setting::{Setting, View};
use crate::training::{StepLoss, Terms};
use crate::two_views::TwoViews;
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_record::Losses;
use rand_distr::{Distribution, StandardNormal};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

pub(super) struct FedMatch {
    pub(super) config: FedMatchConfig,
}

/// What the server keeps beside the global model, which is sigma + psi.
#[derive(Debug)]
pub(crate) struct Memory {
    sigma: Params,
    psi: Params,
    /// The last psi of every client that has sent one since helpers were last chosen.
    heard: BTreeMap<u32, Params>,
    /// The psi of those that can be helpers, and where each client's model lies.
    helpers: BTreeMap<u32, Params>,
    places: BTreeMap<u32, Vec<f32>>,
}

impl Method for FedMatch {
    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
        let lr = server.setting.experiment.pretrain.lr;
        self.server_epochs(server, 0, epoch..epoch + 1, lr)
    }

    fn broadcast(&self, server: &Server, _: u32) -> Result<Option<Broadcast>> {
        let Some(memory) = &server.memory else { return Ok(None) };
        // Statistics travel with psi: they are the global model's.
        let mut psi = memory.psi.copy()?;
        psi.assign(&server.params.subset(|entry| entry.statistic))?;
        let mut broadcast = Broadcast::of(psi);
        broadcast.others = vec![memory.sigma.copy()?];
        broadcast.helpers = memory.choose(server.setting, &server.params, self.config.helpers)?;
        Ok(Some(broadcast))
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { setting, round, ref clients } = cohort;
        let (psi, sigma) = (&broadcast.params, &broadcast.others[0]);
        // For the record alone: training asks its own model, batch by batch.
        let labels =
            by_classifier(setting, &sum(sigma, psi)?, self.config.threshold, round, clients)
                .in_phase("labelling the clients' images")?;
        let batch = setting.experiment.client.batch;
        let views = TwoViews { setting, round, batch, second: Augmentation::Strong, number: 0.0 };
        let loss = ClientLoss { views, config: &self.config };
        let own = |client: &Client| {
            let mut others = vec![sigma.copy()?];
            for helper in broadcast.helpers_of(client.id) {
                others.push(sum(sigma, helper)?);
            }
            Ok(Own { entries: psi.subset(|_| false), others })
        };
        let local = Local { own: Some(&own), whole: true, ..Local::plain(psi, &loss) };
        local.train(cohort, labels)
    }

    fn hear(&self, server: &mut Server, update: &Update) -> Result<()> {
        if let Some(memory) = &mut server.memory {
            // Where statistics are not sent up, a helper has the global model's.
            let mut psi = memory.psi.copy()?;
            psi.assign(&server.params.subset(|entry| entry.statistic))?;
            psi.assign(&update.params)?;
            memory.heard.insert(update.client, psi);
        }
        Ok(())
    }

    fn server_update(
        &self,
        server: &mut Server,
        mean: Option<Params>,
        round: u32,
    ) -> Result<Losses> {
        if let (Some(mean), Some(memory)) = (mean, &mut server.memory) {
            let momentum = server.setting.experiment.server.momentum;
            step_towards(&mut memory.psi, &mut server.velocity, &mean, momentum)?;
            server.params.assign(&mean.subset(|entry| entry.statistic))?;
        }
        let experiment = &server.setting.experiment;
        let (epochs, lr) = (experiment.server.epochs, experiment.lr(round));
        let losses = self.server_epochs(server, round, 0..epochs, lr)?;
        server.end_round();
        if let Some(memory) =
            server.memory.as_mut().filter(|_| round.is_multiple_of(self.config.refresh))
        {
            memory.refresh(server.setting)?;
        }
        Ok(losses)
    }
}

impl FedMatch {
    /// Trains sigma and leaves the global model as sigma + psi.
    fn server_epochs(
        &self,
        server: &mut Server,
        round: u32,
        epochs: std::ops::Range<u32>,
        lr: f64,
    ) -> Result<Losses> {
        let setting = server.setting;
        let memory = match server.memory.take() {
            Some(memory) => memory,
            None => Memory::start(&server.params)?, // the first epoch of pre-training
        };
        let Memory { sigma, psi, .. } = &memory;
        server.params.assign(&sigma.subset(|entry| !entry.statistic))?;
        let experiment = &setting.experiment;
        let fix = FixMix {
            setting,
            round,
            batch: experiment.server_batch(),
            augment: experiment.server.augment,
            mixup: None,
            views: crate::config::Views::Separate,
            weighed: false,
        };
        let loss = ServerLoss { fix, weight: self.config.supervised };
        let mut losses = Losses::default();
        for epoch in epochs {
            let means = supervised_epoch(server, &loss, vec![psi.copy()?], round, epoch, lr)?;
            losses.server_fix = means.first().copied();
        }
        let sigma = server.params.copy()?;
        server.params = sum(psi, &sigma)?; // with sigma's statistics: they were trained with it
        server.memory = Some(Memory { sigma, ..memory });
        Ok(losses)
    }
}

impl Memory {
    fn start(params: &Params) -> Result<Self> {
        let mut psi = params.zeros_like()?;
        psi.assign(&params.subset(|entry| entry.statistic))?;
        let (heard, helpers, places) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { sigma: params.copy()?, psi, heard, helpers, places })
    }

    /// Adds it to a checkpoint.
    pub(crate) fn save(&self, bundle: &mut Bundle) -> Result<()> {
        self.sigma.put_into(bundle, "sigma")?;
        self.psi.put_into(bundle, "psi")?;
        for (group, models) in [("heard", &self.heard), ("helper", &self.helpers)] {
            for (client, psi) in models {
                psi.put_into(bundle, &format!("{group}.{client}"))?;
            }
        }
        for (client, place) in &self.places {
            bundle.put(format!("place.{client}/at"), &Tensor::f_from_slice(place)?)?;
        }
        Ok(())
    }

    /// Takes it back, where a checkpoint has it.
    pub(crate) fn restore(bundle: &Bundle, like: &Params) -> Result<Option<Self>> {
        if bundle.group("sigma").is_empty() {
            return Ok(None);
        }
        let models = |group: &str| -> Result<BTreeMap<u32, Params>> {
            let clients = bundle.numbers(group).into_iter();
            let take = |client| Ok((client, like.take_from(bundle, &format!("{group}.{client}"))?));
            clients.map(take).collect()
        };
        let mut places = BTreeMap::new();
        for client in bundle.numbers("place") {
            if let Some(place) = bundle.group(&format!("place.{client}")).get("at") {
                places.insert(client, Vec::<f32>::try_from(*place)?);
            }
        }
        Ok(Some(Self {
            sigma: like.take_from(bundle, "sigma")?,
            psi: like.take_from(bundle, "psi")?,
            heard: models("heard")?,
            helpers: models("helper")?,
            places,
        }))
    }

    /// Those heard of since the last time become the helpers.
    fn refresh(&mut self, setting: &Setting) -> Result<()> {
        self.helpers = std::mem::take(&mut self.heard);
        for (&client, psi) in &self.helpers {
            self.places.insert(client, place(setting, &sum(&self.sigma, psi)?)?);
        }
        Ok(())
    }

    /// Every client's helpers: the nearest models of others. A client that was never heard of is
    /// taken to lie where the global model does.
    fn choose(&self, setting: &Setting, global: &Params, count: usize) -> Result<super::Helpers> {
        // The same number for all, so that a cohort is one network: a helper is not its own.
        let count = count.min(self.helpers.len().saturating_sub(1));
        let models = self.helpers.iter().map(|(&id, psi)| Ok((id, psi.copy()?)));
        let models = models.collect::<Result<BTreeMap<_, _>>>()?;
        let places: BTreeMap<u32, &Vec<f32>> =
            models.keys().filter_map(|id| Some((*id, self.places.get(id)?))).collect();
        let nearest = |of: &[f32], without: Option<u32>| {
            let distance =
                |place: &[f32]| -> f32 { place.iter().zip(of).map(|(a, b)| (a - b).powi(2)).sum() };
            let mut order: Vec<(f32, u32)> =
                places.iter().map(|(&id, place)| (distance(place), id)).collect();
            order.retain(|&(_, id)| Some(id) != without);
            order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            order.into_iter().take(count).map(|(_, id)| id).collect::<Vec<u32>>()
        };
        let known = self.places.iter().map(|(&id, place)| (id, nearest(place, Some(id))));
        let chosen = known.collect();
        let others =
            if places.is_empty() { Vec::new() } else { nearest(&place(setting, global)?, None) };
        Ok(super::Helpers { models, chosen, others })
    }
}

/// Where a model lies: its probabilities for one picture of Gaussian noise, the same for all.
fn place(setting: &Setting, params: &Params) -> Result<Vec<f32>> {
    let mut rng = setting.stream(Purpose::Probe, 0, SERVER).rng();
    let mut pixel = || {
        let noise: f32 = StandardNormal.sample(&mut rng);
        (127.5 + 50.0 * noise).round() as u8 // a cast keeps within 0 to 255
    };
    let picture: Vec<u8> = (0..setting.image_bytes()).map(|_| pixel()).collect();
    let mut place = Vec::new();
    setting.for_each_batch(
        params,
        |_| Statistics::Running,
        &[View::Raw(&picture)],
        |_, pass, features| {
            let logits = setting.network.logits(&features, pass)?;
            let probability = logits.f_softmax(-1, Kind::Float)?.f_flatten(0, -1)?;
            place = Vec::<f32>::try_from(probability.f_to_device(tch::Device::Cpu)?)?;
            Ok(())
        },
    )?;
    Ok(place)
}

/// sigma + psi, with psi's statistics.
fn sum(sigma: &Params, psi: &Params) -> Result<Params> {
    Ok(Params { layout: psi.layout.clone(), tensors: summed(sigma, &psi.tensors)? })
}

/// The weights of a pass: the half that is trained, which a gradient flows to, plus the fixed one.
/// Statistics are the trained half's.
pub fn summed(fixed: &Params, trained: &[Tensor]) -> Result<Vec<Tensor>> {
    let entries = fixed.layout.iter().zip(trained).zip(&fixed.tensors);
    let add = |((entry, trained), fixed): ((&crate::params::Entry, &Tensor), &Tensor)| {
        Ok(if entry.statistic { trained.shallow_clone() } else { trained.f_add(fixed)? })
    };
    entries.map(add).collect()
}

/// L_u(psi) on a client: the networks it reads are sigma and its helpers.
struct ClientLoss<'a> {
    views: TwoViews<'a>,
    config: &'a FedMatchConfig,
}

impl StepLoss for ClientLoss<'_> {
    fn batch(&self) -> usize {
        self.views.batch
    }

    fn terms(&self) -> usize {
        4
    }

    fn bytes(&self, active: usize) -> usize {
        self.views.bytes(active)
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        self.views.fill(tasks, samples, out);
    }

    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms> {
        let batch = self.views.read(bytes, pass.tensors[0].size()[0] as usize)?;
        let network = &self.views.setting.network;
        Ok(client_terms(network, self.config, &batch.first, &batch.second, pass)?.into())
    }
}

/// Agreement on the strong view, consistency with the helpers on the weak one, sparsity, distance.
/// `pass` holds psi, and sigma and the helpers as its other networks.
pub fn client_terms(
    network: &Network,
    config: &FedMatchConfig,
    weak: &Tensor,
    strong: &Tensor,
    pass: &Pass,
) -> Result<Vec<(f64, Tensor)>> {
    let [sigma, helpers @ ..] = pass.others else { return Ok(Vec::new()) };
    let w = summed(sigma, pass.tensors)?;
    let pass_w = Pass { tensors: &w, ..*pass };
    let logits = |x: &Tensor, pass: &Pass| network.logits(&network.features(x, pass)?, pass);
    let own = logits(weak, &pass_w)?.f_log_softmax(-1, Kind::Float)?; // [K, batch, C]
    let (score, mine) = own.f_detach()?.f_exp()?.f_max_dim(-1, false)?;
    let confident = score.f_ge(config.threshold)?.f_to_kind(Kind::Float)?; // [K, batch]
    let count = confident.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?.f_clamp_min(1)?;
    let over_confident = |each: &Tensor| -> Result<Tensor> {
        let sum = each.f_mul(&confident)?.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?;
        Ok(sum.f_div(&count)?) // [K]
    };
    let mut theirs = Vec::new();
    let mut consistency = own.f_detach()?.f_select(-1, 0)?.f_zeros_like()?;
    for helper in helpers {
        let pass = Pass { tensors: &helper.tensors, statistics: Statistics::Running, ..*pass };
        let found = tch::no_grad(|| logits(weak, &pass))?.f_log_softmax(-1, Kind::Float)?;
        let each = found.f_exp()?.f_mul(&found.f_sub(&own)?)?;
        let each = each.f_sum_dim_intlist(&[-1i64][..], false, Kind::Float)?;
        consistency = consistency.f_add(&each.f_div_scalar(helpers.len() as f64)?)?;
        theirs.push(found.f_argmax(-1, false)?);
    }
    let label = vote(&mine, &theirs, own.size()[2])?;
    let agreement = cross_entropy_each(&logits(strong, &pass_w)?, &label)?;
    let (mut sparsity, mut distance) = (count.f_zeros_like()?, count.f_zeros_like()?);
    for ((entry, psi), sigma) in sigma.layout.iter().zip(pass.tensors).zip(&sigma.tensors) {
        if entry.statistic || !matches!(entry.part, Part::Backbone | Part::Classifier) {
            continue;
        }
        let total = |each: Tensor| -> Result<Tensor> {
            Ok(each.f_flatten(1, -1)?.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?)
        };
        sparsity = sparsity.f_add(&total(psi.f_abs()?)?)?;
        distance = distance.f_add(&total(sigma.f_sub(psi)?.f_square()?)?)?;
    }
    Ok(vec![
        (config.consistency, over_confident(&agreement)?),
        (config.consistency, over_confident(&consistency)?),
        (config.sparsity, sparsity),
        (config.distance, distance),
    ])
}

/// The class with most votes; of equals the model's own, else the lowest.
pub fn vote(mine: &Tensor, theirs: &[Tensor], classes: i64) -> Result<Tensor> {
    let votes = |label: &Tensor| label.f_one_hot(classes);
    let mut sum = votes(mine)?.f_mul_scalar(3)?; // two for the vote, one to win a tie
    for their in theirs {
        sum = sum.f_add(&votes(their)?.f_mul_scalar(2)?)?;
    }
    Ok(sum.f_argmax(-1, false)?)
}

/// The server's cross entropy with sigma + psi; psi is the other network.
struct ServerLoss<'a> {
    fix: FixMix<'a>,
    weight: f64,
}

impl StepLoss for ServerLoss<'_> {
    fn batch(&self) -> usize {
        self.fix.batch()
    }

    fn terms(&self) -> usize {
        1
    }

    fn bytes(&self, active: usize) -> usize {
        self.fix.bytes(active)
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        self.fix.fill(tasks, samples, out);
    }

    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms> {
        let w = summed(&pass.others[0], pass.tensors)?;
        let mut loss = self.fix.loss(bytes, &Pass { tensors: &w, ..*pass })?;
        loss.terms.iter_mut().for_each(|(weight, _)| *weight *= self.weight);
        Ok(loss)
    }
}
