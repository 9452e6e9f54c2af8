//! The functions of the shim, and conversions of their arguments and results.

use crate::CudaError;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use tch::Tensor;
use torch_sys::C_tensor;

pub(crate) type Result<T> = std::result::Result<T, CudaError>;
/// Null, or why a call failed: a text of the calling thread that its next call overwrites.
pub(crate) type Message = *const c_char;

/// Declares the functions of the shim; without the shim, functions that return an error.
macro_rules! shim {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        #[cfg(fedanchor_cuda)]
        unsafe extern "C" {
            $(pub(crate) fn $name($($argument: $kind),*) -> Message;)*
            pub(crate) fn fa_free(code: *mut c_char);
            pub(crate) fn fa_stream_free(stream: *mut c_void);
            pub(crate) fn fa_stream_leave(entered: *mut c_void);
            pub(crate) fn fa_graph_discard(graph: *mut c_void);
            pub(crate) fn fa_graph_free(graph: *mut c_void);
            pub(crate) fn fa_upload_free(upload: *mut c_void);
            pub(crate) fn fa_upload_memory(upload: *mut c_void) -> *mut u8;
        }
        #[cfg(not(fedanchor_cuda))]
        mod absent {
            use super::*;
            $(#[allow(clippy::too_many_arguments)]
            pub(crate) unsafe fn $name($(_: $kind),*) -> Message {
                c"built without CUDA support: run `make libtorch CUDA=1` and build again"
                    .as_ptr()
            })*
            pub(crate) unsafe fn fa_free(_: *mut c_char) {}
            pub(crate) unsafe fn fa_stream_free(_: *mut c_void) {}
            pub(crate) unsafe fn fa_stream_leave(_: *mut c_void) {}
            pub(crate) unsafe fn fa_graph_discard(_: *mut c_void) {}
            pub(crate) unsafe fn fa_graph_free(_: *mut c_void) {}
            pub(crate) unsafe fn fa_upload_free(_: *mut c_void) {}
            pub(crate) unsafe fn fa_upload_memory(_: *mut c_void) -> *mut u8 {
                std::ptr::NonNull::dangling().as_ptr()
            }
        }
        #[cfg(not(fedanchor_cuda))]
        pub(crate) use absent::*;
    };
}

shim! {
    fn fa_architecture(device: c_int, loaded: *mut c_int, architecture: *mut c_int);
    fn fa_compile(
        text: *const c_char,
        length: usize,
        architecture: c_int,
        hopper: c_int,
        out: *mut *mut c_char,
        size: *mut usize,
    );
    fn fa_load(code: *const c_char, device: c_int, hopper: c_int);
    fn fa_launched(device: c_int, name: *const c_char, length: usize, found: *mut c_int);
    fn fa_products(tf32: c_int, search: c_int);
    fn fa_stream_new(device: c_int, out: *mut *mut c_void);
    fn fa_stream_enter(stream: *mut c_void, out: *mut *mut c_void);
    fn fa_stream_synchronize(stream: *mut c_void);
    fn fa_backward_begin(out: *mut *mut c_void);
    fn fa_backward_end(pass: *mut c_void);
    fn fa_graph_new(out: *mut *mut c_void);
    fn fa_graph_begin(graph: *mut c_void, share: *mut c_void);
    fn fa_graph_end(graph: *mut c_void);
    fn fa_graph_replay(graph: *mut c_void);
    fn fa_upload_new(device: c_int, size: usize, out: *mut *mut c_void);
    fn fa_upload_start(upload: *mut c_void, stream: *mut c_void, bytes: usize);
    fn fa_upload_take(upload: *mut c_void, to: *mut C_tensor);
    fn fa_upload_wait(upload: *mut c_void);
    fn fa_peak_memory(device: c_int, out: *mut u64);
    fn fa_empty_cache();
    fn fa_norm(
        x: *mut C_tensor,
        residual: *mut C_tensor,
        sums: *mut C_tensor,
        passes: c_int,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        mean: *mut C_tensor,
        variance: *mut C_tensor,
        relu: c_int,
        views: i64,
        mode: c_int,
        momentum: f64,
        epsilon: f64,
        first: *mut *mut C_tensor,
        second: *mut *mut C_tensor,
    );
    fn fa_conv(
        x: *mut C_tensor,
        w: *mut C_tensor,
        stride: i64,
        padding: i64,
        add: *mut C_tensor,
        views: i64,
        out: *mut *mut C_tensor,
        sums: *mut *mut C_tensor,
    );
    fn fa_fix_mix_loss(
        logits: *mut C_tensor,
        adjustment: *mut C_tensor,
        labels: *mut C_tensor,
        weights: *mut C_tensor,
        mix_labels: *mut C_tensor,
        mix_weights: *mut C_tensor,
        lambda: *mut C_tensor,
        mix_weight: f64,
        total: *mut *mut C_tensor,
        terms: *mut *mut C_tensor,
    );
    fn fa_pool(x: *mut C_tensor, clients: i64, out: *mut *mut C_tensor);
    fn fa_head(x: *mut C_tensor, w: *mut C_tensor, b: *mut C_tensor, out: *mut *mut C_tensor);
    fn fa_images(
        fix: *mut C_tensor,
        first: *mut C_tensor,
        second: *mut C_tensor,
        lambda: *mut C_tensor,
        scale: *const f32,
        shift: *const f32,
        half: c_int,
        out: *mut *mut C_tensor,
    );
    fn fa_sgd(
        n: usize,
        values: *const *mut C_tensor,
        momenta: *const *mut C_tensor,
        gradients: *const *mut C_tensor,
        shadows: *const *mut C_tensor,
        lr: *mut C_tensor,
        momentum: f64,
        decay: f64,
        clip: f64,
        nesterov: c_int,
    );
}

/// Converts a message of the shim to a result.
pub(crate) fn check(message: Message) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a C string that stays as it is until this thread's next call.
    let text = unsafe { CStr::from_ptr(message) };
    Err(CudaError::Failed(text.to_string_lossy().into_owned()))
}

pub(crate) fn raw(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}

pub(crate) fn raw_option(tensor: Option<&Tensor>) -> *mut C_tensor {
    tensor.map_or(null_mut(), raw)
}
