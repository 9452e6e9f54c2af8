//! Streams, captured graphs and uploads.

use crate::GraphError;
use crate::shim::*;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use tch::Tensor;

/// A stream: a queue of work on a GPU.
#[derive(Debug)]
pub struct Queue(*mut c_void);

// SAFETY: the handle is a plain value; CUDA streams may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: the handle does not change after `new`.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a stream on this GPU.
    pub fn new(device: usize) -> Result<Self> {
        let mut out = null_mut();
        // SAFETY: `out` receives a handle that `drop` frees.
        check(unsafe { fa_stream_new(device as c_int, &mut out) })?;
        Ok(Self(out))
    }

    /// Makes it this thread's current stream until the returned guard is dropped.
    pub fn enter(&self) -> Result<Entered> {
        let mut before = null_mut();
        // SAFETY: both are handles of live streams; `before` is freed when the guard is dropped.
        check(unsafe { fa_stream_enter(self.0, &mut before) })?;
        Ok(Entered { before: Queue(before), _here: PhantomData })
    }

    /// Waits until all work queued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live handle.
        check(unsafe { fa_stream_synchronize(self.0) })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again.
        unsafe { fa_stream_free(self.0) }
    }
}

/// A guard that restores the thread's previous stream when dropped.
#[derive(Debug)]
pub struct Entered {
    before: Queue,
    _here: PhantomData<*const ()>, // not `Send`: belongs to this thread
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut left = null_mut();
        // SAFETY: a live handle; the stream that is left has its own handle, so this one is freed.
        unsafe {
            if fa_stream_enter(self.before.0, &mut left).is_null() {
                fa_stream_free(left);
            }
        }
    }
}

/// Work that was captured once and can be replayed with one call.
#[derive(Debug)]
pub struct Graph(*mut c_void);

// SAFETY: the handle is used by one thread at a time (no `Sync`).
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `work` queues on the current stream, which must not be the default
    /// one; nothing is executed. `share` is a graph whose working memory this one may reuse,
    /// because the two never run at the same time.
    pub fn capture<T, E: From<GraphError>>(
        share: Option<&Graph>,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(Self, T), E> {
        let mut out = null_mut();
        // SAFETY: `out` receives a handle that `drop` frees.
        check(unsafe { fa_graph_new(&mut out) })?;
        let graph = Self(out);
        let shared = share.map_or(null_mut(), |graph| graph.0);
        // SAFETY: live handles; the capture is ended below even if `work` fails.
        check(unsafe { fa_graph_begin(graph.0, shared) })?;
        let outcome = work();
        // SAFETY: as above.
        let ended = check(unsafe { fa_graph_end(graph.0) });
        let value = outcome?;
        ended?;
        Ok((graph, value))
    }

    /// Queues the captured work again.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: a live handle.
        check(unsafe { fa_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again.
        unsafe { fa_graph_free(self.0) }
    }
}

/// A buffer for uploading batches: filled in pinned memory, copied to the GPU on one stream, and
/// from there to its destination on another, so that neither the host nor the computation waits.
#[derive(Debug)]
pub struct Upload {
    handle: *mut c_void,
    size: usize,
}

// SAFETY: the handle is used by one thread at a time (no `Sync`).
unsafe impl Send for Upload {}

impl Upload {
    /// Allocates `size` bytes on the host and on the GPU.
    pub fn new(device: usize, size: usize) -> Result<Self> {
        let mut handle = null_mut();
        // SAFETY: `handle` receives a handle that `drop` frees.
        check(unsafe { fa_upload_new(device as c_int, size, &mut handle) })?;
        Ok(Self { handle, size })
    }

    /// Capacity in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The pinned memory; waits until the last copy from it is done.
    pub fn memory(&mut self) -> Result<&mut [u8]> {
        // SAFETY: a live handle. The memory is `size` bytes, not shared, and no copy reads it any
        // more; the exclusive borrow prevents `start` as long as the slice lives.
        unsafe {
            check(fa_upload_wait(self.handle))?;
            Ok(std::slice::from_raw_parts_mut(fa_upload_memory(self.handle), self.size))
        }
    }

    /// Queues the copy of the first bytes to the GPU on `stream`.
    pub fn start(&mut self, stream: &Queue, bytes: usize) -> Result<()> {
        // SAFETY: live handles; the shim checks the size.
        check(unsafe { fa_upload_start(self.handle, stream.0, bytes) })
    }

    /// Queues the copy to its destination on the current stream, which waits for the first copy.
    pub fn take(&mut self, to: &Tensor) -> Result<()> {
        // SAFETY: a live handle and tensor; the shim checks both sizes.
        check(unsafe { fa_upload_take(self.handle, raw(to)) })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again; the shim waits for a copy in progress.
        unsafe { fa_upload_free(self.handle) }
    }
}
