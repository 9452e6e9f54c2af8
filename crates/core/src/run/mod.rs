//! A run: rounds until they are done or someone asks to stop, every one of them recorded.

mod checkpoint;
mod command;
mod disk;
mod figures;
mod fleet_file;
mod folder;
mod lock;
mod progress;
mod resume;
mod verify;

pub use command::resume_command;
pub use resume::resume;
pub use verify::{Verification, verify};

use crate::clients::ComputeThreads;
use crate::config::{Experiment, FleetConfig, fingerprint};
use crate::error::{Error, Result};
use crate::federation::{Coordinator, Fleet, peak_memory};
use crate::labels::{AnchorPayload, Anchors};
use crate::model::{Description, Head, encode_model};
use crate::server::Evaluation;
use crate::simulation::{SimulatedFleet, Simulation, load, place};
use checkpoint::{About, Checkpoint, Found, Saver};
use fedanchor_data::DataSet;
use fedanchor_data::skipped::by_reason;
use fedanchor_engine::guard;
use fedanchor_record::{
    Assignment, Manifest, RoundRecord, ServerOnlyTrial, Summary, Timing, files,
};
use fleet_file::FleetFile;
use folder::{LineChecksums, Lines, RoundFile, RunFolder, check_free};
use progress::Progress;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Watches a run.
pub trait Observer {
    /// Data and network are ready.
    fn started(&mut self, simulation: &Simulation);
    /// A round is over; round 0 is pre-training.
    fn round(&mut self, record: &RoundRecord, timing: &Timing);
    /// The comparison with the anchors alone begins.
    fn comparing(&mut self);
    /// Something that is not an error but worth knowing.
    fn notice(&mut self, text: &str);
}

/// Nobody watches.
impl Observer for () {
    fn started(&mut self, _: &Simulation) {}
    fn round(&mut self, _: &RoundRecord, _: &Timing) {}
    fn comparing(&mut self) {}
    fn notice(&mut self, _: &str) {}
}

/// Puts another fleet in front of the simulated one, for example one that encodes every message.
pub type WrapFleet = dyn for<'a> Fn(SimulatedFleet<'a>) -> Result<Box<dyn Fleet + 'a>>;

fn plain(fleet: SimulatedFleet<'_>) -> Result<Box<dyn Fleet + '_>> {
    Ok(Box::new(fleet))
}

/// Runs an experiment into a new folder.
pub fn run(
    experiment: &Experiment,
    out: &Path,
    workers: Option<usize>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    run_with(experiment, out, workers, stop, observer, &plain)
}

/// The same with another fleet.
pub fn run_with(
    experiment: &Experiment,
    out: &Path,
    workers: Option<usize>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
    wrap: &WrapFleet,
) -> Result<Summary> {
    start(experiment, out, workers, stop, observer, Clients::Here(wrap))
}

/// Makes a fleet of real clients from the server's half of an experiment and the run's own identifier, which does not
/// change when it is resumed: what clients keep from round to round belongs to it.
pub type ConnectFleet = dyn for<'a> Fn(&'a Simulation, &str) -> Result<Box<dyn Fleet + 'a>>;

/// Clients that have images of their own.
#[derive(Clone, Copy)]
pub struct RealClients<'a> {
    /// The coordinator's socket, for whoever is told how to resume the run.
    pub socket: &'a Path,
    /// Their fleet.
    pub connect: &'a ConnectFleet,
}

