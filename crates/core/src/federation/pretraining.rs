//! Training on the anchors alone: pre-training before round 1, and the best accuracy without clients, the floor under a
//! run.

use super::clock::Clock;
use super::coordinator::{Coordinator, Finished, Pretrained};
use super::learning_watch::not_fitted;
use crate::error::Result;
use crate::methods::MeanLosses;
use fedanchor_record::{RoundRecord, ServerOnlyTrial};

/// Called before every epoch with how many are done and planned; `false` ends the training.
pub type GoOn<'a> = dyn FnMut(u32, u32) -> bool + 'a;

impl Coordinator<'_> {
    /// Round 0: pre-training until the anchors are fitted or `go_on` says no, then a test.
    pub fn pretrain(&mut self, go_on: &mut GoOn) -> Result<Finished> {
        let mut clock = Clock::start(0);
        let mut stopped = false;
        let (epochs, losses, fitted) = self.fit(&mut |done, planned| {
            stopped = !go_on(done, planned);
            !stopped
        })?;
        if self.federation.is_compared() {
            self.pretrained = Some(Pretrained { epochs, server: self.server.save()? });
        }
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
            if !fitted && !stopped {
                record.notes.extend(not_fitted(epochs, self.server.anchor_accuracy(None)?));
            }
        }
        Ok(Finished { record, timing: clock.finish(&self.federation.context), evaluation })
    }

    /// Pre-training until the anchors are fitted: its epochs, the losses of the last one, and whether they are.
    fn fit(&mut self, go_on: &mut GoOn) -> Result<(u32, MeanLosses, bool)> {
        let config = &self.federation.experiment.pretrain;
        let (mut epoch, mut losses, mut fitted) = (0, MeanLosses::new(), false);
        let mut cross_entropy = Vec::new();
        while epoch < config.epochs && !fitted && go_on(epoch, config.epochs) {
            losses = self.federation.method.pretrain(&mut self.server, epoch)?;
            let loss = losses.first().copied().flatten();
            tracing::debug!(epoch, loss, "pre-training");
            cross_entropy.extend(loss);
            fitted = is_fitted(&cross_entropy, config.fitted);
            epoch += 1;
        }
        Ok((epoch, losses, fitted))
    }

    /// The server on the anchors alone: after pre-training, after pre-training and the server epochs of this many
    /// rounds, and, as far as they need at most `limit` further epochs, after two and four times as many epochs of
    /// pre-training. The best of them is the floor under a run; chosen on the test images, it is a high one. `None` if
    /// `go_on` says no meanwhile.
    pub fn train_alone(
        &mut self,
        rounds: u32,
        limit: u32,
        go_on: &mut GoOn,
    ) -> Result<Option<Vec<ServerOnlyTrial>>> {
        let method = &self.federation.method;
        let Pretrained { epochs, server: after_pretraining } = match self.pretrained.take() {
            Some(pretrained) => pretrained,
            None => {
                let (epochs, ..) = self.fit(go_on)?; // a run that was resumed
                Pretrained { epochs, server: self.server.save()? }
            }
        };
        let lengths = [2, 4].into_iter().map(|factor| factor * epochs);
        let lengths: Vec<u32> = lengths.filter(|length| length - epochs <= limit).collect();
        let longest = lengths.last().copied().unwrap_or(epochs);
        let planned = rounds + longest - epochs;
        let trial = |alone: &mut Self, pretrain_epochs, rounds| -> Result<_> {
            let test_accuracy = alone.test(rounds)?.accuracy;
            Ok(ServerOnlyTrial { pretrain_epochs, rounds, test_accuracy })
        };
        self.server.restore(&after_pretraining)?;
        self.server.momentum.clear();
        let mut trials = vec![trial(self, epochs, 0)?];
        for round in 1..=rounds {
            if !go_on(round - 1, planned) {
                return Ok(None);
            }
            method.server_update(&mut self.server, None, round)?;
        }
        trials.push(trial(self, epochs, rounds)?);
        self.server.restore(&after_pretraining)?;
        for epoch in epochs..longest {
            if !go_on(rounds + epoch - epochs, planned) {
                return Ok(None);
            }
            method.pretrain(&mut self.server, epoch)?;
            if lengths.contains(&(epoch + 1)) {
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
