//! What the user is told to type.

use super::fleet_file;
use std::path::Path;

/// The command that resumes the run in a folder, for a shell.
pub fn resume_command(out: &Path) -> String {
    match fleet_file::read(out) {
        Ok(None) => simulation_command(out),
        Ok(Some(file)) => fleet_command(out, &file.socket),
        // Whose socket it was cannot be told.
        Err(_) => fleet_command(out, Path::new("PATH")),
    }
}

/// The same where the clients are simulated.
pub(super) fn simulation_command(out: &Path) -> String {
    format!("fedanchor run --resume {}", quoted(out))
}

/// The same where they are not.
pub(super) fn fleet_command(out: &Path, socket: &Path) -> String {
    format!("fedanchor coordinator --resume {} --socket {}", quoted(out), quoted(socket))
}

fn quoted(path: &Path) -> String {
    // A path contains no NUL, the one thing that cannot be quoted.
    shlex::try_quote(&path.to_string_lossy()).unwrap_or_default().into_owned()
}
