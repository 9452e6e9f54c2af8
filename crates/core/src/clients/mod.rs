//! Clients that train on this machine: all clients of a simulation, or those of one node of a fleet. They are the
//! same code.

mod threads;

pub use threads::ComputeThreads;

use crate::config::Experiment;
use crate::error::{Error, Result};
use crate::labels::{LabelledImages, PseudoLabels, all_logits, predicted};
use crate::messages::{Answer, Broadcast, ClientOutcome, MessagePrecision, round_change};
use crate::methods::{Client, ClientReport, ClientState, Cohort, Method, uploaded};
use fedanchor_data::{ImageSet, Purpose};
use fedanchor_engine::guard;
use fedanchor_engine::model::Statistics;
use fedanchor_engine::tensors::{Bundle, Params};
use fedanchor_engine::training::Context;
use std::collections::BTreeMap;
use tch::Device;
use threads::train_on_cores;

/// What rounding has left out of a client's updates, among the models it keeps.
const LEFT_OUT: &str = "left-out";
/// Clients trained as one network on a GPU: more do not make it faster, and memory stays the same however
/// many take part in a round.
const GPU_COHORT: usize = 64;

/// The common properties of the clients of a machine.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the types have comments
pub struct ClientSite<'a> {
    pub experiment: &'a Experiment,
    pub context: &'a Context,
    pub method: &'a dyn Method,
    /// The images of all these clients.
    pub images: &'a ImageSet,
    /// Their labels, for the one method that is shown them.
    pub labels: Option<&'a [u16]>,
    /// Labelled images on which the broadcast model is tested, where `record.sites` asks for it.
    pub test: Option<&'a LabelledImages>,
    /// Whether to compute labels that training does not need, to measure them.
    pub measures: bool,
}

impl ClientSite<'_> {
    fn update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let measured = match self.measures {
            true => self.method.measure(&cohort, broadcast)?,
            false => None,
        };
        let mut reports = self.method.client_update(cohort, broadcast)?;
        for (report, labels) in reports.iter_mut().zip(measured.into_iter().flatten()) {
            report.labels = PseudoLabels { only_measured: true, ..labels };
        }
        Ok(reports)
    }
}

/// Clients with their images, and with what each keeps between its rounds.
pub struct LocalClients<'a> {
    site: ClientSite<'a>,
    local: BTreeMap<u32, &'a [u32]>,
    /// Each client's state, and the round it last trained in.
    states: BTreeMap<u32, (u32, ClientState)>,
    /// Clients trained as one network. On a CPU each is a separate network, and the cores share the
    /// clients: a grouped convolution is slower there than the plain ones it stands for. On a GPU as many
    /// as keep it busy, and half as many whenever they turn out not to fit.
    cohort: usize,
}

/// Takes a client's answer, and its pseudo-labels, which stay here.
pub type TakeAnswer<'a> = dyn FnMut(Answer, &PseudoLabels) -> Result<()> + 'a;

impl<'a> LocalClients<'a> {
    /// Without clients.
    pub fn new(site: ClientSite<'a>) -> Self {
        let cohort = if site.context.device == Device::Cpu { 1 } else { GPU_COHORT };
        Self { site, local: BTreeMap::new(), states: BTreeMap::new(), cohort }
    }

    /// Adds a client with these images.
    pub fn add(&mut self, client: u32, local: &'a [u32]) {
        self.local.insert(client, local);
    }

