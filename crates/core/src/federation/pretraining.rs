//! Training on the anchors alone: pre-training before round 1, and the best accuracy without clients, the floor under a
//! run.

use super::clock::Clock;
use super::coordinator::{Coordinator, Finished};
use super::learning_watch::not_fitted;
use crate::error::Result;
use crate::methods::MeanLosses;
use fedanchor_record::{RoundRecord, ServerOnlyTrial};
use std::sync::atomic::{AtomicBool, Ordering};

impl Coordinator<'_> {
    /// Round 0: pre-training until the anchors are fitted or `stop` is set, then a test.
    pub fn pretrain(&mut self, stop: &AtomicBool) -> Result<Finished> {
        let mut clock = Clock::start(0);
        let (epochs, losses, fitted) = self.fit(stop)?;
        self.server.momentum.clear();
        clock.timing.server = clock.lap();
        let mut record = RoundRecord {
            method: Some(self.properties.recorded()),
            losses: self.losses(&[], &losses),
            ..RoundRecord::default()
        };
        let evaluation = self.test_and_record(&mut record)?;
        clock.timing.test = clock.lap();
        if self.federation.experiment.pretrain.fitted > 0.0 {
            record.pretrain_epochs = Some(epochs);
            if !fitted && !stop.load(Ordering::Relaxed) {
                record.notes.extend(not_fitted(epochs, self.server.anchor_accuracy(None)?));
            }
        }
        Ok(Finished { record, timing: clock.finish(&self.federation.context), evaluation })
    }

    /// Pre-training until the anchors are fitted: its epochs, the losses of the last one, and whether they are.
    fn fit(&mut self, stop: &AtomicBool) -> Result<(u32, MeanLosses, bool)> {
        let config = &self.federation.experiment.pretrain;
        let (mut epoch, mut losses, mut fitted) = (0, MeanLosses::new(), false);
        let mut cross_entropy = Vec::new();
        while epoch < config.epochs && !fitted && !stop.load(Ordering::Relaxed) {
            losses = self.federation.method.pretrain(&mut self.server, epoch)?;
            let loss = losses.first().copied().flatten();
            tracing::debug!(epoch, loss, "pre-training");
            cross_entropy.extend(loss);
            fitted = is_fitted(&cross_entropy, config.fitted);
            epoch += 1;
        }
        Ok((epoch, losses, fitted))
    }

    /// The server on the anchors alone: after pre-training, after two and four times as many epochs of it, and after
    /// pre-training and the server epochs of this many rounds. The best of them is the floor under a run; chosen on the
    /// test images, it is a high one. `None` if `stop` is set meanwhile.
    pub fn train_alone(
        &mut self,
        rounds: u32,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<ServerOnlyTrial>>> {
        let stopped = || stop.load(Ordering::Relaxed);
        let method = &self.federation.method;
        let (epochs, ..) = self.fit(stop)?;
        let after_pretraining = self.server.save()?;
        let trial = |server: &mut Self, pretrain_epochs, rounds| -> Result<_> {
            let test_accuracy = server.test(rounds)?.accuracy;
            Ok(ServerOnlyTrial { pretrain_epochs, rounds, test_accuracy })
        };
        self.server.momentum.clear();
        let mut trials = vec![trial(self, epochs, 0)?];
        for round in 1..=rounds {
            if stopped() {
                return Ok(None);
            }
            method.server_update(&mut self.server, None, round)?;
        }
        trials.push(trial(self, epochs, rounds)?);
        self.server.restore(&after_pretraining)?;
        for epoch in epochs..4 * epochs {
            if stopped() {
                return Ok(None);
            }
            method.pretrain(&mut self.server, epoch)?;
            if [2 * epochs, 4 * epochs].contains(&(epoch + 1)) {
                trials.push(trial(self, epoch + 1, 0)?);
            }
        }
        Ok(Some(trials))
    }
}

/// Whether the anchors are fitted: over the last ten epochs, so that one lucky epoch does not end it.
fn is_fitted(cross_entropy: &[f64], enough: f64) -> bool {
    let last = cross_entropy.last_chunk::<10>();
    last.is_some_and(|last| last.iter().sum::<f64>() / last.len() as f64 <= enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_fitted_when_ten_epochs_say_so() {
        assert!(!is_fitted(&[0.1; 9], 0.5));
        assert!(is_fitted(&[0.1; 10], 0.5) && !is_fitted(&[0.1; 10], 0.0));
        let falling: Vec<f64> = (0..30).map(|epoch| 3.0 - 0.1 * f64::from(epoch)).collect();
        assert!(!is_fitted(&falling, 0.5) && is_fitted(&falling, 0.56));
    }
}
