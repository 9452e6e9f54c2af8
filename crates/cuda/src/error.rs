//! Why a call failed.

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
