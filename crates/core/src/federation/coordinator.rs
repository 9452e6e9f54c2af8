//! The server's half of a round: broadcast, admission, aggregation, rollback, server update, test, record.

use super::admission::Admission;
use super::anchor_watch::AnchorWatch;
use super::fleet::{Arrival, ClientKey, Delivery, Fleet, RoundTask};
use super::in_order::InOrder;
use super::intake::{Collected, Intake};
use super::learning_watch::{LearningWatch, Observed};
use super::norms::UsualNorms;
use super::registry::Registry;
use super::setup::{Federation, LabelledImages};
use super::statistics::Clock;
use crate::aggregation::{Norms, RuleInputs};
use crate::error::Result;
use crate::labels::Anchors;
use crate::messages::Broadcast;
use crate::methods::{MeanLosses, Properties, root_update, uploaded};
use crate::server::{Evaluation, STEADIER, Server, check_finite};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::InPhase;
use fedanchor_engine::tensors::Bundle;
use fedanchor_engine::training::Entered;
use fedanchor_record::{Losses, Outcome, RoundRecord, Timing};
use rand::seq::index::sample;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Runs rounds with a fleet. On a GPU, all work of its thread is on one queue while it lives.
pub struct Coordinator<'a> {
    /// The global model and its training on the anchors.
    pub server: Server<'a>,
    pub(super) federation: &'a Federation,
    pub(super) properties: Properties,
    registry: Registry,
    watch: AnchorWatch,
    norms: UsualNorms,
    learning: LearningWatch,
    /// How long a round waits for answers [default: until all have come].
    pub deadline: Option<Duration>,
    /// Clients that are asked beyond those that are needed [default: 0].
    pub ask: usize,
    /// Completes records with what is measured beside the messages.
    measure: Option<Box<Measure<'a>>>,
    /// Keeps this thread's work on the run's own queue of a GPU, where it can be captured.
    _queue: Option<Entered>,
}

/// Completes the record of a round; returns the pseudo-labels of its clients by class, empty if unknown.
pub type Measure<'a> = dyn Fn(&mut RoundRecord) -> Vec<u32> + 'a;

/// What the coordinator remembers beside tensors; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoordinatorState {
    registry: Registry,
    watch: AnchorWatch,
    #[serde(default, alias = "lengths")]
    norms: UsualNorms,
    #[serde(default)]
    learning: LearningWatch,
}

/// A round that is over.
#[derive(Debug)]
pub struct Finished {
    /// What the algorithm did.
    pub record: RoundRecord,
    /// What the machine did.
    pub timing: Timing,
    /// The test.
    pub evaluation: Evaluation,
}

impl<'a> Coordinator<'a> {
    /// A coordinator before pre-training.
    pub(super) fn new(federation: &'a Federation) -> Result<Self> {
        let Federation { experiment, context, method, .. } = federation;
        let _queue = context.enter()?;
        let mut server = Server::new(experiment, context, federation.anchors())?;
        method.start(&mut server)?;
        let (registry, watch, norms, learning) = Default::default();
        let (deadline, ask, measure) = (None, 0, None);
        let properties = method.properties();
        Ok(Self {
            server,
            federation,
            properties,
            registry,
            watch,
            norms,
            learning,
            deadline,
            ask,
            measure,
            _queue,
        })
    }

    /// Has every record completed with what is measured beside the messages.
    pub fn measured_by(mut self, measure: impl Fn(&mut RoundRecord) -> Vec<u32> + 'a) -> Self {
        self.measure = Some(Box::new(measure));
        self
    }

    /// One round of Algorithm 1, lines 4 to 11, and a test.
    pub fn round(&mut self, fleet: &mut dyn Fleet, round: u32) -> Result<Finished> {
        let _span = tracing::info_span!("round", round).entered();
        let mut clock = Clock::start(round);
        let drawn = self.draw(fleet, round)?;
        let broadcast = self.broadcast(round, &drawn)?;
        clock.timing.broadcast = clock.lap();
        if round == self.properties.warm_up + 1 {
            (self.watch, self.norms) = Default::default(); // what clients learn is of another kind
        }
        let mut collected = self.collect(fleet, broadcast.as_ref(), &drawn, &mut clock)?;
        let mut judgement = self.judge(round, &mut collected)?;
        let losses = self.update(round, &judgement, &mut collected)?;
        clock.timing.server += clock.lap();
        let evaluation = self.test(round)?;
        let validation_accuracy = self.validate()?;
        clock.timing.test = clock.lap();
        judgement.notes.extend(self.norms.count_far_outside(&collected.statistics.far_outside));
        let record = self.record(&broadcast, &drawn, collected, judgement, losses);
        let record = RoundRecord { round, validation_accuracy, ..tested(record, &evaluation) };
        let record = self.measure(record, broadcast.as_ref())?;
        Ok(Finished { record, timing: clock.finish(&self.federation.context), evaluation })
    }

    /// Line 5: what the drawn clients receive.
    fn broadcast(&self, round: u32, drawn: &[(u32, ClientKey)]) -> Result<Option<Broadcast>> {
        let numbers: Vec<u32> = drawn.iter().map(|(number, _)| *number).collect();
        self.federation.method.broadcast(&self.server, round, &numbers)
    }

