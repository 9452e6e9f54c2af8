//! Why a call failed.

use std::fmt;
use tch::{Device, Kind};

/// Why a call failed. Everything but [`GraphError::Failed`] is found before anything reaches the GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// libtorch or CUDA failed.
    #[error("{0}")]
    Failed(String),
    /// A tensor that has no plain memory.
    #[error("{tensor}: expected a dense tensor with at least one number, got {found}")]
    Memory {
        /// The argument.
        tensor: &'static str,
        /// What was passed instead.
        found: &'static str,
    },
    /// A tensor of another size.
    #[error("{tensor}: expected size {expected:?}, got {found:?}")]
    Size {
        /// The argument.
        tensor: &'static str,
        /// The size it must have.
        expected: Vec<i64>,
        /// Its size.
        found: Vec<i64>,
    },
    /// A tensor of another number type.
    #[error("{tensor}: expected {}, got {found:?}", either(expected))]
    Kind {
        /// The argument.
        tensor: &'static str,
        /// The kinds it may have.
        expected: Vec<Kind>,
        /// Its kind.
        found: Kind,
    },
    /// A tensor whose numbers are in another order in memory.
    #[error("{tensor}: expected strides {expected:?}, got {found:?}")]
    Strides {
        /// The argument.
        tensor: &'static str,
        /// Strides that are accepted.
        expected: Vec<i64>,
        /// Its strides.
        found: Vec<i64>,
    },
    /// A tensor that starts in the middle of a vector of numbers.
    #[error("{tensor}: expected an address divisible by {expected}, got a remainder of {found}")]
    Alignment {
        /// The argument.
        tensor: &'static str,
        /// What the address must be a multiple of, in bytes.
        expected: usize,
        /// The remainder of its address.
        found: usize,
    },
    /// A number out of range.
    #[error("{what}: expected {expected}, got {found}")]
    Number {
        /// What it counts.
        what: &'static str,
        /// The accepted values.
        expected: Expected,
        /// Its value.
        found: i64,
    },
    /// A tensor on another device than the first one.
    #[error("{tensor}: expected a tensor on {expected:?}, got one on {found:?}")]
    Device {
        /// The argument.
        tensor: &'static str,
        /// The device of the first tensor, or of the upload.
        expected: Device,
        /// Its device.
        found: Device,
    },
    /// A tensor that is not on a GPU.
    #[error("{tensor}: expected a tensor on a GPU, got one on {found:?}")]
    NotOnGpu {
        /// The argument.
        tensor: &'static str,
        /// Its device.
        found: Device,
    },
    /// One entry of a step of SGD is refused.
    #[error("entry {entry}: {error}")]
    Entry {
        /// Its index.
        entry: usize,
        /// Why.
        error: Box<GraphError>,
    },
}

/// The values that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// From the first to the second.
    Between(i64, i64),
    /// One of these.
    OneOf(&'static [i64]),
    /// A multiple of this.
    MultipleOf(i64),
    /// 8 times a power of two.
    EightDoubled,
}

impl Expected {
    /// Whether `number` is accepted.
    pub(crate) fn accepts(self, number: i64) -> bool {
        match self {
            Self::Between(least, most) => (least..=most).contains(&number),
            Self::OneOf(all) => all.contains(&number),
            Self::MultipleOf(of) => number % of == 0,
            Self::EightDoubled => number >= 8 && number.count_ones() == 1,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Between(least, most) if least == most => write!(f, "{least}"),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::OneOf(all) => f.write_str(&either(all)),
            Self::MultipleOf(of) => write!(f, "a multiple of {of}"),
            Self::EightDoubled => f.write_str("8, 16, 32 and so on"),
        }
    }
}

/// "a, b or c".
fn either<T: fmt::Debug>(all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
    match &all[..] {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        all => all.concat(),
    }
}
