//! What rounds with noise cost: epsilon at a given delta.
//!
//! Rényi differential privacy of the Gaussian mechanism on a Poisson sample (Mironov, Talwar and Zhang, 2019), which adds
//! up over rounds, turned into epsilon and delta (Canonne, Kamath and Steinke, 2020). Two federations are neighbours if one
//! has one client more. The moments are integrals over one variable, computed as such: the published series for whole and
//! for fractional orders are two algorithms for the same number. Google's `dp-accounting` gives the same epsilons at whole
//! orders, and a little more at fractional ones, where it bounds a series (`tests/fixtures/privacy.csv`).

/// The orders at which the divergence is bounded: dense where large epsilons have their best order.
fn orders() -> impl Iterator<Item = f64> {
    let dense = (1..100).map(|tenths| 1.0 + f64::from(tenths) / 10.0);
    dense.chain((11..64).map(f64::from)).chain([128.0, 256.0, 512.0, 1024.0])
}

/// The cost of rounds in which clients take part with probability `rate`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accountant {
    /// The probability with which each client takes part in a round.
    pub rate: f64,
    /// Deviation of the noise on the sum, as a multiple of the norm that updates are clipped to.
    pub noise: f64,
    /// The probability with which epsilon may not hold.
    pub delta: f64,
}

impl Accountant {
    /// Epsilon after this many rounds.
    pub fn epsilon(&self, rounds: u32) -> f64 {
        self.epsilon_at(orders(), rounds)
    }

    fn epsilon_at(&self, orders: impl Iterator<Item = f64>, rounds: u32) -> f64 {
        if rounds == 0 {
            return 0.0;
        }
        let bounds = orders.map(|order| {
            let divergence = f64::from(rounds) * self.divergence(order);
            divergence + (-1.0 / order).ln_1p() - (self.delta * order).ln() / (order - 1.0)
        });
        bounds.fold(f64::INFINITY, f64::min).max(0.0)
    }

    /// The Rényi divergence of one round: ln E[(1 - q + q exp((2z - 1) / 2s^2))^order] / (order - 1), z ~ N(0, s^2).
    fn divergence(&self, order: f64) -> f64 {
        let Self { rate, noise, .. } = *self;
        let variance = noise * noise;
        // The integrand is a mixture of Gaussians with means from 0 to `order`, and smooth at the scale of the smaller of
        // `noise` and `variance`: there, sums over equal steps are exact to rounding.
        let step = noise.min(variance) / 8.0;
        let (first, last) = (-12.0 * noise, order + 12.0 * noise);
        let log = |at: u64| {
            let z = first + at as f64 * step;
            let (without, with) = ((-rate).ln_1p(), rate.ln() + (2.0 * z - 1.0) / (2.0 * variance));
            let larger = without.max(with);
            let mixed = larger + (-(without - with).abs()).exp().ln_1p();
            order * if rate < 1.0 { mixed } else { with } - z * z / (2.0 * variance)
        };
        let steps = ((last - first) / step) as u64;
        let most = (0..=steps).map(log).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..=steps).map(|at| (log(at) - most).exp()).sum();
        let scale = step / (noise * (2.0 * std::f64::consts::PI).sqrt());
        ((most + sum.ln() + scale.ln()) / (order - 1.0)).max(0.0)
    }

    /// The least noise with which this many rounds cost at most `epsilon`; `None` if no noise up to `most` is enough.
    pub fn noise_for(epsilon: f64, rounds: u32, rate: f64, delta: f64, most: f64) -> Option<f64> {
        let fits = |noise: f64| Self { rate, noise, delta }.epsilon(rounds) <= epsilon;
        let (mut low, mut high) = (LEAST_NOISE, most);
        if !fits(high) {
            return None;
        }
        if fits(low) {
            return Some(low);
        }
        while high / low > 1.0 + 1e-6 {
            let middle = (low * high).sqrt();
            *(if fits(middle) { &mut high } else { &mut low }) = middle;
        }
        Some(high)
    }
}

/// With less noise than this, epsilon is in the hundreds after one round.
pub const LEAST_NOISE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns: rate, noise, rounds, delta; Google's epsilon, and the same at whole orders only.
    const GOOGLES: &str = include_str!("../../tests/fixtures/privacy.csv");

    #[test]
    fn epsilons_are_those_of_googles_accountant() {
        let mut rows = 0;
        for row in GOOGLES.lines().skip(1) {
            let numbers: Vec<f64> = row.split(',').map(|number| number.parse().unwrap()).collect();
            let [rate, noise, rounds, delta, bound, whole] = numbers[..] else { panic!("{row}") };
            let (accountant, rounds) = (Accountant { rate, noise, delta }, rounds as u32);
            let at_whole =
                accountant.epsilon_at(orders().filter(|order| order.fract() == 0.0), rounds);
            assert!((at_whole / whole - 1.0).abs() < 1e-4, "{row}: {at_whole}");
            // Large epsilons have their best order at a fraction, where theirs are upper bounds.
            let (found, least) =
                (accountant.epsilon(rounds), if bound <= 10.0 { 0.99 } else { 0.97 });
            assert!(found > least * bound && found < 1.0001 * bound, "{row}: {found}");
            rows += 1;
        }
        assert!(rows > 200, "{rows}");
    }

    #[test]
    fn one_round_with_all_clients_is_the_gaussian_mechanism() {
        let all = Accountant { rate: 1.0, noise: 2.0, delta: 1e-5 };
        for order in [1.5, 2.0, 30.0] {
            assert!((all.divergence(order) - order / 8.0).abs() < 1e-9);
        }
        let half = Accountant { rate: 0.5, noise: 1.0, delta: 1e-5 };
        // Of order 2: ln(1 + q^2 (e^(1/s^2) - 1)).
        let by_hand = (1.0 + 0.25 * (1f64.exp() - 1.0)).ln();
        assert!((half.divergence(2.0) - by_hand).abs() < 1e-9);
    }

    #[test]
    fn the_noise_for_a_budget_uses_it_up() {
        for (epsilon, rounds, rate) in [(1.0, 100, 0.1), (8.0, 500, 0.1), (3.0, 1, 1.0)] {
            let noise = Accountant::noise_for(epsilon, rounds, rate, 1e-5, 1e4).unwrap();
            let spent = Accountant { rate, noise, delta: 1e-5 };
            assert!(spent.epsilon(rounds) <= epsilon);
            assert!(spent.epsilon(rounds) > 0.999 * epsilon);
        }
        assert_eq!(Accountant::noise_for(0.01, 100_000, 1.0, 1e-5, 10.0), None);
    }
}
