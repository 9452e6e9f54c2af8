//! What a cohort's training step needs of a GPU beyond the bindings of libtorch: CUDA graphs, streams,
//! uploads from pinned memory, and fused kernels (batch norm with ReLU and the residual sum for two
//! views at once, SGD for all parameters in two launches, 8-bit images to the network's input).
//!
//! A C++ shim does the work (`cpp/shim.cpp`, `cpp/kernels.cu`); this file is its safe face and the only
//! `unsafe` code of the project. The contract with the shim:
//!
//! - A function returns null, or a message that is freed here. No exception crosses the border.
//! - Tensors are borrowed for the call; the shim takes references of its own to what it keeps. Results
//!   are new tensors that belong to the caller.
//! - Work is queued on the calling thread's current stream ([`Stream::enter`]). Memory handed to a call
//!   is released in the order of that stream, as everywhere in libtorch.
//! - A captured [`Graph`] reads and writes the addresses it saw: whoever captures must keep those
//!   tensors alive and in place as long as the graph, and replays on the stream of the capture.
//!   Breaking this computes nonsense with memory that libtorch still owns; it reaches nothing else.
//!
//! Built against the CPU set of libtorch the shim does not exist, [`AVAILABLE`] is false, and every
//! function says so.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::null_mut;
use tch::Tensor;
use torch_sys::C_tensor;

/// Whether this program was built with the CUDA set of libtorch.
pub const AVAILABLE: bool = cfg!(fedanchor_cuda);

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GraphError(pub String);

type Result<T> = std::result::Result<T, GraphError>;
type Message = *mut c_char;

/// Declares the shim's functions; without the shim they are functions that say so.
macro_rules! shim {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        #[cfg(fedanchor_cuda)]
        unsafe extern "C" {
            $(fn $name($($argument: $kind),*) -> Message;)*
            fn fa_free(message: Message);
            fn fa_stream_free(stream: *mut c_void);
            fn fa_graph_free(graph: *mut c_void);
            fn fa_upload_free(upload: *mut c_void);
            fn fa_upload_memory(upload: *mut c_void) -> *mut u8;
        }
        #[cfg(not(fedanchor_cuda))]
        mod absent {
            use super::*;
            $(#[allow(clippy::too_many_arguments)]
            pub(super) unsafe fn $name($(_: $kind),*) -> Message {
                c"built without CUDA: run `make libtorch CUDA=1` and build again".as_ptr().cast_mut()
            })*
            pub(super) unsafe fn fa_free(_: Message) {}
            pub(super) unsafe fn fa_stream_free(_: *mut c_void) {}
            pub(super) unsafe fn fa_graph_free(_: *mut c_void) {}
            pub(super) unsafe fn fa_upload_free(_: *mut c_void) {}
            pub(super) unsafe fn fa_upload_memory(_: *mut c_void) -> *mut u8 {
                std::ptr::NonNull::dangling().as_ptr()
            }
        }
        #[cfg(not(fedanchor_cuda))]
        use absent::*;
    };
}

shim! {
    fn fa_architecture(device: c_int, loaded: *mut c_int, architecture: *mut c_int);
    fn fa_compile(
        text: *const c_char,
        length: usize,
        device: c_int,
        out: *mut *mut c_char,
        size: *mut usize,
    );
    fn fa_load(code: *const c_char, device: c_int);
    fn fa_allow(tf32: c_int);
    fn fa_stream_new(device: c_int, out: *mut *mut c_void);
    fn fa_stream_enter(stream: *mut c_void, before: *mut *mut c_void);
    fn fa_stream_synchronize(stream: *mut c_void);
    fn fa_graph_new(out: *mut *mut c_void);
    fn fa_graph_begin(graph: *mut c_void, share: *mut c_void);
    fn fa_graph_end(graph: *mut c_void);
    fn fa_graph_replay(graph: *mut c_void);
    fn fa_upload_new(device: c_int, size: usize, out: *mut *mut c_void);
    fn fa_upload_start(upload: *mut c_void, stream: *mut c_void, bytes: usize);
    fn fa_upload_take(upload: *mut c_void, to: *mut C_tensor);
    fn fa_upload_wait(upload: *mut c_void);
    fn fa_peak_memory(device: c_int, out: *mut u64);
    fn fa_free_memory(device: c_int, free: *mut u64, total: *mut u64);
    fn fa_empty_cache();
    fn fa_norm(
        x: *mut C_tensor,
        add: *mut C_tensor,
        residual: *mut C_tensor,
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
        out: *mut *mut C_tensor,
    );
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

/// Turns the shim's answer into a result.
fn check(message: Message) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message is a C string that belongs to us until it is freed, once, here.
    unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        fa_free(message);
        Err(GraphError(text))
    }
}

