//! The server's half of a round: broadcast, admission, aggregation, rollback, server update, test, record.

use super::admission::Admission;
use super::anchor_watch::AnchorWatch;
use super::clock::Clock;
use super::fleet::{Arrival, ClientKey, Delivery, Fleet, RoundTask};
use super::in_order::InOrder;
use super::intake::{Collected, Intake};
use super::learning_watch::{LearningWatch, RoundFacts};
use super::norms::UsualNorms;
use super::registry::Registry;
use super::setup::Federation;
use crate::aggregation::{Norms, Rule, RuleInputs};
use crate::error::{Error, Result};
use crate::labels::Anchors;
use crate::messages::{Broadcast, MessagePrecision};
use crate::methods::{MeanLosses, Properties, root_update, uploaded};
use crate::privacy::{Ledger, Secrecy};
use crate::server::{Evaluation, STEADIER, Server};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::InPhase;
use fedanchor_engine::tensors::Bundle;
use fedanchor_engine::training::Entered;
use fedanchor_record::{Losses, Outcome, RoundRecord, Timing};
use rand::RngExt;
use rand::seq::index::sample;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Runs rounds with a fleet. On a GPU, all work of its thread is on one queue while it lives.
pub struct Coordinator<'a> {
    /// The global model and its training on the anchors.
    pub server: Server<'a>,
    pub(super) federation: &'a Federation,
    pub(super) properties: Properties,
    pub(crate) state: CoordinatorState,
    /// How long a round waits for answers [default: until all have come].
    pub deadline: Option<Duration>,
    /// Clients that are asked beyond `client.per_round` [default: 0].
    pub ask: usize,
    /// Where the draws of a private run come from [default: the operating system].
    pub secrecy: Secrecy,
    /// Completes records with measurements that are in no message.
    pub(crate) measure: Option<Box<Measure<'a>>>,
    /// The server after pre-training, where the comparison needs it.
    pub(super) pretrained: Option<Pretrained>,
    /// Keeps this thread's work on the run's own queue of a GPU, where it can be captured.
    _queue: Option<Entered>,
}

/// Completes the record of a round; returns the pseudo-labels of its clients by class, empty if unknown.
pub type Measure<'a> = dyn Fn(&mut RoundRecord) -> Vec<u32> + 'a;

/// The coordinator's state without tensors; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoordinatorState {
    pub(crate) registry: Registry,
    watch: AnchorWatch,
    #[serde(default, alias = "lengths")]
    norms: UsualNorms,
    #[serde(default)]
    learning: LearningWatch,
    #[serde(default, skip_serializing_if = "Ledger::is_empty")]
    pub(crate) ledger: Ledger,
}

/// The server after pre-training, from where the comparison goes on.
#[derive(Debug)]
pub(super) struct Pretrained {
    pub(super) epochs: u32,
    pub(super) server: Bundle,
}

/// A finished round.
#[derive(Debug)]
#[allow(missing_docs)] // the types have comments
pub struct Finished {
    pub record: RoundRecord,
    pub timing: Timing,
    pub evaluation: Evaluation,
}

impl Federation {
    /// A coordinator before pre-training.
    pub fn coordinator(&self) -> Result<Coordinator<'_>> {
        let Self { experiment, context, method, anchors, .. } = self;
        let _queue = context.enter()?;
        let mut server = Server::new(experiment, context, anchors)?;
        method.start(&mut server)?;
        Ok(Coordinator {
            server,
            federation: self,
            properties: self.properties(),
            state: CoordinatorState::default(),
            deadline: None,
            ask: 0,
            secrecy: Secrecy::System,
            measure: None,
            pretrained: None,
            _queue,
        })
    }
}

