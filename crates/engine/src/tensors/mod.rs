//! Named tensors: the parameters of a cohort, bundles of tensors for files, and their encoding.

mod encoding;
mod params;

pub use encoding::{Bundle, Data, Decoded, decode, encode, encoded_len};
pub use params::{Entry, Layout, Params, Part, channels_last, norm};