fn raw(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}

fn raw_option(tensor: Option<&Tensor>) -> *mut C_tensor {
    tensor.map_or(null_mut(), raw)
}

/// The kernels, compiled for the GPU at hand when the program first meets it.
const SOURCE: &str = concat!(
    include_str!("../cpp/kernels.cu"),
    include_str!("../cpp/conv.cu"),
    include_str!("../cpp/hopper.cu")
);

/// Prepares a GPU: loads the kernels, compiled for it once and kept in the folder `cache` if there is
/// one; and says whether products in single precision may be computed in TF32, which is a setting of
/// the whole process.
pub fn setup(device: usize, tf32: bool, cache: Option<&Path>) -> Result<()> {
    let number = device as c_int;
    let (mut loaded, mut architecture) = (0, 0);
    // SAFETY: both are written once.
    check(unsafe { fa_architecture(number, &mut loaded, &mut architecture) })?;
    if loaded == 0 {
        let name = format!("kernels-{:016x}-sm{architecture}.cubin", hash(SOURCE.as_bytes()));
        let file = cache.map(|folder| folder.join(name));
        let kept = file.as_deref().and_then(read_kept);
        // A file that cannot be used is as good as none.
        if kept.is_none_or(|code| load(&code, number).is_err()) {
            let code = compile(number)?;
            load(&code, number)?;
            if let Some(file) = file {
                keep(&file, &code);
            }
        }
    }
    // SAFETY: no pointer.
    check(unsafe { fa_allow(c_int::from(tf32)) })
}

fn compile(device: c_int) -> Result<Vec<u8>> {
    let (mut code, mut size) = (null_mut(), 0);
    // SAFETY: the text outlives the call; on success `code` is `size` bytes that are ours to free.
    unsafe {
        check(fa_compile(SOURCE.as_ptr().cast(), SOURCE.len(), device, &mut code, &mut size))?;
        let copy = std::slice::from_raw_parts(code.cast::<u8>(), size).to_vec();
        fa_free(code);
        Ok(copy)
    }
}

fn load(code: &[u8], device: c_int) -> Result<()> {
    // SAFETY: complete code (it was just compiled, or its hash was checked), copied by the call.
    check(unsafe { fa_load(code.as_ptr().cast(), device) })
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    hash.finish()
}

/// Compiled kernels from a file that [`keep`] wrote: the code and its hash. The loader trusts the lengths
/// it reads in the code, so nothing else is handed to it.
fn read_kept(file: &Path) -> Option<Vec<u8>> {
    let mut code = std::fs::read(file).ok()?;
    let end = code.len().checked_sub(8)?;
    let kept = u64::from_le_bytes(code.split_off(end).try_into().ok()?);
    (kept == hash(&code)).then_some(code)
}

