//! Every call to the operating system that reads or changes something passes here.

use std::io::Result;
use std::path::Path;

/// What is about to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    Read(&'a Path),
    List(&'a Path),
    Create(&'a Path),
    /// Bytes added at the end.
    Append(&'a Path, &'a [u8]),
    /// A file cut to this length.
    Truncate(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    CreateFolder(&'a Path),
    SyncFolder(&'a Path),
}

/// Makes the call.
#[cfg(not(feature = "inject"))]
pub(crate) fn perform<T>(_: Call, act: impl FnOnce() -> Result<T>) -> Result<T> {
    act()
}

/// Makes the call, unless a test wants it to fail.
#[cfg(feature = "inject")]
pub(crate) fn perform<T>(call: Call, act: impl FnOnce() -> Result<T>) -> Result<T> {
    crate::inject::before(call)?;
    let done = act()?;
    crate::inject::after(call);
    Ok(done)
}
