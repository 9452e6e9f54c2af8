//! Settings of differential privacy, and what else a private run may not have.

use super::{Experiment, StatisticsSource, Weights, ensure, positive, within};
use crate::error::{Error, Result};
use crate::privacy::{Accountant, LEAST_NOISE};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// More noise than this leaves nothing of a model.
const MOST_NOISE: f64 = 1e4;

/// Differential privacy of each client: what the coordinator publishes hardly depends on any one of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrivacyConfig {
    /// The budget: a run stops before it would cost more. Without `privacy.noise`, the noise follows from it and from
    /// `rounds` [default: no limit, which needs `privacy.noise`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// The probability with which epsilon may not hold, below one over the number of clients.
    pub delta: f64,
    /// Deviation of the noise on the sum of updates, as a multiple of `privacy.clip` [default: the least with which all
    /// rounds cost at most `privacy.epsilon`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// Largest norm of an update: a larger one is clipped to it.
    pub clip: f64,
    /// Have `privacy.clip` follow this quantile of the norms of updates from round to round, itself with noise: 0.5 for
    /// their median [default: `privacy.clip` stays].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
}

impl Experiment {
    /// The probability with which a client takes part in a private round.
    pub(crate) fn rate(&self) -> f64 {
        (self.client.per_round as f64 / self.data.clients.max(1) as f64).min(1.0)
    }

    /// The cost of private rounds; `None` without privacy.
    pub(crate) fn accountant(&self) -> Option<Accountant> {
        let PrivacyConfig { noise, delta, .. } = self.privacy.as_ref()?;
        Some(Accountant { rate: self.rate(), noise: (*noise)?, delta: *delta })
    }

    /// Sets the noise that follows from the budget. The number of clients must be known.
    pub(crate) fn calibrate(&mut self) -> Result<()> {
        let (rate, rounds, clients) = (self.rate(), self.rounds, self.data.clients);
        let Some(privacy) = &mut self.privacy else { return Ok(()) };
        let delta = privacy.delta;
        let problem =
            format!("must be below one over the number of clients ({clients}), got {delta}");
        ensure(delta * (clients as f64) < 1.0, "privacy.delta", problem)?;
        if let (None, Some(epsilon)) = (privacy.noise, privacy.epsilon) {
            let noise = Accountant::noise_for(epsilon, rounds, rate, delta, MOST_NOISE);
            let problem = || {
                let problem = format!(
                    "{rounds} rounds cost more with any noise: set a larger one, or a larger delta"
                );
                Error::config("privacy.epsilon", problem)
            };
            privacy.noise = Some(noise.ok_or_else(problem)?);
        }
        let Some(accountant) = self.accountant() else { return Ok(()) };
        let (first, budget) = (accountant.epsilon(1), self.budget());
        let problem = format!("the first round alone costs {first:.3}, more than {budget}");
        ensure(first <= budget, "privacy.epsilon", problem)
    }

    /// The largest epsilon that the run may cost.
    pub(crate) fn budget(&self) -> f64 {
        self.privacy.as_ref().and_then(|privacy| privacy.epsilon).unwrap_or(f64::INFINITY)
    }

    /// Refuses what cannot be private, by its key.
    pub(super) fn check_privacy(&self) -> Result<()> {
        let Some(privacy) = &self.privacy else { return Ok(()) };
        let PrivacyConfig { epsilon, delta, noise, clip, quantile } = privacy;
        let problem = "set privacy.epsilon for all rounds, or privacy.noise for each";
        ensure(epsilon.is_some() || noise.is_some(), "privacy.epsilon", problem)?;
        if let Some(epsilon) = epsilon {
            within("privacy.epsilon", *epsilon, 0.01, 1000.0)?;
        }
        if let Some(noise) = noise {
            within("privacy.noise", *noise, LEAST_NOISE, MOST_NOISE)?;
        }
        within("privacy.delta", *delta, 1e-15, 0.1)?;
        positive("privacy.clip", *clip)?;
        if let Some(quantile) = quantile {
            within("privacy.quantile", *quantile, 0.01, 0.99)?;
        }
        let rule = self.aggregation.rule.as_str();
        let problem = format!(
            "`{rule}` looks at single updates, and how far one of them moves it has no bound: a private run has the \
             mean of clipped updates, set `mean` or `clipped-mean`"
        );
        ensure(["mean", "clipped-mean"].contains(&rule), "aggregation.rule", problem)?;
        for (holds, key, problem) in [
            (
                self.aggregation.weights == Weights::Uniform,
                "aggregation.weights",
                "clients of a private run weigh the same: set `uniform`",
            ),
            (
                self.checks.updates,
                "checks.updates",
                "updates of a private run must be checked: set true",
            ),
            (
                self.checks.clip == 0.0,
                "checks.clip",
                "is relative to the updates of others: set 0, since privacy.clip clips",
            ),
            (
                self.checks.quorum <= 1,
                "checks.quorum",
                "whether enough clients answer would be told: set 1",
            ),
            (
                self.fleet.ask == 0,
                "fleet.ask",
                "which answers count would depend on the other clients: set 0",
            ),
            (
                !self.record.label_counts,
                "record.label_counts",
                "counts of labels would be told without noise: set false",
            ),
            (
                !self.record.sites,
                "record.sites",
                "tests of single clients would be told without noise: set false",
            ),
            (
                self.batch_norm.statistics == StatisticsSource::StaticServer,
                "batch_norm.statistics",
                "statistics of the clients' images would be told without noise: set `static-server`",
            ),
        ] {
            ensure(holds, key, problem)?;
        }
        Ok(())
    }
}
