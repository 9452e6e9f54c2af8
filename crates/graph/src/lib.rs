//! GPU features of a cohort's training step that the libtorch bindings lack: CUDA graphs, streams,
//! uploads from pinned memory, and fused kernels (batch norm with ReLU and the residual sum for two
//! views at once, grouped convolutions, SGD for all parameters in two launches, 8-bit images to the
//! network's input).
//!
//! They are implemented by a C++ shim (`cpp/shim.cpp`, with the kernels in `cpp/*.cu`); this crate
//! is its safe wrapper and the only `unsafe` code of the project. The contract with the shim:
//!
//! - A function returns null, or a message that is freed here. No exception crosses the boundary.
//! - Tensors are borrowed for the call; the shim holds its own references to those it keeps.
//!   Results are new tensors that belong to the caller.
//! - Work is queued on the calling thread's current stream ([`Queue::enter`]). Memory passed to a
//!   call is released in the order of that stream, as everywhere in libtorch.
//! - A captured [`Graph`] reads and writes the addresses used during capture: the caller must keep
//!   those tensors alive and in place as long as the graph, and replay it on the stream of the
//!   capture. Otherwise results are wrong, but only memory owned by libtorch is affected.
//!
//! In a build against the CPU version of libtorch there is no shim, [`AVAILABLE`] is false, and
//! every function returns an error.

mod ops;
mod queue;
mod setup;
mod shim;

pub use ops::{Mixture, Norm, Sgd, SgdEntry, Statistics, conv, images, sgd};
pub use queue::{Entered, Graph, Queue, Upload};
pub use setup::{empty_cache, peak_memory, setup};

/// Whether this program was built with the CUDA version of libtorch.
pub const AVAILABLE: bool = cfg!(fedanchor_cuda);

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GraphError(pub String);