/// Whose clients are trained.
#[derive(Clone, Copy)]
enum Clients<'a> {
    /// Simulated ones, perhaps behind another fleet.
    Here(&'a WrapFleet),
    /// Those of a fleet.
    Elsewhere(RealClients<'a>),
}

/// Runs the server's half of an experiment with a fleet of real clients into a new folder; with `resume`, which
/// says whether to force it, continues the run in that folder.
pub fn coordinate(
    experiment: &Experiment,
    out: &Path,
    resume: Option<bool>,
    workers: Option<usize>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
    clients: RealClients,
) -> Result<Summary> {
    let clients = Clients::Elsewhere(clients);
    match resume {
        Some(force) => {
            resume::resume_with(experiment, out, workers, force, stop, observer, clients)
        }
        None => start(experiment, out, workers, stop, observer, clients),
    }
}

fn start(
    experiment: &Experiment,
    out: &Path,
    workers: Option<usize>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
    clients: Clients,
) -> Result<Summary> {
    // Before the data is read, which may take a while; and again once the folder is locked.
    check_free(out)?;
    let (simulation, data) = prepare(experiment, workers, clients)?;
    let settled = settled(&simulation)?;
    let folder = RunFolder::create(out)?;
    let config = fingerprint(&as_table(&settled)?);
    let fleet_file = FleetFile::of(clients, None)?;
    Run { simulation, settled, data, config, folder, out, clients, fleet_file }
        .go(None, stop, observer)
}

/// The settled config, as it is stored: it must find the data again from any working directory, and after
/// the folder was moved.
fn settled(simulation: &Simulation) -> Result<Experiment> {
    let mut settled = simulation.settled()?;
    settled.data.path = place(&settled.data)
        .map(|path| std::path::absolute(&path).map_err(|error| Error::file(path, error)))
        .transpose()?;
    if let Some(path) = &mut settled.model.init_from {
        *path = std::path::absolute(&*path).map_err(|error| Error::file(&*path, error))?;
    }
    Ok(settled)
}

/// A config as TOML.
fn as_table(experiment: &Experiment) -> Result<toml::Table> {
    toml::Table::try_from(experiment)
        .map_err(|error| Error::config("the experiment", error.to_string()))
}

fn prepare(
    experiment: &Experiment,
    workers: Option<usize>,
    clients: Clients,
) -> Result<(Simulation, String)> {
    let data = load(experiment)?;
    let fingerprint = data_fingerprint(&data);
    let simulation = match clients {
        Clients::Here(_) => Simulation::new(experiment.clone(), data, workers)?,
        Clients::Elsewhere(_) => Simulation::without_clients(experiment.clone(), data, workers)?,
    };
    Ok((simulation, fingerprint))
}

/// A run that is ready to start.
struct Run<'a> {
    simulation: Simulation,
    settled: Experiment,
    /// Fingerprints.
    data: String,
    config: String,
    folder: RunFolder,
    out: &'a Path,
    clients: Clients<'a>,
    /// What the run folder says of a fleet of real clients.
    fleet_file: Option<FleetFile>,
}

