//! Preparing a GPU: compiling and caching kernels, and memory.

use crate::checks::gpu_number;
use crate::shim::*;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::ptr::null_mut;

/// The kernels, compiled for a GPU the first time the program uses it.
const SOURCE: &str = concat!(
    include_str!("../cpp/kernels.cu"),
    include_str!("../cpp/norm.cu"),
    include_str!("../cpp/loss.cu"),
    include_str!("../cpp/head.cu"),
    include_str!("../cpp/conv.cu"),
    include_str!("../cpp/hopper.cu"),
    include_str!("../cpp/patch.cu")
);

/// The oldest architecture that the kernels run on: bfloat16 on tensor cores came with it.
const OLDEST: c_int = 80;
/// The architecture with separate kernels.
const HOPPER: c_int = 90;

/// Which kernels a GPU computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// The fastest for its architecture.
    Fitting,
    /// Those for every architecture.
    General,
}

/// Whether there are kernels for this GPU.
pub fn has_kernels(device: usize) -> Result<bool> {
    Ok(architecture(gpu_number(device)?)?.1 >= OLDEST)
}

/// Sets, for the whole process, whether products in single precision may be computed in TF32, and whether cuDNN searches
/// for its fastest algorithms, which may differ between runs, or takes those that give the same bits every time.
pub fn set_math_mode(tf32: bool, search: bool) -> Result<()> {
    // SAFETY: no pointer.
    check(unsafe { fa_products(c_int::from(tf32), c_int::from(search)) })
}

/// Prepares a GPU: loads the kernels, compiled for it once and kept in the folder `cache` if there
/// is one. The folder is trusted like the program itself: files in it are checked for damage, not for who
/// wrote them. A GPU keeps the kernels that it was prepared with first.
pub fn setup(device: usize, cache: Option<&Path>, kernels: Kernels) -> Result<()> {
    let number = gpu_number(device)?;
    let (loaded, architecture) = architecture(number)?;
    if !loaded {
        let hopper = with_hopper(architecture, kernels);
        let (hash, kind) = (hash(SOURCE.as_bytes()), if hopper { "a" } else { "" });
        let file =
            cache.map(|f| f.join(format!("kernels-{hash:016x}-sm{architecture}{kind}.cubin")));
        let kept = file.as_deref().and_then(read_kept);
        // A file that cannot be used is ignored.
        if kept.is_none_or(|code| load(&code, number, hopper).is_err()) {
            let code = compile(architecture, hopper)?;
            load(&code, number, hopper)?;
            if let Some(file) = file {
                keep(&file, &code);
            }
        }
    }
    Ok(())
}

/// Whether the kernels of a GPU are loaded, and its architecture.
fn architecture(device: c_int) -> Result<(bool, c_int)> {
    let (mut loaded, mut architecture) = (0, 0);
    // SAFETY: both are written once.
    check(unsafe { fa_architecture(device, &mut loaded, &mut architecture) })?;
    Ok((loaded != 0, architecture))
}

/// The kernels compiled for an architecture, 80 or 90 for example, on a machine with any GPU or none.
pub fn compiled_for(architecture: i32, kernels: Kernels) -> Result<Vec<u8>> {
    compile(architecture, with_hopper(architecture, kernels))
}

/// Whether the kernels for Hopper are among them.
fn with_hopper(architecture: c_int, kernels: Kernels) -> bool {
    architecture == HOPPER && kernels == Kernels::Fitting
}

/// Whether a kernel of this name has been launched on a GPU.
pub fn has_launched(device: usize, kernel: &str) -> Result<bool> {
    let (number, mut found) = (gpu_number(device)?, 0);
    // SAFETY: the name outlives the call; `found` is written once.
    check(unsafe { fa_launched(number, kernel.as_ptr().cast(), kernel.len(), &mut found) })?;
    Ok(found != 0)
}

fn compile(architecture: c_int, hopper: bool) -> Result<Vec<u8>> {
    let (mut code, mut size) = (null_mut(), 0);
    let (text, length, hopper) = (SOURCE.as_ptr().cast(), SOURCE.len(), c_int::from(hopper));
    // SAFETY: the text outlives the call; on success `code` is `size` bytes, at least one, that we must
    // free.
    unsafe {
        check(fa_compile(text, length, architecture, hopper, &mut code, &mut size))?;
        let copy = std::slice::from_raw_parts(code.cast::<u8>(), size).to_vec();
        fa_free(code);
        Ok(copy)
    }
}

fn load(code: &[u8], device: c_int, hopper: bool) -> Result<()> {
    // SAFETY: complete code (it was just compiled, or its hash was checked), copied by the call.
    check(unsafe { fa_load(code.as_ptr().cast(), device, c_int::from(hopper)) })
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    hash.finish()
}

/// The most bytes of compiled kernels, which are some hundred thousand.
const KERNELS: u64 = 1 << 28;

/// Reads compiled kernels from a file written by [`keep`]: the code and its hash. The loader trusts
/// the lengths in the code, so it must not get any other file.
fn read_kept(file: &Path) -> Option<Vec<u8>> {
    let mut code = fedanchor_disk::read(file, KERNELS).ok()?;
    let end = code.len().checked_sub(8)?;
    let kept = u64::from_le_bytes(code.split_off(end).try_into().ok()?);
    (kept == hash(&code) && !code.is_empty()).then_some(code)
}

/// Writes compiled kernels to a file of this process and renames it, so that no process reads a partial
/// file. If that fails they are compiled again the next time.
fn keep(file: &Path, code: &[u8]) {
    let own = file.with_extension(format!("{}", std::process::id()));
    let folder = file.parent().unwrap_or(Path::new("."));
    let _ = std::fs::create_dir_all(folder)
        .and_then(|()| fedanchor_disk::write(&own, &[code, &hash(code).to_le_bytes()]))
        .and_then(|()| std::fs::rename(&own, file));
}

/// Peak memory held by libtorch on this GPU so far, in bytes.
pub fn peak_memory(device: usize) -> Result<u64> {
    let (number, mut out) = (gpu_number(device)?, 0);
    // SAFETY: `out` is written once.
    check(unsafe { fa_peak_memory(number, &mut out) })?;
    Ok(out)
}

/// Releases GPU memory that libtorch holds but does not use.
pub fn empty_cache() -> Result<()> {
    // SAFETY: no argument.
    check(unsafe { fa_empty_cache() })
}
