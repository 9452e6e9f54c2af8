//! File access for what must be trusted: run folders, checkpoints, downloads.
//!
//! A file is complete or absent, whatever happens to the process, the disk or the power meanwhile: it is written
//! aside, synced and renamed, and its folder is synced. Only regular files are read, and never more of them than
//! the caller has room for. An error of the disk stays one: it is not taken for a missing or damaged file.
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
pub use read::{LARGEST, limit, list, open, read, read_if_exists, read_text};
pub use write::{create_folder, remove, sync_all_below, sync_folder, write};