impl Coordinator<'_> {
    /// One round of Algorithm 1, lines 4 to 11, and a test.
    pub fn round(&mut self, fleet: &mut dyn Fleet, round: u32) -> Result<Finished> {
        let _span = tracing::info_span!("round", round).entered();
        if let Some(epsilon) = self.beyond_budget() {
            let budget = self.federation.experiment.budget();
            let problem =
                format!("round {round} would cost {epsilon:.3} in all, more than {budget}");
            return Err(Error::config("privacy.epsilon", problem));
        }
        let mut clock = Clock::start(round);
        let drawn = self.draw(fleet, round)?;
        let broadcast = self.broadcast(round, &drawn)?;
        clock.timing.broadcast = clock.lap();
        let mut collected = self.collect(fleet, broadcast.as_ref(), &drawn, &mut clock)?;
        let mut record = self.open_record(round, &drawn, &mut collected);
        self.judge(&mut collected, &mut record)?;
        let losses = self.update(&record, &mut collected)?;
        let of_clients = if self.is_private() { Vec::new() } else { collected.mean_losses() };
        record.losses = self.losses(&of_clients, &losses);
        clock.timing.server += clock.lap();
        let evaluation = self.test_and_record(&mut record)?;
        clock.timing.test = clock.lap();
        record.notes.extend(self.state.norms.count_far_outside(&collected.far_outside));
        self.observe(&mut record, broadcast.as_ref())?;
        self.keep_private(&mut record);
        Ok(Finished { record, timing: clock.finish(&self.federation.context), evaluation })
    }

    /// Line 4: clients drawn at random without replacement, by rising number, without excluded ones.
    fn draw(&mut self, fleet: &mut dyn Fleet, round: u32) -> Result<Vec<(u32, ClientKey)>> {
        if !self.properties.clients {
            return Ok(Vec::new());
        }
        let Federation { experiment, context, .. } = self.federation;
        let members = fleet.members()?;
        let registry = &mut self.state.registry;
        let numbers: Vec<u32> = members.iter().map(|m| registry.join(&m.key)).collect();
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_unstable_by_key(|&at| numbers[at]);
        let mut drawn: Vec<usize> = if experiment.privacy.is_some() {
            // Each by itself, as the accountant assumes.
            let mut draws =
                self.secrecy.draws(context.streams(round).of(Purpose::Cohort, SERVER))?.0;
            order.into_iter().filter(|_| draws.random_bool(experiment.rate())).collect()
        } else {
            let mut rng = context.streams(round).of(Purpose::Cohort, SERVER).rng();
            let count = (experiment.client.per_round + self.ask).min(members.len());
            sample(&mut rng, members.len(), count).into_iter().map(|at| order[at]).collect()
        };
        drawn.sort_unstable_by_key(|&at| numbers[at]);
        drawn.retain(|&at| !self.is_excluded(numbers[at]));
        for &at in &drawn {
            self.state.registry.meet(numbers[at], members[at].samples);
        }
        Ok(drawn.into_iter().map(|at| (numbers[at], members[at].key.clone())).collect())
    }

    /// Line 5: the message to the drawn clients; `None` for a method without clients.
    fn broadcast(&mut self, round: u32, drawn: &[(u32, ClientKey)]) -> Result<Option<Broadcast>> {
        if round == self.properties.warm_up + 1 {
            (self.state.watch, self.state.norms) = Default::default(); // the clients' loss changes
        }
        let numbers: Vec<u32> = drawn.iter().map(|(number, _)| *number).collect();
        let mut broadcast = self.federation.method.broadcast(&self.server, round, &numbers)?;
        if let Some(broadcast) = &mut broadcast {
            let precision = self.federation.experiment.messages.precision;
            broadcast.rounded = precision != MessagePrecision::F32;
        }
        Ok(broadcast)
    }

    fn is_excluded(&self, client: u32) -> bool {
        self.state.registry.is_excluded(client, &self.federation.experiment.checks)
    }

    /// Lines 6 to 10: has the clients train, admits their answers and aggregates them.
    fn collect(
        &mut self,
        fleet: &mut dyn Fleet,
        broadcast: Option<&Broadcast>,
        clients: &[(u32, ClientKey)],
        clock: &mut Clock,
    ) -> Result<Collected> {
        let Some(broadcast) = broadcast else { return Ok(Collected::default()) };
        let Federation { experiment, context, method, .. } = self.federation;
        let Properties { ref client_losses, observes_updates: observes, summand, .. } =
            self.properties;
        let sent = uploaded(context, &**method, &broadcast.params);
        let rule = experiment.aggregation.rule.find()?;
        let root = rule.needs_root.then(|| root_update(&**method, &self.server, broadcast));
        let root = root.transpose()?;
        clock.timing.server += clock.lap();
        let lr = experiment.lr(broadcast.round);
        let norms = self.state.norms.at(lr);
        let usual = Norms::median(&norms);
        let summand = summand.and_then(|name| broadcast.models.get(name));
        let checks = &experiment.checks;
        let rule: Box<dyn Rule> = match &experiment.privacy {
            Some(privacy) => Box::new(self.private_mean(privacy, broadcast.round)?),
            None => {
                let hostile = experiment.aggregation.hostile;
                (rule.build)(RuleInputs { hostile, root, norms })
            }
        };
        let registry = &mut self.state.registry;
        let asked = clients.iter().map(|(number, _)| (*number, registry.samples(*number)));
        let asked = asked.collect();
        let admission = Admission::new(broadcast, asked, sent, summand, context, checks, usual)?;
        let mut collected = Collected::default();
        collected.asked = true;
        collected.losses.resize(client_losses.len(), Vec::new());
        let method = &**method;
        let intake = Intake { experiment, method, admission, rule, registry, observes, collected };
        let intake = RefCell::new(intake);
        let counts =
            |client: u32, bytes: &[u8]| intake.borrow().admission.would_count(client, bytes);
        // A private round has as many as were drawn, and waits for all of them.
        let enough =
            experiment.privacy.as_ref().map_or(experiment.client.per_round, |_| clients.len());
        // Starts with the clients' training, not with the round.
        let deadline = self.deadline.map(|wait| Instant::now() + wait);
        let task = RoundTask { broadcast, clients, deadline, enough, counts: &counts };
        let mut take = |client, arrival| intake.borrow_mut().take(client, arrival);
        let mut queue = InOrder::new(clients);
        fleet.train(&task, &mut |delivery| {
            clock.timing.clients += clock.lap();
            let late = deadline.is_some_and(|deadline| delivery.arrived > deadline);
            let arrival = match delivery.arrival {
                absent @ (Arrival::Absent | Arrival::Lost(_)) => absent, // nothing came, in time or not
                _ if late => Arrival::Late,
                arrival => arrival,
            };
            let delivery = Delivery { arrival, ..delivery };
            let done = queue.push(delivery, &mut take);
            clock.timing.aggregate += clock.lap();
            done
        })?;
        clock.timing.clients += clock.lap();
        queue.finish(&mut take)?;
        let mut collected = intake.into_inner().finish()?;
        for (client, _) in clients {
            collected.record.bytes_down += broadcast.encoded_len(*client)?;
        }
        match &experiment.privacy {
            Some(privacy) => self.publish(privacy, &collected.norms, broadcast.round)?,
            None => self.state.norms.push(&collected.norms, lr),
        }
        clock.timing.aggregate += clock.lap();
        Ok(collected)
    }

    /// The record of the answers.
    fn open_record(
        &self,
        round: u32,
        drawn: &[(u32, ClientKey)],
        collected: &mut Collected,
    ) -> RoundRecord {
        let numbers = || drawn.iter().map(|(number, _)| *number);
        RoundRecord {
            round,
            clients: numbers().filter(|_| collected.asked).collect(),
            excluded: numbers().filter(|&id| self.is_excluded(id)).collect(),
            ..std::mem::take(&mut collected.record)
        }
    }

    /// Whether the aggregate becomes the model: enough clients have answered, and the anchors do not contradict it.
    fn judge(&mut self, collected: &mut Collected, record: &mut RoundRecord) -> Result<()> {
        let checks = &self.federation.experiment.checks;
        // A private round is published, however few answer: noise hides their number.
        if !self.is_private() && collected.asked && collected.answers < checks.quorum {
            collected.aggregate = None;
            record.outcome = Outcome::NoQuorum;
        }
        let Some(aggregate) = collected.aggregate.as_ref().filter(|_| checks.anchor_margin > 0.0)
        else {
            return Ok(());
        };
        let before = self.server.anchor_accuracy(None)?;
        let after = self.server.anchor_accuracy(Some(aggregate))?;
        (record.anchor_accuracy_before, record.anchor_accuracy) = (Some(before), Some(after));
        let watch = &mut self.state.watch;
        if self.properties.warm_up == 0 {
            watch.start_at(before);
        }
        if watch.must_roll_back(record.round, after, checks.anchor_margin)? {
            record.outcome = Outcome::RolledBack;
        }
        record.notes.extend(watch.decline(before, after).map(|points| {
            format!(
                "the clients' updates make the model worse: over the last five rounds they cost \
                 {points:.0} points of accuracy on the anchors per round; check the clients, or try \
                 aggregation.rule=fltrust"
            )
        }));
        Ok(())
    }

    /// Lines 10 and 11: the aggregate becomes the model, which then learns from the anchors.
    fn update(&mut self, record: &RoundRecord, collected: &mut Collected) -> Result<MeanLosses> {
        if record.outcome != Outcome::Applied {
            return Ok(Vec::new());
        }
        let method = &*self.federation.method;
        for (client, update) in &collected.observed {
            method.observe_update(&mut self.server, *client, update)?;
        }
        method.server_update(&mut self.server, collected.aggregate.take(), record.round)
    }

    /// The losses of clients and server under the names that the method gives them.
    pub(super) fn losses(&self, clients: &[Option<f64>], server: &[Option<f64>]) -> Losses {
        let Properties { client_losses, server_losses, .. } = &self.properties;
        let sides = [("client", client_losses, clients), ("server", server_losses, server)];
        let named = sides.into_iter().flat_map(|(who, names, losses)| {
            let losses = losses.iter().copied().chain(std::iter::repeat(None));
            names.iter().zip(losses).map(move |(name, loss)| (format!("{who}_{name}"), loss))
        });
        named.collect()
    }

    /// Completes the record with measurements, and adds notes on a run that fails to learn.
    fn observe(&mut self, record: &mut RoundRecord, broadcast: Option<&Broadcast>) -> Result<()> {
        let classes = self.federation.context.classes;
        let measured = self.measure.as_ref().map_or(Vec::new(), |measure| measure(record));
        let anchors = broadcast.map(|sent| Anchors::take_from(&sent.arrays, classes));
        let alike = anchors.transpose()?.flatten().map(|anchors| anchors.mean_similarity(classes));
        let observed = RoundFacts {
            round: record.round,
            selected: (self.properties.selects && !self.properties.weighs && !self.is_private())
                .then_some((record.seen, record.kept)),
            labels: if measured.is_empty() { &record.label_counts } else { &measured },
            shares: &self.server.anchors.class_shares(classes),
            anchors: record.anchor_accuracy_before.zip(record.anchor_accuracy),
            alike: alike.transpose()?.flatten(),
        };
        let notes = self.state.learning.notes(&observed);
        record.notes.extend(notes);
        Ok(())
    }

    /// Tests the global model, with fresh statistics if they are static, as the next round broadcasts it.
    pub fn test(&mut self, round: u32) -> Result<Evaluation> {
        let statistics = self.federation.statistics.as_ref();
        self.server
            .measure_statistics(statistics.map(|(images, drawn)| (&**images, &drawn[..])))
            .in_phase("measuring batch norm statistics")?;
        let test = self.server.evaluate(&self.federation.test).in_phase("testing")?;
        self.server.check_finite(round, ("testing", STEADIER), &[test.loss])?;
        Ok(test)
    }

    /// Tests the global model and adds the results to the record, with the accuracy on the validation images.
    pub(super) fn test_and_record(&mut self, record: &mut RoundRecord) -> Result<Evaluation> {
        let test = self.test(record.round)?;
        (record.test_accuracy, record.test_loss) = (test.accuracy, test.loss);
        let validation = &self.federation.validation;
        if !validation.labels.is_empty() {
            let found = self.server.evaluate(validation).in_phase("validating")?;
            record.validation_accuracy = Some(found.accuracy);
        }
        Ok(test)
    }
}
