//! A run: rounds until they are done or someone asks to stop, every one of them recorded.

use crate::anchors::Anchors;
use crate::checkpoint::{About, Found, Saver};
use crate::config::{Experiment, LatentSource, MethodConfig, Send};
use crate::crew::ComputeThreads;
use crate::error::{Error, Result, guard};
use crate::folder::{Lines, RunFolder};
use crate::load::load;
use crate::resume::config_fingerprint;
use crate::server::Evaluation;
use crate::setting::Setting;
use crate::simulation::{Simulation, State};
use crate::tally::peak_memory;
use fedanchor_data::DataSet;
use fedanchor_record::{Assignment, RoundRecord, Summary, Timing};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Who watches a run.
pub trait Observer {
    /// Data and network are ready.
    fn started(&mut self, simulation: &Simulation);
    /// A round is over; round 0 is pre-training.
    fn round(&mut self, record: &RoundRecord, timing: &Timing);
    /// The comparison with the anchors alone begins.
    fn comparing(&mut self);
    /// Something that is not an error and worth knowing.
    fn notice(&mut self, text: &str);
}

/// Runs an experiment into a new folder.
pub fn run(
    experiment: &Experiment,
    out: &Path,
    workers: Option<usize>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    let (simulation, data) = prepare(experiment, workers)?;
    let folder = RunFolder::create(out)?;
    let config = config_fingerprint(&settled_table(&simulation)?);
    Run { experiment, simulation, data, config, folder, out }.go(None, stop, observer)
}

/// The experiment with every choice written down that is left to the data, and with the checks that
/// need it: what a run folder's config holds.
pub fn settle(experiment: &Experiment, data: &DataSet) -> Result<Experiment> {
    Setting::settle(experiment, data.train.shape, data.train.classes.len(), data.flip)
}

/// The settings of a simulation as they stand in its run folder.
pub(crate) fn settled_table(simulation: &Simulation) -> Result<toml::Table> {
    toml::Table::try_from(simulation.setting.settled()?)
        .map_err(|error| Error::config("the experiment", error.to_string()))
}

pub(crate) fn prepare(
    experiment: &Experiment,
    workers: Option<usize>,
) -> Result<(Simulation, String)> {
    let data = load(experiment)?;
    let fingerprint = fingerprint(&data);
    let simulation = Simulation::new(experiment.clone(), data, workers)?;
    // Wants the number of classes, which only the data tells.
    if let Some(contrastive) = experiment.method.contrastive() {
        contrastive.batch_for(simulation.classes.len(), experiment.data.anchors)?;
    }
    Ok((simulation, fingerprint))
}

/// A run that is ready to go.
pub(crate) struct Run<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) simulation: Simulation,
    /// Fingerprints.
    pub(crate) data: String,
    pub(crate) config: String,
    pub(crate) folder: RunFolder,
    pub(crate) out: &'a Path,
}