    /// Whether the aggregate becomes the model: enough clients have answered, and the anchors do not contradict it.
    fn judge(&mut self, round: u32, collected: &mut Collected) -> Result<Judgement> {
        let checks = &self.federation.experiment.checks;
        let mut judgement = Judgement::default();
        if collected.asked && collected.statistics.answers < checks.quorum {
            collected.aggregate = None;
            judgement.outcome = Outcome::NoQuorum;
        }
        let Some(aggregate) = &collected.aggregate else { return Ok(judgement) };
        if checks.anchor_margin == 0.0 {
            return Ok(judgement);
        }
        let before = self.server.anchor_accuracy(None)?;
        let after = self.server.anchor_accuracy(Some(aggregate))?;
        judgement.anchor_accuracy = Some((before, after));
        if self.watch.is_new() && self.properties.warm_up == 0 {
            self.watch = AnchorWatch::starting_at(before);
        }
        if self.watch.must_roll_back(round, after, checks)? {
            judgement.outcome = Outcome::RolledBack;
        }
        if let Some(points) = self.watch.decline(before, after) {
            judgement.notes.push(format!(
                "the clients' updates make the model worse: over the last five rounds they cost \
                 {points:.0} points of accuracy on the anchors per round; check the clients, or try \
                 aggregation.rule=fltrust"
            ));
        }
        Ok(judgement)
    }

    /// Lines 10 and 11: the aggregate becomes the model, which then learns from the anchors.
    fn update(
        &mut self,
        round: u32,
        judgement: &Judgement,
        collected: &mut Collected,
    ) -> Result<MeanLosses> {
        if judgement.outcome != Outcome::Applied {
            return Ok(Vec::new());
        }
        let method = &*self.federation.method;
        for (client, update) in &collected.observed {
            method.observe_update(&mut self.server, *client, update.update())?;
        }
        method.server_update(&mut self.server, collected.aggregate.take(), round)
    }

    fn record(
        &self,
        broadcast: &Option<Broadcast>,
        drawn: &[(u32, ClientKey)],
        collected: Collected,
        judgement: Judgement,
        losses: MeanLosses,
    ) -> RoundRecord {
        let statistics = collected.statistics;
        let checks = &self.federation.experiment.checks;
        let numbers = || drawn.iter().map(|(number, _)| *number);
        RoundRecord {
            clients: if broadcast.is_some() { numbers().collect() } else { Vec::new() },
            trained: statistics.trained,
            seen: statistics.seen,
            kept: statistics.kept,
            kept_deviation: statistics.kept_deviation(),
            losses: self.losses(&statistics.losses(), &losses),
            label_counts: statistics.labels,
            bytes_down: statistics.bytes_down,
            bytes_up: statistics.bytes_up,
            anchor_accuracy_before: judgement.anchor_accuracy.map(|(before, _)| before),
            anchor_accuracy: judgement.anchor_accuracy.map(|(_, after)| after),
            rejected: statistics.rejected,
            absent: statistics.absent,
            lost: statistics.lost,
            clipped: statistics.clipped,
            failed: statistics.failed,
            excluded: numbers().filter(|&id| self.registry.is_excluded(id, checks)).collect(),
            outcome: judgement.outcome,
            notes: judgement.notes,
            ..RoundRecord::default()
        }
    }

    /// The losses of clients and server under the names that the method gives them.
    pub(super) fn losses(&self, clients: &[Option<f64>], server: &[Option<f64>]) -> Losses {
        let Properties { client_losses, server_losses, .. } = self.properties;
        let named = |who: &'static str, names: &'static [&'static str], losses: &[Option<f64>]| {
            let losses: MeanLosses = losses.to_vec();
            (0..).zip(names).map(move |(at, name)| {
                (format!("{who}_{name}"), losses.get(at as usize).copied().flatten())
            })
        };
        let client = named("client", client_losses, clients);
        client.chain(named("server", server_losses, server)).collect()
    }

    /// Completes the record with what is measured, and adds notes on a run that fails to learn.
    fn measure(
        &mut self,
        mut record: RoundRecord,
        broadcast: Option<&Broadcast>,
    ) -> Result<RoundRecord> {
        let Federation { context, .. } = self.federation;
        let measured = self.measure.as_ref().map_or(Vec::new(), |measure| measure(&mut record));
        let anchors = match broadcast {
            Some(broadcast) => Anchors::take_from(&broadcast.arrays, context.classes)?,
            None => None,
        };
        let alike = anchors.map(|anchors| anchors.mean_similarity(context.classes)).transpose()?;
        let observed = Observed {
            round: record.round,
            selected: self.properties.selects.then_some((record.seen, record.kept)),
            labels: if measured.is_empty() { &record.label_counts } else { &measured },
            shares: &self.server.anchors.class_shares(context.classes),
            anchors: record.anchor_accuracy_before.zip(record.anchor_accuracy),
            alike: alike.flatten(),
        };
        let notes = self.learning.notes(&observed);
        record.notes.extend(notes);
        Ok(record)
    }

