//! What can go wrong while a cohort is trained, as values.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each comment explains the fields of its error
pub enum Error {
    /// A setting that cannot be used: its key as in an experiment file, what is wrong and what would be right.
    #[error("{key}: {problem}")]
    Config { key: String, problem: String },
    /// Memory ran out in a phase, as in "while training clients"; with the first line of libtorch's message.
    #[error(
        "out of memory while {phase}: use a smaller batch, fewer clients per round or a smaller \
         model ({message})"
    )]
    OutOfMemory { phase: &'static str, message: String },
    /// Any other failure that libtorch reports, likewise.
    #[error("libtorch failed while {phase}: {message}")]
    Torch { phase: &'static str, message: String },
    /// Invalid tensors: a file or message that cannot be decoded, or entries that do not belong to the
    /// network.
    #[error("{0}")]
    Tensors(String),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A setting that cannot be used.
    pub fn config(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { key: key.into(), problem: problem.into() }
    }

    /// Invalid tensors.
    pub fn tensors(problem: impl ToString) -> Self {
        Self::Tensors(problem.to_string())
    }
}

impl From<fedanchor_cuda::CudaError> for Error {
    fn from(error: fedanchor_cuda::CudaError) -> Self {
        tch::TchError::Torch(error.to_string()).into()
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text,
            other => other.to_string(),
        };
        // The lines after the first are a C++ stack trace.
        let message = text.lines().next().unwrap_or_default().trim().to_owned();
        let lower = message.to_lowercase();
        let memory = ["out of memory", "not enough memory", "allocate memory"];
        if memory.iter().any(|words| lower.contains(words)) {
            Self::OutOfMemory { phase: "computing", message }
        } else {
            Self::Torch { phase: "computing", message }
        }
    }
}

/// Runs `work` and turns a panic of the libtorch bindings into the error it stands for. An operation
/// that takes a plain number unwraps inside tch when it fails, even in its fallible form; any other
/// panic continues.
pub fn guard<T, E: From<tch::TchError>>(
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| match panic
        .downcast_ref::<String>()
        .and_then(|text| torch_message(text))
    {
        Some(message) => Err(tch::TchError::Torch(message).into()),
        None => std::panic::resume_unwind(panic),
    })
}

/// libtorch's message, if this is the text of a panic of its bindings.
pub fn torch_message(panic: &str) -> Option<String> {
    let (_, message) = panic.split_once("Torch(\"")?;
    Some(message.trim_end_matches("\")").replace("\\n", "\n"))
}

/// Names the phase in which libtorch failed, at the boundary where the phase is known.
pub trait InPhase {
    /// `phase` completes "libtorch failed while ...".
    fn in_phase(self, phase: &'static str) -> Self;
}

impl InPhase for Error {
    fn in_phase(self, phase: &'static str) -> Self {
        match self {
            Error::Torch { message, .. } => Error::Torch { phase, message },
            Error::OutOfMemory { message, .. } => Error::OutOfMemory { phase, message },
            other => other,
        }
    }
}

impl<T, E: InPhase> InPhase for std::result::Result<T, E> {
    fn in_phase(self, phase: &'static str) -> Self {
        self.map_err(|error| error.in_phase(phase))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn a_bad_shape_is_a_typed_error_with_its_phase() {
        let a = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let failed = a.f_matmul(&a).map_err(Error::from).in_phase("testing");
        let Err(Error::Torch { phase: "testing", message }) = failed else { panic!("{failed:?}") };
        assert!(message.contains("2x3"), "{message}");
        assert!(!message.contains('\n'));
    }

    #[test]
    fn a_failure_that_panics_inside_the_bindings_is_a_typed_error_too() {
        let mut a = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let b = Tensor::zeros([4, 5], (Kind::Float, Device::Cpu));
        let failed: Result<Tensor> = guard(|| Ok(a.f_lerp_(&b, 0.5)?));
        let Err(Error::Torch { message, .. }) = failed else { panic!("{failed:?}") };
        assert!(message.contains("size of tensor"), "{message}");
    }

    #[test]
    fn running_out_of_memory_has_its_own_error() {
        let failed = Tensor::f_zeros([1 << 60], (Kind::Float, Device::Cpu)).map_err(Error::from);
        let text = failed.expect_err("no machine has that much").to_string();
        assert!(text.starts_with("out of memory"), "{text}");
    }
}
