//! A federation in one process: it plays the network between the server and its clients, and it
//! alone knows the clients' true labels, to measure pseudo-labels by.

use crate::aggregation::Aggregator;
use crate::anchors::AnchorSet;
use crate::checkpoint::{About, Checkpoint, Found};
use crate::config::{Experiment, MethodConfig, Schedule, Threshold, ThresholdRule};
use crate::config::{Weights, WithoutSamples};
use crate::crew;
use crate::door::{Door, Offence};
use crate::error::{Error, InPhase, Result};
use crate::faults::Faults;
use crate::labels::PseudoLabels;
use crate::ledger::Ledger;
use crate::load;
use crate::method::{Broadcast, Client, ClientReport, Cohort, Kept, Method, Update, goes_up};
use crate::params::Params;
use crate::server::{Evaluation, Server};
use crate::setting::Setting;
use crate::tally::{Tally, Watch, peak_memory};
use crate::training::check_finite;
use fedanchor_data::split::Split;
use fedanchor_data::stream::SERVER;
use fedanchor_data::{DataSet, ImageSet, Partition, Purpose};
use fedanchor_record::{Dropped, LabelAccuracy, Losses, Outcome, RoundRecord, Timing};
use rand::seq::index::sample;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tch::Device;

/// Data, partition and setting of a simulated federation.
#[derive(Debug)]
pub struct Simulation {
    /// What does not change.
    pub setting: Setting,
    /// Which images are anchors.
    pub split: Split,
    /// Which images are whose.
    pub partition: Partition,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Training images without their labels: clients cannot see what they must not.
    images: ImageSet,
    truth: Vec<u16>,
    faults: Faults,
    anchor_labels: Vec<u16>,
    test: ImageSet,
    test_labels: Vec<u16>,
}

/// What a run carries from round to round.
#[derive(Debug)]
pub struct State<'a> {
    /// The server.
    pub server: Server<'a>,
    /// What the server remembers of its clients.
    ledger: Ledger,
    /// What clients keep from round to round, and the round they last trained in.
    kept: BTreeMap<u32, (u32, Kept)>,
    /// Clients trained as one network. On a CPU each is a network of its own, and the cores share the
    /// clients: a grouped convolution is slower there than the plain ones it stands for, and small
    /// operations gain little from being split over cores. On a GPU as many as keep it busy, and half
    /// as many whenever they turn out not to fit.
    cohort: usize,
}

impl State<'_> {
    /// What a run needs to go on after this round.
    pub(crate) fn save(&self, about: About) -> Result<Checkpoint> {
        let clients = self.kept.iter().map(|(&client, (round, _))| (client, *round)).collect();
        let about = About { clients, ledger: self.ledger.clone(), ..about };
        let trained = self.kept.iter().filter(|(_, (round, _))| *round == about.round);
        let bundles = trained.map(|(&id, (_, kept))| Ok((id, kept.save(&self.server.params)?)));
        let bundles = bundles.collect::<Result<_>>()?;
        Ok(Checkpoint { about, server: self.server.save()?, clients: bundles })
    }

    /// Has every client give its number of samples anew.
    pub(crate) fn forget_sizes(&mut self) {
        self.ledger.sizes.clear();
    }

    /// Takes up where a checkpoint was written.
    pub(crate) fn restore(&mut self, found: &Found) -> Result<()> {
        self.server.restore(&found.server)?;
        self.ledger = found.about.ledger.clone();
        for (client, bundle) in &found.clients {
            let round = found.about.clients.get(client).copied().unwrap_or_default();
            let kept = Kept::restore(bundle, &self.server.params)?;
            self.kept.insert(*client, (round, kept));
        }
        Ok(())
    }
}

/// Clients of a cohort on a GPU: more do not make it faster, and memory stays the same however many
/// take part in a round.
const GPU_COHORT: usize = 64;

impl Experiment {
    /// Whether what a round does depends on how many there are to be.
    pub(crate) fn spans_all_rounds(&self) -> bool {
        let quantile = match &self.method {
            MethodConfig::Fedanchor(method) => {
                matches!(method.threshold, Threshold::Rule(ThresholdRule::Quantile { .. }))
            }
            _ => false,
        };
        self.optimiser.schedule == Schedule::Cosine || quantile
    }

