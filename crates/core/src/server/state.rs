//! What a method keeps on the server beside the global model.

use crate::error::Result;
use fedanchor_engine::tensors::{Bundle, Params};
use std::collections::BTreeMap;
use tch::Tensor;

/// Named models and named lists of numbers. A checkpoint saves and restores them; what they mean only
/// the method knows.
#[derive(Debug, Default)]
pub struct MethodState {
    /// Models, of all entries of the network or of some.
    pub models: BTreeMap<String, Params>,
    /// Lists of numbers.
    pub numbers: BTreeMap<String, Vec<f32>>,
}

const MODEL: &str = "state.";
const NUMBERS: &str = "numbers.";

impl MethodState {
    /// Adds the state to a checkpoint.
    pub(super) fn save(&self, bundle: &mut Bundle) -> Result<()> {
        for (name, params) in &self.models {
            params.put_into(bundle, &format!("{MODEL}{name}"))?;
        }
        for (name, values) in &self.numbers {
            bundle.put(format!("{NUMBERS}{name}/values"), &Tensor::f_from_slice(values)?)?;
        }
        Ok(())
    }

    /// Reads the state from a checkpoint; `like` is a model of the network.
    pub(super) fn restore(bundle: &Bundle, like: &Params) -> Result<Self> {
        let mut state = Self::default();
        for name in bundle.groups(MODEL) {
            let params = like.take_some(bundle, &format!("{MODEL}{name}"))?;
            state.models.insert(name.to_owned(), params);
        }
        for name in bundle.groups(NUMBERS) {
            if let Some(values) = bundle.group(&format!("{NUMBERS}{name}")).get("values") {
                state.numbers.insert(name.to_owned(), Vec::<f32>::try_from(*values)?);
            }
        }
        Ok(state)
    }
}
