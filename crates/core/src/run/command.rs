//! What the user is told to type.

use std::path::Path;

/// The command that resumes the run in a folder, for a shell.
pub fn resume_command(out: &Path) -> String {
    let folder = out.to_string_lossy();
    // A path contains no NUL, the one thing that cannot be quoted.
    let folder = shlex::try_quote(&folder).unwrap_or_default();
    format!("fedanchor run --resume {folder}")
}
