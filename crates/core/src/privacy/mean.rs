//! The mean of clipped updates with noise: what a private round publishes.

use super::Draws;
use crate::aggregation::{Row, Rule};
use crate::error::Result;
use fedanchor_engine::tensors::Params;
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};
use tch::{Kind, Tensor};

/// The sum of updates clipped to a norm, plus noise, over the number of clients that a round has on average. Every client
/// weighs the same. A mean over those that answered would tell how many they were, and running statistics would need noise
/// of their own: they stay as they were sent.
pub struct PrivateMean {
    clip: f64,
    noise: f64,
    clients: f64,
    rng: Box<dyn Rng>,
    /// The model that was sent, and the sum of the clipped changes of its weights.
    sum: Option<(Row, Tensor)>,
}

impl PrivateMean {
    /// Updates are clipped to the norm `clip`; `noise` is the noise's deviation as a multiple of it, `clients` the number
    /// of clients per round on average.
    pub fn new(clip: f64, noise: f64, clients: f64, draws: Draws) -> Self {
        Self { clip, noise, clients, rng: draws.0, sum: None }
    }

    fn sum(&mut self, sent: &Params) -> Result<&mut (Row, Tensor)> {
        let sum = match self.sum.take() {
            Some(sum) => sum,
            None => {
                let sent = Row::of(sent)?;
                let zeros = sent.weights()?.f_zeros_like()?;
                (sent, zeros)
            }
        };
        Ok(self.sum.insert(sum))
    }
}

impl Rule for PrivateMean {
    fn add(&mut self, params: &Params, _: f64, sent: &Params) -> Result<()> {
        let most = self.clip;
        let (sent, sum) = self.sum(sent)?;
        let change = Row::of(params)?.change(sent)?;
        let norm = change.norms()?[0];
        if !norm.is_finite() {
            return Ok(()); // cannot be clipped, and must not count
        }
        let share = if norm > most { most / norm } else { 1.0 };
        // Scaled before anything is added: the model's rounding is no part of an update.
        let _ = sum.f_add_(&change.weights()?.f_mul_scalar(share)?)?;
        Ok(())
    }

    fn finish(mut self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let (deviation, clients) = (self.noise * self.clip, self.clients);
        let count = self.sum(sent)?.1.numel();
        let noise = (0..count).map(|_| {
            let drawn: f64 = StandardNormal.sample(&mut self.rng);
            (deviation * drawn) as f32
        });
        let noise = Tensor::f_from_slice(&noise.collect::<Vec<_>>())?;
        let (row, sum) = self.sum(sent)?;
        let change = sum.f_add(&noise.f_to_device(sum.device())?)?.f_div_scalar(clients)?;
        let weights = row.weights()?.f_add(&change.f_to_kind(Kind::Float)?)?;
        let published = row.with(Tensor::f_cat(&[weights, row.statistics()?], 0)?);
        Ok(Some(published.params(sent)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::fixtures::model;
    use crate::privacy::Secrecy;
    use fedanchor_data::{Purpose, Stream};

    fn published(sent: &Params, updates: &[Params], noise: f64, clients: f64) -> (Vec<f64>, f64) {
        let draws = Secrecy::Seed.draws(Stream::new(1, Purpose::Privacy, 1, 0)).unwrap();
        let mut rule = Box::new(PrivateMean::new(2.0, noise, clients, draws));
        for update in updates {
            rule.add(update, 99.0, sent).unwrap();
        }
        let found = rule.finish(sent).unwrap().unwrap();
        let values = found.tensors[0].to_kind(Kind::Double).flatten(0, -1);
        (Vec::try_from(values).unwrap(), found.tensors[1].double_value(&[0, 0]))
    }

    #[test]
    fn updates_are_clipped_and_divided_by_the_expected_number() {
        let sent = model(&[1.0, 1.0], 5.0);
        // Changes of (3, 4), clipped to norm 2: (1.2, 1.6); and of (0, -1). The round has 4 clients on average.
        let updates = [model(&[4.0, 5.0], 9.0), model(&[1.0, 0.0], 9.0)];
        let (weight, statistic) = published(&sent, &updates, 0.0, 4.0);
        assert!((weight[0] - 1.3).abs() < 1e-6 && (weight[1] - 1.15).abs() < 1e-6, "{weight:?}");
        assert_eq!(statistic, 5.0);
    }

    /// Also if nobody answers: otherwise the model would tell that nobody did.
    #[test]
    fn the_noise_has_its_deviation() {
        let sent = model(&[0.0; 20_000], 0.0);
        for updates in [vec![], vec![model(&[0.0; 20_000], 0.0)]] {
            let (weight, _) = published(&sent, &updates, 1.5, 10.0);
            let variance = weight.iter().map(|x| x * x).sum::<f64>() / weight.len() as f64;
            let deviation = 1.5 * 2.0 / 10.0;
            assert!((variance.sqrt() / deviation - 1.0).abs() < 0.02, "{variance}");
        }
    }
}
