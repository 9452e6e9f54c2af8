//! A loss as a value.
//!
//! On a GPU a step is captured once and replayed: the loss is evaluated in the captured call alone, and every number
//! that it had then is part of the recording. A replay is right only if nothing has changed since but tensors, so a
//! loss is a value that can be compared ([`StepLoss`] requires `PartialEq`, `'static` and `Sync`, so that it can neither
//! borrow nor share what changes; it must not read statics). A captured step is replayed for an equal loss and for no other. Numbers that change
//! from round to round travel with the batch ([`Objective::with_scalars`]); a loss whose fields change instead is
//! captured again, which is right but slow. A name per loss was rejected: nothing keeps two losses from sharing it.

use super::context::Context;
use crate::batches::Batches;
use crate::error::{Error, Result};
use crate::model::Pass;
use crate::tensors::Params;
use std::any::Any;
use std::fmt::Debug;
use tch::Tensor;

/// What a training step minimises. Its fields are its constants.
pub trait StepLoss: LossValue + Debug + Send + Sync {
    /// Number of terms.
    fn terms(&self) -> usize {
        1
    }
    /// The terms of the loss on a batch.
    fn loss(&self, inputs: &Inputs, pass: &Pass) -> Result<Terms>;
    /// Whether it reads the trained weights themselves ([`Pass::weights`]), as a penalty does. A GPU is faster where it
    /// does not.
    fn reads_weights(&self) -> bool {
        true
    }
    /// Updates the further networks after a step; most losses have nothing to do.
    fn after_step(&self, _trained: &Params, _others: &[Params]) -> Result<()> {
        Ok(())
    }
}

/// Comparison and copies of losses behind `dyn`; every loss that derives `Clone` and `PartialEq` has them.
pub trait LossValue: Any {
    /// Whether the other is of the same type and equal.
    fn equals(&self, other: &dyn StepLoss) -> bool;
    /// A copy.
    fn boxed(&self) -> Box<dyn StepLoss>;
}

impl<T: StepLoss + Clone + PartialEq + 'static> LossValue for T {
    fn equals(&self, other: &dyn StepLoss) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }

    fn boxed(&self) -> Box<dyn StepLoss> {
        Box::new(self.clone())
    }
}

/// What a loss reads in addition to parameters.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The network and how images become inputs; the same for the whole run.
    pub context: &'a Context,
    /// The batch, as its [`Batches`] wrote it.
    pub bytes: &'a Tensor,
    /// The objective's scalars, `[1]` each.
    pub scalars: &'a [Tensor],
}

impl Inputs<'_> {
    /// The scalar with this index ([`Objective::with_scalars`]): `[1]`.
    pub fn scalar(&self, index: usize) -> Result<&Tensor> {
        self.scalars.get(index).ok_or_else(|| {
            let problem = format!(
                "the loss reads scalar {index}, but its objective has {}: add it with `with_scalars`",
                self.scalars.len()
            );
            Error::tensors(problem)
        })
    }
}

/// What is trained on: batches, their loss, and the numbers that the loss reads from its inputs.
#[derive(Debug)]
pub struct Objective<'a> {
    /// How the inputs of a step are made.
    pub batches: &'a dyn Batches,
    /// The loss.
    pub loss: Box<dyn StepLoss>,
    /// Numbers that may differ from one training to the next.
    pub scalars: Vec<f32>,
    /// Whether the loss reads the model that clients are sent, as the first of the further networks.
    pub reads_sent: bool,
}

impl<'a> Objective<'a> {
    /// This loss of these batches.
    pub fn new(batches: &'a dyn Batches, loss: impl StepLoss + Clone + PartialEq) -> Self {
        Self { batches, loss: Box::new(loss), scalars: Vec::new(), reads_sent: false }
    }

    /// With numbers that may differ from round to round, such as a weight that grows: they travel with each batch,
    /// and the loss reads them with [`Inputs::scalar`].
    pub fn with_scalars(self, scalars: impl Into<Vec<f32>>) -> Self {
        Self { scalars: scalars.into(), ..self }
    }
}

/// The value of a loss for a batch.
#[derive(Debug, Default)]
pub struct Terms {
    /// Its terms with their weights, one value per client: `[active]` each. The gradient is that of their weighted sum.
    pub terms: Vec<(Weight, Tensor)>,
    /// What is recorded in place of the terms: where a kernel has added them up, they are one.
    pub recorded: Option<Vec<Tensor>>,
    /// 1 for a client that makes the step and 0 for one that stays as it is, `[active]`; all make it
    /// if left out.
    pub made: Option<Tensor>,
}

/// The weight of a term: a constant of the loss and, if there is one, a scalar of its inputs, `[1]`.
#[derive(Debug)]
pub struct Weight {
    pub(super) constant: f64,
    pub(super) scalar: Option<Tensor>,
}

impl Weight {
    /// The term by its weight.
    pub(super) fn of(&self, term: &Tensor) -> Result<Tensor> {
        let term = match &self.scalar {
            Some(scalar) => term.f_mul(scalar)?,
            None => term.shallow_clone(),
        };
        Ok(if self.constant == 1.0 { term } else { term.f_mul_scalar(self.constant)? })
    }
}

impl From<f64> for Weight {
    fn from(constant: f64) -> Self {
        Self { constant, scalar: None }
    }
}

impl From<&Tensor> for Weight {
    fn from(scalar: &Tensor) -> Self {
        Self { constant: 1.0, scalar: Some(scalar.shallow_clone()) }
    }
}

impl Terms {
    /// With one more term.
    pub fn with(mut self, weight: impl Into<Weight>, term: Tensor) -> Self {
        if let Some(recorded) = &mut self.recorded {
            recorded.push(term.shallow_clone());
        }
        self.terms.push((weight.into(), term));
        self
    }

    /// With all weights multiplied by `factor`.
    pub fn times(mut self, factor: f64) -> Self {
        self.terms.iter_mut().for_each(|(weight, _)| weight.constant *= factor);
        self
    }
}

impl From<Vec<(f64, Tensor)>> for Terms {
    fn from(terms: Vec<(f64, Tensor)>) -> Self {
        let terms = terms.into_iter().map(|(weight, term)| (weight.into(), term)).collect();
        Self { terms, ..Self::default() }
    }
}
