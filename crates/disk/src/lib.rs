//! File access for what must be trusted: run folders, checkpoints, downloads.
//!
//! A file is complete or absent, even if the process, the disk or the power fails: it is written under a temporary name,
//! synced and renamed, and its folder is synced. Only regular files are read, up to a limit that
//! the caller sets. Disk errors are reported as such, not as missing or damaged files.
//!
//! With the feature `inject`, a test can make the N-th call below a folder fail, and see what a power cut after it
//! would leave behind.

mod append;
mod call;
#[cfg(feature = "inject")]
pub mod inject;
mod read;
mod write;

pub use append::Appended;
pub use read::{MAX_FILE, limit, list, open, read, read_if_exists, read_text};
pub use write::{create_folder, remove, sync_all_below, sync_folder, write};
