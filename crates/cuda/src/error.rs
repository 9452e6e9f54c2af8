//! Why a call failed.

use std::fmt;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each comment explains the fields of its error
pub enum CudaError {
    /// libtorch or CUDA failed.
    #[error("{0}")]
    Failed(String),
    /// An argument, or what is counted of it, is refused before anything reaches the GPU.
    #[error("{argument}: expected {expected}, got {got}")]
    Refused { argument: String, expected: String, got: String },
}

impl CudaError {
    /// An argument that is refused.
    pub fn refused(argument: &str, expected: impl ToString, got: impl ToString) -> Self {
        let (expected, got) = (expected.to_string(), got.to_string());
        Self::Refused { argument: argument.to_owned(), expected, got }
    }

    /// The same for an argument of this entry of a step of SGD.
    pub(crate) fn of_entry(self, entry: usize) -> Self {
        match self {
            Self::Refused { argument, expected, got } => {
                Self::Refused { argument: format!("entry {entry}: {argument}"), expected, got }
            }
            other => other,
        }
    }
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
pub(crate) fn either<T: fmt::Debug>(all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
    match &all[..] {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        all => all.concat(),
    }
}