impl Run<'_> {
    /// Does what is left to do; an error of the disk says how to resume.
    fn go(
        self,
        found: Option<Found>,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        self.rounds(found, stop, observer).map_err(|error| match error {
            Error::File { path, problem } => {
                let problem = format!(
                    "{problem}; what was saved before is intact: fix the disk, then resume with `{}`",
                    resume_command(self.out)
                );
                Error::file(path, problem)
            }
            other => other,
        })
    }

    fn rounds(
        &self,
        found: Option<Found>,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        let simulation = &self.simulation;
        let experiment = &simulation.experiment;
        observer.started(simulation);
        if !simulation.skipped.is_empty() {
            let counts = by_reason(&simulation.skipped).into_iter();
            let counts: Vec<String> =
                counts.map(|(reason, count)| format!("{count} {reason}")).collect();
            observer.notice(&format!(
                "files of the data set that were left out: {} (`fedanchor data check` names them)",
                counts.join(", ")
            ));
        }
        let _compute_threads = ComputeThreads::for_server(experiment.model.name);
        let _queue = simulation.enter()?;
        let clock = Instant::now();
        let mut coordinator = simulation.coordinator()?;
        let mut fleet = match self.clients {
            Clients::Here(wrap) => wrap(simulation.fleet())?,
            Clients::Elsewhere(clients) => {
                let FleetConfig { deadline, ask } = experiment.fleet;
                coordinator.deadline = (deadline > 0.0).then(|| Duration::from_secs_f64(deadline));
                coordinator.ask = ask;
                let run = self.fleet_file.as_ref().map_or("", |file| &file.run);
                (clients.connect)(simulation, run)?
            }
        };
        if let Some(found) = &found {
            // Before anything in the folder is changed.
            self.restore(found, &mut coordinator, &mut *fleet).map_err(|error| {
                let problem = format!("the checkpoint does not fit this experiment: {error}");
                Error::config("--resume", problem)
            })?;
            fleet.expect(coordinator.known_clients());
        }
        let (mut progress, mut checksums) = self.open_records(found.as_ref())?;
        let last = found.as_ref().map(|found| found.about.round);
        self.open_figures(&coordinator, last, &mut progress, observer)?;
        let (seconds_before, damaged) = self.folder.seconds()?;
        for line in damaged {
            let name = files::TIMINGS;
            observer.notice(&format!("{name}: line {line} is damaged, its seconds do not count"));
        }
        let mut lost = self.report_lost(found.as_ref(), observer);
        let mut saver = Saver::start(self.out, self.folder.log()?, last)?;
        let first = last.map_or(0, |last| last + 1);
        let mut test = None;
        for round in first..=experiment.rounds {
            if round > 0 && stop.load(Ordering::Relaxed) {
                break;
            }
            let done = guard(|| match round {
                0 => coordinator.pretrain(stop),
                _ => coordinator.round(&mut *fleet, round),
            });
            let mut done = match done {
                Err(Error::Stopped) => break,
                other => other?,
            };
            let files = self.figures(&coordinator, round, done.picked.as_ref())?;
            files.iter().for_each(|file| progress.files.add(&file.name, &file.bytes));
            test = Some(done.evaluation);
            progress.add(&done.record);
            progress.picked = done.picked.or(progress.picked);
            for text in simulation.context.take_notice().iter().chain(&done.record.notes) {
                observer.notice(text);
            }
            done.record.notes.append(&mut lost);
            let lines = Lines::new(&done.record, &done.timing, &mut checksums)?;
            // Pre-training that was ended early cannot be resumed from.
            let complete = round > 0 || !stop.load(Ordering::Relaxed);
            if experiment.checkpoint.write && complete {
                saver.save(self.checkpoint(&coordinator, &*fleet, lines, files, &progress)?)?;
            } else {
                files.iter().try_for_each(|file| file.write(self.out))?;
                self.folder.append(&lines)?;
            }
            observer.round(&done.record, &done.timing);
        }
        saver.finish()?;
        let seconds = seconds_before + clock.elapsed().as_secs_f64();
        let test = match test {
            Some(test) => test,
            None => guard(|| coordinator.test(progress.rounds))?, // nothing was left to do
        };
        self.write_results(&coordinator, &test)?;
        self.finish(&progress, seconds, stop, observer)
    }

    fn restore(
        &self,
        found: &Found,
        coordinator: &mut Coordinator,
        fleet: &mut dyn Fleet,
    ) -> Result<()> {
        coordinator.restore(&found.about.coordinator, &found.server)?;
        fleet.restore_states(&found.clients, &coordinator.server.params)
    }

    /// Brings the records to where the run starts or resumes: what they amount to, and their checksums.
    fn open_records(&self, found: Option<&Found>) -> Result<(Progress, LineChecksums)> {
        // What changes now has no checksum until it has changed.
        self.folder.write_manifest(&Manifest::default())?;
        self.folder.remove_summary()?;
        self.write_setting()?;
        self.folder.keep_lines(found.map_or(0, |found| found.about.round as usize))?;
        if let Some(found) = found {
            self.folder.append(&found.about.lines)?;
        }
        let (records, _) = self.folder.records(usize::MAX)?;
        let mut progress = Progress::default();
        records.iter().for_each(|record| progress.add(record));
        // Of other data, which `--force` accepts, there are no such images.
        let same_data = found.filter(|found| found.about.data == self.data);
        progress.picked = same_data.and_then(|found| found.about.picked.clone());
        progress.files = found.map(|found| found.about.files.clone()).unwrap_or_default();
        self.folder.write_manifest(&Manifest::default())?;
        Ok((progress, self.folder.checksums()?))
    }

    /// Says which clients start anew because what they kept is lost; the next record says it, too.
    fn report_lost(&self, found: Option<&Found>, observer: &mut dyn Observer) -> Vec<String> {
        let lost = found.into_iter().flat_map(|found| &found.lost);
        let notes = lost.map(|(client, path)| {
            let file = path.strip_prefix(self.out).unwrap_or(path).display();
            format!("client {client} starts without what it kept: {file} is damaged or missing")
        });
        let notes: Vec<String> = notes.collect();
        notes.iter().for_each(|note| observer.notice(note));
        notes
    }

    fn write_setting(&self) -> Result<()> {
        let simulation = &self.simulation;
        if let Some(fleet) = &self.fleet_file {
            self.folder.write_fleet(fleet)?;
        }
        self.folder.write_config(&self.settled)?;
        let assignment = Assignment {
            anchors: simulation.split.anchors.clone(),
            validation: simulation.split.validation.clone(),
            clients: simulation.partition.clients.clone(),
            client_names: simulation.client_names.clone(),
        };
        match simulation.histogram() {
            Some(rows) => self.folder.write_assignment(&assignment, &rows, &simulation.classes),
            None => {
                let sizes = assignment.clients.iter().map(|local| vec![local.len() as u32]);
                let unknown = ["unknown".to_owned()];
                self.folder.write_assignment(&assignment, &sizes.collect::<Vec<_>>(), &unknown)
            }
        }
    }

    fn checkpoint(
        &self,
        coordinator: &Coordinator,
        fleet: &dyn Fleet,
        lines: Lines,
        files: Vec<RoundFile>,
        progress: &Progress,
    ) -> Result<Checkpoint> {
        let (state, server) = coordinator.save()?;
        let clients = fleet.save_states(progress.rounds, &coordinator.server.params)?;
        let (config, round) = (&self.simulation.experiment.checkpoint, progress.rounds);
        let about = About {
            round,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: self.data.clone(),
            config: self.config.clone(),
            clients: clients.trained_in,
            lasting: config.every > 0 && round > 0 && round.is_multiple_of(config.every),
            best: config.best && progress.chosen_round == round,
            coordinator: state,
            lines,
            picked: progress.picked.clone(),
            files: progress.files.clone(),
        };
        Ok(Checkpoint { about, server, clients: clients.bundles, files })
    }

    /// The summary, and the comparison where it is asked for.
    fn finish(
        &self,
        progress: &Progress,
        seconds: f64,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        let Self { simulation, folder, .. } = self;
        let experiment = &simulation.experiment;
        let mut summary = Summary {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            method: experiment.method.name.clone(),
            data: experiment.data.name.clone(),
            model: experiment.model.name.to_string(),
            parameters: simulation.context.network.parameter_counts().0,
            anchors: experiment.data.anchors,
            seed: experiment.seed,
            data_fingerprint: self.data.clone(),
            classes: simulation.classes.clone(),
            rounds_planned: experiment.rounds,
            rounds: progress.rounds,
            final_accuracy: progress.last,
            final_validation_accuracy: progress.last_validation,
            best_accuracy: progress.best,
            best_round: progress.best_round,
            pretrained_accuracy: progress.pretrained,
            server_only_accuracy: None,
            server_only: Vec::new(),
            bytes_down: progress.bytes_down,
            bytes_up: progress.bytes_up,
            seconds,
            peak_memory: peak_memory(),
            peak_gpu_memory: simulation.context.peak_gpu_memory(),
            compute_threads: tch::get_num_threads(),
            incidents: progress.incidents,
        };
        folder.seal_records(progress.rounds)?;
        folder.write_summary(&summary)?;
        folder.write_manifest(&progress.files)?;
        // A method without clients has nothing to be compared with.
        let compare = experiment.compare && simulation.method.has_clients();
        if compare && progress.rounds > 0 && !stop.load(Ordering::Relaxed) {
            observer.comparing();
            let alone = guard(|| server_only(simulation, progress.rounds, stop))?;
            summary.server_only = alone.unwrap_or_default();
            summary.server_only_accuracy =
                summary.best_server_only().map(|best| best.test_accuracy);
            folder.forget(files::SUMMARY, &progress.files)?;
            folder.write_summary(&summary)?;
            folder.write_manifest(&progress.files)?;
        }
        if compare && summary.server_only_accuracy.is_none() {
            observer.notice("stopped early: not compared with the anchors alone");
        }
        let Summary { rounds, rounds_planned, incidents, .. } = summary;
        if rounds > 0 && rounds == rounds_planned && incidents.without_effect() == rounds as usize {
            return Err(Error::WithoutEffect { rounds, incidents });
        }
        Ok(summary)
    }

    /// The final model and what is known of it.
    fn write_results(&self, coordinator: &Coordinator, test: &Evaluation) -> Result<()> {
        let Self { simulation, folder, .. } = self;
        let (server, classes) = (&coordinator.server, &simulation.classes);
        let (source, payload) = (simulation.method.latent_source(), AnchorPayload::ClassMeans);
        let context = &simulation.context;
        let params = server.tested_model();
        let anchors = Anchors::compute(context, params, server.anchors, source, payload)?;
        folder.write_matrix(files::CONFUSION, classes, &test.confusion)?;
        let similarity = anchors.similarity(classes.len())?;
        folder.write_matrix(files::SIMILARITY, classes, &similarity)?;
        let description = Description {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            method: self.settled.method.name.clone(),
            model: self.settled.model.clone(),
            heads: Head::of(simulation.method.heads()),
            shape: context.images.shape(),
            fit: self.settled.data.fit,
            normalisation: context.images.normalisation().clone(),
            classes: classes.clone(),
            latents: source,
        };
        folder.write_model(&encode_model(
            &description,
            params,
            &anchors.class_means(classes.len())?,
        )?)
    }
}