    /// The learning rate of a round.
    pub fn lr(&self, round: u32) -> f64 {
        let lr = self.optimiser.lr;
        match self.optimiser.schedule {
            Schedule::Constant => lr,
            Schedule::Cosine => {
                let done = f64::from(round.saturating_sub(1)) / f64::from(self.rounds);
                lr * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        }
    }
}

impl Simulation {
    /// Draws anchors and clients and builds the network's description.
    pub fn new(experiment: Experiment, data: DataSet, workers: Option<usize>) -> Result<Self> {
        let (split, partition) = load::assign(&experiment, &data)?;
        let DataSet { mut train, test, normalisation, flip, .. } = data;
        let truth = train.labels.take().unwrap_or_default(); // `assign` has seen that they are there
        let test_labels = test.require_labels("testing")?.to_vec();
        let classes = train.classes.clone();
        let setting =
            Setting::new(experiment, train.shape, classes.len(), &normalisation, flip, workers)?;
        let faults = Faults::new(&setting.experiment);
        let anchor_labels = split.anchors.iter().map(|&index| truth[index as usize]).collect();
        Ok(Self {
            setting,
            split,
            partition,
            classes,
            images: train,
            faults,
            truth,
            anchor_labels,
            test,
            test_labels,
        })
    }

    /// Puts this thread's work on the run's own queue of a GPU, until the answer is dropped. Rounds
    /// on a GPU need it: work on the common queue cannot be captured.
    pub fn enter(&self) -> Result<Option<fedanchor_graph::Entered>> {
        self.setting.enter()
    }

    /// Images of every class on every client.
    pub fn histogram(&self) -> Vec<Vec<u32>> {
        self.partition.histogram(&self.truth, self.classes.len())
    }

    /// The state before pre-training.
    pub fn start(&self) -> Result<State<'_>> {
        let anchors = AnchorSet {
            images: &self.images,
            local: &self.split.anchors,
            labels: &self.anchor_labels,
        };
        Ok(State {
            server: Server::new(&self.setting, anchors)?,
            ledger: Ledger::default(),
            kept: BTreeMap::new(),
            cohort: if self.setting.device == Device::Cpu { 1 } else { GPU_COHORT },
        })
    }

    /// Round 0: pre-training on the anchors, then a test. It ends after an epoch if someone asks to stop.
    pub fn pretrain(
        &self,
        state: &mut State,
        method: &dyn Method,
        stop: &AtomicBool,
    ) -> Result<(RoundRecord, Timing, Evaluation)> {
        let (mut watch, mut timing) = (Watch::start(), Timing::default());
        let mut losses = Losses::default();
        for epoch in 0..self.setting.experiment.pretrain.epochs {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            losses = method.pretrain(&mut state.server, epoch)?;
        }
        state.server.forget_momentum();
        timing.server = watch.lap();
        let test = self.test(state, 0)?;
        timing.test = watch.lap();
        let record = RoundRecord {
            round: 0,
            test_accuracy: test.accuracy,
            test_loss: test.loss,
            clients: Vec::new(),
            trained: 0,
            seen: 0,
            kept: 0,
            anchor_head: LabelAccuracy::default(),
            classifier_head: LabelAccuracy::default(),
            losses,
            bytes_down: 0,
            bytes_up: 0,
            anchor_accuracy: None,
            dropped: Vec::new(),
            set_aside: Vec::new(),
            outcome: Outcome::Taken,
        };
        Ok((record, self.finish(&watch, timing), test))
    }

