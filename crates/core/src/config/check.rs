//! Values that parse but cannot work, found before any work starts.

use super::{Experiment, FedAnchorConfig, ModelName};
use crate::error::{Error, Result};

/// Positive pairs a contrastive batch should hold: with fewer the loss collapsed to chance in
/// trials on CIFAR-10.
const PAIRS: usize = 50;

impl Experiment {
    /// Checks every value that can be judged without the data.
    pub(super) fn check(&self) -> Result<()> {
        let o = &self.optimiser;
        at_least_one("rounds", self.rounds as usize)?;
        at_least_one("data.anchors", self.data.anchors)?;
        at_least_one("data.clients", self.data.clients)?;
        at_least_one("client.per_round", self.client.per_round)?;
        at_least_one("client.epochs", self.client.epochs as usize)?;
        if self.client.per_round > self.data.clients {
            return Err(Error::config(
                "client.per_round",
                format!(
                    "{} clients a round, but data.clients is {}",
                    self.client.per_round, self.data.clients
                ),
            ));
        }
        if self.client.batch < 2 || self.server.batch.is_some_and(|batch| batch < 2) {
            return Err(Error::config(
                "client.batch, server.batch",
                "must be at least 2: batch norm needs a batch",
            ));
        }
        within("optimiser.lr", o.lr, 0.0, 100.0)?;
        within("pretrain.lr", self.pretrain.lr, 0.0, 100.0)?;
        within("optimiser.momentum", o.momentum, 0.0, 1.0)?;
        within("optimiser.weight_decay", o.weight_decay, 0.0, 1.0)?;
        within("optimiser.clip", o.clip, 0.0, f64::MAX)?;
        within("server.momentum", self.server.momentum, 0.0, 1.0)?;
        within("batch_norm.momentum", self.batch_norm.momentum, 0.0, 1.0)?;
        if o.nesterov && o.momentum == 0.0 {
            return Err(Error::config("optimiser.nesterov", "needs optimiser.momentum above 0"));
        }
        at_least_one("model.latent_dim", self.model.latent_dim)?;
        at_most("model.latent_dim", self.model.latent_dim, 65_536)?;
        at_most("client.batch", self.client.batch, 8192)?;
        at_most("server.batch", self.server.batch.unwrap_or(2), 8192)?;
        if self.model.preactivation && self.model.name != ModelName::Resnet18 {
            return Err(Error::config("model.preactivation", "is a choice of resnet18 alone"));
        }
        // Every width of every model is a multiple of 16.
        if ![1, 2, 4, 8, 16].contains(&self.model.groups) {
            return Err(Error::config(
                "model.groups",
                "must be 1, 2, 4, 8 or 16, to divide every width",
            ));
        }
        self.device()?;
        self.method.anchors().check()
    }
}

impl FedAnchorConfig {
    fn check(&self) -> Result<()> {
        within("method.threshold", self.threshold, -1.0, 1.0)?;
        within("method.score_temperature", self.score_temperature, 0.001, 1000.0)?;
        at_most("method.label_views", self.label_views as usize, 100)?;
        positive("method.mixup.alpha", self.mixup.alpha)?;
        within("method.mixup.weight", self.mixup.weight, 0.0, f64::MAX)?;
        within("method.contrastive.temperature", self.contrastive.temperature, 0.001, 1000.0)
    }

    /// The contrastive batch for this many classes and anchors: as given if it holds enough
    /// positive pairs, B(B-1)/2C on average; chosen to hold them if left out.
    pub fn contrastive_batch(&self, classes: usize, anchors: usize) -> Result<usize> {
        if self.contrastive.epochs > 0 && !self.contrastive.self_pairs && anchors <= classes {
            return Err(Error::config(
                "data.anchors",
                format!(
                    "{anchors} anchors of {classes} classes leave the contrastive loss without pairs: use \
                     more, or method.contrastive.epochs=0"
                ),
            ));
        }
        let pairs = |batch: usize| batch * (batch - 1) / (2 * classes);
        match self.contrastive.batch {
            Some(batch) if self.contrastive.epochs == 0 || batch.min(anchors) == anchors => {
                Ok(batch.min(anchors))
            }
            Some(batch) if batch < 2 || pairs(batch) < PAIRS => Err(Error::config(
                "method.contrastive.batch",
                format!(
                    "a batch of {batch} holds about {} pairs of one label among {classes} classes, and \
                     with fewer than {PAIRS} pairs the loss collapses: use a batch of {} or more, or \
                     leave it out",
                    pairs(batch.max(1)),
                    smallest(classes)
                ),
            )),
            Some(batch) => Ok(batch),
            None => Ok(smallest(classes).max(50).min(anchors)),
        }
    }
}

