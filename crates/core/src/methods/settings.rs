//! Reading and checking a method's settings.

use crate::config::{MixupConfig, in_plain_words, positive, within};
use crate::error::{Error, Result};
use serde::Serialize;
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

/// A method's settings as a table.
pub fn write_settings(settings: &impl Serialize) -> Result<Table> {
    Table::try_from(settings).map_err(|error| Error::config("method", error.to_string()))
}

/// Checks the keys of `method.mixup`.
pub fn check_mixup(mixup: &MixupConfig) -> Result<()> {
    positive("method.mixup.alpha", mixup.alpha)?;
    within("method.mixup.weight", mixup.weight, 0.0, 1e6)
}
