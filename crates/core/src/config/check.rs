//! Values that parse but cannot work, found before any work starts. A method checks its own settings
//! with the same functions.

use super::Experiment;
use crate::error::{Error, Result};
use fedanchor_data::Normalisation;
use fedanchor_data::formats::MAX_SIDE;
use fedanchor_data::partition::Scheme;

/// More of anything is a typing mistake, and would only fail later or never end.
const MOST_ROUNDS: usize = 1_000_000;
const MOST_EPOCHS: usize = 100_000;
const MOST_CLIENTS: usize = 10_000_000;
const MOST_IMAGES: usize = 100_000_000;
/// The largest seed: records are JSON, whose readers round larger whole numbers.
pub const MOST_SEED: u64 = (1 << 53) - 1;
/// Labels have 16 bits.
const MOST_CLASSES: usize = 65_536;
/// Nobody looks at more, and they are written in every round.
const MOST_SAMPLES: usize = 200;

/// The largest batch.
pub(crate) const MOST_BATCH: usize = 8192;

impl Experiment {
    /// Checks every value that can be judged without the data and the method.
    pub(crate) fn check(&self) -> Result<()> {
        at_most("seed", self.seed as usize, MOST_SEED as usize)?;
        at_least_one("rounds", self.rounds as usize)?;
        at_most("rounds", self.rounds as usize, MOST_ROUNDS)?;
        at_most("data.anchors", self.data.anchors, MOST_IMAGES)?;
        at_most("data.validation", self.data.validation, MOST_IMAGES)?;
        at_least_one("data.clients", self.data.clients)?;
        at_most("data.clients", self.data.clients, MOST_CLIENTS)?;
        at_most("data.size", self.data.size.unwrap_or(0), MAX_SIDE)?;
        self.check_data()?;
        self.check_partition()?;
        self.check_model()?;
        self.check_training()?;
        self.check_federation()?;
        self.check_record()?;
        self.device().map(drop)
    }

    fn check_data(&self) -> Result<()> {
        if let Some(share) = self.data.test_share
            && !(share > 0.0 && share < 1.0)
        {
            let problem = format!("must be above 0 and below 1, found {share}");
            return Err(Error::config("data.test_share", problem));
        }
        if let Some(Normalisation { mean, std }) = &self.data.normalisation {
            if mean.len() != std.len() || ![1, 3].contains(&mean.len()) {
                let problem = format!(
                    "expected a mean and a std for 1 channel (grey) or 3 (colour), found {} and {}",
                    mean.len(),
                    std.len()
                );
                return Err(Error::config("data.normalisation", problem));
            }
            for &mean in mean {
                within("data.normalisation.mean", f64::from(mean), -10.0, 10.0)?;
            }
            for &std in std {
                within("data.normalisation.std", f64::from(std), 1e-4, 10.0)?;
            }
        }
        Ok(())
    }

    fn check_partition(&self) -> Result<()> {
        match self.partition {
            Scheme::Iid {} => Ok(()),
            // Below 1e-3 every draw is one class, above 1e6 every draw is even.
            Scheme::Lda { alpha } | Scheme::Dirichlet { alpha } => {
                within("partition.alpha", alpha, 1e-3, 1e6)
            }
            Scheme::Classes { per_client } => {
                at_least_one("partition.per_client", per_client)?;
                at_most("partition.per_client", per_client, MOST_CLASSES)
            }
        }
    }

    fn check_model(&self) -> Result<()> {
        at_least_one("model.latent_dim", self.model.latent_dim)?;
        at_most("model.latent_dim", self.model.latent_dim, 65_536)?;
        fedanchor_engine::model::check(&self.model)?;
        // Every width of every model of this crate is a multiple of 16.
        if ![1, 2, 4, 8, 16].contains(&self.model.groups) {
            let problem = "must be 1, 2, 4, 8 or 16, to divide every width";
            return Err(Error::config("model.groups", problem));
        }
        at_most("batch_norm.images", self.batch_norm.images, MOST_IMAGES)?;
        within("batch_norm.momentum", self.batch_norm.momentum, 0.0, 1.0)
    }

