//! What a cohort's training step needs of a GPU beyond the bindings of libtorch: CUDA graphs, streams,
//! uploads from pinned memory, and fused kernels (batch norm with ReLU and the residual sum for two
//! views at once, grouped convolutions, SGD for all parameters in two launches, 8-bit images to the
//! network's input).
//!
//! A C++ shim does the work (`cpp/shim.cpp`, with the kernels in `cpp/*.cu`); this crate is its safe face and the only
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

mod ops;
mod queue;
mod setup;
mod shim;

pub use ops::{Mixture, Norm, Sgd, SgdEntry, Statistics, conv, images, sgd};
pub use queue::{Entered, Graph, Stream, Upload};
pub use setup::{empty_cache, peak_memory, setup};

/// Whether this program was built with the CUDA set of libtorch.
pub const AVAILABLE: bool = cfg!(fedanchor_cuda);

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GraphError(pub String);
