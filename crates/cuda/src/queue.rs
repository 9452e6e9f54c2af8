//! Streams.

use crate::checks::gpu_number;
use crate::shim::*;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A stream: a queue of work on a GPU.
#[derive(Debug)]
pub struct Queue {
    pub(crate) handle: *mut c_void,
    /// The number of its GPU.
    pub(crate) device: usize,
}

// SAFETY: the handle is a plain value; CUDA streams may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: the handle does not change after `new`.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a stream on this GPU.
    pub fn new(device: usize) -> Result<Self> {
        let number = gpu_number(device)?;
        let mut handle = null_mut();
        // SAFETY: `handle` receives a handle that `drop` frees.
        check(unsafe { fa_stream_new(number, &mut handle) })?;
        Ok(Self { handle, device })
    }

    /// Makes it this thread's current stream, and its GPU the current one, until the returned guard is dropped.
    pub fn enter(&self) -> Result<Entered> {
        let mut handle = null_mut();
        // SAFETY: a live handle; the one received is freed when the guard is dropped, on this thread.
        check(unsafe { fa_stream_enter(self.handle, &mut handle) })?;
        Ok(Entered { handle, _here: PhantomData })
    }

    /// Waits until all work queued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live handle.
        check(unsafe { fa_stream_synchronize(self.handle) })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again.
        unsafe { fa_stream_free(self.handle) }
    }
}

/// A guard that restores the thread's previous stream and GPU when dropped. It keeps the stream it has entered from being
/// reused by others.
#[derive(Debug)]
pub struct Entered {
    handle: *mut c_void,
    _here: PhantomData<*const ()>, // not `Send`: belongs to this thread
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again.
        unsafe { fa_stream_leave(self.handle) }
    }
}
