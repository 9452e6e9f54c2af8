//! The server's half of a round: broadcast, admission, aggregation, rollback, server update, test, record.

use super::admission::Admission;
use super::aggregation::{Aggregation, Known};
use super::anchor_watch::AnchorWatch;
use super::fleet::{Arrival, ClientKey, Delivery, Fleet, Picked, RoundTask};
use super::in_order::InOrder;
use super::intake::{Collected, Intake};
use super::learning_watch::{Facts, LearningWatch};
use super::lengths::{Lengths, UsualLengths};
use super::registry::Registry;
use super::statistics::{Stopwatch, peak_memory};
use crate::config::{AggregationRule, Experiment};
use crate::error::Result;
use crate::labels::AnchorSet;
use crate::messages::Broadcast;
use crate::methods::{Method, root_update, uploaded};
use crate::server::{Evaluation, STEADIER, Server, check_finite};
use fedanchor_data::stream::SERVER;
use fedanchor_data::{ImageSet, Purpose};
use fedanchor_engine::InPhase;
use fedanchor_engine::tensors::{Bundle, Params};
use fedanchor_engine::training::{Context, Entered};
use fedanchor_record::{Losses, Outcome, RoundRecord, Timing};
use rand::seq::index::sample;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What the server has.
#[derive(Debug, Clone, Copy)]
pub struct ServerData<'a> {
    /// The labelled images it trains on.
    pub anchors: AnchorSet<'a>,
    /// The images it tests on.
    pub test: &'a ImageSet,
    /// Their labels.
    pub test_labels: &'a [u16],
    /// The labelled images that settings are chosen by, where there are any.
    pub validation: Option<(&'a ImageSet, &'a [u16])>,
    /// All images that are trained on, for `batch_norm.statistics = "static-all"`: a simulation has them, a
    /// server does not.
    pub all: Option<(&'a ImageSet, &'a [u32])>,
}

/// Runs rounds with a fleet. On a GPU, all work of its thread is on one queue while it lives.
pub struct Coordinator<'a> {
    /// The global model and its training on the anchors.
    pub server: Server<'a>,
    pub(super) experiment: &'a Experiment,
    context: &'a Context,
    pub(super) method: &'a dyn Method,
    pub(super) data: ServerData<'a>,
    registry: Registry,
    watch: AnchorWatch,
    lengths: UsualLengths,
    learning: LearningWatch,
    /// How long a round waits for answers [default: until all have come].
    pub deadline: Option<Duration>,
    /// Clients that are asked beyond those that are needed [default: 0].
    pub ask: usize,
    /// Keeps this thread's work on the run's own queue of a GPU, where it can be captured.
    _queue: Option<Entered>,
}

/// What the coordinator remembers beside tensors; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoordinatorState {
    registry: Registry,
    watch: AnchorWatch,
    #[serde(default)]
    lengths: UsualLengths,
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
    /// The samples that a person should see, where `record.samples` asks for them and clients labelled.
    pub picked: Option<Picked>,
}

impl<'a> Coordinator<'a> {
    /// A coordinator before pre-training.
    pub fn new(
        experiment: &'a Experiment,
        context: &'a Context,
        method: &'a dyn Method,
        data: ServerData<'a>,
    ) -> Result<Self> {
        let _queue = context.enter()?;
        let mut server = Server::new(experiment, context, data.anchors)?;
        method.start(&mut server)?;
        let (registry, watch, lengths, learning) = Default::default();
        let (deadline, ask) = (None, 0);
        Ok(Self {
            server,
            experiment,
            context,
            method,
            data,
            registry,
            watch,
            lengths,
            learning,
            deadline,
            ask,
            _queue,
        })
    }

