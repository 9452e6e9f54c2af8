//! How unlike the clients are, as far as a server can tell: by the shares of their samples that they keep. Clients
//! that hold the same mixture of classes keep about the same share; clients with few classes each do not.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Rounds over which the median is taken.
const ROUNDS: usize = 10;

/// How many times more the shares of kept samples differ between clients than chance makes them: Pearson's
/// chi-square statistic per degree of freedom, from the samples and the kept samples of each. `None` if all or none
/// are kept, or for fewer than two clients.
pub(super) fn dispersion(clients: &[(usize, usize)]) -> Option<f64> {
    let clients: Vec<(f64, f64)> = clients
        .iter()
        .filter(|(samples, _)| *samples > 0)
        .map(|&(samples, kept)| (samples as f64, kept as f64))
        .collect();
    let samples: f64 = clients.iter().map(|(samples, _)| samples).sum();
    let share = clients.iter().map(|(_, kept)| kept).sum::<f64>() / samples;
    if clients.len() < 2 || share <= 0.0 || share >= 1.0 {
        return None;
    }
    let chi_square = clients.iter().map(|(samples, kept)| {
        (kept - samples * share).powi(2) / (samples * share * (1.0 - share))
    });
    Some(chi_square.sum::<f64>() / (clients.len() - 1) as f64)
}

/// The dispersion of the last rounds; a part of every checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dispersion {
    rounds: VecDeque<f64>,
}

impl Dispersion {
    /// Adds that of a round, where there is one.
    pub(crate) fn push(&mut self, round: Option<f64>) {
        self.rounds.extend(round);
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
    }

    /// The lower median: a round with an unusual cohort decides nothing. A client that lies in most rounds can.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = Vec::from(self.rounds.clone());
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dispersion_is_chi_square_per_degree_of_freedom() {
        // Half of all are kept, so chance alone has a variance of 25 for 100 samples.
        assert_eq!(dispersion(&[(100, 45), (100, 55)]), Some(2.0));
        assert_eq!(dispersion(&[(100, 50), (100, 50), (0, 0)]), Some(0.0));
        assert_eq!(dispersion(&[(100, 100), (100, 0)]), Some(200.0));
        // A larger client is expected to be nearer to the common share.
        let (small, large) =
            (dispersion(&[(100, 40), (900, 460)]), dispersion(&[(900, 440), (100, 60)]));
        assert!((small.unwrap() - large.unwrap()).abs() < 1e-9, "{small:?} {large:?}");
        for nothing in [&[(100, 50)][..], &[(100, 0), (100, 0)], &[(100, 100), (50, 50)], &[]] {
            assert_eq!(dispersion(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn the_median_is_over_the_last_ten_rounds() {
        let mut found = Dispersion::default();
        assert_eq!(found.median(), None);
        for round in [Some(50.0), None, Some(1.0), Some(2.0)] {
            found.push(round);
        }
        assert_eq!(found.median(), Some(2.0));
        (0..ROUNDS).for_each(|round| found.push(Some(round as f64)));
        assert_eq!(found.median(), Some(4.0));
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Dispersion>(&text).unwrap(), found);
    }
}
