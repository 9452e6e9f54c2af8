//! Reading and checking a method's settings.

use crate::config::{MixupConfig, positive, read, within};
use crate::error::{Error, Result};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

/// Reads a method's settings; an error names the key.
pub fn read_settings<T: DeserializeOwned + JsonSchema>(settings: &Table) -> Result<T> {
    read("method", settings.clone())
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
