//! Whether two experiments differ by more than their seeds do.
//!
//! Runs of one seed share their anchors, their partition and the clients drawn in every round, so they are
//! compared in pairs where both experiments have them: what a seed adds to both cancels out. Seeds that only
//! one experiment has are then not used. Without pairs, Welch's test takes the seeds as they are.
//!
//! The t distribution comes from `statrs`: without its default features it adds two small crates, and it
//! agrees with SciPy to twelve digits. The incomplete beta function and its inverse would be more code here
//! than everything else about the comparison.

use crate::table::Average;
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Chance of the confidence intervals to miss the true difference, and limit of p for a significant one.
pub(super) const LEVEL: f64 = 0.05;
/// Standard errors below this, in percentage points, come from rounding alone.
const ROUNDING: f64 = 1e-9;

/// How much better the second experiment is than the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Accuracy of the second minus that of the first, in percentage points: the mean over pairs of seeds
    /// where there are pairs, and otherwise the difference of the means.
    pub mean: f64,
    /// What it rests on.
    #[serde(flatten)]
    pub evidence: Evidence,
}

/// What a difference rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "test", rename_all = "kebab-case")]
pub enum Evidence {
    /// At least two seeds that both experiments have.
    Paired {
        /// These seeds.
        seeds: Vec<u64>,
        /// The paired t test; `None` if all pairs differ by the same amount.
        result: Option<TTest>,
    },
    /// At least two runs per experiment, and not two seeds in common.
    Welch {
        /// Welch's t test; `None` if no run differs from the others of its experiment.
        result: Option<TTest>,
    },
    /// An experiment with a single run: its spread is unknown.
    #[serde(rename = "none")]
    TooFewRuns,
}

/// A two-sided t test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TTest {
    pub t: f64,
    pub degrees: f64,
    /// Chance of such a difference or a larger one if the true difference is 0.
    pub p: f64,
    /// Start of the 95 % confidence interval of the difference, in percentage points.
    pub low: f64,
    pub high: f64,
    /// Whether the difference is more than the seeds' spread: p is below 0.05.
    pub significant: bool,
}

impl Difference {
    /// Compares accuracies by seed; each list has at least one, and no seed twice.
    pub(super) fn of(a: &[(u64, f64)], b: &[(u64, f64)]) -> Self {
        let pairs: Vec<(u64, f64)> = a
            .iter()
            .filter_map(|(seed, first)| {
                let (_, second) = b.iter().find(|(other, _)| other == seed)?;
                Some((*seed, second - first))
            })
            .collect();
        if let [_, _, ..] = pairs[..] {
            let Average { mean, std } =
                Average::of(pairs.iter().map(|(_, difference)| *difference));
            let count = pairs.len() as f64;
            let result = TTest::new(mean, std.unwrap_or_default() / count.sqrt(), count - 1.0);
            let seeds = pairs.into_iter().map(|(seed, _)| seed).collect();
            return Self { mean, evidence: Evidence::Paired { seeds, result } };
        }
        let [first, second] = [a, b].map(|runs| Average::of(runs.iter().map(|(_, value)| *value)));
        let mean = second.mean - first.mean;
        let (Some(first), Some(second)) = (first.std, second.std) else {
            return Self { mean, evidence: Evidence::TooFewRuns };
        };
        let [count_a, count_b] = [a, b].map(|runs| runs.len() as f64);
        // Squares of the standard errors of both means.
        let (of_a, of_b) = (first.powi(2) / count_a, second.powi(2) / count_b);
        let squared = of_a + of_b;
        let shares = of_a.powi(2) / (count_a - 1.0) + of_b.powi(2) / (count_b - 1.0);
        let result = TTest::new(mean, squared.sqrt(), squared.powi(2) / shares);
        Self { mean, evidence: Evidence::Welch { result } }
    }

    /// The test, where there is one.
    pub fn test(&self) -> Option<&TTest> {
        match &self.evidence {
            Evidence::Paired { result, .. } | Evidence::Welch { result } => result.as_ref(),
            Evidence::TooFewRuns => None,
        }
    }
}