    /// One round of Algorithm 1, lines 4 to 11, and a test.
    pub fn round(&mut self, fleet: &mut dyn Fleet, round: u32) -> Result<Finished> {
        let _span = tracing::info_span!("round", round).entered();
        let (mut watch, mut timing) = (Stopwatch::start(), Timing { round, ..Timing::default() });
        let drawn = if self.method.has_clients() { self.draw(fleet, round)? } else { Vec::new() };
        let numbers: Vec<u32> = drawn.iter().map(|(number, _)| *number).collect();
        let broadcast = self.method.broadcast(&self.server, round, &numbers)?;
        timing.broadcast = watch.lap();

        if self.method.starts_anew(round) {
            (self.watch, self.lengths) = Default::default();
        }
        let mut collected = Collected::default();
        let mut outcome = Outcome::Applied;
        let mut aggregate = None;
        if let Some(broadcast) = &broadcast {
            let shares = (&mut watch, &mut timing);
            (collected, aggregate) = self.collect(fleet, broadcast, &drawn, shares)?;
            if collected.statistics.answers < self.experiment.checks.quorum {
                (outcome, aggregate) = (Outcome::NoQuorum, None);
            }
            timing.aggregate += watch.lap();
        }

        let (mut anchor_accuracy, mut notes) = ((None, None), Vec::new());
        if let Some(aggregate) = &aggregate
            && self.experiment.checks.anchor_margin > 0.0
        {
            let before = self.server.anchor_accuracy(None)?;
            let after = self.server.anchor_accuracy(Some(aggregate))?;
            anchor_accuracy = (Some(before), Some(after));
            // In a warm-up the anchors say nothing.
            let warm_up =
                || (2..=self.experiment.rounds).any(|later| self.method.starts_anew(later));
            if self.watch.is_new() && !warm_up() {
                self.watch = AnchorWatch::starting_at(before);
            }
            if self.watch.must_roll_back(round, after, &self.experiment.checks)? {
                outcome = Outcome::RolledBack;
            }
            if let Some(points) = self.watch.decline(before, after) {
                notes.push(format!(
                    "the clients' updates make the model worse: over the last five rounds they cost \
                     {points:.0} points of accuracy on the anchors per round; check the clients, or try \
                     aggregation.rule=fltrust"
                ));
            }
        }
        let mut losses = Losses::default();
        if outcome == Outcome::Applied {
            for (client, update) in &collected.observed {
                self.method.observe_update(&mut self.server, *client, update.update())?;
            }
            losses = self.method.server_update(&mut self.server, aggregate, round)?;
            self.server.update_average(round)?;
        }
        timing.server += watch.lap();
        let evaluation = self.test(round)?;
        let validation_accuracy = self.validate()?;
        timing.test = watch.lap();

        let statistics = collected.statistics;
        notes.extend(self.lengths.count_far_outside(&statistics.far_outside));
        let clients = statistics.losses();
        (losses.client_fix, losses.client_mix) = (clients.fix, clients.mix);
        let checks = &self.experiment.checks;
        let excluded = numbers.iter().copied().filter(|&id| self.registry.is_excluded(id, checks));
        let excluded = excluded.collect();
        let known = fleet.observed().filter(|_| broadcast.is_some()).unwrap_or_default();
        let facts = Facts {
            round,
            selected: self.method.selects().then_some((statistics.seen, statistics.kept)),
            labels: if known.labels.is_empty() { &statistics.labels } else { &known.labels },
            shares: &self.data.anchors.class_shares(self.context.classes),
            anchors: anchor_accuracy.0.zip(anchor_accuracy.1),
            alike: match broadcast.as_ref().and_then(|broadcast| broadcast.anchors.as_ref()) {
                Some(anchors) => anchors.mean_similarity(self.context.classes)?,
                None => None,
            },
        };
        notes.extend(self.learning.notes(&facts));
        let record = RoundRecord {
            clients: if broadcast.is_some() { numbers } else { Vec::new() },
            trained: statistics.trained,
            seen: statistics.seen,
            kept: statistics.kept,
            kept_deviation: statistics.kept_deviation(),
            label_counts: statistics.labels,
            anchor_head: known.anchor_head,
            classifier_head: known.classifier_head,
            losses,
            bytes_down: statistics.bytes_down,
            bytes_up: statistics.bytes_up,
            anchor_accuracy_before: anchor_accuracy.0,
            anchor_accuracy: anchor_accuracy.1,
            rejected: statistics.rejected,
            absent: statistics.absent,
            lost: statistics.lost,
            shortened: statistics.shortened,
            failed: statistics.failed,
            excluded,
            outcome,
            notes,
            validation_accuracy,
            ..empty_record(round, &evaluation)
        };
        let timing = self.finish_timing(&watch, timing);
        let picked = known.picked.map(|samples| Picked { round, samples });
        Ok(Finished { record, timing, evaluation, picked })
    }

