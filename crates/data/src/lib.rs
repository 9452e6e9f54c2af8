//! Images on the host, and everything that happens to them before they become tensors.
//!
//! Pixels stay 8-bit until they become network input: a data set takes a quarter of its
//! floating-point size, augmentation uses the arithmetic of the published recipes (which are
//! defined on 8-bit pixels), and the result does not depend on the number of threads. This crate
//! has no tensor library as a dependency, so it compiles in seconds.

pub mod augment;
pub mod cache;
pub mod catalog;
mod error;
pub mod features;
pub mod fetch;
pub mod formats;
mod image_set;
pub mod inspection;
pub mod names;
pub mod partition;
pub mod paths;
pub mod pictures;
mod progress;
pub mod skipped;
pub mod split;
pub mod stream;
pub mod tables;
pub mod thumbnail;

pub use cache::Cache;
pub use error::{DataError, Result};
pub use formats::sample;
pub use image_set::{DataSet, ImageSet, InputFormat, Normalisation, Shape, Unlabelled};
pub use partition::Partition;
pub use pictures::{FILTER, Fit};
pub use progress::Progress;
pub use skipped::{Reason, Skipped};
pub use stream::{Purpose, Stream};