/// Writes compiled kernels aside and renames them, so that nobody reads half of them. Where that fails
/// they are compiled again the next time.
fn keep(file: &Path, code: &[u8]) {
    let aside = file.with_extension(format!("{}", std::process::id()));
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&aside, [code, &hash(code).to_le_bytes()].concat()))
        .and_then(|()| std::fs::rename(&aside, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
}

/// A queue of work on a GPU.
#[derive(Debug)]
pub struct Stream(*mut c_void);

// SAFETY: the handle is a plain value; CUDA streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: nothing of the handle changes after `new`.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own on this GPU.
    pub fn new(device: usize) -> Result<Self> {
        let mut out = null_mut();
        // SAFETY: `out` takes a handle that `drop` frees.
        check(unsafe { fa_stream_new(device as c_int, &mut out) })?;
        Ok(Self(out))
    }

    /// Makes it this thread's current stream until the answer is dropped.
    pub fn enter(&self) -> Result<Entered> {
        let mut before = null_mut();
        // SAFETY: both are handles of live streams; `before` is freed when the guard goes.
        check(unsafe { fa_stream_enter(self.0, &mut before) })?;
        Ok(Entered { before: Stream(before), _here: PhantomData })
    }

    /// Waits until everything queued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live handle.
        check(unsafe { fa_stream_synchronize(self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        unsafe { fa_stream_free(self.0) }
    }
}

/// A thread's current stream was changed; dropping this changes it back.
#[derive(Debug)]
pub struct Entered {
    before: Stream,
    _here: PhantomData<*const ()>, // of this thread
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut left = null_mut();
        // SAFETY: a live handle; the stream that is left keeps its own handle, so this one is freed.
        unsafe {
            if fa_stream_enter(self.before.0, &mut left).is_null() {
                fa_stream_free(left);
            }
        }
    }
}

/// Work that was captured once and can be repeated with one call.
#[derive(Debug)]
pub struct Graph(*mut c_void);

// SAFETY: the handle is used by one thread at a time (no `Sync`).
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `work` queues on the current stream, which must not be the default one; nothing
    /// is executed. `share`: a graph whose working memory this one may use, because the two never
    /// run at the same time.
    pub fn capture<T, E: From<GraphError>>(
        share: Option<&Graph>,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(Self, T), E> {
        let mut out = null_mut();
        // SAFETY: `out` takes a handle that `drop` frees.
        check(unsafe { fa_graph_new(&mut out) })?;
        let graph = Self(out);
        let shared = share.map_or(null_mut(), |graph| graph.0);
        // SAFETY: live handles; a capture that began is ended below whatever `work` does.
        check(unsafe { fa_graph_begin(graph.0, shared) })?;
        let outcome = work();
        // SAFETY: as above.
        let ended = check(unsafe { fa_graph_end(graph.0) });
        let value = outcome?;
        ended?;
        Ok((graph, value))
    }

    /// Queues the captured work once more.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: a live handle.
        check(unsafe { fa_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        unsafe { fa_graph_free(self.0) }
    }
}

/// A batch on its way to the GPU: filled in pinned memory, copied up on one stream, and from there to
/// where it is used on another, so that neither the host nor the computation waits.
#[derive(Debug)]
pub struct Upload {
    handle: *mut c_void,
    size: usize,
}

// SAFETY: the handle is used by one thread at a time (no `Sync`).
unsafe impl Send for Upload {}

impl Upload {
    /// Room for `size` bytes on both sides.
    pub fn new(device: usize, size: usize) -> Result<Self> {
        let mut handle = null_mut();
        // SAFETY: `handle` takes a handle that `drop` frees.
        check(unsafe { fa_upload_new(device as c_int, size, &mut handle) })?;
        Ok(Self { handle, size })
    }

    /// Bytes there is room for.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The memory, once the copy that was started last has left it.
    pub fn memory(&mut self) -> Result<&mut [u8]> {
        // SAFETY: a live handle. The memory is `size` bytes, ours alone, and no copy reads it any more;
        // the exclusive borrow keeps `start` away as long as the slice lives.
        unsafe {
            check(fa_upload_wait(self.handle))?;
            Ok(std::slice::from_raw_parts_mut(fa_upload_memory(self.handle), self.size))
        }
    }

    /// Queues the copy of the first bytes to the GPU on `stream`.
    pub fn start(&mut self, stream: &Stream, bytes: usize) -> Result<()> {
        // SAFETY: live handles; the shim checks the size.
        check(unsafe { fa_upload_start(self.handle, stream.0, bytes) })
    }

    /// Queues the copy to where it is used on the current stream, which waits for the first copy.
    pub fn take(&mut self, to: &Tensor) -> Result<()> {
        // SAFETY: a live handle and tensor; the shim checks both sizes.
        check(unsafe { fa_upload_take(self.handle, raw(to)) })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again; the shim waits for a copy under way.
        unsafe { fa_upload_free(self.handle) }
    }
}

/// Most memory that libtorch held on this GPU so far, in bytes.
pub fn peak_memory(device: usize) -> Result<u64> {
    let mut out = 0;
    // SAFETY: `out` is written once.
    check(unsafe { fa_peak_memory(device as c_int, &mut out) })?;
    Ok(out)
}

/// Free and total memory of this GPU, in bytes.
pub fn free_memory(device: usize) -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are written once.
    check(unsafe { fa_free_memory(device as c_int, &mut free, &mut total) })?;
    Ok((free, total))
}

/// Gives memory that libtorch holds but does not use back to the GPU.
pub fn empty_cache() -> Result<()> {
    // SAFETY: no argument.
    check(unsafe { fa_empty_cache() })
}

/// What a norm does with its statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistics {
    /// Normalise by the batch and move the running statistics by this share.
    Update(f64),
    /// Normalise by the batch.
    Batch,
    /// Normalise by the running statistics; no gradient.
    Running,
}

