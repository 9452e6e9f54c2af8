//! The functions of the shim, and conversions of their arguments and results.

use crate::CudaError;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::OnceLock;
use tch::Tensor;
use torch_sys::C_tensor;

pub(crate) type Result<T> = std::result::Result<T, CudaError>;
/// Null, or why a call failed: a text of the calling thread that its next call overwrites.
pub(crate) type Message = *const c_char;

/// Declares the functions of the shim. Each of the first kind fails with the reason why there is no shim; those of the
/// second take a handle that the shim has made.
macro_rules! shim {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)* with a handle
     $(fn $with:ident($handle:ident: $of:ty) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) -> Message,)*
            $($with: unsafe extern "C" fn($of) $(-> $result)?,)*
        }

        impl Functions {
            /// Finds them in a library, which stays loaded.
            fn of(library: &'static Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the types are those of cpp/shim.cpp, which this build or the package's compiled.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                        $($with: *library.get(concat!(stringify!($with), "\0").as_bytes())?,)*
                    })
                }
            }
        }

        $(#[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name($($argument: $kind),*) -> Message {
            match functions() {
                // SAFETY: as the caller promises.
                Ok(functions) => unsafe { (functions.$name)($($argument),*) },
                Err(reason) => reason.as_ptr(),
            }
        })*
        $(pub(crate) unsafe fn $with($handle: $of) $(-> $result)? {
            match functions() {
                // SAFETY: as the caller promises.
                Ok(functions) => unsafe { (functions.$with)($handle) },
                Err(_) => unreachable!("without the shim there are no handles"),
            }
        })*
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
    with a handle
    fn fa_free(code: *mut c_char);
    fn fa_stream_free(stream: *mut c_void);
    fn fa_stream_leave(entered: *mut c_void);
    fn fa_graph_discard(graph: *mut c_void);
    fn fa_graph_free(graph: *mut c_void);
    fn fa_upload_free(upload: *mut c_void);
    fn fa_upload_memory(upload: *mut c_void) -> *mut u8;
}

/// The name of the shim's library.
const LIBRARY: &str = "libfedanchor_cuda.so";
/// Where a package has it.
static PLACE: OnceLock<PathBuf> = OnceLock::new();

/// Sets the place of the shim, for a package that brings it along; before anything else is called.
pub fn set_library(path: PathBuf) {
    let _ = PLACE.set(path); // the first stays
}

/// Whether the kernels can be used: the shim is there, and the libraries of CUDA that it needs.
pub fn is_available() -> bool {
    functions().is_ok()
}

/// Why the kernels cannot be used, if they cannot.
pub fn unavailable() -> Option<String> {
    functions().err().map(|reason| reason.to_string_lossy().into_owned())
}

/// The functions of the shim, or why there are none. It is loaded when it is first needed, and CUDA with it: a
/// program that computes on a CPU needs neither.
fn functions() -> std::result::Result<&'static Functions, &'static CStr> {
    static FUNCTIONS: OnceLock<std::result::Result<Functions, CString>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        load().map_err(|reason| {
            CString::new(reason).unwrap_or_else(|_| c"loading the CUDA kernels failed".to_owned())
        })
    });
    functions.as_ref().map_err(|reason| &**reason)
}

/// Loads the shim: a package's, else that of this build, else the one beside the program.
fn load() -> std::result::Result<Functions, String> {
    let built = option_env!("FEDANCHOR_CUDA_SHIM").map(PathBuf::from);
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(LIBRARY));
    let places = [PLACE.get().cloned(), built, beside];
    let Some(path) = places.into_iter().flatten().find(|path| path.exists()) else {
        return Err(
            "built without CUDA support: run `make libtorch CUDA=1` and build again".to_owned()
        );
    };
    let failed = |error: libloading::Error| {
        // The reason is that of the system's loader, which names the library that is missing.
        let reason =
            std::error::Error::source(&error).map_or_else(|| error.to_string(), |e| e.to_string());
        format!("the CUDA kernels cannot be loaded: {reason}")
    };
    // SAFETY: loading runs the initialisers of libtorch's CUDA libraries and none of the shim.
    let library = unsafe { Library::new(&path) }.map_err(failed)?;
    Functions::of(Box::leak(Box::new(library))).map_err(failed)
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
