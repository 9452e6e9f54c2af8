//! A run: rounds until they are done or someone asks to stop, every one of them recorded.

mod checkpoint;
mod command;
mod disk;
mod figures;
mod fleet_file;
mod folder;
mod lock;
mod progress;
mod results;
mod resume;
mod rounds;
mod verify;

pub use command::resume_command;
pub use results::server_only;
pub use resume::resume;
pub use verify::{Verification, verify};

use crate::config::{Experiment, fingerprint};
use crate::error::{Error, Result};
use crate::federation::{Federation, Fleet};
use crate::simulation::{SimulatedFleet, Simulation, load, place};
use fedanchor_data::{DataSet, Partition};
use fedanchor_record::{RoundRecord, Summary, Timing};
use fleet_file::FleetFile;
use folder::{RunFolder, check_free};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Watches a run.
pub trait Observer {
    /// Data and network are ready; `clients` are the simulated ones with their images.
    fn started(&mut self, federation: &Federation, clients: Option<&Partition>);
    /// A round is over; round 0 is pre-training.
    fn round(&mut self, record: &RoundRecord, timing: &Timing);
    /// The comparison with the anchors alone begins.
    fn comparing(&mut self);
    /// Something that is not an error but worth knowing.
    fn notice(&mut self, text: &str);
}

/// Nobody watches.
impl Observer for () {
    fn started(&mut self, _: &Federation, _: Option<&Partition>) {}
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
pub type ConnectFleet = dyn for<'a> Fn(&'a Federation, &str) -> Result<Box<dyn Fleet + 'a>>;

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
    let (prepared, data) = prepare(experiment, workers, clients)?;
    let settled = settled(prepared.federation())?;
    let folder = RunFolder::create(out)?;
    let config = fingerprint(&as_table(&settled)?);
    let fleet_file = FleetFile::of(clients, None)?;
    Run { prepared, settled, data, config, folder, out, clients, fleet_file }
        .go(None, stop, observer)
}

/// The settled config, as it is stored: it must find the data again from any working directory, and after
/// the folder was moved.
fn settled(federation: &Federation) -> Result<Experiment> {
    let mut settled = federation.settled()?;
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
) -> Result<(Prepared, String)> {
    let data = load(experiment)?;
    let fingerprint = data_fingerprint(&data);
    let prepared = match clients {
        Clients::Here(_) => {
            Prepared::Simulation(Simulation::new(experiment.clone(), data, workers)?)
        }
        Clients::Elsewhere(_) => Prepared::Fleet(Federation::new(experiment, data, workers)?),
    };
    Ok((prepared, fingerprint))
}

/// Data and network of a run.
enum Prepared {
    /// With the clients in this process.
    Simulation(Simulation),
    /// With real clients.
    Fleet(Federation),
}

impl Prepared {
    fn federation(&self) -> &Federation {
        match self {
            Self::Simulation(simulation) => &simulation.federation,
            Self::Fleet(federation) => federation,
        }
    }

    fn simulation(&self) -> Option<&Simulation> {
        match self {
            Self::Simulation(simulation) => Some(simulation),
            Self::Fleet(_) => None,
        }
    }
}

/// A run that is ready to start.
struct Run<'a> {
    prepared: Prepared,
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
