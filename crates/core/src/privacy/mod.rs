//! Differential privacy of clients: what the coordinator publishes hardly depends on any one of them.
//!
//! In a private round every client takes part with the same probability, each by itself; its update is clipped to a norm;
//! the sum gets Gaussian noise, and is divided by the number of clients that a round has on average. What follows from the
//! noisy model costs nothing: whether a round is undone, the server's epochs, tests. What would tell more about
//! clients is refused (`config/privacy.rs`) or left out of records. The coordinator sees single updates and is trusted.
//!
//! A fixed number of clients per round was rejected: its neighbours exchange one client for another, which takes twice the
//! noise.

mod accountant;
mod mean;

pub use accountant::{Accountant, LEAST_NOISE};
pub use mean::PrivateMean;

use crate::aggregation::Norms;
use crate::error::{Error, Result};
use fedanchor_data::stream::Stream;
use rand::rngs::{ChaCha20Rng, SysRng};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

/// How far the norm that updates are clipped to moves in one round towards their quantile.
const PACE: f64 = 0.2;

/// Where the draws of a private run come from: who takes part, and the noise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Secrecy {
    /// The operating system: nobody who knows the seed can subtract the noise, and nothing repeats it.
    #[default]
    System,
    /// The seed: a simulation can be repeated.
    Seed,
}

/// A generator of private draws.
pub struct Draws(pub(crate) Box<dyn Rng>);

impl Secrecy {
    /// The generator for the draws of this key.
    pub fn draws(self, key: Stream) -> Result<Draws> {
        Ok(Draws(match self {
            Self::Seed => Box::new(key.rng()),
            Self::System => {
                let failed = |error| Error::Fleet(format!("no random numbers: {error}"));
                Box::new(ChaCha20Rng::try_from_rng(&mut SysRng).map_err(failed)?)
            }
        }))
    }
}

/// What a private run has published; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// Noisy models that were published.
    pub(crate) releases: u32,
    /// The norm that updates are clipped to, where it follows their quantile.
    clip: Option<f64>,
}

impl Ledger {
    /// Whether nothing was published, as in a run without privacy.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The norm that updates are clipped to now; `start` is that of the first round.
    pub(crate) fn clip(&self, start: f64) -> f64 {
        self.clip.unwrap_or(start)
    }

    /// Moves the norm towards a quantile of the updates' norms, of which only a noisy count is looked at (Andrew et al.,
    /// 2021). `clients` is the number of clients per round on average, `noise` the deviation of the noise on the count.
    pub(crate) fn follow(
        &mut self,
        start: f64,
        quantile: f64,
        norms: &[Norms],
        (clients, noise): (f64, f64),
        draws: Draws,
    ) {
        let clip = self.clip(start);
        // 0 on average where the norm is the quantile, however many clients have answered.
        let above = |norms: &Norms| f64::from(u8::from(norms.weights <= clip)) - quantile;
        let mut rng = draws.0;
        let drawn: f64 = StandardNormal.sample(&mut rng);
        let count = norms.iter().map(above).sum::<f64>() + noise * drawn;
        let moved = clip * (-PACE * (count / clients).clamp(-1.0, 1.0)).exp();
        self.clip = Some(moved.clamp(1e-6, 1e6));
    }
}

/// The deviation of the noise on the count of [`Ledger::follow`], and the noise on the sum that makes both together cost
/// what `noise` alone would.
pub(crate) fn with_count(noise: f64, clients: f64, quantile: f64) -> (f64, f64) {
    // The most that one client changes the count.
    let most = quantile.max(1.0 - quantile);
    let of_count = (clients / 20.0).max(2.0 * most * noise);
    let of_sum = (noise.powi(-2) - (of_count / most).powi(-2)).powf(-0.5);
    (of_count, of_sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_data::Purpose;

    #[test]
    fn the_norm_follows_the_quantile_of_the_updates() {
        let norms: Vec<Norms> =
            (1..=100).map(|n| Norms { weights: f64::from(n), statistics: 0.0 }).collect();
        // Also if half of the clients that were drawn send nothing.
        for (start, quantile, clients) in
            [(1.0, 0.5, 100.0), (1000.0, 0.5, 100.0), (10.0, 0.9, 100.0), (10.0, 0.9, 200.0)]
        {
            let mut ledger = Ledger::default();
            for round in 0..400 {
                let draws =
                    Secrecy::Seed.draws(Stream::new(0, Purpose::Privacy, round, 0)).unwrap();
                ledger.follow(start, quantile, &norms, (clients, 5.0), draws);
            }
            let clip = ledger.clip(start);
            assert!((clip / (100.0 * quantile) - 1.0).abs() < 0.15, "{start} {quantile}: {clip}");
        }
    }

    #[test]
    fn count_and_sum_together_cost_what_the_noise_alone_would() {
        for (noise, clients) in [(1.0, 100.0), (0.5, 10.0), (8.0, 10.0)] {
            for (quantile, most) in [(0.5, 0.5), (0.1, 0.9), (0.9, 0.9)] {
                let (of_count, of_sum) = with_count(noise, clients, quantile);
                let together = (of_sum.powi(-2) + (of_count / most).powi(-2)).powf(-0.5);
                assert!((together - noise).abs() < 1e-12 && of_sum < 1.16 * noise);
            }
        }
    }

    #[test]
    fn secret_draws_do_not_follow_the_seed() {
        let key = Stream::new(3, Purpose::Privacy, 4, 5);
        let first = |secrecy: Secrecy| secrecy.draws(key).unwrap().0.next_u64();
        assert_eq!(first(Secrecy::Seed), first(Secrecy::Seed));
        assert_ne!(first(Secrecy::System), first(Secrecy::System));
        assert_ne!(first(Secrecy::System), first(Secrecy::Seed));
    }
}
