//! Networks, losses and training steps agree with PyTorch, and a cohort with its clients alone.
//!
//! The expected numbers come from `scripts/make_torch_fixtures.py` and `make_method_fixtures.py`, a
//! second implementation that shares no code with this one. Weights and inputs are not stored: both sides fill them by the
//! same integer hash of a name and a place (`filling`), and only results lie in the fixture. They
//! were computed in double precision, so every difference seen here is this side's own.
//!
//! Differences are measured against the largest expected number of the tensor, not number by
//! number: where large terms cancel, single precision loses digits. What training does is compared
//! as the change of each weight: the weights themselves hardly move and would agree with a wrong
//! rule.

mod bf16;
mod cohort;
mod filling;
mod losses;
mod methods;
mod networks;
mod steps;

use fedanchor::engine::training::Context;
use fedanchor::{Experiment, Result, resolve};
use fedanchor_data::{Normalisation, Shape};
use safetensors::SafeTensors;
use tch::{Device, Kind, Tensor};

/// Numbers that the fixture and these tests share.
const CLASSES: usize = 10;
const LATENT_DIM: usize = 16;

/// The experiment with these keys changed.
fn experiment(keys: &[&str]) -> Result<Experiment> {
    let mut keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
    keys.push(format!("model.latent_dim={LATENT_DIM}"));
    resolve("preset = \"paper\"", &keys)
}

/// Its context, for images of this shape.
fn context(keys: &[&str], side: usize, channels: usize) -> Result<Context> {
    let normalisation = Normalisation { mean: vec![0.0; channels], std: vec![1.0; channels] };
    let (experiment, shape) = (experiment(keys)?, Shape { side, channels });
    let heads = fedanchor::methods::build(&experiment.method)?.properties().heads;
    let settings = experiment.training(heads)?;
    Ok(Context::new(settings, shape, CLASSES, &normalisation, false, Some(1))?)
}

/// The expected tensors, by name.
struct Fixture(SafeTensors<'static>);

impl Fixture {
    fn read() -> Self {
        Self::of(include_bytes!("../fixtures/torch.safetensors"))
    }

    /// Whole methods.
    fn methods() -> Self {
        Self::of(include_bytes!("../fixtures/methods.safetensors"))
    }

    fn of(bytes: &'static [u8]) -> Self {
        Self(SafeTensors::deserialize(bytes).expect("a safetensors file"))
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        let view = self.0.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape: Vec<i64> = view.shape().iter().map(|&n| n as i64).collect();
        Ok(Tensor::f_from_data_size(view.data(), &shape, Kind::Float)?)
    }

    /// How many names start like this: tests count what they looked at.
    fn count(&self, start: &str) -> usize {
        self.0.names().iter().filter(|name| name.starts_with(start)).count()
    }
}

/// Asserts that the shapes are equal and that no number differs by more than `tolerance` times the
/// largest expected one. A leading axis of one client is ignored.
#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    let found = found.detach().to_device(Device::Cpu).to_kind(Kind::Double);
    let found = if found.dim() > expected.dim() { found.squeeze_dim(0) } else { found };
    assert_eq!(found.size(), expected.size(), "{what}");
    let expected = expected.to_kind(Kind::Double);
    let scale = expected.abs().max().double_value(&[]);
    let difference = (&found - &expected).abs().max().double_value(&[]);
    // Written so that a NaN fails.
    assert!(
        difference <= tolerance * scale,
        "{what}: differs by {difference:.2e} at a scale of {scale:.2e}; allowed {tolerance:e} of it"
    );
}
