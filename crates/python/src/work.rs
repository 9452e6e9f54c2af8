//! Work in progress: the interpreter waits for it when it ends, and a forked process is refused it.

use crate::errors::other;
use pyo3::prelude::*;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);
/// The process that computed first; 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Something that computes, as long as it lives.
pub(crate) struct Work;

impl Work {
    /// libtorch's threads do not exist in a forked process, which would wait for them for ever.
    pub(crate) fn begin() -> PyResult<Self> {
        let this = process::id();
        let first = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|first| first != this) {
            return Err(other(
                "this process was forked from one that had computed already: start processes with \
                 multiprocessing.get_context(\"spawn\")",
            ));
        }
        ACTIVE.fetch_add(1, Ordering::SeqCst);
        Ok(Self)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the interpreter ends.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Asks all work to stop, and waits for it: libtorch must not be unloaded below it.
#[pyfunction]
pub(crate) fn finish(py: Python) -> PyResult<()> {
    ENDING.store(true, Ordering::Relaxed);
    while ACTIVE.load(Ordering::SeqCst) > 0 {
        py.detach(|| std::thread::sleep(Duration::from_millis(10)));
        py.check_signals()?;
    }
    Ok(())
}