impl Run<'_> {
    fn write_setting(&self) -> Result<()> {
        let simulation = &self.simulation;
        self.folder.write_config(&simulation.setting.settled()?)?;
        let assignment = Assignment {
            anchors: simulation.split.anchors.clone(),
            clients: simulation.partition.clients.clone(),
        };
        self.folder.write_assignment(&assignment, &simulation.histogram(), &simulation.classes)
    }

    /// Does what is left to do, and says how to go on should the disk fail.
    pub(crate) fn go(
        mut self,
        found: Option<Found>,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        self.rounds(found, stop, observer).map_err(|error| match error {
            Error::File { path, problem } => {
                let quote = if self.out.to_string_lossy().contains(' ') { "'" } else { "" };
                let problem = format!(
                    "{problem}; what was saved before is intact: see to the disk, then go on with \
                     `fedanchor run --resume {quote}{}{quote}`",
                    self.out.display()
                );
                Error::file(path, problem)
            }
            other => other,
        })
    }

    fn rounds(
        &mut self,
        found: Option<Found>,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        let (simulation, experiment) = (&self.simulation, self.experiment);
        observer.started(simulation);
        let _compute_threads = ComputeThreads::for_server(experiment.model.name);
        let _queue = simulation.enter()?;
        let clock = Instant::now();
        let method = experiment.method.build();
        let mut state = simulation.start()?;
        if let Some(found) = &found {
            // Before anything in the folder is changed.
            state.restore(found).map_err(|error| {
                let problem = format!("the checkpoint there does not fit this experiment: {error}");
                Error::config("--resume", problem)
            })?;
            if found.about.config != self.config {
                state.forget_sizes();
            }
        }
        let before = found.as_ref().map_or(0, |found| found.about.round as usize);
        self.write_setting()?;
        self.folder.remove_summary()?;
        self.folder.keep_lines(before)?;
        if let Some(found) = &found {
            self.folder.append(&found.about.lines)?;
        }
        let before = self.folder.seconds()?;
        let mut progress = Progress::default();
        let mut saver =
            Saver::start(self.out, self.folder.log()?, found.as_ref().map(|f| f.about.round))?;
        let about = |lines: Lines, progress: &Progress| About {
            round: progress.rounds,
            lines,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: self.data.clone(),
            config: self.config.clone(),
            lasting: experiment.checkpoint.every > 0
                && progress.rounds > 0
                && progress.rounds.is_multiple_of(experiment.checkpoint.every),
            best: experiment.checkpoint.best && progress.best_round == progress.rounds,
            ..About::default()
        };
        let (mut test, mut first) = (None, 0);
        if found.is_some() {
            self.folder.records()?.iter().for_each(|record| progress.add(record));
            first = progress.rounds + 1;
        }
        for round in first..=experiment.rounds {
            if round > 0 && stop.load(Ordering::Relaxed) {
                break;
            }
            let (record, timing, tested) = guard(|| match round {
                0 => simulation.pretrain(&mut state, &*method, stop),
                _ => simulation.round(&mut state, &*method, round),
            })?;
            test = Some(tested);
            progress.add(&record);
            if let Some(text) = simulation.setting.take_notice() {
                observer.notice(&text);
            }
            let lines = Lines::new(&record, &timing)?;
            // Pre-training that was ended early is no round to go on from.
            let complete = round > 0 || !stop.load(Ordering::Relaxed);
            if experiment.checkpoint.write && complete {
                saver.save(state.save(about(lines, &progress))?)?;
            } else {
                self.folder.append(&lines)?;
            }
            observer.round(&record, &timing);
        }
        saver.finish()?;
        let seconds = before + clock.elapsed().as_secs_f64();
        let test = match test {
            Some(test) => test,
            None => guard(|| simulation.test(&mut state, progress.rounds))?, // nothing was left to do
        };
        let settled = simulation.setting.settled()?;
        write_results(&self.folder, simulation, &state, &settled, &test)?;
        self.finish(&progress, seconds, stop, observer)
    }

    /// The summary, and the comparison where it is asked for.
    fn finish(
        &self,
        progress: &Progress,
        seconds: f64,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        let Self { simulation, experiment, folder, .. } = self;
        let mut summary = Summary {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            method: experiment.method.name().to_owned(),
            data: experiment.data.name.clone(),
            model: experiment.model.name.to_string(),
            parameters: simulation.setting.network.parameter_counts().0,
            anchors: experiment.data.anchors,
            seed: experiment.seed,
            data_fingerprint: self.data.clone(),
            classes: simulation.classes.clone(),
            rounds_planned: experiment.rounds,
            rounds: progress.rounds,
            final_accuracy: progress.last,
            best_accuracy: progress.best,
            best_round: progress.best_round,
            pretrained_accuracy: progress.pretrained,
            server_only_accuracy: None,
            bytes_down: progress.bytes_down,
            bytes_up: progress.bytes_up,
            seconds,
            peak_memory: peak_memory(),
            peak_gpu_memory: simulation.setting.peak_gpu_memory(),
            compute_threads: tch::get_num_threads(),
        };
        folder.write_summary(&summary)?;
        // The anchors alone have nothing to be compared with.
        let alone = matches!(experiment.method, MethodConfig::ServerOnly(_));
        let compare = experiment.compare && !alone;
        if compare && progress.rounds > 0 && !stop.load(Ordering::Relaxed) {
            observer.comparing();
            let alone = guard(|| server_only(simulation, experiment, progress.rounds, stop))?;
            summary.server_only_accuracy = alone.map(|test| test.accuracy);
            folder.write_summary(&summary)?;
        }
        if compare && summary.server_only_accuracy.is_none() {
            observer.notice("ended early: not compared with the anchors alone");
        }
        Ok(summary)
    }
}