    fn check_training(&self) -> Result<()> {
        let optimiser = &self.optimiser;
        for (key, batch) in
            [("client.batch", Some(self.client.batch)), ("server.batch", self.server.batch)]
        {
            let batch = batch.unwrap_or(2);
            if batch < 2 {
                let problem =
                    format!("must be at least 2, found {batch}: batch norm needs a batch");
                return Err(Error::config(key, problem));
            }
            at_most(key, batch, MOST_BATCH)?;
        }
        at_least_one("client.epochs", self.client.epochs as usize)?;
        at_most("client.epochs", self.client.epochs as usize, MOST_EPOCHS)?;
        at_most("server.epochs", self.server.epochs as usize, MOST_EPOCHS)?;
        at_most("pretrain.epochs", self.pretrain.epochs as usize, MOST_EPOCHS)?;
        within("optimiser.lr", optimiser.lr, 0.0, 100.0)?;
        within("server.lr", self.server.lr.unwrap_or(0.0), 0.0, 100.0)?;
        within("pretrain.lr", self.pretrain.lr, 0.0, 100.0)?;
        within("pretrain.fitted", self.pretrain.fitted, 0.0, 100.0)?;
        within("optimiser.momentum", optimiser.momentum, 0.0, 1.0)?;
        within("optimiser.weight_decay", optimiser.weight_decay, 0.0, 1.0)?;
        within("optimiser.clip", optimiser.clip, 0.0, 1e6)?;
        within("server.momentum", self.server.momentum, 0.0, 1.0)?;
        if optimiser.nesterov && optimiser.momentum == 0.0 {
            return Err(Error::config("optimiser.nesterov", "needs optimiser.momentum above 0"));
        }
        Ok(())
    }

    fn check_federation(&self) -> Result<()> {
        let (per_round, clients) = (self.client.per_round, self.data.clients);
        at_least_one("client.per_round", per_round)?;
        if per_round > clients {
            let problem = format!("{per_round} clients per round, but data.clients is {clients}");
            return Err(Error::config("client.per_round", problem));
        }
        within("aggregation.hostile", self.aggregation.hostile, 0.0, 0.5)?;
        at_most("checks.offences", self.checks.offences as usize, 1_000_000)?;
        at_most("checkpoint.every", self.checkpoint.every as usize, MOST_ROUNDS)?;
        within("checks.size", self.checks.size, 1.0, 1000.0)?;
        within("checks.distance", self.checks.distance, 0.0, 1e6)?;
        if per_round + self.fleet.ask > clients {
            let problem = format!(
                "{} clients asked beyond {per_round} per round, but data.clients is {clients}",
                self.fleet.ask
            );
            return Err(Error::config("fleet.ask", problem));
        }
        within("fleet.deadline", self.fleet.deadline, 0.0, 1e6)?;
        at_least_one("fleet.clients_per_node", self.fleet.clients_per_node)?;
        at_most("fleet.clients_per_node", self.fleet.clients_per_node, MOST_CLIENTS)?;
        self.aggregation.rule.find()?;
        within("checks.clip", self.checks.clip, 0.0, 1e6)?;
        within("faults.claim", self.faults.claim, 1.0, 1e6)?;
        within("faults.factor", self.faults.factor.unwrap_or_default(), 0.0, 1e6)?;
        within("checks.anchor_margin", self.checks.anchor_margin, 0.0, 100.0)?;
        if self.checks.quorum > per_round {
            let problem = format!(
                "must be at most client.per_round ({per_round}), found {}",
                self.checks.quorum
            );
            return Err(Error::config("checks.quorum", problem));
        }
        within("faults.share", self.faults.share, 0.0, 1.0)
    }

    fn check_record(&self) -> Result<()> {
        at_most("record.samples", self.record.samples, MOST_SAMPLES)?;
        match self.record.latents.last() {
            Some(&last) if last > self.rounds => {
                let problem =
                    format!("round {last} is after the last one: `rounds` is {}", self.rounds);
                Err(Error::config("record.latents", problem))
            }
            _ => Ok(()),
        }
    }
}

/// A number that must not be 0.
pub fn at_least_one(key: &str, value: usize) -> Result<()> {
    if value == 0 { Err(Error::config(key, "must be at least 1, found 0")) } else { Ok(()) }
}

/// A number with an upper limit.
pub fn at_most(key: &str, value: usize, most: usize) -> Result<()> {
    if value > most {
        Err(Error::config(key, format!("must be at most {most}, found {value}")))
    } else {
        Ok(())
    }
}

/// A number above 0, and not so small or large that arithmetic with it fails.
pub fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && (1e-6..=1e6).contains(&value) {
        return Ok(());
    }
    Err(Error::config(key, format!("must be 1e-6 to 1e6, found {value}")))
}

