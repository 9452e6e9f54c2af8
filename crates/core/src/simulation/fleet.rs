//! Clients in this process. They run the same code as a deployed client; only the messages need not be
//! encoded.

use super::Simulation;
use super::samples::Picker;
use super::threads::train_on_cores;
use crate::error::{Error, Result};
use crate::federation::{
    Accuracy, ClientKey, ClientStates, Delivery, Fleet, Member, Observed, RoundTask,
};
use crate::labels::PseudoLabels;
use crate::messages::{Answer, Broadcast, ClientOutcome};
use crate::methods::{Client, ClientReport, ClientState, Cohort, uploaded};
use fedanchor_engine::guard;
use fedanchor_engine::tensors::Params;
use std::collections::BTreeMap;
use tch::Device;

/// Clients trained as one network on a GPU: more do not make it faster, and memory stays the same however
/// many take part in a round.
const GPU_COHORT: usize = 64;

/// The clients of a [`Simulation`], with what each keeps between its rounds.
pub struct SimulatedFleet<'a> {
    simulation: &'a Simulation,
    /// Each client's state, and the round it last trained in.
    states: BTreeMap<u32, (u32, ClientState)>,
    /// Clients trained as one network. On a CPU each is a network of its own, and the cores share the
    /// clients: a grouped convolution is slower there than the plain ones it stands for. On a GPU as many
    /// as keep it busy, and half as many whenever they turn out not to fit.
    cohort: usize,
    anchor_head: Accuracy,
    classifier_head: Accuracy,
    /// Pseudo-labels by class.
    labels: Vec<u32>,
    picker: Picker,
}

impl<'a> SimulatedFleet<'a> {
    pub(super) fn new(simulation: &'a Simulation) -> Self {
        // Where a threshold selects nothing, there is nothing kept and nothing left out to show.
        let selects = simulation.method.selects();
        let samples = if selects { simulation.experiment.record.samples } else { 0 };
        Self {
            simulation,
            states: BTreeMap::new(),
            cohort: if simulation.context.device == Device::Cpu { 1 } else { GPU_COHORT },
            anchor_head: Accuracy::default(),
            classifier_head: Accuracy::default(),
            labels: vec![0; simulation.classes.len()],
            picker: Picker::new(samples),
        }
    }