/// The method's server on the anchors alone: three lengths of pre-training, and the server epochs of as many
/// rounds. The best of them is the floor under the run; chosen on the test images, it is a high one. `None` if
/// `stop` was set meanwhile.
pub fn server_only(
    simulation: &Simulation,
    rounds: u32,
    stop: &AtomicBool,
) -> Result<Option<Vec<ServerOnlyTrial>>> {
    simulation.coordinator()?.train_alone(rounds, stop)
}

/// blake3 over pixels and labels: whether two runs saw the same data.
fn data_fingerprint(data: &DataSet) -> String {
    let mut hash = blake3::Hasher::new();
    let unlabelled = data.unlabelled.as_ref();
    let parts = [Some(&data.train), Some(&data.test), unlabelled.map(|part| &part.images)];
    for part in parts.into_iter().flatten() {
        hash.update(&(part.shape.side as u64).to_le_bytes());
        hash.update(&(part.shape.channels as u64).to_le_bytes());
        hash.update(&part.pixels);
        for label in part.labels.iter().flatten() {
            hash.update(&label.to_le_bytes());
        }
    }
    for (client, images) in unlabelled.iter().flat_map(|part| &part.clients).enumerate() {
        hash.update(&(client as u64).to_le_bytes());
        for index in images {
            hash.update(&index.to_le_bytes());
        }
    }
    hash.finalize().to_hex().to_string()
}
