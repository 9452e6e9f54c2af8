//! Local training of a cohort: every client on its fix set, all clients as one network.

use super::{Client, ClientReport, ClientState, Cohort, MeanLosses, Method, uploaded};
use crate::error::Result;
use crate::labels::PseudoLabels;
use crate::messages::{ClientOutcome, Update};
use fedanchor_engine::InPhase;
use fedanchor_engine::batches::{StepPlan, Task};
use fedanchor_engine::tensors::{Params, Part};
use fedanchor_engine::training::{Learner, Momentum, Objective};
use std::collections::BTreeMap;

/// How the clients of a method train.
pub struct ClientTrainer<'a> {
    /// The method: what clients send to the server.
    pub method: &'a dyn Method,
    /// The model they all start from.
    pub model: &'a Params,
    /// Batches and their loss.
    pub objective: Objective<'a>,
    /// The parts that a gradient changes [default: backbone and classifier].
    pub trains: fn(Part) -> bool,
    /// Finds the parameters that each client contributes.
    pub contributes: Option<&'a Contributes<'a>>,
    /// Finds the models that a client keeps, from the trained parameters and the further networks.
    pub keeps: Option<&'a Keeps<'a>>,
    /// Whether the loss may tell a client to skip a step. It then has a second term: which clients made the step.
    pub may_skip: bool,
    /// Whether a client may keep its momentum, where `client.keep_momentum` asks for it.
    pub keeps_momentum: bool,
    /// Index of the first term among the method's losses [default: 0].
    pub first_loss: usize,
}

/// Finds the parameters that a client contributes.
pub type Contributes<'a> = dyn Fn(&Client) -> Result<Contribution> + 'a;
/// Finds the models that a client keeps.
pub type Keeps<'a> = dyn Fn(&Params, &[Params]) -> Result<BTreeMap<String, Params>> + 'a;

/// The parameters that one client contributes, K = 1 each.
#[derive(Debug)]
pub struct Contribution {
    /// Entries of the network that replace the model's.
    pub entries: Option<Params>,
    /// Further networks that the loss reads.
    pub others: Vec<Params>,
}

impl<'a> ClientTrainer<'a> {
    /// From this model on this objective.
    pub fn new(method: &'a dyn Method, model: &'a Params, objective: Objective<'a>) -> Self {
        Self {
            method,
            model,
            objective,
            trains: |part| matches!(part, Part::Backbone | Part::Classifier),
            contributes: None,
            keeps: None,
            may_skip: false,
            keeps_momentum: true,
            first_loss: 0,
        }
    }

    /// Trains every client on all its samples, without labels: the loss itself chooses among them.
    pub fn train_on_all(&self, cohort: Cohort) -> Result<Vec<ClientReport>> {
        let labels = cohort.clients.iter().map(|client| PseudoLabels::none(client.local.len()));
        let labels = labels.collect();
        self.train(cohort, labels)
    }