    /// The clients and their images, by rising number.
    pub fn local(&self) -> &BTreeMap<u32, &'a [u32]> {
        &self.local
    }

    /// Trains these clients on a broadcast and hands over their answers in order, those of failures too.
    pub fn train(
        &mut self,
        clients: &[u32],
        broadcast: &Broadcast,
        take: &mut TakeAnswer,
    ) -> Result<()> {
        let received = self.received(broadcast)?;
        let broadcast = received.as_ref().unwrap_or(broadcast);
        if self.site.context.device != Device::Cpu {
            return self.train_in_cohorts(clients, broadcast, take);
        }
        let cohorts = clients.chunks(self.cohort).map(|part| self.cohort(part, broadcast.round));
        let cohorts = cohorts.collect::<Result<_>>()?;
        train_on_cores(self.site, cohorts, broadcast, &mut |clients, reports| {
            self.finish_cohort(&clients, reports, broadcast, take)
        })
    }

    /// Trains one client on its own broadcast, on this thread.
    pub fn train_one(
        &mut self,
        client: u32,
        broadcast: &Broadcast,
        take: &mut TakeAnswer,
    ) -> Result<()> {
        let received = self.received(broadcast)?;
        let broadcast = received.as_ref().unwrap_or(broadcast);
        let reports = self.try_cohort(&[client], broadcast);
        self.finish_cohort(&[client], reports, broadcast, take)
    }

    /// The broadcast as it arrives, where that is not as it was sent: in a simulation nothing else rounds it.
    fn received(&self, broadcast: &Broadcast) -> Result<Option<Broadcast>> {
        broadcast.rounded.then(|| broadcast.rounded()).transpose()
    }

    /// By class, the site's test images and how many of them the broadcast model gets right.
    fn test(&self, broadcast: &Broadcast) -> Result<Vec<[u32; 2]>> {
        let ClientSite { experiment, context, test, .. } = self.site;
        let Some(test) = test.filter(|_| experiment.record.sites) else { return Ok(Vec::new()) };
        let logits = all_logits(context, &broadcast.params, Statistics::Running, &test.views())?;
        let mut tested = vec![[0; 2]; context.classes];
        for (&label, found) in test.labels.iter().zip(predicted(&logits)?) {
            let [images, right] = &mut tested[usize::from(label)];
            *images += 1;
            *right += u32::from(found == i64::from(label));
        }
        Ok(tested)
    }

    /// Turns a client's parameters into their rounded change, and keeps what rounding leaves out.
    fn round(
        &self,
        client: u32,
        sent: &Params,
        round: u32,
        report: &mut ClientReport,
    ) -> Result<()> {
        let ClientSite { experiment, context, .. } = self.site;
        let precision = experiment.messages.precision;
        let ClientOutcome::Update(update) = &mut report.outcome else { return Ok(()) };
        if precision == MessagePrecision::F32 {
            return Ok(());
        }
        let left = self.states.get(&client).and_then(|(_, state)| state.models.get(LEFT_OUT));
        let draws = context.streams(round).of(Purpose::Rounding, client);
        let (change, rounding, left) = round_change(&update.params, sent, left, precision, draws)?;
        (update.params, update.rounding) = (change, Some(rounding));
        // After a round that diverged, a client goes on from its old state.
        if left.first_not_finite()?.iter().all(Option::is_none) {
            report.state.models.insert(LEFT_OUT.to_owned(), left);
        }
        Ok(())
    }

    fn cohort(&self, clients: &[u32], round: u32) -> Result<Cohort<'a>> {
        let ClientSite { experiment, context, images, labels, .. } = self.site;
        let clients = clients.iter().map(|&id| {
            let state = self.states.get(&id).map(|(_, state)| state.copy());
            let state = state.transpose()?.unwrap_or_default();
            let local = self.local.get(&id).copied().unwrap_or_default();
            let labels = labels.map(|all| local.iter().map(|&i| all[i as usize]).collect());
            Ok(Client { id, images, local, labels, state })
        });
        let clients = clients.collect::<Result<_>>()?;
        Ok(Cohort { experiment, context, round, clients })
    }

    fn try_cohort(&self, clients: &[u32], broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let cohort = self.cohort(clients, broadcast.round)?;
        guard(|| self.site.update(cohort, broadcast))
    }

    /// Hands over the answers of a cohort in order, those of failures too, and keeps the clients' states.
    fn finish_cohort(
        &mut self,
        clients: &[u32],
        reports: Result<Vec<ClientReport>>,
        broadcast: &Broadcast,
        take: &mut TakeAnswer,
    ) -> Result<()> {
        let (method, round) = (&broadcast.method, broadcast.round);
        let reports = reports.and_then(|reports| match reports.len() {
            count if count == clients.len() => Ok(reports),
            count => {
                let problem = format!("{count} reports of {} clients", clients.len());
                Err(Error::method(self.site.method.name(), problem))
            }
        });
        let reports = reports.unwrap_or_else(|error| {
            let failed = |_| {
                let outcome = ClientOutcome::Failed { reason: error.to_string() };
                let (labels, state) = Default::default();
                ClientReport { outcome, labels, state }
            };
            clients.iter().map(failed).collect()
        });
        let sent = uploaded(self.site.context, self.site.method, &broadcast.params);
        let tested = self.test(broadcast)?;
        for (&client, mut report) in clients.iter().zip(reports) {
            if let Err(error) = self.round(client, &sent, round, &mut report) {
                report.outcome = ClientOutcome::Failed { reason: error.to_string() };
            }
            let ClientReport { outcome, labels, state } = report;
            if matches!(outcome, ClientOutcome::Update(_)) && !state.is_empty() {
                self.states.insert(client, (round, state));
            }
            let (method, tested) = (method.clone(), tested.clone());
            take(Answer { method, round, client, tested, outcome }, &labels)?;
        }
        Ok(())
    }

    /// Trains clients in cohorts on a GPU. Where a cohort does not fit into memory, it is split and the
    /// following ones are as small; where it fails otherwise, its clients are tried one by one, so that
    /// only those fail that fail alone.
    fn train_in_cohorts(
        &mut self,
        clients: &[u32],
        broadcast: &Broadcast,
        take: &mut TakeAnswer,
    ) -> Result<()> {
        let mut rest = clients;
        while !rest.is_empty() {
            let (cohort, after) = rest.split_at(self.cohort.min(rest.len()));
            match self.try_cohort(cohort, broadcast) {
                Err(error) if cohort.len() > 1 && error.is_out_of_memory() => {
                    self.cohort = cohort.len().div_ceil(2);
                    self.site.context.free(self.cohort)?;
                    continue;
                }
                Err(error) if cohort.len() > 1 => {
                    tracing::warn!(%error, "a cohort failed; training its clients one by one");
                    for &client in cohort {
                        self.train_one(client, broadcast, take)?;
                    }
                }
                reports => {
                    if reports.as_ref().is_err_and(Error::is_out_of_memory) {
                        self.site.context.free(1)?;
                    }
                    self.finish_cohort(cohort, reports, broadcast, take)?;
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// The round in which each client with a state last trained.
    pub fn trained_in(&self) -> BTreeMap<u32, u32> {
        self.states.iter().map(|(&client, (round, _))| (client, *round)).collect()
    }

    /// The states of the clients that trained in this round; `like` is a model of the network.
    pub fn save(&self, round: u32, like: &Params) -> Result<Vec<(u32, Bundle)>> {
        let trained = self.states.iter().filter(|(_, (trained, _))| *trained == round);
        trained.map(|(&client, (_, state))| Ok((client, state.save(like)?))).collect()
    }

    /// Drops the state of a client.
    pub fn forget(&mut self, client: u32) {
        self.states.remove(&client);
    }

    /// Restores the state of a client from the round in which it last trained.
    pub fn restore(&mut self, client: u32, round: u32, kept: &Bundle, like: &Params) -> Result<()> {
        self.states.insert(client, (round, ClientState::restore(kept, like)?));
        Ok(())
    }
}