/// One batch norm of a cohort over `views` equal parts of the batch, each with statistics of its own:
/// `x` is `[views * batch, columns, H, W]`, channels last; the parameters are `[columns]`.
#[derive(Debug)]
pub struct Norm<'a> {
    /// Weight.
    pub weight: &'a Tensor,
    /// Bias.
    pub bias: &'a Tensor,
    /// Running mean.
    pub mean: &'a Tensor,
    /// Running variance.
    pub variance: &'a Tensor,
    /// What happens to them.
    pub statistics: Statistics,
    /// Equal parts of the batch.
    pub views: i64,
    /// Added to the variance.
    pub epsilon: f64,
    /// ReLU afterwards.
    pub relu: bool,
}

impl Norm<'_> {
    fn call(
        &self,
        x: &Tensor,
        add: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (mode, momentum) = match self.statistics {
            Statistics::Update(share) => (0, share),
            Statistics::Batch => (1, 0.0),
            Statistics::Running => (2, 0.0),
        };
        let (mut first, mut second) = (null_mut(), null_mut());
        // SAFETY: all tensors are alive; on success both results are new tensors that are ours.
        unsafe {
            check(fa_norm(
                raw(x),
                raw_option(add),
                raw_option(residual),
                raw(self.weight),
                raw(self.bias),
                raw(self.mean),
                raw(self.variance),
                c_int::from(self.relu),
                self.views,
                mode,
                momentum,
                self.epsilon,
                &mut first,
                &mut second,
            ))?;
            Ok((Tensor::from_ptr(first), Tensor::from_ptr(second)))
        }
    }

    /// act(norm(x)), twice: the same values with gradients of their own, so that two consumers cost no
    /// addition of gradients.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        self.call(x, None, None)
    }

    /// act(norm(x) + residual), twice likewise.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        self.call(x, None, Some(residual))
    }

    /// act(norm(x + add)), and x + add.
    pub fn forward_sum(&self, x: &Tensor, add: &Tensor) -> Result<(Tensor, Tensor)> {
        if self.statistics == Statistics::Running {
            let sum = x.f_add(add).map_err(|error| GraphError(error.to_string()))?;
            return Ok((self.call(&sum, None, None)?.0, sum));
        }
        self.call(x, Some(add), None)
    }
}

