//! Captured graphs.

use crate::CudaError;
use crate::shim::*;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

/// Work that was captured once and can be replayed with one call. It keeps the memory alive that the
/// work reads and writes.
#[derive(Debug)]
pub struct Graph(*mut c_void);

// SAFETY: the handle is used by one thread at a time (no `Sync`).
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `work` queues on the current stream, which must not be the default one or
    /// be captured already; nothing is executed. `share` is a graph whose working memory this one may
    /// reuse, because the two never run at the same time.
    ///
    /// If `work` fails or panics, the capture is ended and discarded: the stream is usable again.
    pub fn capture<T, E: From<CudaError>>(
        share: Option<&Graph>,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(Self, T), E> {
        let mut out = null_mut();
        // SAFETY: `out` receives a handle that `drop` frees.
        check(unsafe { fa_graph_new(&mut out) })?;
        let graph = Self(out);
        let shared = share.map_or(null_mut(), |graph| graph.0);
        let value = bracketed(
            // SAFETY: live handles; once begun, the capture is ended or discarded on this thread.
            || check(unsafe { fa_graph_begin(graph.0, shared) }),
            work,
            // SAFETY: a live handle whose capture has begun; where this fails, the shim discards it.
            || check(unsafe { fa_graph_end(graph.0) }),
            // SAFETY: a live handle whose capture has begun.
            || unsafe { fa_graph_discard(graph.0) },
        )?;
        Ok((graph, value))
    }

    /// Queues the captured work again, on the stream that it was captured on, which must be the current
    /// one.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: a live handle of a graph whose capture succeeded; the shim holds the memory that it uses.
        check(unsafe { fa_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again.
        unsafe { fa_graph_free(self.0) }
    }
}

/// Runs `work`, which computes gradients with `run_backward` on the current stream; the gradients of convolutions' weights
/// are computed on a side stream. Work that is queued on the current stream after it returns sees them complete; until
/// then nothing may read them: weights that are leaves must be used by convolutions only, or other gradients are added to
/// theirs too early. Inside a capture, not around one.
pub fn overlap_weight_grads<T, E: From<CudaError>>(
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let pass = Cell::new(null_mut());
    let begin = || {
        let mut out = null_mut();
        // SAFETY: `out` receives a handle that is ended once, below.
        check(unsafe { fa_backward_begin(&mut out) })?;
        pass.set(out);
        Ok(())
    };
    // SAFETY: the handle of the pass that has begun; only one of the two calls below is made.
    let end = || check(unsafe { fa_backward_end(pass.get()) });
    bracketed(begin, work, end, || drop(end()))
}

/// Runs `work` between `begin` and `end`; if it fails or panics, `discard` takes the place of `end`.
fn bracketed<T, E: From<CudaError>>(
    begin: impl FnOnce() -> Result<()>,
    work: impl FnOnce() -> std::result::Result<T, E>,
    end: impl FnOnce() -> Result<()>,
    discard: impl FnOnce(),
) -> std::result::Result<T, E> {
    begin()?;
    let outcome = catch_unwind(AssertUnwindSafe(work));
    if let Ok(Ok(value)) = outcome {
        end()?;
        return Ok(value);
    }
    discard();
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// What a capture of `work` calls, with a `begin` and an `end` that return these.
    fn calls<T>(
        begin: Result<()>,
        work: impl FnOnce() -> Result<T>,
        end: Result<()>,
    ) -> (std::thread::Result<Result<T>>, Vec<&'static str>) {
        let calls = RefCell::new(Vec::new());
        let call = |name, outcome: Result<()>| {
            calls.borrow_mut().push(name);
            outcome
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            bracketed(
                || call("begin", begin),
                || {
                    calls.borrow_mut().push("work");
                    work()
                },
                || call("end", end),
                || calls.borrow_mut().push("discard"),
            )
        }));
        (outcome, calls.into_inner())
    }

    fn failure<T>(reason: &str) -> Result<T> {
        Err(CudaError::Failed(reason.to_owned()))
    }

    #[test]
    fn a_capture_is_ended_once() {
        let (outcome, calls) = calls(Ok(()), || Ok(7), Ok(()));
        assert_eq!((outcome.unwrap(), calls), (Ok(7), vec!["begin", "work", "end"]));
    }

    #[test]
    fn a_failure_discards_the_capture() {
        let (outcome, calls) = calls::<()>(Ok(()), || failure("of the work"), Ok(()));
        assert_eq!(outcome.unwrap(), failure("of the work"));
        assert_eq!(calls, ["begin", "work", "discard"]);
    }

    #[test]
    fn a_panic_discards_the_capture_and_continues() {
        let (outcome, calls) = calls::<()>(Ok(()), || panic!("of the work"), Ok(()));
        let panic = outcome.unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the work"));
        assert_eq!(calls, ["begin", "work", "discard"]);
    }

    #[test]
    fn what_did_not_begin_is_not_ended() {
        let (outcome, calls) = calls(failure("to begin"), || Ok(()), Ok(()));
        assert_eq!((outcome.unwrap(), calls), (failure("to begin"), vec!["begin"]));
    }

    #[test]
    fn a_capture_that_cannot_be_ended_is_an_error() {
        let (outcome, calls) = calls(Ok(()), || Ok(()), failure("to end"));
        assert_eq!((outcome.unwrap(), calls), (failure("to end"), vec!["begin", "work", "end"]));
    }
}