/// The method's server on the anchors alone: pre-training and the server epochs of as many rounds.
/// `None` if someone asked to stop meanwhile.
pub fn server_only(
    simulation: &Simulation,
    experiment: &Experiment,
    rounds: u32,
    stop: &AtomicBool,
) -> Result<Option<Evaluation>> {
    let method = experiment.method.build();
    let mut state = simulation.start()?;
    let (_, _, mut test) = simulation.pretrain(&mut state, &*method, stop)?;
    for round in 1..=rounds {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        method.server_update(&mut state.server, None, round)?;
    }
    if rounds > 0 {
        test = simulation.test(&mut state, rounds)?;
    }
    Ok(Some(test))
}

/// The final model and what is known of it.
fn write_results(
    folder: &RunFolder,
    simulation: &Simulation,
    state: &State,
    experiment: &Experiment,
    test: &Evaluation,
) -> Result<()> {
    let server = &state.server;
    // Where no method trains latents, the features themselves are what can be compared.
    let source = match &experiment.method {
        MethodConfig::Fedanchor(method) => method.latent_source(),
        method if method.heads().anchor => LatentSource::Anchor,
        _ => LatentSource::Pooled,
    };
    let (setting, means) = (&simulation.setting, Send::ClassMeans);
    let anchors = Anchors::compute(setting, &server.params, server.anchors, source, means)?;
    folder.write_matrix(
        fedanchor_record::files::CONFUSION,
        &simulation.classes,
        &test.confusion,
    )?;
    let similarity = anchors.similarity(simulation.classes.len())?;
    folder.write_matrix(fedanchor_record::files::SIMILARITY, &simulation.classes, &similarity)?;
    folder.write_model(&server.params, experiment, &simulation.classes)
}

/// blake3 over pixels and labels: whether two runs saw the same data.
fn fingerprint(data: &DataSet) -> String {
    let mut hash = blake3::Hasher::new();
    for part in [&data.train, &data.test] {
        hash.update(&(part.shape.side as u64).to_le_bytes());
        hash.update(&(part.shape.channels as u64).to_le_bytes());
        hash.update(&part.pixels);
        for label in part.labels.iter().flatten() {
            hash.update(&label.to_le_bytes());
        }
    }
    hash.finalize().to_hex().to_string()
}

#[derive(Debug, Default)]
struct Progress {
    rounds: u32,
    pretrained: f64,
    last: f64,
    best: f64,
    best_round: u32,
    bytes_down: u64,
    bytes_up: u64,
}

impl Progress {
    fn add(&mut self, record: &RoundRecord) {
        let accuracy = record.test_accuracy;
        if record.round == 0 {
            self.pretrained = accuracy;
        }
        if record.round == 0 || accuracy > self.best {
            (self.best, self.best_round) = (accuracy, record.round);
        }
        self.rounds = record.round;
        self.last = accuracy;
        self.bytes_down += record.bytes_down;
        self.bytes_up += record.bytes_up;
    }
}
