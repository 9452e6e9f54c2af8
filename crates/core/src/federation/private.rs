//! What differs in a private round: the rule, what it costs, and what its record leaves out.

use super::coordinator::Coordinator;
use crate::aggregation::Norms;
use crate::config::PrivacyConfig;
use crate::error::Result;
use crate::privacy::{Draws, PrivateMean, with_count};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_record::{PrivacySpent, RoundRecord};

/// The draws of a private round: noise on the sum, and on the count of updates below the norm.
#[derive(Clone, Copy)]
enum Noise {
    Sum,
    Count,
}

impl Coordinator<'_> {
    pub(super) fn is_private(&self) -> bool {
        self.federation.experiment.privacy.is_some()
    }

    fn noise(&self, round: u32, of: Noise) -> Result<Draws> {
        let key = self.federation.context.streams(round).of(Purpose::Privacy, SERVER);
        self.secrecy.draws(key.epoch(of as u32))
    }

    /// Clients per round on average, and the noise on count and sum.
    fn scale(&self, privacy: &PrivacyConfig) -> (f64, f64, f64) {
        let clients = self.federation.experiment.client.per_round as f64;
        let noise = privacy.noise.expect("set by Experiment::calibrate");
        match privacy.quantile {
            None => (clients, 0.0, noise),
            Some(quantile) => {
                let (of_count, of_sum) = with_count(noise, clients, quantile);
                (clients, of_count, of_sum)
            }
        }
    }

    /// The rule of a private round.
    pub(super) fn private_mean(&self, privacy: &PrivacyConfig, round: u32) -> Result<PrivateMean> {
        let (clients, _, noise) = self.scale(privacy);
        let clip = self.state.ledger.clip(privacy.clip);
        Ok(PrivateMean::new(clip, noise, clients, self.noise(round, Noise::Sum)?))
    }

    /// Counts what a round has published, and moves the norm for the next one.
    pub(super) fn publish(
        &mut self,
        privacy: &PrivacyConfig,
        norms: &[Norms],
        round: u32,
    ) -> Result<()> {
        self.state.ledger.releases += 1;
        if let Some(quantile) = privacy.quantile {
            let (clients, noise, _) = self.scale(privacy);
            let draws = self.noise(round, Noise::Count)?;
            self.state.ledger.follow(privacy.clip, quantile, norms, (clients, noise), draws);
        }
        Ok(())
    }

    /// What all rounds would cost with one more, if that is beyond the budget.
    pub fn beyond_budget(&self) -> Option<f64> {
        let experiment = &self.federation.experiment;
        let epsilon = experiment.accountant()?.epsilon(self.state.ledger.releases + 1);
        (epsilon > experiment.budget()).then_some(epsilon)
    }

    /// Models published so far.
    pub(crate) fn releases(&self) -> u32 {
        self.state.ledger.releases
    }

    /// Counts models that were published before a restart, and are not in the checkpoint.
    pub(crate) fn count_published(&mut self, releases: u32) {
        let ledger = &mut self.state.ledger;
        ledger.releases = ledger.releases.max(releases);
    }

    /// Completes the record of a private round, and leaves out who took part and what they counted. The log of the
    /// coordinator, which is trusted, names what it rejected.
    pub(super) fn keep_private(&self, record: &mut RoundRecord) {
        let experiment = &self.federation.experiment;
        let (Some(privacy), Some(accountant)) = (&experiment.privacy, experiment.accountant())
        else {
            return;
        };
        let releases = self.state.ledger.releases;
        let epsilon = accountant.epsilon(releases);
        record.privacy = Some(PrivacySpent {
            epsilon,
            left: privacy.epsilon.map(|budget| (budget - epsilon).max(0.0)),
            delta: accountant.delta,
            noise: accountant.noise,
            clip: self.state.ledger.clip(privacy.clip),
            releases,
        });
        for noted in [&mut record.rejected, &mut record.lost, &mut record.failed] {
            noted.clear();
        }
        for numbers in
            [&mut record.clients, &mut record.absent, &mut record.clipped, &mut record.excluded]
        {
            numbers.clear();
        }
        (record.trained, record.seen, record.kept, record.kept_deviation) = (0, 0, 0, None);
        (record.bytes_down, record.bytes_up) = (0, 0);
    }
}