    /// One round of Algorithm 1, lines 4 to 11, and a test.
    pub fn round(
        &self,
        state: &mut State,
        method: &dyn Method,
        round: u32,
    ) -> Result<(RoundRecord, Timing, Evaluation)> {
        let (mut watch, mut timing) = (Watch::start(), Timing { round, ..Timing::default() });
        let broadcast = method.broadcast(&state.server, round)?;
        timing.broadcast = watch.lap();

        let (mut drawn, mut tally, mut mean) = (Vec::new(), Tally::default(), None);
        let (mut outcome, mut set_aside) = (Outcome::Taken, Vec::new());
        if let Some(broadcast) = &broadcast {
            let checks = &self.setting.experiment.checks;
            drawn = self.draw_clients(round);
            drawn.retain(|&client| !state.ledger.is_set_aside(client, checks));
            for &client in &drawn {
                state.ledger.meet(client, self.partition.clients[client as usize].len());
            }
            let intake;
            (tally, intake) = loop {
                let shares = (&mut watch, &mut timing);
                match self.train_clients(state, method, broadcast, &drawn, round, shares) {
                    Err(Error::OutOfMemory { .. }) if state.cohort.min(drawn.len()) > 1 => {
                        state.cohort = state.cohort.min(drawn.len()).div_ceil(2);
                        self.setting.start_smaller(state.cohort)?;
                    }
                    outcome => break outcome?,
                }
            };
            let kept = tally.kept_by_clients.drain(..);
            state.kept.extend(kept.map(|(client, kept)| (client, (round, kept))));
            state.ledger = intake.ledger;
            set_aside.extend(drawn.iter().filter(|&&id| state.ledger.is_set_aside(id, checks)));
            if tally.answers < checks.quorum {
                outcome = Outcome::NoQuorum;
            } else {
                mean = intake.aggregator.finish(intake.door.sent())?;
            }
            timing.aggregate += watch.lap();
        }
        let mut anchor_accuracy = None;
        if let Some(mean) = &mean {
            anchor_accuracy = state.server.accuracy_with(mean)?;
            if let Some(accuracy) = anchor_accuracy
                && state.ledger.must_roll_back(round, accuracy, &self.setting.experiment.checks)?
            {
                outcome = Outcome::RolledBack;
            }
        }
        let mut losses = Losses::default();
        if outcome == Outcome::Taken {
            for update in &tally.heard {
                method.hear(&mut state.server, update)?;
            }
            losses = method.server_update(&mut state.server, mean, round)?;
        }
        timing.server = watch.lap();
        let test = self.test(state, round)?;
        timing.test = watch.lap();
        losses.client_fix = tally.fix.mean();
        losses.client_mix = tally.mix.mean();
        let record = RoundRecord {
            round,
            test_accuracy: test.accuracy,
            test_loss: test.loss,
            clients: drawn,
            trained: tally.trained,
            seen: tally.seen,
            kept: tally.kept,
            anchor_head: tally.anchor.accuracy(),
            classifier_head: tally.classifier.accuracy(),
            losses,
            bytes_down: tally.bytes_down,
            bytes_up: tally.bytes_up,
            anchor_accuracy,
            dropped: tally.dropped,
            set_aside,
            outcome,
        };
        Ok((record, self.finish(&watch, timing), test))
    }

    fn finish(&self, watch: &Watch, timing: Timing) -> Timing {
        Timing {
            total: watch.start.elapsed().as_secs_f64(),
            peak_memory: peak_memory(),
            peak_gpu_memory: self.setting.peak_gpu_memory(),
            ..timing
        }
    }

    /// Lines 6 to 9 for all clients drawn: their figures and their mean.
    fn train_clients(
        &self,
        state: &State,
        method: &dyn Method,
        broadcast: &Broadcast,
        drawn: &[u32],
        round: u32,
        (watch, timing): (&mut Watch, &mut Timing),
    ) -> Result<(Tally, Intake)> {
        let mut tally = Tally::default();
        let experiment = &self.setting.experiment;
        let up = |params: &Params| params.subset(|entry| goes_up(&self.setting, entry));
        let (sent, beside) = (up(&broadcast.params), broadcast.others.iter().map(up));
        let beside: Vec<Params> = beside.collect();
        let mut intake = Intake {
            door: Door::new(round, drawn, sent, &beside, &experiment.checks)?,
            ledger: state.ledger.clone(),
            aggregator: Aggregator::new(&experiment.aggregation),
        };
        tally.bytes_down = drawn.iter().map(|&client| broadcast.wire_bytes(client)).sum();
        let parts = drawn.chunks(state.cohort);
        let cohorts = parts.map(|clients| self.cohort(state, clients, round));
        let cohorts = cohorts.collect::<Result<_>>()?;
        crew::train(method, cohorts, broadcast, &mut |clients, reports| {
            timing.clients += watch.lap();
            for (&client, report) in clients.iter().zip(reports) {
                self.take_report(client, report, &mut intake, &mut tally)?;
            }
            timing.aggregate += watch.lap();
            Ok(())
        })?;
        Ok((tally, intake))
    }

    /// Line 4: clients drawn at random without replacement, in rising order.
    pub fn draw_clients(&self, round: u32) -> Vec<u32> {
        let mut rng = self.setting.stream(Purpose::Cohort, round, SERVER).rng();
        let experiment = &self.setting.experiment;
        let drawn = sample(&mut rng, experiment.data.clients, experiment.client.per_round);
        let mut drawn: Vec<u32> = drawn.into_iter().map(|client| client as u32).collect();
        drawn.sort_unstable();
        drawn
    }

