//! A method's own state on the server.

use crate::error::Result;
use fedanchor_engine::tensors::{Bundle, Params};
use std::collections::BTreeMap;
use tch::Tensor;

/// Named models and named lists of numbers. A checkpoint saves and restores them for the method.
#[derive(Debug, Default)]
pub struct MethodState {
    /// Models, of all entries of the network or of some.
    pub models: BTreeMap<String, Params>,
    /// Lists of numbers.
    pub numbers: BTreeMap<String, Vec<f32>>,
}

const MODEL: &str = "state.";
const NUMBERS: &str = "numbers.";

pub(crate) fn save_models(models: &BTreeMap<String, Params>, bundle: &mut Bundle) -> Result<()> {
    for (name, params) in models {
        params.put_into(bundle, &format!("{MODEL}{name}"))?;
    }
    Ok(())
}

/// Reads a method's models from a checkpoint; `like` is a model of the network.
pub(crate) fn restore_models(bundle: &Bundle, like: &Params) -> Result<BTreeMap<String, Params>> {
    let names = bundle.groups(MODEL).into_iter();
    names
        .map(|name| Ok((name.to_owned(), like.take_some(bundle, &format!("{MODEL}{name}"))?)))
        .collect()
}

impl MethodState {
    pub(super) fn save(&self, bundle: &mut Bundle) -> Result<()> {
        save_models(&self.models, bundle)?;
        for (name, values) in &self.numbers {
            bundle.put(format!("{NUMBERS}{name}/values"), &Tensor::f_from_slice(values)?)?;
        }
        Ok(())
    }

    pub(super) fn restore(bundle: &Bundle, like: &Params) -> Result<Self> {
        let mut numbers = BTreeMap::new();
        for name in bundle.groups(NUMBERS) {
            if let Some(values) = bundle.group(&format!("{NUMBERS}{name}")).get("values") {
                numbers.insert(name.to_owned(), Vec::<f32>::try_from(*values)?);
            }
        }
        Ok(Self { models: restore_models(bundle, like)?, numbers })
    }
}
