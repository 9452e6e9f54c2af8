//! Values that parse but cannot work, found before any work starts. A method checks its own settings
//! with the same functions.

use super::Experiment;
use crate::error::{Error, Result};
use fedanchor_data::Normalisation;
use fedanchor_data::formats::MAX_SIDE;
use fedanchor_data::partition::Scheme;

/// The largest seed: records are JSON, whose readers round larger integers.
pub const MAX_SEED: u64 = (1 << 53) - 1;
pub(crate) const MAX_BATCH: usize = 8192;
/// Larger values are typing mistakes, and would only fail later or never end.
const MAX_ROUNDS: f64 = 1e6;
const MAX_EPOCHS: f64 = 1e5;
const MAX_CLIENTS: f64 = 1e7;
const MAX_IMAGES: f64 = 1e8;
const MAX_RATIO: f64 = 1e6;
/// Labels have 16 bits.
const MAX_CLASSES: usize = 65_536;
/// Every view of every picture passes the trunk, and is kept.
const MAX_VIEWS: f64 = 16.0;
/// They are written in every round, for people to look at.
const MAX_SAMPLES: f64 = 200.0;

impl Experiment {
    /// Checks every value that can be judged without the data and the method.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { data, model, optimiser, pretrain, client, server, checks, .. } = self;
        let optional = |value: Option<f64>, otherwise: f64| value.unwrap_or(otherwise);
        let batch = MAX_BATCH as f64;
        for (key, value, least, most) in [
            ("seed", self.seed as f64, 0.0, MAX_SEED as f64),
            ("rounds", self.rounds.into(), 1.0, MAX_ROUNDS),
            ("data.anchors", data.anchors as f64, 0.0, MAX_IMAGES),
            ("data.validation", data.validation as f64, 0.0, MAX_IMAGES),
            ("data.clients", data.clients as f64, 1.0, MAX_CLIENTS),
            ("data.size", data.size.unwrap_or(1) as f64, 1.0, MAX_SIDE as f64),
            ("model.latent_dim", model.latent_dim as f64, 1.0, 65_536.0),
            ("augment.views", self.augment.views as f64, 0.0, MAX_VIEWS),
            ("batch_norm.images", self.batch_norm.images as f64, 0.0, MAX_IMAGES),
            ("batch_norm.momentum", self.batch_norm.momentum, 0.0, 1.0),
            ("optimiser.lr", optimiser.lr, 0.0, 100.0),
            ("optimiser.momentum", optimiser.momentum, 0.0, 1.0),
            ("optimiser.weight_decay", optimiser.weight_decay, 0.0, 1.0),
            ("optimiser.clip", optimiser.clip, 0.0, MAX_RATIO),
            ("pretrain.epochs", pretrain.epochs.into(), 0.0, MAX_EPOCHS),
            ("pretrain.lr", pretrain.lr, 0.0, 100.0),
            ("pretrain.fitted", pretrain.fitted, 0.0, 100.0),
            ("client.per_round", client.per_round as f64, 1.0, MAX_CLIENTS),
            ("client.epochs", client.epochs.into(), 1.0, MAX_EPOCHS),
            // Batch norm needs a batch.
            ("client.batch", client.batch as f64, 2.0, batch),
            ("server.batch", server.batch as f64, 0.0, batch),
            ("server.epochs", server.epochs.into(), 0.0, MAX_EPOCHS),
            ("server.lr", optional(server.lr, 0.0), 0.0, 100.0),
            ("server.momentum", server.momentum, 0.0, 1.0),
            ("aggregation.hostile", self.aggregation.hostile, 0.0, 0.5),
            ("checks.offences", checks.offences.into(), 0.0, 1e6),
            ("checks.size", checks.size, 1.0, 1000.0),
            ("checks.distance", checks.distance, 0.0, MAX_RATIO),
            ("checks.clip", checks.clip, 0.0, MAX_RATIO),
            ("checks.anchor_margin", checks.anchor_margin, 0.0, 100.0),
            ("faults.share", self.faults.share, 0.0, 1.0),
            ("faults.claim", self.faults.claim, 1.0, MAX_RATIO),
            ("faults.factor", optional(self.faults.factor, 0.0), 0.0, MAX_RATIO),
            ("checkpoint.every", self.checkpoint.every.into(), 0.0, MAX_ROUNDS),
            ("record.samples", self.record.samples as f64, 0.0, MAX_SAMPLES),
            ("fleet.deadline", self.fleet.deadline, 0.0, 1e6),
            ("fleet.clients_per_node", self.fleet.clients_per_node as f64, 1.0, MAX_CLIENTS),
        ] {
            within(key, value, least, most)?;
        }
        let problem = "expected 0, or at least 2 for batch norm, got 1";
        ensure(server.batch != 1, "server.batch", problem.to_owned())?;
        self.check_data()?;
        self.check_model()?;
        self.check_federation()?;
        self.check_privacy()?;
        self.device().map(drop)
    }

    fn check_data(&self) -> Result<()> {
        if let Some(share) = self.data.test_share {
            let problem = format!("must be above 0 and below 1, got {share}");
            ensure(share > 0.0 && share < 1.0, "data.test_share", problem)?;
        }
        if let Some(Normalisation { mean, std }) = &self.data.normalisation {
            let (means, stds) = (mean.len(), std.len());
            let problem = format!(
                "expected a mean and a std for 1 channel (grey) or 3 (colour), got {means} and {stds}"
            );
            ensure(means == stds && [1, 3].contains(&means), "data.normalisation", problem)?;
            for &mean in mean {
                within("data.normalisation.mean", f64::from(mean), -10.0, 10.0)?;
            }
            for &std in std {
                within("data.normalisation.std", f64::from(std), 1e-4, 10.0)?;
            }
        }
        match self.partition {
            Scheme::Iid {} => Ok(()),
            // Below 1e-3 every draw is one class, above 1e6 every draw is even.
            Scheme::Lda { alpha } | Scheme::Dirichlet { alpha } => {
                within("partition.alpha", alpha, 1e-3, 1e6)
            }
            Scheme::Classes { per_client } => {
                within("partition.per_client", per_client as f64, 1.0, MAX_CLASSES as f64)
            }
        }
    }

    fn check_model(&self) -> Result<()> {
        fedanchor_engine::model::check(&self.model)?;
        // Every width of every model of this crate is a multiple of 16.
        let problem = "must be 1, 2, 4, 8 or 16, to divide every width";
        ensure([1, 2, 4, 8, 16].contains(&self.model.groups), "model.groups", problem)?;
        let possible = !self.optimiser.nesterov || self.optimiser.momentum != 0.0;
        ensure(possible, "optimiser.nesterov", "needs optimiser.momentum above 0")
    }

    fn check_federation(&self) -> Result<()> {
        let (per_round, clients, rounds) = (self.client.per_round, self.data.clients, self.rounds);
        let (ask, quorum) = (self.fleet.ask, self.checks.quorum);
        let problem = format!("{per_round} clients per round, but data.clients is {clients}");
        ensure(per_round <= clients, "client.per_round", problem)?;
        let problem = format!(
            "{ask} clients asked beyond {per_round} per round, but data.clients is {clients}"
        );
        ensure(per_round + ask <= clients, "fleet.ask", problem)?;
        self.aggregation.rule.find()?;
        let problem = format!("must be at most client.per_round ({per_round}), got {quorum}");
        ensure(quorum <= per_round, "checks.quorum", problem)?;
        let last = self.record.latents.last().copied().unwrap_or_default();
        let problem = format!("round {last} is after the last one: `rounds` is {rounds}");
        ensure(last <= rounds, "record.latents", problem)
    }
}

