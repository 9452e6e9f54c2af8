//! A run: rounds until they are done or someone asks to stop, every one of them recorded.

mod checkpoint;
mod figures;
mod fleet_file;
mod folder;
mod lock;
mod results;
mod resume;
mod rounds;
mod verify;

pub use fleet_file::resume_command;
pub use verify::{Verification, verify};

use crate::config::{Experiment, fingerprint};
use crate::error::{Error, Result};
use crate::federation::{Federation, Fleet};
use crate::simulation::{SimulatedFleet, Simulation, load_watched, place};
use fedanchor_data::{DataSet, Partition, Progress};
use fedanchor_engine::trunk::names_a_file;
use fedanchor_record::{RoundRecord, Summary, Timing};
use fleet_file::FleetFile;
use folder::{RunFolder, check_free};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Watches a run.
pub trait Observer {
    /// Is told how many pictures have been read, from any thread.
    fn reading(&mut self) -> Progress {
        Progress::default()
    }
    /// Data and network are ready; `clients` are the simulated ones with their images.
    fn started(&mut self, _federation: &Federation, _clients: Option<&Partition>) {}
    /// A round is over; round 0 is pre-training.
    fn round(&mut self, _record: &RoundRecord, _timing: &Timing) {}
    /// Before an epoch of pre-training, or of the comparison with the anchors alone: how many are done and planned.
    fn epoch(&mut self, _phase: Phase, _done: u32, _planned: u32) {}
    /// Something that is not an error but worth knowing.
    fn notice(&mut self, _text: &str) {}
}

/// A part of a run that counts epochs, not rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in `Observer::epoch`
pub enum Phase {
    Pretraining,
    Comparison,
}

/// Nobody watches.
impl Observer for () {}

/// How an experiment is run.
#[derive(Clone, Copy)]
pub struct RunOptions<'a> {
    /// The run folder.
    pub out: &'a Path,
    /// Whether the folder holds the run already [default: no].
    pub resume: Resume,
    /// Threads that train clients [default: as many as there are cores].
    pub workers: Option<usize>,
    /// Ends the run after its round when it is set [default: never set].
    pub stop: &'a AtomicBool,
    /// Which clients take part [default: simulated ones].
    pub clients: RunClients<'a>,
}

impl<'a> RunOptions<'a> {
    /// A new run of simulated clients.
    pub fn new(out: &'a Path) -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let (resume, clients) = (Resume::No, RunClients::Simulated(&|fleet| Ok(Box::new(fleet))));
        Self { out, resume, workers: None, stop: &NEVER, clients }
    }
}

/// Whether a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// A new run in a new folder.
    No,
    /// After the last complete round, or from the start if none is complete. The experiment must be the one that the run
    /// was started with, except for more rounds.
    Yes,
    /// The same, also with another experiment.
    Force,
}

/// Which clients take part in a run.
#[derive(Clone, Copy)]
pub enum RunClients<'a> {
    /// Simulated ones, perhaps behind another fleet, for example one that encodes every message.
    Simulated(&'a WrapFleet),
    /// Real ones, which have images of their own.
    Real {
        /// The coordinator's socket, to tell how the run can be resumed.
        socket: &'a Path,
        /// Makes their fleet.
        connect: &'a ConnectFleet,
    },
}

/// Puts another fleet in front of the simulated one.
pub type WrapFleet = dyn for<'a> Fn(SimulatedFleet<'a>) -> Result<Box<dyn Fleet + 'a>> + Sync;

/// Makes a fleet of real clients from the server's half of an experiment and the run's own identifier, which does not
/// change when it is resumed: what clients keep from round to round belongs to it.
pub type ConnectFleet = dyn for<'a> Fn(&'a Federation, &str) -> Result<Box<dyn Fleet + 'a>>;

/// Runs an experiment.
pub fn run(
    experiment: &Experiment,
    options: RunOptions,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    if options.resume != Resume::No {
        return resume::resume(experiment, options, observer);
    }
    let RunOptions { out, clients, .. } = options;
    // Before the data is read, which may take a while; and again once the folder is locked.
    check_free(out)?;
    let (prepared, data) = prepare(experiment, options, observer.reading())?;
    let settled = settled(prepared.federation())?;
    let folder = RunFolder::create(out)?;
    let config = fingerprint(&as_table(&settled)?);
    let fleet_file = FleetFile::of(clients, None)?;
    Run { prepared, settled, data, config, folder, options, fleet_file }.execute(None, observer)
}

/// The settled config as it is stored: it must find the data again from any working directory.
fn settled(federation: &Federation) -> Result<Experiment> {
    let mut settled = federation.settled()?;
    settled.data.path = place(&settled.data)
        .map(|path| std::path::absolute(&path).map_err(|error| Error::file(path, error)))
        .transpose()?;
    if let Some(path) = &mut settled.model.init_from {
        *path = std::path::absolute(&*path).map_err(|error| Error::file(&*path, error))?;
    }
    if let Some(loss) = &mut settled.client.loss {
        let path = &mut loss.file;
        *path = std::path::absolute(&*path).map_err(|error| Error::file(&*path, error))?;
    }
    if let Some(trunk) = &mut settled.model.trunk
        && names_a_file(trunk)
    {
        let path = std::path::absolute(&*trunk).map_err(|error| Error::file(&*trunk, error))?;
        *trunk = path.to_string_lossy().into_owned();
    }
    Ok(settled)
}

fn as_table(experiment: &Experiment) -> Result<toml::Table> {
    toml::Table::try_from(experiment)
        .map_err(|error| Error::config("the experiment", error.to_string()))
}

fn prepare<'a>(
    experiment: &Experiment,
    options: RunOptions<'a>,
    reading: Progress,
) -> Result<(Prepared<'a>, String)> {
    let data = load_watched(experiment, reading)?;
    let (fingerprint, workers) = (data_fingerprint(&data), options.workers);
    let prepared = match options.clients {
        RunClients::Simulated(wrap) => {
            let simulation = Simulation::new(experiment.clone(), data, workers)?;
            Prepared::Simulation(Box::new(simulation), wrap)
        }
        RunClients::Real { connect, .. } => {
            let federation = Federation::new(experiment, data, workers)?;
            Prepared::Fleet(Box::new(federation), connect)
        }
    };
    Ok((prepared, fingerprint))
}

enum Prepared<'a> {
    /// With the clients in this process, and what is put in front of them.
    Simulation(Box<Simulation>, &'a WrapFleet),
    Fleet(Box<Federation>, &'a ConnectFleet),
}

impl Prepared<'_> {
    fn federation(&self) -> &Federation {
        match self {
            Self::Simulation(simulation, _) => &simulation.federation,
            Self::Fleet(federation, _) => federation,
        }
    }

    fn simulation(&self) -> Option<&Simulation> {
        match self {
            Self::Simulation(simulation, _) => Some(simulation),
            Self::Fleet(..) => None,
        }
    }
}

struct Run<'a> {
    prepared: Prepared<'a>,
    settled: Experiment,
    /// Fingerprints.
    data: String,
    config: String,
    folder: RunFolder,
    options: RunOptions<'a>,
    /// What the run folder says of a fleet of real clients.
    fleet_file: Option<FleetFile>,
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
        if let Some(features) = &part.features {
            hash.update(&features.values);
        }
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
