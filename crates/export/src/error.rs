//! Errors of exports.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model does not fit the format, or a part of it the others.
    #[error("{0}")]
    Unfit(String),
    /// The tensors could not be read.
    #[error(transparent)]
    Engine(#[from] fedanchor_engine::Error),
    /// The archive could not be written.
    #[error("the archive could not be written: {0}")]
    Archive(#[from] zip::result::ZipError),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::Engine(error.into())
    }
}