/// An error about a key unless something holds.
pub fn ensure(holds: bool, key: &str, problem: impl Into<String>) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::config(key, problem)) }
}

/// A number with an upper limit.
pub fn at_most(key: &str, value: usize, most: usize) -> Result<()> {
    ensure(value <= most, key, format!("must be at most {most}, got {value}"))
}

/// A number above 0, and not so small or large that arithmetic with it fails.
pub fn positive(key: &str, value: f64) -> Result<()> {
    let problem = format!("must be between 1e-6 and 1e6, got {value}");
    ensure((1e-6..=1e6).contains(&value), key, problem)
}

/// A number within bounds.
pub fn within(key: &str, value: f64, least: f64, most: f64) -> Result<()> {
    let problem = format!("must be between {least} and {most}, got {value}");
    ensure((least..=most).contains(&value), key, problem)
}

#[cfg(test)]
mod tests {
    use crate::experiment::resolve;

    fn resolved(settings: &[&str]) -> Result<super::Experiment, String> {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        resolve("", &settings).map_err(|error| error.to_string())
    }

    #[test]
    fn values_that_cannot_work_are_refused() {
        for (setting, expected) in [
            ("rounds=0", "rounds: must be between 1 and 1000000, got 0"),
            ("client.per_round=101", "101 clients per round, but data.clients is 100"),
            ("data.test_share=1.0", "data.test_share: must be above 0 and below 1, got 1"),
            (
                "data.normalisation={mean=[0.5, 0.5], std=[1.0]}",
                "data.normalisation: expected a mean and a std for 1 channel (grey) or 3 (colour), \
                 got 2 and 1",
            ),
            ("data.normalisation={mean=[0.5], std=[0.0]}", "data.normalisation.std: must be"),
            ("data.fit=squash", "data.fit: expected `stretch`, `crop` or `pad`, got"),
            ("client.batch=1", "client.batch: must be between 2 and 8192, got 1"),
            ("optimiser.lr=-1.0", "optimiser.lr: must be between 0 and 100, got -1"),
            ("optimiser.lr=nan", "optimiser.lr"),
            ("method.threshold=1.5", "method.threshold: must be between -1 and 1, got 1.5"),
            (
                "method.threshold=x",
                "method.threshold: unknown rule `x`; expected one of anchor-relative",
            ),
            ("method.threshold={rule=\"quantile\", x=1}", "method.threshold.x: unknown key"),
            (
                "method.threshold={rule=\"quantile\", to=2}",
                "method.threshold.to: must be between 0 and 1, got 2",
            ),
            ("method.contrastive.temperature=0", "must be between 0.001 and 1000, got 0"),
            ("model.latent_dim=9000000000000000000", "must be between 1 and 65536"),
            ("client.batch=100000", "must be between 2 and 8192"),
            ("model.preactivation=true", "an option of resnet18 only"),
            ("model.groups=3", "1, 2, 4, 8 or 16"),
            ("augment.views=17", "augment.views: must be between 0 and 16"),
            ("method.label_views=4294967295", "method.label_views: must be at most 100"),
            ("method.local_prior=1.5", "method.local_prior: must be between 0 and 1, got 1.5"),
            ("method.confidence=0.5", "method.confidence: was removed"),
            ("checks.length=5", "checks.length: was renamed: use checks.clip"),
            ("device=gpu", "device: expected `cpu` or `cuda:N`, got `gpu`"),
            ("pretrain.epochs=2147483648", "pretrain.epochs: must be between 0 and 100000"),
            ("server.epochs=4294967295", "server.epochs: must be between 0 and 100000"),
            ("client.epochs=4294967295", "client.epochs: must be between 1 and 100000"),
            ("rounds=4294967295", "rounds: must be between 1 and 1000000"),
            ("data.clients=4294967295", "data.clients: must be between 1 and 10000000"),
            ("method.contrastive.epochs=4294967295", "method.contrastive.epochs: must be at most"),
            ("method.mixup.alpha=1e308", "method.mixup.alpha: must be between 1e-6 and 1e6"),
            ("method.mixup.weight=1e308", "method.mixup.weight: must be between 0 and 1000000"),
            ("partition.alpha=5e-324", "partition.alpha: must be between 0.001 and 1000000"),
            ("partition.alpha=inf", "partition.alpha: must be between 0.001 and 1000000"),
            ("optimiser.clip=1e308", "optimiser.clip: must be between 0 and 1000000"),
            ("checks.distance=1e308", "checks.distance: must be between 0 and 1000000"),
            ("checks.quorum=11", "checks.quorum: must be at most client.per_round (10), got 11"),
            (
                "record.latents=[1, 501, 2]",
                "record.latents: round 501 is after the last one: `rounds` is 500",
            ),
            ("record.latents=3", "record.latents: expected a list, got 3"),
            ("record.latents=[-1]", "expected a non-negative integer, got -1"),
            ("record.samples=201", "record.samples: must be between 0 and 200, got 201"),
            ("record.images=1", "record.images: unknown key"),
            ("privacy.clip=1", "privacy: missing field `delta`"),
            (
                "privacy={delta=1e-5, clip=1.0}",
                "privacy.epsilon: set privacy.epsilon for all rounds",
            ),
            ("privacy={delta=1e-5, clip=0, noise=1}", "privacy.clip: must be between 1e-6 and 1e6"),
            ("privacy={delta=1e-5, clip=1, noise=0.0}", "privacy.noise: must be between 0.1"),
            ("privacy={delta=1e-5, clip=1, epsilon=-1}", "privacy.epsilon: must be between 0.01"),
            ("privacy={delta=0.5, clip=1, noise=1}", "privacy.delta: must be between"),
        ] {
            let error = resolved(&[setting]).unwrap_err();
            assert!(error.contains(expected), "{setting}: {error}");
        }
    }