    /// Line 4: clients drawn at random without replacement, by rising number; excluded ones are left
    /// out.
    fn draw(&mut self, fleet: &mut dyn Fleet, round: u32) -> Result<Vec<(u32, ClientKey)>> {
        if !self.properties.clients {
            return Ok(Vec::new());
        }
        let Federation { experiment, context, .. } = self.federation;
        let members = fleet.members()?;
        let numbers: Vec<u32> = members.iter().map(|m| self.registry.join(&m.key)).collect();
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_unstable_by_key(|&at| numbers[at]);
        let mut rng = context.streams(round).of(Purpose::Cohort, SERVER).rng();
        let count = (experiment.client.per_round + self.ask).min(members.len());
        let mut drawn: Vec<usize> =
            sample(&mut rng, members.len(), count).into_iter().map(|at| order[at]).collect();
        drawn.sort_unstable_by_key(|&at| numbers[at]);
        drawn.retain(|&at| !self.registry.is_excluded(numbers[at], &experiment.checks));
        for &at in &drawn {
            self.registry.meet(numbers[at], members[at].samples);
        }
        Ok(drawn.into_iter().map(|at| (numbers[at], members[at].key.clone())).collect())
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
        let sent = uploaded(context, &**method, &broadcast.params);
        let rule = experiment.aggregation.rule.find()?;
        let root = match rule.needs_root {
            true => Some(root_update(&**method, &self.server, broadcast)?),
            false => None,
        };
        clock.timing.server += clock.lap();
        let mut collected = Collected { asked: true, ..Collected::default() };
        for (client, _) in clients {
            collected.statistics.bytes_down += broadcast.encoded_len(*client)?;
        }
        let lr = experiment.lr(broadcast.round);
        let norms = self.norms.at(lr);
        let usual = Norms::median(&norms);
        let summand = method.summand(broadcast);
        let checks = &experiment.checks;
        let hostile = experiment.aggregation.hostile;
        let intake = RefCell::new(Intake {
            experiment,
            admission: Admission::new(broadcast, clients, sent, summand, context, checks, usual)?,
            rule: (rule.build)(RuleInputs { hostile, root, norms }),
            registry: &mut self.registry,
            observes: self.properties.observes_updates,
            losses: self.properties.client_losses.len(),
            trained: BTreeSet::new(),
            rejected: BTreeSet::new(),
            collected,
        });
        let counts = |client: u32, bytes: &[u8]| intake.borrow().would_count(client, bytes);
        let enough = experiment.client.per_round;
        // Of the clients' time: what the server does before does not count.
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
        let Intake { admission, rule, mut collected, .. } = intake.into_inner();
        collected.aggregate = rule.finish(admission.sent())?;
        self.norms.push(&collected.norms, lr);
        clock.timing.aggregate += clock.lap();
        Ok(collected)
    }

    /// Tests the global model, with fresh statistics where they are static. The next round broadcasts
    /// the same model with these.
    pub fn test(&mut self, round: u32) -> Result<Evaluation> {
        let statistics = self.federation.statistics.as_ref();
        self.server
            .measure_statistics(statistics.map(|(images, drawn)| (&**images, &drawn[..])))
            .in_phase("measuring batch norm statistics")?;
        let (images, labels) = self.federation.test();
        let test = self.server.evaluate(images, labels).in_phase("testing")?;
        let parameter = self.server.not_finite()?;
        check_finite(round, ("testing", STEADIER), &[test.loss], parameter.as_deref())?;
        Ok(test)
    }

    /// The accuracy on the validation images, in percent, where there are any.
    pub(super) fn validate(&self) -> Result<Option<f64>> {
        let LabelledImages { images, labels, .. } = &self.federation.validation;
        if images.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.server.evaluate(images, labels).in_phase("validating")?.accuracy))
    }

    /// What a run needs to continue after this round.
    pub(crate) fn save(&self) -> Result<(CoordinatorState, Bundle)> {
        let state = CoordinatorState {
            registry: self.registry.clone(),
            watch: self.watch.clone(),
            norms: self.norms.clone(),
            learning: self.learning.clone(),
        };
        Ok((state, self.server.save()?))
    }

    /// The clients that were met before.
    pub(crate) fn known_clients(&self) -> &[ClientKey] {
        self.registry.keys()
    }

    /// Continues where a checkpoint was written.
    pub(crate) fn restore(&mut self, state: &CoordinatorState, server: &Bundle) -> Result<()> {
        self.server.restore(server)?;
        self.registry = state.registry.clone();
        self.watch = state.watch.clone();
        self.norms = state.norms.clone();
        self.learning = state.learning.clone();
        Ok(())
    }
}

/// What became of an aggregate.
#[derive(Default)]
struct Judgement {
    outcome: Outcome,
    /// Accuracy on the anchors before and after aggregation, where it is checked.
    anchor_accuracy: Option<(f64, f64)>,
    notes: Vec<String>,
}

/// The record with the test of its model.
pub(super) fn tested(record: RoundRecord, test: &Evaluation) -> RoundRecord {
    RoundRecord { test_accuracy: test.accuracy, test_loss: test.loss, ..record }
}
