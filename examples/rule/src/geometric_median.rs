//! The geometric median of the updates (RFA, Pillutla et al., 2022): the model with the smallest sum of distances to
//! them, found by some steps of Weiszfeld's algorithm. A client far from all others moves it little.

use fedanchor::Result;
use fedanchor::aggregation::{Registration, Rule};
use fedanchor::engine::tensors::{Params, norm};

const STEPS: usize = 20;
/// Distances below this count as this: an update at the median shall not outweigh all others.
const LEAST: f64 = 1e-6;

pub const REGISTRATION: Registration = Registration::new(
    "geometric-median",
    "The model with the smallest sum of distances to the updates (RFA).",
    |_| Box::new(GeometricMedian::default()),
);

#[derive(Debug, Default)]
struct GeometricMedian {
    updates: Vec<(Params, f64)>,
}

impl Rule for GeometricMedian {
    fn add(&mut self, params: &Params, weight: f64, _sent: &Params) -> Result<()> {
        self.updates.push((params.copy()?, weight));
        Ok(())
    }

    fn finish(self: Box<Self>, _sent: &Params) -> Result<Option<Params>> {
        if self.updates.is_empty() {
            return Ok(None);
        }
        let weights = self.updates.iter().map(|(_, weight)| *weight);
        let mut median = mean(&self.updates, &weights.collect::<Vec<_>>())?;
        for _ in 0..STEPS {
            let closeness = self
                .updates
                .iter()
                .map(|(update, weight)| Ok(weight / distance(update, &median)?.max(LEAST)));
            median = mean(&self.updates, &closeness.collect::<Result<Vec<_>>>()?)?;
        }
        Ok(Some(median))
    }
}

/// The mean of the updates by these weights.
fn mean(updates: &[(Params, f64)], weights: &[f64]) -> Result<Params> {
    let total: f64 = weights.iter().sum();
    let sum = updates[0].0.zeros_like()?;
    for ((update, _), weight) in updates.iter().zip(weights) {
        for (sum, value) in sum.tensors.iter().zip(&update.tensors) {
            let _ = sum.shallow_clone().f_add_(&value.f_mul_scalar(weight / total)?)?;
        }
    }
    Ok(sum)
}

/// The distance between the weights of two models; running statistics of norms have no part in it.
fn distance(one: &Params, other: &Params) -> Result<f64> {
    let apart = one.weights().zip(other.weights()).map(|(one, other)| one.f_sub(other));
    Ok(norm(apart.collect::<std::result::Result<Vec<_>, _>>()?.iter())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor::engine::tensors::{Entry, Part};
    use std::sync::Arc;
    use tch::Tensor;

    fn params(values: [f32; 2]) -> Params {
        let entry = Entry {
            name: "weight".to_owned(),
            shape: vec![2],
            part: Part::Backbone,
            statistic: false,
        };
        Params {
            layout: Arc::new(vec![entry]),
            tensors: vec![Tensor::from_slice(&values).unsqueeze(0)],
        }
    }

    #[test]
    fn one_hostile_client_moves_the_median_little() {
        let mut rule: Box<dyn Rule> = Box::new(GeometricMedian::default());
        let sent = params([0.0, 0.0]);
        for update in [[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-1000.0, 1000.0]] {
            rule.add(&params(update), 1.0, &sent).unwrap();
        }
        let median = rule.finish(&sent).unwrap().unwrap();
        let distance = distance(&median, &params([1.0, 0.0])).unwrap();
        assert!(distance < 0.1, "{distance}");
        let nothing: Box<dyn Rule> = Box::new(GeometricMedian::default());
        assert!(nothing.finish(&sent).unwrap().is_none());
    }
}