    /// Every key of a table that is a number, dotted.
    fn numbers(table: &toml::Table, path: &str, out: &mut Vec<String>) {
        for (key, value) in table {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match value {
                toml::Value::Table(inner) => numbers(inner, &path, out),
                toml::Value::Integer(_) | toml::Value::Float(_) => out.push(path),
                _ => {}
            }
        }
    }

    #[test]
    fn no_number_may_be_absurd() {
        let mut starts: Vec<String> =
            crate::methods::names().iter().map(|name| format!("method.name={name}")).collect();
        starts.extend(["iid", "dirichlet", "classes"].map(|kind| format!("partition.kind={kind}")));
        let rules = ["anchor-relative", "rising", "client-mean", "softmatch", "quantile"];
        starts.extend(rules.map(|rule| format!("method.threshold={{rule=\"{rule}\"}}")));
        let mut accepted = Vec::new();
        for start in starts {
            let mut keys = Vec::new();
            numbers(&toml::Table::try_from(resolved(&[&start]).unwrap()).unwrap(), "", &mut keys);
            // Keys that have no default, or are not written down.
            keys.extend(["data.size", "data.test_share", "server.lr"].map(str::to_owned));
            keys.extend(["faults.factor", "record.samples", "fleet.ask"].map(str::to_owned));
            keys.extend(["fleet.deadline", "fleet.clients_per_node"].map(str::to_owned));
            if keys.contains(&"method.contrastive.epochs".to_owned()) {
                keys.push("method.contrastive.batch".to_owned());
            }
            for key in keys {
                match resolved(&[&start, &format!("{key}=1000000000000000000")]) {
                    Ok(_) => accepted.push(format!("{start}: {key}")),
                    Err(error) => {
                        let named = error.split(": ").next().unwrap_or_default();
                        assert!(key.starts_with(named), "{key}: {error}");
                    }
                }
            }
        }
        assert!(accepted.is_empty(), "{accepted:?}");
        assert!(resolved(&["seed=9007199254740991"]).is_ok());
        let error = resolved(&["seed=1e3"]).unwrap_err();
        assert!(error.starts_with("seed: expected ") && error.ends_with(" 1000.0"), "{error}");
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        let error = resolved(&["method.warm_up.rounds=5", "rounds=5"]).unwrap_err();
        assert_eq!(error, "method.warm_up.rounds: must be less than `rounds` (5), got 5");
    }