/// The smallest batch with enough pairs.
fn smallest(classes: usize) -> usize {
    (2..).find(|batch| batch * (batch - 1) >= PAIRS * 2 * classes).expect("grows without bound")
}

fn at_least_one(key: &str, value: usize) -> Result<()> {
    if value == 0 { Err(Error::config(key, "must be at least 1, found 0")) } else { Ok(()) }
}

fn at_most(key: &str, value: usize, most: usize) -> Result<()> {
    if value > most {
        Err(Error::config(key, format!("must be at most {most}, found {value}")))
    } else {
        Ok(())
    }
}

fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::config(key, format!("must be above 0, found {value}")))
}

fn within(key: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if value.is_finite() && (least..=most).contains(&value) {
        return Ok(());
    }
    let range =
        if most == f64::MAX { format!("{least} or more") } else { format!("{least} to {most}") };
    Err(Error::config(key, format!("must be {range}, found {value}")))
}

#[cfg(test)]
mod tests {
    use super::super::{MethodConfig, resolve};

    fn resolved(settings: &[&str]) -> Result<super::Experiment, String> {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        resolve("", &settings).map_err(|error| error.to_string())
    }

    #[test]
    fn values_that_cannot_work_are_refused() {
        for (setting, expected) in [
            ("rounds=0", "rounds: must be at least 1"),
            ("client.per_round=101", "101 clients a round, but data.clients is 100"),
            ("client.batch=1", "at least 2"),
            ("optimiser.lr=-1.0", "optimiser.lr: must be 0 to 100, found -1"),
            ("optimiser.lr=nan", "optimiser.lr"),
            ("method.threshold=1.5", "method.threshold: must be -1 to 1, found 1.5"),
            ("method.contrastive.temperature=0", "must be 0.001 to 1000, found 0"),
            ("model.latent_dim=9000000000000000000", "at most 65536"),
            ("client.batch=100000", "at most 8192"),
            ("model.preactivation=true", "resnet18 alone"),
            ("model.groups=3", "1, 2, 4, 8 or 16"),
            ("method.label_views=4294967295", "method.label_views: must be at most 100"),
            ("device=gpu", "device: expected `cpu` or `cuda:N`, found `gpu`"),
        ] {
            let error = resolved(&[setting]).unwrap_err();
            assert!(error.contains(expected), "{setting}: {error}");
        }
    }

    #[test]
    fn the_contrastive_batch_holds_enough_pairs() {
        let method = |settings: &[&str]| {
            let MethodConfig::Fedanchor(method) = resolved(settings).unwrap().method else {
                panic!()
            };
            method
        };
        assert_eq!(method(&[]).contrastive_batch(10, 500).unwrap(), 50);
        assert_eq!(method(&[]).contrastive_batch(10, 40).unwrap(), 40);
        assert_eq!(method(&[]).contrastive_batch(100, 2500).unwrap(), 101); // 101 * 100 / 200 = 50
        let small = method(&["method.contrastive.batch=10"]);
        let error = small.contrastive_batch(10, 500).unwrap_err().to_string();
        assert!(error.contains("use a batch of 33 or more"), "{error}"); // 33 * 32 / 20 = 52
        assert_eq!(small.contrastive_batch(5, 10).unwrap(), 10);
        let error = method(&[]).contrastive_batch(10, 10).unwrap_err().to_string();
        assert!(error.contains("without pairs: use more"), "{error}");
    }
}
