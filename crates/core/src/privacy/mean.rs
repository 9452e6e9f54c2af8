//! The mean of clipped updates with noise: what a private round publishes.

use super::Draws;
use crate::aggregation::{Norms, Rule};
use crate::error::Result;
use fedanchor_engine::tensors::Params;
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};
use tch::{Kind, Tensor};

/// The sum of updates clipped to a norm, plus noise, over the number of clients that a round has on average. Every client
/// weighs the same. A mean over those that answered would tell how many they were, and running statistics would need noise
/// of their own: they stay as they were sent.
pub(crate) struct PrivateMean {
    /// The norm that updates are clipped to.
    pub(crate) clip: f64,
    /// Deviation of the noise, as a multiple of `clip`.
    pub(crate) noise: f64,
    /// Clients per round, on average.
    pub(crate) clients: f64,
    pub(crate) rng: Box<dyn Rng>,
    sum: Option<Vec<Tensor>>,
}

impl PrivateMean {
    pub(crate) fn new(clip: f64, noise: f64, clients: f64, draws: Draws) -> Self {
        Self { clip, noise, clients, rng: draws.0, sum: None }
    }

    fn sum(&mut self, sent: &Params) -> Result<&mut Vec<Tensor>> {
        let zeros = match self.sum.take() {
            Some(sum) => sum,
            None => sent.zeros_like()?.tensors,
        };
        Ok(self.sum.insert(zeros))
    }
}

impl Rule for PrivateMean {
    fn add(&mut self, params: &Params, _: f64, sent: &Params) -> Result<()> {
        let norm = Norms::of(params, sent)?.weights;
        let share = if norm > self.clip { self.clip / norm } else { 1.0 };
        let tensors = self.sum(sent)?.iter_mut().zip(params.tensors.iter().zip(&sent.tensors));
        for ((sum, (to, from)), entry) in tensors.zip(sent.layout.iter()) {
            if !entry.statistic {
                // Scaled before anything is added: the model's rounding is no part of an update.
                let _ = sum.f_add_(&to.f_sub(from)?.f_mul_scalar(share)?)?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let deviation = self.noise * self.clip;
        self.sum(sent)?;
        let Self { clients, rng, sum, .. } = &mut *self;
        let tensors = sum.iter().flatten().zip(sent.entries()).map(|(sum, (entry, from))| {
            if entry.statistic {
                return Ok(from.f_detach_copy()?);
            }
            let noise = (0..entry.numel()).map(|_| {
                let drawn: f64 = StandardNormal.sample(rng);
                (deviation * drawn) as f32
            });
            let noise = Tensor::f_from_slice(&noise.collect::<Vec<_>>())?.f_view(&*from.size())?;
            let change = sum.f_add(&noise.f_to_device(from.device())?)?;
            let change = change.f_div_scalar(*clients)?.f_to_kind(Kind::Float)?;
            Ok(from.f_add(&change)?)
        });
        let tensors = tensors.collect::<Result<_>>()?;
        Ok(Some(Params { layout: sent.layout.clone(), tensors }))
    }
}
