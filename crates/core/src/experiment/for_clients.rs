//! The settings that a client needs to train, as they travel to the nodes of a fleet.
//!
//! Both ends use one list of keys. The coordinator sends these and no others. A node refuses any other key: it must not
//! read a file because a coordinator names it. A list of what to strip was rejected: a key that is added later would
//! travel until somebody thinks of it.

use super::layers::check_length;
use super::resolve::assemble;
use crate::config::Experiment;
use crate::error::{Error, Result};
use std::path::PathBuf;
use toml::{Table, Value};

/// The keys that a client needs to train. With a section, all its keys.
const KEYS: [&str; 27] = [
    "preset", // the base of what is not written down because it is the default
    "seed",
    "rounds", // learning rates and thresholds follow the progress of the run
    "precision",
    "data.fit",
    "data.unreadable",
    "model.name",
    "model.preactivation",
    "model.norm",
    "model.groups",
    "model.latent_dim",
    "model.latent_stage",
    "model.stem",
    "model.unfreeze",
    "batch_norm.statistics",
    "batch_norm.momentum",
    "augment.strong",
    "augment.flip",
    "optimiser",
    "client.epochs",
    "client.batch",
    "client.keep_momentum",
    "client.loss", // the name of a file, which a node replaces by one of its own
    "record.label_counts",
    "record.sites",
    "messages.precision",
    "method", // each method refuses keys that it does not have
];

/// What clients need of an experiment, as TOML.
pub fn client_settings(experiment: &Experiment) -> Result<String> {
    let problem = |error: toml::ser::Error| Error::config("the experiment", error.to_string());
    let mut experiment = experiment.clone();
    if let Some(loss) = &mut experiment.client.loss {
        loss.file = loss.file.file_name().map(PathBuf::from).unwrap_or_default();
    }
    let (table, _) = split(Table::try_from(&experiment).map_err(problem)?, "");
    toml::to_string(&table).map_err(problem)
}

/// The experiment as a client sees it: what [`client_settings`] wrote, and the preset for all other keys. The method is
/// not checked against those, which are the server's business.
pub fn resolve_client_settings(text: &str) -> Result<Experiment> {
    check_length("the settings", text)?;
    let given: Table = text.parse().map_err(|error: toml::de::Error| {
        Error::config("the settings", error.to_string().trim_end())
    })?;
    let (given, others) = split(given, "");
    if let Some(key) = others.first() {
        return Err(Error::config(key, "a client does not take this setting from a coordinator"));
    }
    Ok(assemble(given)?.0)
}

/// The keys of a table that are on the list, and the names of the others. `section` is where the table is, with a dot.
fn split(table: Table, section: &str) -> (Table, Vec<String>) {
    let (mut listed, mut others) = (Table::new(), Vec::new());
    for (key, value) in table {
        let path = format!("{section}{key}");
        let inside = format!("{path}.");
        match value {
            value if KEYS.contains(&path.as_str()) => drop(listed.insert(key, value)),
            Value::Table(table) if KEYS.iter().any(|known| known.starts_with(&inside)) => {
                let (below, rest) = split(table, &inside);
                listed.insert(key, Value::Table(below));
                others.extend(rest);
            }
            _ => others.push(path),
        }
    }
    (listed, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Unfreeze;
    use crate::experiment::{PRESETS, resolve};
    use crate::methods;

    fn resolved(settings: &[&str]) -> Experiment {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        resolve("", &settings).unwrap()
    }

    #[test]
    fn a_client_trains_by_the_settings_of_the_server() {
        let mut cases = Vec::new();
        for (preset, _) in PRESETS {
            for method in methods::names() {
                let names = [format!("preset={preset}"), format!("method.name={method}")];
                cases.push(resolve("", &names).unwrap());
            }
        }
        // A method without its preset's rule.
        cases.push(resolved(&["preset=best", "method.threshold=rising", "client.batch=99"]));
        for sent in cases {
            let text = client_settings(&sent).unwrap();
            let found = resolve_client_settings(&text).unwrap();
            assert_eq!(client_settings(&found).unwrap(), text);
            assert_eq!((&found.method, &found.optimiser), (&sent.method, &sent.optimiser));
            assert_eq!((found.seed, found.rounds), (sent.seed, sent.rounds));
        }
    }

    /// Whoever adds a key decides here whether clients need it.
    #[test]
    fn every_key_is_sent_or_is_the_servers_own() {
        let sections = [
            "aggregation",
            "checkpoint",
            "checks",
            "compare",
            "device",
            "faults",
            "fleet",
            "partition",
            "pretrain",
            "privacy",
            "server",
        ];
        let keys = [
            "batch_norm.images",
            "client.per_round",
            "data.anchors",
            "data.choice",
            "data.clients",
            "data.name",
            "data.normalisation",
            "data.path",
            "data.size",
            "data.test_share",
            "data.validation",
            "augment.views", // part of the format of features
            "model.init_from",
            "model.trunk", // its name and hash are sent, and a node has a file of its own
            "record.latents",
            "record.samples",
        ];
        let mut all = resolved(&[
            "data.fit=crop",
            "data.normalisation={mean=[0.5], std=[1.0]}",
            "data.path=/secret/pictures",
            "data.size=32",
            "data.test_share=0.5",
            "data.unreadable=skip",
            "device=cuda:3",
            "faults.factor=2",
            "fleet.ask=1",
            "model.name=resnet18",
            "model.init_from=/secret/weights",
            "augment.views=3",
            "client.loss.file=/secret/prox.loss",
            "model.trunk=/secret/trunk.pt",
            "model.latent_stage=2",
            "model.stem=imagenet",
            "record.label_counts=true",
            "record.sites=true",
            "messages.precision=int8",
        ]);
        let privacy = "privacy={noise=1.0, delta=1e-5, clip=1.0}";
        all.privacy = resolved(&[privacy]).privacy; // which excludes others of these
        all.model.unfreeze = Unfreeze::Last; // which excludes model.init_from
        let (sent, mut others) = split(Table::try_from(&all).unwrap(), "");
        others.sort();
        let mut expected: Vec<&str> = sections.into_iter().chain(keys).collect();
        expected.sort_unstable();
        assert_eq!(others, expected);
        let text = client_settings(&all).unwrap();
        assert!(!text.contains("secret") && !text.contains("cuda"), "{text}");
        for key in KEYS {
            let mut value = Some(&Value::Table(sent.clone()));
            for part in key.split('.') {
                value = value.and_then(|value| value.get(part));
            }
            assert!(value.is_some() || key == "augment.flip", "{key} is not sent");
        }
    }

    #[test]
    fn a_client_refuses_what_it_does_not_need_by_name() {
        for (text, key) in [
            ("model.init_from = \"/etc/passwd\"", "model.init_from"),
            ("data = { fit = \"crop\", path = \"/home\" }", "data.path"),
            ("device = \"cuda:0\"", "device"),
            ("model = 3", "model"),
            ("client.epochs = 1\nserver.epochs = 1", "server"),
            ("unheard_of.x = 1", "unheard_of"),
            ("method.path = \"/home\"", "method.path"),
        ] {
            let refused = resolve_client_settings(text).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{key}: ")), "{text}: {refused}");
        }
        let refused = resolve_client_settings("rounds = ").unwrap_err().to_string();
        assert!(refused.contains("line 1"), "{refused}");
    }
}
