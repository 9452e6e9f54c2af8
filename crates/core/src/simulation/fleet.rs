//! Clients in this process. They run the same code as a deployed client; only the messages need not be
//! encoded.

use super::Simulation;
use crate::aggregation::WeightedMean;
use crate::clients::{ClientSite, LocalClients};
use crate::config::FaultKind;
use crate::error::Result;
use crate::federation::{ClientKey, ClientStates, Delivery, Federation, Fleet, Member, RoundTask};
use crate::labels::PseudoLabels;
use crate::messages::{Answer, Broadcast, ClientOutcome};
use crate::methods::uploaded;
use fedanchor_engine::tensors::Params;
use fedanchor_record::ClientLabels;

/// The clients of a [`Simulation`].
pub struct SimulatedFleet<'a> {
    simulation: &'a Simulation,
    clients: LocalClients<'a>,
    /// Those that train on something else than their images.
    poisoned: Option<LocalClients<'a>>,
}

impl<'a> SimulatedFleet<'a> {
    pub(super) fn new(simulation: &'a Simulation) -> Self {
        let Simulation { federation, partition, images, true_labels, poison, .. } = simulation;
        let Federation { experiment, context, method, .. } = federation;
        let with_images = |site| {
            let mut clients = LocalClients::new(site);
            (0..).zip(&partition.clients).for_each(|(client, local)| clients.add(client, local));
            clients
        };
        let sees_labels = method.properties().labels == ClientLabels::True;
        let site = ClientSite {
            experiment,
            context,
            method: &**method,
            images,
            labels: true_labels.as_deref().filter(|_| sees_labels),
            test: None,
            measures: true,
        };
        let poisoned = poison.as_ref().map(|poison| with_images(poison.site(federation)));
        Self { simulation, clients: with_images(site), poisoned }
    }

    /// The simulation whose clients these are.
    pub fn simulation(&self) -> &'a Simulation {
        self.simulation
    }

    /// Trains one client on its own broadcast, as a deployed client does.
    pub fn train_client(&mut self, client: u32, broadcast: &Broadcast) -> Result<Answer> {
        let mut answer = None;
        self.clients.train_one(client, broadcast, &mut |given, labels| {
            self.simulation.measure(&given, labels);
            answer = Some(given);
            Ok(())
        })?;
        Ok(answer.expect("one client gives one answer"))
    }
}

impl Fleet for SimulatedFleet<'_> {
    fn members(&mut self) -> Result<Vec<Member>> {
        let faults = &self.simulation.faults;
        let member = |(&number, local): (&u32, &&[u32])| Member {
            key: ClientKey::Number(number),
            samples: faults.claimed(number, local.len()),
        };
        Ok(self.clients.local().iter().map(member).collect())
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let Simulation { federation: Federation { context, method, .. }, faults, .. } =
            self.simulation;
        let broadcast = task.broadcast;
        let sent = uploaded(context, &**method, &broadcast.params);
        let clients = task.clients.iter().map(|(number, _)| *number);
        let (hostile, honest): (Vec<u32>, Vec<u32>) =
            clients.partition(|client| self.poisoned.is_some() && faults.contains(*client));
        let mut deliver = |answer: Answer| {
            let client = answer.client;
            let arrivals = faults.arrive(answer, &sent)?.into_iter();
            arrivals
                .map(|arrival| Delivery::now(ClientKey::Number(client), arrival))
                .try_for_each(&mut *take)
        };
        // Drifting clients wait for the honest ones, whose mean they send with something added.
        let drifts = faults.kind == FaultKind::Drift;
        let (mut mean, mut waiting) = (WeightedMean::default(), Vec::new());
        self.clients.train(&honest, broadcast, &mut |answer, labels| {
            self.simulation.measure(&answer, labels);
            if drifts && faults.contains(answer.client) {
                waiting.push(answer.into_owned()?);
                return Ok(());
            }
            if let (true, ClientOutcome::Update(update)) = (drifts, &answer.outcome) {
                mean.add(&update.params, 1.0)?;
            }
            deliver(answer)
        })?;
        let mean = mean.finish()?;
        for mut answer in waiting {
            if let (ClientOutcome::Update(update), Some(mean)) = (&mut answer.outcome, &mean) {
                update.params = faults.drift(mean, &sent)?;
            }
            deliver(answer)?;
        }
        if let Some(poisoned) = &mut self.poisoned {
            poisoned.train(&hostile, broadcast, &mut |mut answer, _| {
                self.simulation.measure(&answer, &PseudoLabels::default());
                if let ClientOutcome::Update(update) = &mut answer.outcome {
                    update.params = uploaded(context, &**method, &update.params);
                }
                deliver(answer)
            })?;
        }
        Ok(())
    }

    fn save_states(&self, round: u32, like: &Params) -> Result<ClientStates> {
        let bundles = self.clients.save(round, like)?;
        Ok(ClientStates { trained_in: self.clients.trained_in(), bundles })
    }

    fn restore_states(&mut self, states: &ClientStates, like: &Params) -> Result<()> {
        for (client, bundle) in &states.bundles {
            let round = states.trained_in.get(client).copied().unwrap_or_default();
            self.clients.restore(*client, round, bundle, like)?;
        }
        Ok(())
    }
}
