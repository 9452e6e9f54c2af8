//! What can go wrong in a run, as values: which round, which client, which phase.

use fedanchor_data::DataError;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot be used; found before any work starts.
    #[error("{key}: {problem}")]
    Config {
        /// The key as written in the experiment file, for example `client.batch`.
        key: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// Something about the data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A number of the server's own that is not finite: training on would only hide it.
    #[error(
        "round {round}, server, {phase}: {what} is not finite; lower the learning rate, keep \
         gradient clipping on, or raise method.contrastive.batch"
    )]
    NotFinite {
        /// The round; 0 is pre-training.
        round: u32,
        /// What was being done.
        phase: &'static str,
        /// A loss or a parameter, by name.
        what: String,
    },
    /// The aggregated model lost too much on the anchors, again and again.
    #[error(
        "round {round}: the clients' updates lower the accuracy on the anchors from {usual:.1} to {accuracy:.1} %, for the \
         fourth time in a row: look at the clients, choose a robust aggregation.rule, or raise checks.anchor_margin"
    )]
    Collapsed {
        /// The round.
        round: u32,
        /// Percent of the anchors that are right with the updates.
        accuracy: f64,
        /// The median of the last rounds.
        usual: f64,
    },
    /// Memory ran out.
    #[error(
        "out of memory while {phase}: use a smaller batch, fewer clients a round or a smaller \
         model ({message})"
    )]
    OutOfMemory {
        /// What was being done.
        phase: &'static str,
        /// The first line of what the engine said.
        message: String,
    },
    /// Any other failure reported by libtorch.
    #[error("libtorch failed while {phase}: {message}")]
    Engine {
        /// What was being done.
        phase: &'static str,
        /// The first line of what the engine said.
        message: String,
    },
    /// A file of the run folder could not be written or read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file in question.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A setting that cannot be used.
    pub fn config(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { key: key.into(), problem: problem.into() }
    }

    /// A file that could not be used.
    pub fn file(path: impl Into<PathBuf>, problem: impl ToString) -> Self {
        Self::File { path: path.into(), problem: problem.to_string() }
    }
}

impl From<fedanchor_graph::GraphError> for Error {
    fn from(error: fedanchor_graph::GraphError) -> Self {
        tch::TchError::Torch(error.0).into()
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text,
            other => other.to_string(),
        };
        // What follows the first line is a C++ stack trace.
        let message = text.lines().next().unwrap_or_default().trim().to_owned();
        let lower = message.to_lowercase();
        let memory = ["out of memory", "not enough memory", "allocate memory"];
        if memory.iter().any(|words| lower.contains(words)) {
            Self::OutOfMemory { phase: "computing", message }
        } else {
            Self::Engine { phase: "computing", message }
        }
    }
}

/// Runs `work` and turns a panic out of the engine's bindings into the error it stands for. An
/// operation that takes a plain number unwraps inside tch when it fails, even in its fallible form;
/// any other panic goes on.
pub fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| match panic
        .downcast_ref::<String>()
        .and_then(|text| engine_message(text))
    {
        Some(message) => Err(tch::TchError::Torch(message).into()),
        None => std::panic::resume_unwind(panic),
    })
}

/// What the engine said, if this is the text of a panic out of its bindings.
pub fn engine_message(panic: &str) -> Option<String> {
    let (_, message) = panic.split_once("Torch(\"")?;
    Some(message.trim_end_matches("\")").replace("\\n", "\n"))
}

/// Names the phase in which the engine failed, at the boundary where the phase is known.
pub(crate) trait InPhase<T> {
    fn in_phase(self, phase: &'static str) -> Result<T>;
}

impl<T> InPhase<T> for Result<T> {
    fn in_phase(self, name: &'static str) -> Result<T> {
        self.map_err(|error| match error {
            Error::Engine { message, .. } => Error::Engine { phase: name, message },
            Error::OutOfMemory { message, .. } => Error::OutOfMemory { phase: name, message },
            other => other,
        })
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
        let Err(Error::Engine { phase: "testing", message }) = failed else { panic!("{failed:?}") };
        assert!(message.contains("2x3"), "{message}");
        assert!(!message.contains('\n'));
    }

    #[test]
    fn a_failure_that_panics_inside_the_bindings_is_a_typed_error_too() {
        let mut a = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let b = Tensor::zeros([4, 5], (Kind::Float, Device::Cpu));
        let failed = guard(|| Ok(a.f_lerp_(&b, 0.5)?));
        let Err(Error::Engine { message, .. }) = failed else { panic!("{failed:?}") };
        assert!(message.contains("size of tensor"), "{message}");
    }

    #[test]
    fn running_out_of_memory_has_its_own_error() {
        let failed = Tensor::f_zeros([1 << 60], (Kind::Float, Device::Cpu)).map_err(Error::from);
        let text = failed.expect_err("no machine has that much").to_string();
        assert!(text.starts_with("out of memory"), "{text}");
    }
}