/// A number within bounds.
pub fn within(key: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if value.is_finite() && (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::config(key, format!("must be {least} to {most}, found {value}")))
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
            ("rounds=0", "rounds: must be at least 1"),
            ("client.per_round=101", "101 clients per round, but data.clients is 100"),
            ("data.test_share=1.0", "data.test_share: must be above 0 and below 1, found 1"),
            (
                "data.normalisation={mean=[0.5, 0.5], std=[1.0]}",
                "data.normalisation: expected a mean and a std for 1 channel (grey) or 3 (colour), \
                 found 2 and 1",
            ),
            ("data.normalisation={mean=[0.5], std=[0.0]}", "data.normalisation.std: must be"),
            ("data.fit=squash", "data.fit: unknown value `squash`"),
            ("client.batch=1", "at least 2"),
            ("optimiser.lr=-1.0", "optimiser.lr: must be 0 to 100, found -1"),
            ("optimiser.lr=nan", "optimiser.lr"),
            ("method.threshold=1.5", "method.threshold: must be -1 to 1, found 1.5"),
            (
                "method.threshold=x",
                "method.threshold: unknown rule `x`; expected one of anchor-relative",
            ),
            ("method.threshold={rule=\"quantile\", x=1}", "method.threshold: unknown field `x`"),
            (
                "method.threshold={rule=\"quantile\", to=2}",
                "method.threshold.to: must be 0 to 1, found 2",
            ),
            ("method.contrastive.temperature=0", "must be 0.001 to 1000, found 0"),
            ("model.latent_dim=9000000000000000000", "at most 65536"),
            ("client.batch=100000", "at most 8192"),
            ("model.preactivation=true", "an option of resnet18 only"),
            ("model.groups=3", "1, 2, 4, 8 or 16"),
            ("method.label_views=4294967295", "method.label_views: must be at most 100"),
            ("method.local_prior=1.5", "method.local_prior: must be 0 to 1, found 1.5"),
            ("method.confidence=0.5", "method.confidence: was removed"),
            ("checks.length=5", "checks.length: was renamed: use checks.clip"),
            ("device=gpu", "device: expected `cpu` or `cuda:N`, found `gpu`"),
            ("pretrain.epochs=2147483648", "pretrain.epochs: must be at most 100000"),
            ("server.epochs=4294967295", "server.epochs: must be at most 100000"),
            ("client.epochs=4294967295", "client.epochs: must be at most 100000"),
            ("rounds=4294967295", "rounds: must be at most 1000000"),
            ("data.clients=4294967295", "data.clients: must be at most 10000000"),
            ("method.contrastive.epochs=4294967295", "method.contrastive.epochs: must be at most"),
            ("method.mixup.alpha=1e308", "method.mixup.alpha: must be 1e-6 to 1e6"),
            ("method.mixup.weight=1e308", "method.mixup.weight: must be 0 to 1000000"),
            ("partition.alpha=5e-324", "partition.alpha: must be 0.001 to 1000000"),
            ("partition.alpha=inf", "partition.alpha: must be 0.001 to 1000000"),
            ("optimiser.clip=1e308", "optimiser.clip: must be 0 to 1000000"),
            ("checks.distance=1e308", "checks.distance: must be 0 to 1000000"),
            ("checks.quorum=11", "checks.quorum: must be at most client.per_round (10), found 11"),
            (
                "record.latents=[1, 501, 2]",
                "record.latents: round 501 is after the last one: `rounds` is 500",
            ),
            ("record.latents=3", "record.latents: expected a list, found 3"),
            ("record.latents=[-1]", "expected a whole number of 0 or more, found -1"),
            ("record.samples=201", "record.samples: must be at most 200, found 201"),
            ("record.images=1", "record.images: unknown field `images`"),
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
            keys.extend(
                ["data.size", "data.test_share", "server.lr", "server.batch"].map(str::to_owned),
            );
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
        for (settings, expected) in [(
            ["method.warm_up.rounds=5", "rounds=5"],
            "method.warm_up.rounds: expected fewer than all 5 rounds",
        )] {
            let error = resolved(&settings).unwrap_err();
            assert!(error.contains(expected), "{settings:?}: {error}");
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
            ("semifl", "contrastive.epochs=1", "method.contrastive: unknown field `contrastive`"),
            ("semifl", "threshold=-0.5", "method.threshold: must be 0 to 1, found -0.5"),
            (
                "semifl",
                "threshold=quantile",
                "method.threshold: expected a number, found \"quantile\"",
            ),
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
}
