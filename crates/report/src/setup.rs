//! What the `config.toml` of a run folder says: the settings of the run and what tells it from others.

use crate::error::{ReportError, Result};
use crate::heading::Heading;
use crate::run_files::RunFiles;
use fedanchor_record::{KeyRole, files};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// The key of the data's fingerprint among the settings.
pub(crate) const FINGERPRINT: &str = "data_fingerprint";

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Setup {
    pub path: PathBuf,
    pub config: Table,
    /// The settings that identify the run to a reader.
    pub heading: Heading,
    /// Every setting as text, for example `client.batch` and `32`, in the order of the file.
    pub(crate) settings: Vec<(String, String)>,
}

/// Resolves a config with this version's defaults and returns it in full; `None` if that fails.
pub type Complete<'a> = &'a dyn Fn(&Table) -> Option<String>;

impl Setup {
    /// Reads the config of the run in a folder. Its settings are those of the config in full: a setting added by a
    /// later version has its default there and does not make it another experiment.
    pub(crate) fn read(run: &RunFiles, complete: Complete) -> Result<Self> {
        let (path, file) = (run.folder.clone(), run.path(files::CONFIG));
        let text = run.text(files::CONFIG)?;
        let malformed = |problem: String| ReportError::malformed(&file, problem);
        let invalid = |error| malformed(invalid_toml(&text, &error));
        let config: Table = text.parse().map_err(invalid)?;
        let heading = Heading::of(&config).map_err(malformed)?;
        let whole = || {
            let text = complete(&config)?;
            let config: Table = text.parse().ok()?;
            Some((settings(&text, &config).ok()?, config))
        };
        let (settings, config) = match whole() {
            Some(whole) => whole,
            None => (settings(&text, &config).map_err(invalid)?, config),
        };
        Ok(Self { path, config, heading, settings })
    }

    /// Adds the fingerprint of the data. Another machine may have other images under the same name, and
    /// `data.path` cannot tell: a data set that was moved is the same.
    pub(crate) fn add_fingerprint(&mut self, fingerprint: &str) {
        let short = fingerprint.chars().take(12).collect();
        self.settings.push((FINGERPRINT.to_owned(), short));
    }

    /// A whole number of the config.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        u64::try_from(self.config.get(key)?.as_integer()?).ok()
    }
}

/// Runs that share every setting of [`KeyRole::Experiment`], and those settings. Folder names and the few
/// settings in a table's columns do not decide: they would miss a changed key.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    pub(crate) settings: BTreeMap<&'a str, &'a str>,
    /// Places of its setups in the list that was grouped.
    pub(crate) members: Vec<usize>,
    order: Vec<&'a str>,
    heading: &'a Heading,
}

/// Groups setups by experiment, in the order in which they come. A run without a fingerprint, one that
/// was not finished, joins the runs that agree with it in everything else.
pub(crate) fn group<'a>(setups: impl IntoIterator<Item = &'a Setup>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = Vec::new();
    for (place, setup) in setups.into_iter().enumerate() {
        let pairs = setup.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let settings: BTreeMap<&str, &str> =
            pairs.filter(|(key, _)| KeyRole::of(key) == KeyRole::Experiment).collect();
        match groups.iter_mut().find(|group| same(&group.settings, &settings)) {
            Some(group) => {
                group.members.push(place);
                if let Some(fingerprint) = settings.get(FINGERPRINT) {
                    group.settings.insert(FINGERPRINT, fingerprint);
                }
            }
            None => groups.push(Group {
                settings,
                members: vec![place],
                order: setup.settings.iter().map(|(key, _)| key.as_str()).collect(),
                heading: &setup.heading,
            }),
        }
    }
    groups
}

fn same(one: &BTreeMap<&str, &str>, other: &BTreeMap<&str, &str>) -> bool {
    let unknown = !one.contains_key(FINGERPRINT) || !other.contains_key(FINGERPRINT);
    let compared = |key: &str| !(unknown && key == FINGERPRINT);
    let first = one.iter().filter(|(key, _)| compared(key));
    first.eq(other.iter().filter(|(key, _)| compared(key)))
}

impl Group<'_> {
    /// The settings in which the groups with this one's heading differ: `key=value` of this group.
    pub(crate) fn distinction(&self, all: &[Group]) -> String {
        let peers: Vec<&Group> = all.iter().filter(|other| other.heading == self.heading).collect();
        let shown = differing(&peers)
            .into_iter()
            .filter_map(|key| self.settings.get(key).map(|value| format!("{key}={value}")));
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// The keys in which groups differ, in the order of the config.
pub(crate) fn differing<'a>(groups: &[&Group<'a>]) -> Vec<&'a str> {
    let mut keys: Vec<&str> = Vec::new();
    for group in groups {
        // A key that earlier groups lack is inserted after its predecessor here.
        let mut place = 0;
        for key in &group.order {
            match keys.iter().position(|known| known == key) {
                Some(known) => place = known,
                None => keys.insert(place, key),
            }
            place += 1;
        }
    }
    keys.retain(|key| {
        let first = groups[0].settings.get(key);
        groups.iter().any(|group| group.settings.get(key) != first)
    });
    keys
}

/// A TOML error in one line, without the excerpt that `Display` adds.
fn invalid_toml(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', ", ");
    let Some(span) = error.span() else { return message };
    let before = text.bytes().take(span.start);
    format!("line {}: {message}", before.filter(|&byte| byte == b'\n').count() + 1)
}

/// Every setting in the order of the file. `Table` sorts its keys, and the feature of `toml` that
/// preserves their order would change the messages of every crate in the same build, so they are
/// sorted by their positions in the text.
fn settings(text: &str, config: &Table) -> Result<Vec<(String, String)>, toml::de::Error> {
    let mut found = Vec::new();
    gather(DeTable::parse(text)?.get_ref(), config, "", &mut found);
    found.sort();
    Ok(found.into_iter().map(|(_, key, value)| (key, value)).collect())
}

/// Collects the position, dotted key and value of every setting in a table.
fn gather(spans: &DeTable, values: &Table, above: &str, found: &mut Vec<(usize, String, String)>) {
    for (key, spanned) in spans {
        let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
        let key = format!("{above}{}", key.get_ref());
        match (spanned.get_ref(), value) {
            (DeValue::Table(spans), Value::Table(values)) => {
                gather(spans, values, &format!("{key}."), found);
            }
            (_, Value::String(text)) => found.push((spanned.span().start, key, text.clone())),
            (_, other) => found.push((spanned.span().start, key, other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_in_the_order_of_the_file() {
        let text = "seed = 3\nrounds = 5\n[model]\nname = \"small\"\n[client]\nepochs = 2\n\
                    batch = 10\n[method]\nthreshold = { rule = \"quantile\", to = 0.8 }\n\
                    name = \"x\"\n[method.mixup]\nalpha = 1.0";
        let found = settings(text, &text.parse().unwrap()).unwrap();
        let found: Vec<String> =
            found.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let wanted = [
            "seed=3",
            "rounds=5",
            "model.name=small",
            "client.epochs=2",
            "client.batch=10",
            "method.threshold.rule=quantile",
            "method.threshold.to=0.8",
            "method.name=x",
            "method.mixup.alpha=1.0",
        ];
        assert_eq!(found, wanted);
    }
}
