//! Methods by name. A method of this crate is one entry in [`BUILT_IN`]; a method from elsewhere is one call of
//! [`register`].

use super::{
    Method, fedanchor, fedavg_fixmatch, fedcon, fedmatch, fl2, semifl, server_only, supervised,
};
use crate::config::MethodConfig;
use crate::error::{Error, Result};
use crate::labels::thresholds;
use fedanchor_engine::registry::Registry;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use toml::Table;

/// How a method is made from its settings.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// The name as written in a config.
    pub name: &'static str,
    /// Defaults of its settings, as TOML; those of this crate's methods are in the preset, under `[methods.NAME]`.
    pub defaults: &'static str,
    /// Describes its settings, for the reference of the config keys.
    pub settings: fn(&mut SchemaGenerator) -> Schema,
    /// Completes settings that are given in a short form, by the preset's other tables.
    pub expand: fn(&mut Table, &Table) -> Result<()>,
    /// Makes the method, or says which setting is wrong.
    pub build: fn(&Table) -> Result<Box<dyn Method>>,
}

impl Registration {
    /// A method with these defaults (TOML), made by this function.
    pub const fn new(
        name: &'static str,
        defaults: &'static str,
        build: fn(&Table) -> Result<Box<dyn Method>>,
    ) -> Self {
        Self { name, defaults, settings: |_| Schema::default(), expand: |_, _| Ok(()), build }
    }

    /// The same, with its settings described by the type that they are read into.
    pub const fn describe<T: JsonSchema>(self) -> Self {
        Self { settings: |generator| generator.root_schema_for::<T>(), ..self }
    }
}

const BUILT_IN: [Registration; 8] = [
    Registration {
        expand: thresholds::expand,
        ..Registration::new("fedanchor", "", fedanchor::build)
            .describe::<fedanchor::FedAnchorConfig>()
    },
    Registration::new("semifl", "", semifl::build).describe::<semifl::SemiFl>(),
    Registration::new("fedavg-fixmatch", "", fedavg_fixmatch::build)
        .describe::<fedavg_fixmatch::FedAvgFixMatch>(),
    Registration::new("fedcon", "", fedcon::build).describe::<fedcon::FedCon>(),
    Registration::new("fedmatch", "", fedmatch::build).describe::<fedmatch::FedMatch>(),
    Registration::new("fl2", "", fl2::build).describe::<fl2::Fl2>(),
    Registration::new("supervised", "", supervised::build).describe::<supervised::Supervised>(),
    Registration::new("server-only", "", server_only::build).describe::<server_only::ServerOnly>(),
];

static METHODS: Registry<Registration> =
    Registry::new("method", "method.name", &BUILT_IN, |method| method.name);

/// Registers a method for the whole process: from now on, `method.name` may name it.
pub fn register(method: Registration) -> Result<()> {
    if let Err(error) = method.defaults.parse::<Table>() {
        return Err(Error::method(method.name, format!("invalid defaults: {error}")));
    }
    Ok(METHODS.add(method)?)
}

/// The names of all methods.
pub fn names() -> Vec<&'static str> {
    METHODS.names()
}

/// A method by name.
pub fn find(name: &str) -> Result<Registration> {
    Ok(METHODS.find(name)?)
}

/// The method with these settings.
pub fn build(config: &MethodConfig) -> Result<Box<dyn Method>> {
    (find(&config.name)?.build)(&config.settings)
}