    /// Line 4: clients drawn at random without replacement, by rising number; excluded ones are left
    /// out.
    fn draw(&mut self, fleet: &mut dyn Fleet, round: u32) -> Result<Vec<(u32, ClientKey)>> {
        let members = fleet.members()?;
        let numbers: Vec<u32> = members.iter().map(|m| self.registry.join(&m.key)).collect();
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_unstable_by_key(|&at| numbers[at]);
        let mut rng = self.context.streams(round).of(Purpose::Cohort, SERVER).rng();
        let count = (self.experiment.client.per_round + self.ask).min(members.len());
        let mut drawn: Vec<usize> =
            sample(&mut rng, members.len(), count).into_iter().map(|at| order[at]).collect();
        drawn.sort_unstable_by_key(|&at| numbers[at]);
        drawn.retain(|&at| !self.registry.is_excluded(numbers[at], &self.experiment.checks));
        for &at in &drawn {
            self.registry.meet(numbers[at], members[at].samples);
        }
        Ok(drawn.into_iter().map(|at| (numbers[at], members[at].key.clone())).collect())
    }

    /// Lines 6 to 10: has the clients train, admits their answers and aggregates them.
    fn collect(
        &mut self,
        fleet: &mut dyn Fleet,
        broadcast: &Broadcast,
        clients: &[(u32, ClientKey)],
        (watch, timing): (&mut Stopwatch, &mut Timing),
    ) -> Result<(Collected, Option<Params>)> {
        let Self { experiment, context, method, .. } = *self;
        let sent = uploaded(context, method, &broadcast.params);
        let root = match experiment.aggregation.rule {
            AggregationRule::Fltrust => Some(root_update(method, &self.server, broadcast)?),
            _ => None,
        };
        timing.server += watch.lap();
        let mut collected = Collected::default();
        for (client, _) in clients {
            collected.statistics.bytes_down += broadcast.encoded_len(*client)?;
        }
        let lr = experiment.lr(broadcast.round);
        let lengths = self.lengths.at(lr);
        let intake = RefCell::new(Intake {
            experiment,
            admission: Admission::new(
                broadcast,
                clients,
                sent,
                method.summand(broadcast),
                context,
                &experiment.checks,
                Lengths::median(&lengths),
            )?,
            aggregation: Aggregation::new(&experiment.aggregation, Known { root, lengths }),
            registry: &mut self.registry,
            observes: method.observes_updates(),
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
            timing.clients += watch.lap();
            let late = deadline.is_some_and(|deadline| delivery.arrived > deadline);
            let arrival = match delivery.arrival {
                absent @ (Arrival::Absent | Arrival::Lost(_)) => absent, // nothing came, in time or not
                _ if late => Arrival::Late,
                arrival => arrival,
            };
            let delivery = Delivery { arrival, ..delivery };
            let done = queue.push(delivery, &mut take);
            timing.aggregate += watch.lap();
            done
        })?;
        timing.clients += watch.lap();
        queue.finish(&mut take)?;
        let Intake { admission, aggregation, collected, .. } = intake.into_inner();
        let aggregate = aggregation.finish(admission.sent())?;
        self.lengths.push(&collected.lengths, lr);
        Ok((collected, aggregate))
    }

    /// Tests the global model, with fresh statistics where they are static. The next round broadcasts
    /// the same model with these.
    pub fn test(&mut self, round: u32) -> Result<Evaluation> {
        self.server
            .measure_statistics(self.data.all)
            .in_phase("measuring batch norm statistics")?;
        let test = self.server.evaluate(self.data.test, self.data.test_labels);
        let test = test.in_phase("testing")?;
        let parameter = self.server.not_finite()?;
        check_finite(round, ("testing", STEADIER), &[test.loss], parameter.as_deref())?;
        Ok(test)
    }

    /// The accuracy on the validation images, in percent, where there are any.
    pub(super) fn validate(&self) -> Result<Option<f64>> {
        let Some((images, labels)) = self.data.validation else { return Ok(None) };
        Ok(Some(self.server.evaluate(images, labels).in_phase("validating")?.accuracy))
    }

    pub(super) fn finish_timing(&self, watch: &Stopwatch, timing: Timing) -> Timing {
        Timing {
            total: watch.total(),
            peak_memory: peak_memory(),
            peak_gpu_memory: self.context.peak_gpu_memory(),
            ..timing
        }
    }

    /// What a run needs to continue after this round.
    pub(crate) fn save(&self) -> Result<(CoordinatorState, Bundle)> {
        let state = CoordinatorState {
            registry: self.registry.clone(),
            watch: self.watch.clone(),
            lengths: self.lengths.clone(),
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
        self.lengths = state.lengths.clone();
        self.learning = state.learning.clone();
        Ok(())
    }
}

pub(super) fn empty_record(round: u32, test: &Evaluation) -> RoundRecord {
    let (test_accuracy, test_loss) = (test.accuracy, test.loss);
    RoundRecord { round, test_accuracy, test_loss, ..RoundRecord::default() }
}
