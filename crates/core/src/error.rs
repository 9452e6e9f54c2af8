//! What can go wrong in a run, as values: which key, which file, which round, which client.

use fedanchor_data::DataError;
use fedanchor_data::paths::in_message;
use fedanchor_engine::InPhase;
use fedanchor_record::Incidents;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each comment explains the fields of its error
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
    /// A value of the server's that is not finite: training on would only hide it.
    #[error("round {round}: {what} is not finite after {phase}; {advice}")]
    NotFinite {
        /// The round; 0 is pre-training.
        round: u32,
        /// What was being done, as in "after testing".
        phase: &'static str,
        /// A loss or a parameter, by name.
        what: String,
        advice: &'static str,
    },
    /// The aggregated model lost too much accuracy on the anchors, several times in a row.
    #[error(
        "round {round}: the clients' updates lower the accuracy on the anchors from {usual:.1} % to \
         {accuracy:.1} %, for the fourth time in a row: check the clients, choose a robust \
         aggregation.rule, or raise checks.anchor_margin"
    )]
    Collapsed {
        round: u32,
        /// Accuracy on the anchors with the updates, in percent.
        accuracy: f64,
        /// The median of the last rounds.
        usual: f64,
    },
    /// A file of a run that is no longer what the run wrote.
    #[error(
        "{}: {problem}: nothing else may write to the folder of a run in progress",
        in_message(path)
    )]
    Changed { path: PathBuf, problem: String },
    /// A run whose rounds all left the model as it was: its accuracy is that of the anchors alone.
    #[error(
        "none of {rounds} rounds changed the model ({incidents}): check the clients, checks.quorum and \
         checks.anchor_margin; the records say what happened in each round"
    )]
    WithoutEffect { rounds: u32, incidents: Incidents },
    /// A method that cannot do what it was asked to.
    #[error("method {method}: {problem}")]
    Method { method: String, problem: String },
    /// Someone asked to stop while a round waited for its clients: the round has not happened.
    #[error("stopped while waiting for clients")]
    Stopped,
    /// Something about a fleet of real clients.
    #[error("{0}")]
    Fleet(String),
    /// A failure while computing.
    #[error(transparent)]
    Engine(fedanchor_engine::Error),
    /// A file that could not be written or read.
    #[error("{}: {problem}", in_message(path))]
    File { path: PathBuf, problem: String },
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

    /// A method that cannot do what it was asked to.
    pub fn method(name: &str, problem: impl Into<String>) -> Self {
        Self::Method { method: name.to_owned(), problem: problem.into() }
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Engine(fedanchor_engine::Error::OutOfMemory { .. }))
    }
}

impl From<fedanchor_engine::Error> for Error {
    fn from(error: fedanchor_engine::Error) -> Self {
        use fedanchor_engine::Error as Engine;
        match error {
            Engine::Config { key, problem } => Self::Config { key, problem },
            other => Self::Engine(other),
        }
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        fedanchor_engine::Error::from(error).into()
    }
}

impl InPhase for Error {
    fn in_phase(self, phase: &'static str) -> Self {
        match self {
            Self::Engine(error) => Self::Engine(error.in_phase(phase)),
            other => other,
        }
    }
}