/// The convolution of a cohort in bfloat16: `x` `[batch, K * inputs, H, W]`, channels last; `w`
/// `[K, outputs, inputs, k, k]` with the inputs last in memory, k being 1 or 3. Channels of a group are
/// 8, 16, 32 and so on; an `x` with more of them than `w` counts as padded.
pub fn conv(x: &Tensor, w: &Tensor, stride: i64, padding: i64) -> Result<Tensor> {
    let mut out = null_mut();
    // SAFETY: both tensors are alive; the result is ours.
    unsafe {
        check(fa_conv(raw(x), raw(w), stride, padding, &mut out))?;
        Ok(Tensor::from_ptr(out))
    }
}

/// The second view of a batch of images: `lambda` `[K, batch]` of the first and the rest of the second.
#[derive(Debug)]
pub struct Mixture<'a> {
    /// 8-bit images.
    pub first: &'a Tensor,
    /// 8-bit images.
    pub second: &'a Tensor,
    /// Share of the first.
    pub lambda: &'a Tensor,
}

/// 8-bit images `[batch, K, H, W, C]` to a network's input `[views * batch, K * C, H, W]`, channels
/// last: x * scale - shift by channel, and where it is given a mixture as the second view. In half
/// precision C is padded to eight, as [`conv`] wants it.
pub fn images(
    fix: &Tensor,
    mixture: Option<&Mixture>,
    scale: &[f32],
    shift: &[f32],
    half: bool,
) -> Result<Tensor> {
    let channels = fix.size().last().copied().unwrap_or_default() as usize;
    if scale.len() != channels || shift.len() != channels {
        return Err(GraphError(format!("{channels} channels, but {} scales", scale.len())));
    }
    let mut out = null_mut();
    // SAFETY: all tensors are alive and the numbers as many as channels; the result is ours.
    unsafe {
        check(fa_images(
            raw(fix),
            raw_option(mixture.map(|m| m.first)),
            raw_option(mixture.map(|m| m.second)),
            raw_option(mixture.map(|m| m.lambda)),
            scale.as_ptr(),
            shift.as_ptr(),
            c_int::from(half),
            &mut out,
        ))?;
        Ok(Tensor::from_ptr(out))
    }
}

/// One entry of a step of SGD, all of `[K, ...]`.
#[derive(Debug)]
pub struct SgdEntry<'a> {
    /// The value that is changed.
    pub value: &'a Tensor,
    /// Its momentum.
    pub momentum: Option<&'a Tensor>,
    /// Its gradient, in single precision or bfloat16.
    pub gradient: &'a Tensor,
    /// A bfloat16 copy of the value to keep up to date.
    pub shadow: Option<&'a Tensor>,
}

/// The numbers of a step of SGD.
#[derive(Debug, Clone, Copy)]
pub struct Sgd {
    /// Momentum.
    pub momentum: f64,
    /// Weight decay.
    pub decay: f64,
    /// Largest norm of a client's gradient; 0 for none.
    pub clip: f64,
    /// Nesterov's form.
    pub nesterov: bool,
}

/// One step in place, with the learning rate in a tensor of one number on the GPU.
pub fn sgd(config: Sgd, lr: &Tensor, entries: &[SgdEntry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let column =
        |of: &dyn Fn(&SgdEntry) -> *mut C_tensor| entries.iter().map(of).collect::<Vec<_>>();
    let values = column(&|entry| raw(entry.value));
    let momenta = column(&|entry| raw_option(entry.momentum));
    let gradients = column(&|entry| raw(entry.gradient));
    let shadows = column(&|entry| raw_option(entry.shadow));
    // SAFETY: four lists of the same length of live tensors, or null where the shim expects it.
    check(unsafe {
        fa_sgd(
            entries.len(),
            values.as_ptr(),
            momenta.as_ptr(),
            gradients.as_ptr(),
            shadows.as_ptr(),
            raw(lr),
            config.momentum,
            config.decay,
            config.clip,
            c_int::from(config.nesterov),
        )
    })
}