    /// The simulation whose clients these are.
    pub fn simulation(&self) -> &'a Simulation {
        self.simulation
    }

    /// Trains one client on a broadcast of its own, as a deployed client does.
    pub fn train_client(&mut self, client: u32, broadcast: &Broadcast) -> Result<Answer> {
        let mut answer = None;
        let reports = self.try_cohort(&[client], broadcast);
        self.finish_cohort(&[client], reports, broadcast, &mut |_, given| {
            answer = Some(given);
            Ok(())
        })?;
        Ok(answer.expect("one client gives one answer"))
    }

    fn cohort(&self, clients: &[u32], round: u32) -> Result<Cohort<'a>> {
        let simulation = self.simulation;
        let Simulation { experiment, context, method, partition, images, true_labels, .. } =
            simulation;
        let clients = clients.iter().map(|&id| {
            let state = self.states.get(&id).map(|(_, state)| state.copy());
            let state = state.transpose()?.unwrap_or_default();
            let local = &partition.clients[id as usize];
            let labels = true_labels.as_ref().filter(|_| method.sees_labels());
            let labels = labels.map(|all| local.iter().map(|&i| all[i as usize]).collect());
            Ok(Client { id, images, local, labels, state })
        });
        let clients = clients.collect::<Result<_>>()?;
        Ok(Cohort { experiment, context, round, clients })
    }

    fn try_cohort(&self, clients: &[u32], broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let cohort = self.cohort(clients, broadcast.round)?;
        guard(|| self.simulation.method.client_update(cohort, broadcast))
    }

    /// Hands over the answers of a cohort in order, and keeps what is the clients' own. A cohort that
    /// could not train answers that it failed.
    fn finish_cohort(
        &mut self,
        clients: &[u32],
        reports: Result<Vec<ClientReport>>,
        broadcast: &Broadcast,
        take: &mut dyn FnMut(u32, Answer) -> Result<()>,
    ) -> Result<()> {
        let (method, round) = (&broadcast.method, broadcast.round);
        let answer = |client, outcome| Answer { method: method.clone(), round, client, outcome };
        let reports = reports.and_then(|reports| match reports.len() {
            count if count == clients.len() => Ok(reports),
            count => {
                let problem = format!("{count} reports of {} clients", clients.len());
                Err(Error::method(self.simulation.method.name(), problem))
            }
        });
        match reports {
            Ok(reports) => {
                for (&client, report) in clients.iter().zip(reports) {
                    let ClientReport { outcome, labels, state } = report;
                    self.compare(client, &labels);
                    if matches!(outcome, ClientOutcome::Update(_)) && !state.is_empty() {
                        self.states.insert(client, (round, state));
                    }
                    take(client, answer(client, outcome))?;
                }
            }
            Err(error) => {
                for &client in clients {
                    let reason = error.to_string();
                    take(client, answer(client, ClientOutcome::Failed { reason }))?;
                }
            }
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
        take: &mut dyn FnMut(u32, Answer) -> Result<()>,
    ) -> Result<()> {
        let mut rest = clients;
        while !rest.is_empty() {
            let (cohort, after) = rest.split_at(self.cohort.min(rest.len()));
            match self.try_cohort(cohort, broadcast) {
                Err(error) if cohort.len() > 1 && error.is_out_of_memory() => {
                    self.cohort = cohort.len().div_ceil(2);
                    self.simulation.context.free(self.cohort)?;
                    continue;
                }
                Err(error) if cohort.len() > 1 => {
                    tracing::warn!(%error, "a cohort failed; training its clients one by one");
                    for &client in cohort {
                        let reports = self.try_cohort(&[client], broadcast);
                        self.finish_cohort(&[client], reports, broadcast, take)?;
                    }
                }
                reports => {
                    if reports.as_ref().is_err_and(Error::is_out_of_memory) {
                        self.simulation.context.free(1)?;
                    }
                    self.finish_cohort(cohort, reports, broadcast, take)?;
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Counts pseudo-labels, picks some to be seen, and compares them with the true labels, where these are known.
    fn compare(&mut self, client: u32, labels: &PseudoLabels) {
        if !labels.score.is_empty() {
            labels.label.iter().for_each(|&label| self.labels[usize::from(label)] += 1);
        }
        let Simulation { partition, true_labels, .. } = self.simulation;
        let local = &partition.clients[client as usize];
        self.picker.add(client, local, labels, true_labels.as_deref());
        let Some(true_labels) = true_labels else { return };
        let heads = [
            (&mut self.anchor_head, &labels.anchor),
            (&mut self.classifier_head, &labels.classifier),
        ];
        for (head, labelled) in heads {
            for ((&index, &label), &kept) in local.iter().zip(labelled).zip(&labels.kept) {
                head.add(label == true_labels[index as usize], kept);
            }
        }
    }
}

impl Fleet for SimulatedFleet<'_> {
    fn members(&mut self) -> Result<Vec<Member>> {
        let clients = (0..).zip(&self.simulation.partition.clients);
        let member = |(number, local): (u32, &Vec<u32>)| Member {
            key: ClientKey::Number(number),
            samples: local.len(),
        };
        Ok(clients.map(member).collect())
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let Simulation { context, method, faults, .. } = self.simulation;
        let broadcast = task.broadcast;
        let sent = uploaded(context, &**method, &broadcast.params);
        let clients: Vec<u32> = task.clients.iter().map(|(number, _)| *number).collect();
        let mut deliver = |client: u32, answer: Answer| {
            for arrival in faults.arrive(answer, &sent)? {
                take(Delivery { from: ClientKey::Number(client), arrival })?;
            }
            Ok(())
        };
        if context.device != Device::Cpu {
            return self.train_in_cohorts(&clients, broadcast, &mut deliver);
        }
        let parts = clients.chunks(self.cohort);
        let cohorts = parts.map(|clients| self.cohort(clients, broadcast.round));
        let cohorts = cohorts.collect::<Result<_>>()?;
        train_on_cores(&**method, cohorts, broadcast, &mut |clients, reports| {
            self.finish_cohort(&clients, reports, broadcast, &mut deliver)
        })
    }

    fn observed(&mut self) -> Option<Observed> {
        let anchor_head = std::mem::take(&mut self.anchor_head).percent();
        let classifier_head = std::mem::take(&mut self.classifier_head).percent();
        let labels = vec![0; self.labels.len()];
        let labels = std::mem::replace(&mut self.labels, labels);
        Some(Observed { anchor_head, classifier_head, labels, picked: self.picker.take() })
    }

    fn save_states(&self, round: u32, like: &Params) -> Result<ClientStates> {
        let trained_in = self.states.iter().map(|(&client, (round, _))| (client, *round)).collect();
        let trained = self.states.iter().filter(|(_, (trained, _))| *trained == round);
        let bundles = trained.map(|(&client, (_, state))| Ok((client, state.save(like)?)));
        Ok(ClientStates { trained_in, bundles: bundles.collect::<Result<_>>()? })
    }

    fn restore_states(&mut self, states: &ClientStates, like: &Params) -> Result<()> {
        for (client, bundle) in &states.bundles {
            let round = states.trained_in.get(client).copied().unwrap_or_default();
            self.states.insert(*client, (round, ClientState::restore(bundle, like)?));
        }
        Ok(())
    }
}