impl TTest {
    /// Of a difference and its standard error; `None` without spread to compare it with.
    fn new(difference: f64, error: f64, degrees: f64) -> Option<Self> {
        if error < ROUNDING {
            return None;
        }
        let distribution = StudentsT::new(0.0, 1.0, degrees).ok()?;
        let t = difference / error;
        let p = 2.0 * distribution.sf(t.abs());
        let reach = distribution.inverse_cdf(1.0 - LEVEL / 2.0) * error;
        let (low, high) = (difference - reach, difference + reach);
        Some(Self { t, degrees, p, low, high, significant: p < LEVEL })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-11 * expected.abs(), "{found} and {expected}");
    }

    fn by_seed(values: &[f64], first: u64) -> Vec<(u64, f64)> {
        (first..).zip(values.iter().copied()).collect()
    }

    const A: [f64; 5] = [71.2, 68.9, 73.4, 70.1, 69.5];
    const B: [f64; 5] = [73.0, 70.2, 74.1, 73.3, 70.4];

    /// Expected values: SciPy 1.17.1, `r = scipy.stats.ttest_rel(b, a)`, then `r.statistic`, `r.df`, `r.pvalue`
    /// and `r.confidence_interval(0.95)`.
    #[test]
    fn pairs_are_tested_as_scipy_does() {
        let far = ([60.0, 60.2, 60.1, 60.0], [80.0, 80.1, 80.2, 80.1]);
        for (a, b, [t, degrees, p, low, high]) in [
            (
                &A[..],
                &B[..],
                [3.538298839277, 4.0, 0.02405019451969, 0.3401998967648, 2.819800103235],
            ),
            (
                &A[..3],
                &B[..3],
                [3.983482379543, 2.0, 0.05762593377746, -0.1014897029972, 2.634823036331],
            ),
            (&A[..2], &B[..2], [6.2, 1.0, 0.1018038560636, -1.626551184044, 4.726551184044]),
            (
                &far.0[..],
                &far.1[..],
                [418.3086072615, 3.0, 3.012807671378e-08, 19.87265198192, 20.17734801808],
            ),
        ] {
            let difference = Difference::of(&by_seed(a, 0), &by_seed(b, 0));
            let Evidence::Paired { seeds, result: Some(test) } = &difference.evidence else {
                panic!("{difference:?}")
            };
            assert_eq!(*seeds, (0..a.len() as u64).collect::<Vec<_>>());
            close(difference.mean, (low + high) / 2.0);
            close(test.t, t);
            close(test.degrees, degrees);
            close(test.p, p);
            close(test.low, low);
            close(test.high, high);
            assert_eq!(test.significant, p < 0.05);
        }
    }

    /// Expected values: SciPy 1.17.1, `scipy.stats.ttest_ind(b, a, equal_var=False)` as above.
    #[test]
    fn other_seeds_are_tested_as_welch_does() {
        for (a, b, [t, degrees, p, low, high]) in [
            (
                &A[..],
                &B[..4],
                [1.74829013805, 6.692489347131, 0.125864540133, -0.7414296507657, 4.801429650766],
            ),
            (
                &A[..3],
                &B[..2],
                [0.2268861109474, 2.526878694061, 0.8375928488969, -6.342276495021, 7.208943161688],
            ),
        ] {
            let difference = Difference::of(&by_seed(a, 0), &by_seed(b, 100));
            let Evidence::Welch { result: Some(test) } = difference.evidence else {
                panic!("{difference:?}")
            };
            close(difference.mean, (low + high) / 2.0);
            close(test.t, t);
            close(test.degrees, degrees);
            close(test.p, p);
            close(test.low, low);
            close(test.high, high);
            assert!(!test.significant);
        }
    }

    #[test]
    fn only_common_seeds_are_pairs() {
        // Seeds 0 to 4 and 2 to 6: the pairs are A's last three and B's first three.
        let some = Difference::of(&by_seed(&A, 0), &by_seed(&B, 2));
        let pairs = Difference::of(&by_seed(&A[2..], 2), &by_seed(&B[..3], 2));
        assert_eq!(some, pairs);
        let Evidence::Paired { seeds, .. } = &some.evidence else { panic!("{some:?}") };
        assert_eq!(seeds, &[2, 3, 4]);
        // A single common seed makes no test of pairs.
        let one = Difference::of(&by_seed(&A, 0), &by_seed(&B, 4));
        assert!(matches!(one.evidence, Evidence::Welch { result: Some(_) }), "{one:?}");
        // The order of the runs does not matter.
        let reversed: Vec<(u64, f64)> = by_seed(&B, 0).into_iter().rev().collect();
        let ordered = Difference::of(&by_seed(&A, 0), &by_seed(&B, 0));
        assert_eq!(Difference::of(&by_seed(&A, 0), &reversed), ordered);
    }

    #[test]
    fn nothing_is_tested_without_spread() {
        let one = Difference::of(&by_seed(&A, 0), &[(0, 75.0)]);
        assert_eq!(one.evidence, Evidence::TooFewRuns);
        close(one.mean, 75.0 - A.iter().sum::<f64>() / 5.0);
        // The differences are equal but for rounding.
        let shifted: Vec<f64> = A.iter().map(|value| value + 0.1).collect();
        let same = Difference::of(&by_seed(&A, 0), &by_seed(&shifted, 0));
        assert!(matches!(same.evidence, Evidence::Paired { result: None, .. }), "{same:?}");
        let flat = Difference::of(&[(0, 70.0), (1, 70.0)], &[(2, 71.0), (3, 71.0)]);
        assert_eq!(flat, Difference { mean: 1.0, evidence: Evidence::Welch { result: None } });
    }
}