    fn cohort<'a>(&'a self, state: &State, clients: &[u32], round: u32) -> Result<Cohort<'a>> {
        let clients = clients.iter().map(|&id| {
            let kept = state.kept.get(&id).map(|(_, kept)| kept.copy());
            let kept = kept.transpose()?.unwrap_or_default();
            let local = &self.partition.clients[id as usize];
            let labels = || local.iter().map(|&i| self.truth[i as usize]).collect();
            let labels = self.setting.experiment.method.sees_labels().then(labels);
            Ok(Client { id, images: &self.images, local, labels, kept })
        });
        Ok(Cohort { setting: &self.setting, round, clients: clients.collect::<Result<_>>()? })
    }

    /// Adds one client's answer to the mean (line 10) and to the round's figures.
    fn take_report(
        &self,
        client: u32,
        report: ClientReport,
        intake: &mut Intake,
        tally: &mut Tally,
    ) -> Result<()> {
        let aggregation = &self.setting.experiment.aggregation;
        self.compare(client, &report.labels, tally);
        if report.update.is_some() && !report.kept.is_empty() {
            tally.kept_by_clients.push((client, report.kept));
        }
        match report.update {
            Some(update) => {
                tally.trained += 1;
                tally.add_losses(&report.losses);
                if self.faults.is_late(client) {
                    // Slow is not hostile: named, and no offence.
                    let reason = Offence::Late.to_string();
                    tally.dropped.push(Dropped { client, reason });
                }
                for update in self.faults.arrive(update, intake.door.sent())? {
                    tally.bytes_up += update.wire_bytes();
                    if let Some(offence) = intake.door.look(&update, &intake.ledger)? {
                        *intake.ledger.offences.entry(client).or_default() += 1;
                        tally.dropped.push(Dropped { client, reason: offence.to_string() });
                        continue;
                    }
                    tally.answers += 1;
                    intake.aggregator.add(&update.params, weight(aggregation.weights, &update))?;
                    if self.setting.experiment.method.remembers_clients() {
                        tally.heard.push(update);
                    }
                }
            }
            // Who is away has not answered, whether or not it kept something.
            None if self.faults.is_away(client) => {}
            None if aggregation.without_samples == WithoutSamples::Unchanged => {
                tally.answers += 1;
                let samples = report.labels.label.len();
                let params = intake.door.sent().copy()?;
                let update = Update { client, round: 0, params, samples, kept: 0 };
                intake.aggregator.add(&update.params, weight(aggregation.weights, &update))?;
            }
            None => tally.answers += 1,
        }
        Ok(())
    }

    /// Compares pseudo-labels with the truth.
    fn compare(&self, client: u32, labels: &PseudoLabels, tally: &mut Tally) {
        for (local, &index) in self.partition.clients[client as usize].iter().enumerate() {
            let truth = self.truth[index as usize];
            let kept = labels.kept[local];
            tally.seen += 1;
            tally.kept += usize::from(kept);
            for (head, labels) in
                [(&mut tally.anchor, &labels.anchor), (&mut tally.classifier, &labels.classifier)]
            {
                if let Some(&label) = labels.get(local) {
                    head.add(label == truth, kept);
                }
            }
        }
    }

    /// Tests the global model, with fresh statistics where they are static. The next round
    /// broadcasts the same model with these.
    pub(crate) fn test(&self, state: &mut State, round: u32) -> Result<Evaluation> {
        state
            .server
            .measure_statistics(&self.images)
            .in_phase("measuring batch norm statistics")?;
        let test = state.server.evaluate(&self.test, &self.test_labels).in_phase("testing")?;
        let parameter = state.server.not_finite()?;
        check_finite(round, "testing", &[test.loss], parameter.as_deref())?;
        Ok(test)
    }
}

/// n_m of Algorithm 1, line 10.
fn weight(weights: Weights, update: &Update) -> f64 {
    match weights {
        Weights::Samples => update.samples as f64,
        // A client that counts as unchanged although it kept nothing still needs a weight.
        Weights::Kept => update.kept.max(1) as f64,
        Weights::Uniform => 1.0,
    }
}

/// What comes in during a round.
struct Intake {
    door: Door,
    /// As it will be if the round comes to its end.
    ledger: Ledger,
    aggregator: Aggregator,
}
