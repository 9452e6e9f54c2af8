//! Every call to the operating system that reads or changes a file or folder.

use std::io::Result;
use std::path::Path;

/// A call and its path; of a renaming, the new path is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    Read(&'a Path),
    List(&'a Path),
    Create(&'a Path),
    Append(&'a Path, &'a [u8]),
    Truncate(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    CreateFolder(&'a Path),
    SyncFolder(&'a Path),
}

/// Makes the call, unless a test makes it fail.
#[cfg_attr(not(feature = "inject"), expect(unused_variables))]
pub(crate) fn perform<T>(call: Call, act: impl FnOnce() -> Result<T>) -> Result<T> {
    #[cfg(feature = "inject")]
    crate::inject::before(call)?;
    let done = act()?;
    #[cfg(feature = "inject")]
    crate::inject::after(call);
    Ok(done)
}