    #[test]
    fn what_cannot_be_private_is_refused_by_its_key() {
        let private = "privacy={delta=1e-5, clip=1.0, noise=1.0}";
        for preset in ["paper", "best", "semifl"] {
            resolved(&[&format!("preset={preset}"), private]).unwrap();
        }
        for (setting, expected) in [
            ("aggregation.rule=median", "aggregation.rule: `median` looks at single updates"),
            ("aggregation.rule=fltrust", "aggregation.rule: `fltrust` looks at single updates"),
            ("aggregation.weights=samples", "aggregation.weights: clients of a private run"),
            ("checks.clip=5", "checks.clip: is relative to the updates of others"),
            ("checks.updates=false", "checks.updates: updates of a private run"),
            ("checks.quorum=2", "checks.quorum: whether enough clients answer"),
            ("fleet.ask=1", "fleet.ask: which answers count"),
            ("record.label_counts=true", "record.label_counts: counts of labels"),
            ("record.sites=true", "record.sites: tests of single clients"),
            ("batch_norm.statistics=average", "batch_norm.statistics: statistics of the clients'"),
        ] {
            let error = resolved(&[private, setting]).unwrap_err();
            assert!(error.starts_with(expected), "{setting}: {error}");
        }
    }

    #[test]
    fn rounds_to_record_are_sorted_and_each_is_there_once() {
        let record = resolved(&["record.latents=[500, 0, 7, 0]"]).unwrap().record;
        assert_eq!(record.latents.iter().copied().collect::<Vec<_>>(), [0, 7, 500]);
        assert!(toml::to_string(&record).unwrap().contains("latents = [0, 7, 500]"));
        // Configs of runs from before there was such a section are still the same.
        let plain = resolved(&[]).unwrap();
        assert!(!toml::to_string(&plain).unwrap().contains("[record]"));
    }

    #[test]
    fn a_key_that_a_method_does_not_use_is_refused() {
        for (name, key, problem) in [
            ("semifl", "contrastive.epochs=1", "method.contrastive: unknown key"),
            ("semifl", "threshold=-0.5", "method.threshold: must be between 0 and 1, got -0.5"),
            (
                "semifl",
                "threshold=quantile",
                "method.threshold: expected a number, got \"quantile\"",
            ),
            (
                "fedavg-fixmatch",
                "threshold=1.5",
                "method.threshold: must be between 0 and 1, got 1.5",
            ),
            ("fedavg-fixmatch", "client_mixup=true", "client_mixup: unknown key"),
            ("supervised", "threshold=0.5", "threshold: unknown key"),
            ("server-only", "threshold=0.5", "threshold: unknown key"),
            ("fedcon", "predictor=0", "method.predictor: must be between 1 and 65536, got 0"),
            ("fedmatch", "refresh=0", "method.refresh: must be between 1 and 1000000, got 0"),
        ] {
            let name = format!("method.name={name}");
            let error = resolved(&[&name, &format!("method.{key}")]).unwrap_err();
            assert!(error.contains(problem), "{name} {key}: {error}");
        }
        let error = resolved(&["method.score=softmax", "method.threshold=-0.1"]).unwrap_err();
        assert!(error.contains("method.threshold: must be between 0 and 1, got -0.1"), "{error}");
    }
}
