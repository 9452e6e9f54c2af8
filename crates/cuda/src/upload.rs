//! Uploads from pinned memory.

use crate::checks::{Argument, Expected, gpu_number, number};
use crate::queue::Queue;
use crate::shim::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use tch::{Device, Kind, Tensor};

/// A buffer for uploading batches: filled in pinned memory, copied to the GPU on one stream, and
/// from there to its destination on another, so that neither the host nor the computation waits.
#[derive(Debug)]
pub struct Upload {
    handle: *mut c_void,
    device: usize,
    size: usize,
    /// Bytes that the last copy brought to the GPU.
    started: usize,
}

// SAFETY: the handle is used by one thread at a time (no `Sync`).
unsafe impl Send for Upload {}

impl Upload {
    /// Allocates `size` bytes on the host and on the GPU.
    pub fn new(device: usize, size: usize) -> Result<Self> {
        let number = gpu_number(device)?;
        let mut handle = null_mut();
        // SAFETY: `handle` receives a handle that `drop` frees.
        check(unsafe { fa_upload_new(number, size, &mut handle) })?;
        Ok(Self { handle, device, size, started: 0 })
    }

    /// Capacity in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The pinned memory; waits until the last copy from it is done.
    pub fn memory(&mut self) -> Result<&mut [u8]> {
        // SAFETY: a live handle. The memory is `size` bytes, never null, initialised by the shim, not
        // shared, and no copy reads it any more; the exclusive borrow prevents `start` as long as the
        // slice lives.
        unsafe {
            check(fa_upload_wait(self.handle))?;
            Ok(std::slice::from_raw_parts_mut(fa_upload_memory(self.handle), self.size))
        }
    }

    /// Queues the copy of the first bytes to the GPU on `stream`, which is a stream of the same GPU and
    /// not being captured.
    pub fn start(&mut self, stream: &Queue, bytes: usize) -> Result<()> {
        check_start(bytes, self.size, stream.device, self.device)?;
        self.started = 0;
        // SAFETY: live handles of one GPU; the memory has at least this many bytes.
        check(unsafe { fa_upload_start(self.handle, stream.handle, bytes) })?;
        self.started = bytes;
        Ok(())
    }

    /// Queues the copy to its destination on the current stream, which waits for the first copy and is
    /// not being captured. `to` is 8-bit, contiguous, on the same GPU, and not larger than what was
    /// started.
    pub fn take(&mut self, to: &Tensor) -> Result<()> {
        check_take(to, self.started, self.device)?;
        // SAFETY: a live handle and a tensor that was checked.
        check(unsafe { fa_upload_take(self.handle, raw(to)) })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // SAFETY: we own the handle and do not use it again; the shim waits for a copy in progress.
        unsafe { fa_upload_free(self.handle) }
    }
}

fn check_start(bytes: usize, size: usize, stream: usize, device: usize) -> Result<()> {
    number("bytes to upload", Expected::Between(0, size as i64), bytes as i64)?;
    let device = device as i64;
    number("number of the stream's GPU", Expected::Between(device, device), stream as i64)
}

fn check_take(to: &Tensor, started: usize, device: usize) -> Result<()> {
    let to = Argument::new("to", to)?.with_kind(&[Kind::Uint8])?.contiguous()?;
    let bytes = to.size().iter().product();
    number("bytes of the destination", Expected::Between(0, started as i64), bytes)?;
    to.on(Device::Cuda(device)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaError;

    fn number<T>(what: &'static str, most: (i64, i64), found: i64) -> Result<T> {
        Err(CudaError::refused(what, Expected::Between(most.0, most.1), found))
    }

    #[test]
    fn a_copy_stays_inside_the_buffer_and_on_its_gpu() {
        assert_eq!(check_start(8, 8, 0, 0), Ok(()));
        assert_eq!(check_start(9, 8, 0, 0), number("bytes to upload", (0, 8), 9));
        assert_eq!(check_start(usize::MAX, 8, 0, 0), number("bytes to upload", (0, 8), -1));
        assert_eq!(check_start(8, 8, 1, 0), number("number of the stream's GPU", (0, 0), 1));
    }

    #[test]
    fn a_destination_is_checked() {
        let bytes = Tensor::zeros([8], (Kind::Uint8, Device::Cpu));
        assert_eq!(check_take(&bytes, 7, 0), number("bytes of the destination", (0, 7), 8));
        assert_eq!(check_take(&bytes, 0, 0), number("bytes of the destination", (0, 0), 8));
        let kind = CudaError::refused("to", "Uint8", "Float");
        assert_eq!(check_take(&bytes.to_kind(Kind::Float), 64, 0), Err(kind));
        let strides = CudaError::refused("to", "strides [1]", "[2]");
        assert_eq!(check_take(&bytes.slice(0, 0, 8, 2), 8, 0), Err(strides));
        let device = CudaError::refused("to", "a tensor on Cuda(0)", "one on Cpu");
        assert_eq!(check_take(&bytes, 8, 0), Err(device));
    }
}
