//! GPU features of a cohort's training step that the libtorch bindings lack: CUDA graphs, streams,
//! uploads from pinned memory, and fused kernels (batch norm with ReLU and the residual sum for two
//! views at once, grouped convolutions, pools, small heads, losses, SGD for all parameters at once, 8-bit
//! images to the network's input).
//!
//! For a CPU, too, there is [`vmap()`], which is compiled into every build.
//!
//! The rest is implemented by a C++ shim (`cpp/shim.cpp`, with the kernels in `cpp/*.cu`); this crate
//! is its safe wrapper and the only `unsafe` code of the project. The contract with the shim:
//!
//! - Arguments are checked here, before the shim is called (module `checks`): sizes, strides, kinds,
//!   alignment and devices. The shim checks what only it sees: gradients, and the state of streams.
//! - A function returns null, or a message in a buffer of the calling thread. No exception crosses the
//!   boundary.
//! - Tensors are borrowed for the call; the shim holds its own references to those it keeps.
//!   Results are new tensors that belong to the caller.
//! - Work is queued on the calling thread's current stream ([`Queue::enter`]). Memory passed to a
//!   call is released in the order of that stream, as everywhere in libtorch: a tensor that is used on
//!   another stream than it was made on must outlive that use, or results are wrong.
//! - A captured [`Graph`] reads and writes the addresses used during capture, and holds that memory as
//!   long as it lives.
//!
//! The shim is a library of its own, loaded when a GPU is first used: the program is the same with CUDA and without it.
//! Where there is no shim, [`is_available`] is false, and every function returns an error.

mod checks;
mod conv;
mod error;
mod graph;
mod head;
mod images;
mod loss;
mod norm;
mod queue;
mod setup;
mod sgd;
mod shim;
mod upload;
mod vmap;

pub use checks::Expected;
pub use conv::{Sums, conv_before_norm};
pub use error::CudaError;
pub use graph::{Graph, overlap_weight_grads};
pub use head::{POOL_PIXELS, head, is_small_head, pool};
pub use images::{Mixture, images};
pub use loss::{FixMixLoss, Labels, Losses, MixLabels};
pub use norm::{Norm, Statistics};
pub use queue::{Entered, Queue};
pub use setup::{
    Kernels, compiled_for, empty_cache, has_kernels, has_launched, peak_memory, set_math_mode,
    setup,
};
pub use sgd::{Sgd, SgdEntry, sgd};
pub use shim::{is_available, set_library, unavailable};
pub use upload::Upload;
pub use vmap::vmap;
