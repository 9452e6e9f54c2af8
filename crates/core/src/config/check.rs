//! Values that parse but cannot work, found before any work starts.

use super::{
    ContrastiveConfig, Experiment, FedAnchorConfig, MethodConfig, MixupConfig, ModelName, Score,
    Threshold, ThresholdRule,
};
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
        within("aggregation.hostile", self.aggregation.hostile, 0.0, 0.5)?;
        within("checks.size", self.checks.size, 1.0, 1000.0)?;
        within("checks.distance", self.checks.distance, 0.0, f64::MAX)?;
        within("checks.anchor_margin", self.checks.anchor_margin, 0.0, 100.0)?;
        if self.checks.quorum > self.client.per_round {
            let problem =
                format!("asks for more than client.per_round ({})", self.client.per_round);
            return Err(Error::config("checks.quorum", problem));
        }
        within("faults.share", self.faults.share, 0.0, 1.0)?;
        self.device()?;
        self.method.check()
    }
}

impl MethodConfig {
    fn check(&self) -> Result<()> {
        match self {
            Self::Fedanchor(config) => config.check(),
            Self::Semifl(config) => {
                within("method.threshold", config.threshold, 0.0, 1.0)?;
                config.mixup.check()
            }
            Self::FedavgFixmatch(config) => within("method.threshold", config.threshold, 0.0, 1.0),
            Self::Fedcon(config) => {
                at_least_one("method.predictor", config.predictor)?;
                at_most("method.predictor", config.predictor, 65_536)?;
                within("method.target_decay", config.target_decay, 0.0, 1.0)
            }
            Self::Fedmatch(config) => {
                within("method.threshold", config.threshold, 0.0, 1.0)?;
                at_most("method.helpers", config.helpers, 16)?;
                at_least_one("method.refresh", config.refresh as usize)?;
                for (key, weight) in [
                    ("method.consistency", config.consistency),
                    ("method.sparsity", config.sparsity),
                    ("method.distance", config.distance),
                    ("method.supervised", config.supervised),
                ] {
                    within(key, weight, 0.0, f64::MAX)?;
                }
                Ok(())
            }
            Self::Supervised(_) => Ok(()),
            Self::ServerOnly(config) => {
                config.mixup.check()?;
                config.contrastive.check()
            }
        }
    }
}

impl FedAnchorConfig {
    fn check(&self) -> Result<()> {
        let least = if self.score == Score::Cosine { -1.0 } else { 0.0 };
        match &self.threshold {
            // Scores that are cosines need not pass anything: -1 keeps all but the opposite.
            Threshold::Fixed(threshold) => within("method.threshold", *threshold, least, 1.0)?,
            Threshold::Rule(rule) => rule.check(least)?,
        }
        within("method.score_temperature", self.score_temperature, 0.001, 1000.0)?;
        at_most("method.label_views", self.label_views as usize, 100)?;
        self.mixup.check()?;
        self.contrastive.check()
    }
}

impl ThresholdRule {
    fn check(&self, least_score: f64) -> Result<()> {
        match *self {
            Self::AnchorRelative { share, least, most, views } => {
                within("method.threshold.share", share, 0.0, 1.0)?;
                within("method.threshold.least", least, least_score, 1.0)?;
                within("method.threshold.most", most, least, 1.0)?;
                at_least_one("method.threshold.views", views as usize)?;
                at_most("method.threshold.views", views as usize, 100)
            }
            Self::ClientMean { most } => within("method.threshold.most", most, least_score, 1.0),
            Self::Softmatch { width } => positive("method.threshold.width", width),
            Self::Quantile { from, to } => {
                within("method.threshold.from", from, 0.0, 1.0)?;
                within("method.threshold.to", to, 0.0, 1.0)
            }
        }
    }
}

impl MixupConfig {
    fn check(&self) -> Result<()> {
        positive("method.mixup.alpha", self.alpha)?;
        within("method.mixup.weight", self.weight, 0.0, f64::MAX)
    }
}

impl ContrastiveConfig {
    fn check(&self) -> Result<()> {
        within("method.contrastive.temperature", self.temperature, 0.001, 1000.0)
    }

    /// The contrastive batch for this many classes and anchors: as given if it holds enough
    /// positive pairs, B(B-1)/2C on average; chosen to hold them if left out.
    pub fn batch_for(&self, classes: usize, anchors: usize) -> Result<usize> {
        if self.epochs > 0 && !self.self_pairs && anchors <= classes {
            return Err(Error::config(
                "data.anchors",
                format!(
                    "{anchors} anchors of {classes} classes leave the contrastive loss without pairs: use \
                     more, or method.contrastive.epochs=0"
                ),
            ));
        }
        let pairs = |batch: usize| batch * (batch - 1) / (2 * classes);
        match self.batch {
            Some(batch) if self.epochs == 0 || batch.min(anchors) == anchors => {
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
    use super::super::resolve;

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
            (
                "method.threshold=x",
                "method.threshold: `x` is no rule; a number, or one of anchor-relative",
            ),
            ("method.threshold={rule=\"quantile\", x=1}", "method.threshold: unknown field `x`"),
            (
                "method.threshold={rule=\"quantile\", to=2}",
                "method.threshold.to: must be 0 to 1, found 2",
            ),
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
    fn a_key_that_a_method_does_not_use_is_refused() {
        for (name, key, problem) in [
            ("semifl", "contrastive.epochs=1", "method.contrastive: unknown field `contrastive`"),
            ("semifl", "threshold=-0.5", "method.threshold: must be 0 to 1, found -0.5"),
            ("semifl", "threshold=quantile", "method.threshold: invalid type"),
            ("fedavg-fixmatch", "threshold=1.5", "method.threshold: must be 0 to 1, found 1.5"),
            ("fedavg-fixmatch", "client_mixup=true", "unknown field `client_mixup`"),
            ("supervised", "threshold=0.5", "unknown field `threshold`"),
            ("server-only", "threshold=0.5", "unknown field `threshold`"),
            ("fedcon", "predictor=0", "method.predictor: must be at least 1"),
            ("fedmatch", "refresh=0", "method.refresh: must be at least 1"),
        ] {
            let name = format!("method.name={name}");
            let error = resolved(&[&name, &format!("method.{key}")]).unwrap_err();
            assert!(error.contains(problem), "{name} {key}: {error}");
        }
        let error = resolved(&["method.score=softmax", "method.threshold=-0.1"]).unwrap_err();
        assert!(error.contains("method.threshold: must be 0 to 1, found -0.1"), "{error}");
    }

    #[test]
    fn the_contrastive_batch_holds_enough_pairs() {
        let method =
            |settings: &[&str]| resolved(settings).unwrap().method.contrastive().unwrap().clone();
        assert_eq!(method(&[]).batch_for(10, 500).unwrap(), 50);
        assert_eq!(method(&[]).batch_for(10, 40).unwrap(), 40);
        assert_eq!(method(&[]).batch_for(100, 2500).unwrap(), 101); // 101 * 100 / 200 = 50
        let small = method(&["method.contrastive.batch=10"]);
        let error = small.batch_for(10, 500).unwrap_err().to_string();
        assert!(error.contains("use a batch of 33 or more"), "{error}"); // 33 * 32 / 20 = 52
        assert_eq!(small.batch_for(5, 10).unwrap(), 10);
        let error = method(&[]).batch_for(10, 10).unwrap_err().to_string();
        assert!(error.contains("without pairs: use more"), "{error}");
    }
}
