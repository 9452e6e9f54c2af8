//! What a run folder says of a fleet of real clients, and how its run is resumed. The folder of a simulation has no such
//! file, so that the two are not taken for one another.

use super::RunClients;
use crate::disk;
use crate::error::{Error, Result};
use fedanchor_record::files;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

/// The file, written before round 1. Nothing in the records depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FleetFile {
    /// What the clients know the run by: random, so that no path leaves this machine, and no other run has it.
    pub(crate) run: String,
    pub(crate) socket: PathBuf,
}

impl FleetFile {
    /// Of a run with these clients, with the identifier it had before; `None` where the clients are simulated.
    pub(super) fn of(clients: RunClients, before: Option<Self>) -> Result<Option<Self>> {
        let RunClients::Real { socket, .. } = clients else { return Ok(None) };
        let socket = std::path::absolute(socket).map_err(|error| Error::file(socket, error))?;
        Ok(Some(Self { run: before.map_or_else(random, |before| before.run), socket }))
    }
}

/// 128 bits of the system's own randomness. It is no part of an experiment, whose draws all come from its seed.
fn random() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

/// The file of a run folder; `None` where the clients are simulated.
pub(super) fn read(out: &Path) -> Result<Option<FleetFile>> {
    let path = out.join(files::FLEET);
    let Some(bytes) = disk::read_if_exists(&path)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| Error::file(path, error))
}

/// The file of a run that is resumed with these clients, which must be where they were before. With `force`, one that is
/// damaged is replaced.
pub(super) fn check(out: &Path, clients: RunClients, force: bool) -> Result<Option<FleetFile>> {
    let there = match (read(out), clients) {
        (Err(_), RunClients::Real { .. }) if force => return Ok(None),
        (there, _) => there?,
    };
    let (are, command) = match (&there, clients) {
        (Some(file), RunClients::Simulated(_)) => ("a fleet", fleet_command(out, &file.socket)),
        (None, RunClients::Real { .. }) => ("simulated", simulation_command(out)),
        _ => return Ok(there),
    };
    let problem = format!("the clients of this run are {are}: resume it with `{command}`");
    Err(Error::file(out, problem))
}

/// The command that resumes the run in a folder, for a shell.
pub fn resume_command(out: &Path) -> String {
    match read(out) {
        Ok(None) => simulation_command(out),
        Ok(Some(file)) => fleet_command(out, &file.socket),
        // Whose socket it was cannot be told.
        Err(_) => fleet_command(out, Path::new("PATH")),
    }
}

/// The same where the clients are simulated.
fn simulation_command(out: &Path) -> String {
    format!("fedanchor run --resume {}", quoted(out))
}

/// The same where they are not.
fn fleet_command(out: &Path, socket: &Path) -> String {
    format!("fedanchor coordinator --resume {} --socket {}", quoted(out), quoted(socket))
}

fn quoted(path: &Path) -> String {
    // A path contains no NUL, the one thing that cannot be quoted.
    shlex::try_quote(&path.to_string_lossy()).unwrap_or_default().into_owned()
}