    /// Trains every client on its fix set; one report per client, in the cohort's order.
    pub fn train(&self, cohort: Cohort, labels: Vec<PseudoLabels>) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, clients } = cohort;
        let config = &experiment.client;
        let Objective { batches, loss, scalars, reads_sent } = &self.objective;
        let tasks = clients.iter().zip(&labels).map(|(client, labels)| Task {
            client: client.id,
            images: client.images,
            local: client.local,
            labels: &labels.label,
            weights: &labels.weight,
            adjustment: &labels.adjustment,
            fix: labels.fix_set(),
        });
        let tasks: Vec<Task> = tasks.collect();
        tracing::debug!(round, clients = tasks.len(), "training a cohort");

        let mut plan = StepPlan::new(&tasks, 0..config.epochs, batches.batch());
        let order = plan.order().to_vec();
        let momentum = order.iter().map(|&at| clients[at].state.momentum.as_ref());
        let momentum = Momentum::stack(&momentum.collect::<Vec<_>>())?;
        let mut params = self.model.broadcast(order.len() as i64)?;
        let mut others = Vec::new();
        if let Some(contributes) = self.contributes.filter(|_| !order.is_empty()) {
            let own = order.iter().map(|&at| contributes(&clients[at]));
            let own: Vec<Contribution> = own.collect::<Result<_>>()?;
            let entries: Vec<&Params> = own.iter().filter_map(|own| own.entries.as_ref()).collect();
            if !entries.is_empty() {
                params = params.with(Params::stack(&entries)?, context.network.layout.clone())?;
            }
            for other in 0..own[0].others.len() {
                let all: Vec<&Params> = own.iter().map(|own| &own.others[other]).collect();
                others.push(Params::stack(&all)?);
            }
        }
        if *reads_sent {
            others.push(self.model.broadcast(order.len() as i64)?);
        }
        let trains = self.trains;
        let mut learner = Learner::new(context, "clients", params, momentum, |e| trains(e.part))?
            .with_others(others)?;
        if self.may_skip {
            learner = learner.with_skipped_steps();
        }
        let (lr, steps) = (experiment.lr(round), plan.steps(&tasks));
        let streams = context.streams(round);
        let fill = |time: usize, bytes: &mut [u8]| {
            let samples = plan.step(streams, &tasks, time);
            let active = samples.len() / batches.batch();
            batches.fill(&tasks, &samples, bytes);
            (active, batches.bytes(active))
        };
        learner
            .train(lr, steps, batches.bytes(order.len()), (&**loss, scalars), fill)
            .in_phase("training clients")?;

        let counts = |labels: &PseudoLabels| match experiment.record.label_counts {
            true => labels.counts(context.classes),
            false => Vec::new(),
        };
        // Updates of the clients that made steps, and the states of those that did not diverge.
        let mut trained: Vec<Option<_>> = clients.iter().map(|_| None).collect();
        let not_finite = learner.params.first_not_finite()?;
        for (slot, &at) in order.iter().enumerate() {
            let steps = plan.steps_of(&tasks[at]);
            let means = learner.mean_losses(slot, steps)?;
            let sound = not_finite[slot].is_none();
            let Some(losses) = self.losses(&means, sound) else { continue };
            let params = learner.params.client(slot as i64)?;
            let mut state = ClientState::default();
            if config.keep_momentum && self.keeps_momentum {
                state.momentum = Some(learner.momentum.client(slot as i64)?);
            }
            if let Some(keeps) = self.keeps {
                let others = learner.others.iter().map(|other| other.client(slot as i64));
                state.models = keeps(&params, &others.collect::<Result<Vec<_>, _>>()?)?;
            }
            let update = Update {
                params: uploaded(context, self.method, &params),
                rounding: None,
                samples: tasks[at].local.len(),
                kept: labels[at].kept_count(),
                losses,
                labels: counts(&labels[at]),
            };
            // A client whose training diverged sends its update, which the server rejects, and keeps its old state.
            trained[at] = Some((update, sound.then_some(state)));
        }
        drop(tasks);
        let reports = clients.into_iter().zip(labels).zip(trained);
        let reports = reports.map(|((client, labels), trained)| {
            let (outcome, state) = match trained {
                Some((update, state)) => (ClientOutcome::Update(update), state),
                None => {
                    let (samples, labels) = (client.local.len(), counts(&labels));
                    (ClientOutcome::NothingKept { samples, labels }, None)
                }
            };
            ClientReport { outcome, labels, state: state.unwrap_or(client.state) }
        });
        Ok(reports.collect())
    }

    /// A client's mean losses from the means of the loss's terms; `None` if it made no step.
    fn losses(&self, means: &[f64], sound: bool) -> Option<MeanLosses> {
        let mut losses: MeanLosses = vec![None; self.first_loss];
        match *means {
            // The second term is the share of the steps that the client made.
            [_, made, ..] if self.may_skip && made == 0.0 => return None,
            [sum, made, ..] if self.may_skip => losses.push(Some(sum / made)),
            _ => losses.extend(means.iter().copied().map(Some)),
        }
        let recorded = |loss: Option<f64>| loss.filter(|loss| sound && loss.is_finite());
        Some(losses.into_iter().map(recorded).collect())
    }
}
