//! Reading and checking a method's settings.

use crate::config::{MixupConfig, positive, within};
use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Reads a method's settings; an error names the key.
pub fn read_settings<T: DeserializeOwned>(settings: &Table) -> Result<T> {
    serde_path_to_error::deserialize(Value::Table(settings.clone())).map_err(
        |error: serde_path_to_error::Error<toml::de::Error>| {
            let key = match error.path().to_string() {
                path if path == "." => "method".to_owned(),
                path => format!("method.{path}"),
            };
            in_plain_words(Error::config(key, error.inner().message()))
        },
    )
}

/// An error of the config's parser without the names of Rust's types.
pub(crate) fn in_plain_words(error: Error) -> Error {
    let Error::Config { key, problem } = error else { return error };
    let Some((found, expected)) = problem.rsplit_once("expected ") else {
        return Error::Config { key, problem };
    };
    let expected = match expected {
        "f64" | "f32" => "a number",
        "u32" if found.starts_with("invalid value") => "a whole number up to 4294967295",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "a boolean" => "true or false",
        other => other,
    };
    Error::Config { key, problem: format!("{found}expected {expected}") }
}

/// Checks the keys of `method.mixup`.
pub fn check_mixup(mixup: &MixupConfig) -> Result<()> {
    positive("method.mixup.alpha", mixup.alpha)?;
    within("method.mixup.weight", mixup.weight, 0.0, 1e6)
}
