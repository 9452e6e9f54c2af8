//! The presets, and how one table of settings is laid over another.

use crate::config::ensure;
use crate::error::{Error, Result};
use crate::methods::{self, Registration};
use toml::{Table, Value};

/// The presets: what each changes, in the order they are layered.
pub const PRESETS: [(&str, &[&str]); 3] = [
    ("paper", &[PAPER]),
    ("best", &[PAPER, include_str!("../config/best.toml")]),
    ("semifl", &[PAPER, include_str!("../config/semifl.toml")]),
];
const PAPER: &str = include_str!("../config/paper.toml");

/// The method where none is named, as in `paper.toml`.
pub(super) const DEFAULT_METHOD: &str = "fedanchor";

/// The preset of experiments that name none: the one that limits what a hostile client can do.
const DEFAULT_PRESET: &str = "best";

/// Settings that are gone: section, key, and what to do instead.
const REMOVED: [(&str, &str, &str); 7] = [
    (
        "aggregation",
        "weight_limit",
        "was removed: delete it, and set aggregation.weights to \"uniform\", as preset `best` does, for clients that all \
     weigh the same",
    ),
    ("checks", "length", "was renamed: use checks.clip"),
    ("server", "average", "was removed: delete it"),
    ("method", "alignment", "was removed: delete it or use method.local_prior instead"),
    ("method", "agreement", "was removed: delete it"),
    ("method", "confidence", "was removed: use method.score_temperature instead"),
    ("method", "labelled_by", "was removed: delete it; the global model labels"),
];

/// An error that says what to do for a setting that is gone.
pub(super) fn check_removed(given: &Table) -> Result<()> {
    for (section, key, problem) in REMOVED {
        let section_given = given.get(section).and_then(Value::as_table);
        if section_given.is_some_and(|table| table.contains_key(key)) {
            return Err(Error::config(format!("{section}.{key}"), problem));
        }
    }
    Ok(())
}

/// The preset that these settings name, as one table.
pub(super) fn preset_of(given: &Table) -> Result<Table> {
    match given.get("preset") {
        None => preset(DEFAULT_PRESET),
        Some(Value::String(name)) => preset(name),
        Some(other) => Err(Error::config("preset", format!("expected a name, got {other}"))),
    }
}

/// The layers of a preset as one table. Beside the sections of an experiment it holds what a choice brings
/// along: `methods`, `partitions`, `thresholds` and `anchor_margins`, each by name.
pub fn preset(name: &str) -> Result<Table> {
    let Some((_, layers)) = PRESETS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        let problem = format!("unknown preset `{name}`; expected one of {}", known.join(", "));
        return Err(Error::config("preset", problem));
    };
    let mut table = Table::new();
    for layer in *layers {
        let layer = layer.parse().map_err(|e| Error::config("preset", format!("{name}: {e}")))?;
        merge(&mut table, layer, "")?;
    }
    Ok(table)
}

/// A method and its settings, which are taken out of the preset.
pub(super) fn defaults_in(preset: &mut Table, method: &str) -> Result<(Registration, Table)> {
    let registration = methods::find(method)?;
    let defaults = match take_table(preset, "methods").remove(method) {
        Some(Value::Table(defaults)) => defaults,
        _ => registration.defaults.parse().unwrap_or_default(), // `register` has parsed them
    };
    Ok((registration, defaults))
}

/// What `section.key` names, if anything.
pub(super) fn name_of(table: &Table, section: &str, key: &str) -> Result<Option<String>> {
    match table.get(section).and_then(|section| section.get(key)) {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name.clone())),
        Some(other) => {
            let problem = format!("expected a name, got {other}");
            Err(Error::config(format!("{section}.{key}"), problem))
        }
    }
}

/// A table's table, taken out of it; empty where there is none.
pub(super) fn take_table(table: &mut Table, key: &str) -> Table {
    match table.remove(key) {
        Some(Value::Table(table)) => table,
        _ => Table::new(),
    }
}

/// Settings are parsed into some hundred times their size.
pub(super) fn check_length(what: &str, text: &str) -> Result<()> {
    const MOST: usize = 1 << 20;
    let length = text.len();
    ensure(length <= MOST, what, format!("has {length} bytes; at most {MOST} are allowed"))
}

/// Lays `over` on `base`: tables key by key, everything else replaced. A method's table with a key `rule`
/// is a choice: another rule replaces it whole, since it has other keys, and a rule given by its name alone
/// is the table with that rule.
pub(super) fn merge(base: &mut Table, over: Table, path: &str) -> Result<()> {
    for (key, value) in over {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let rule = |table: &Table| path.starts_with("method.") && table.contains_key("rule");
        match (base.get_mut(&key), value) {
            (Some(base), Value::Table(over)) if rule(&over) => *base = Value::Table(over),
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over, &path)?,
            (Some(base @ Value::String(_)), Value::Table(mut over))
                if path.starts_with("method.") =>
            {
                over.insert("rule".to_owned(), base.clone());
                *base = Value::Table(over);
            }
            (Some(base), Value::Table(_)) if path.starts_with("method.") => {
                let problem = format!("expected a value such as {base}, got a table of keys");
                return Err(Error::config(path, problem));
            }
            (Some(Value::Table(base)), other) if !rule(base) => {
                let problem = format!("expected a table of keys, got {other}");
                return Err(Error::config(path, problem));
            }
            // `alpha = 1` is as good as `alpha = 1.0`.
            (Some(Value::Float(base)), Value::Integer(over)) => *base = over as f64,
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
    Ok(())
}

/// `a.b` and a value as the table `{ a = { b = value } }`.
pub(super) fn nested(key: &str, value: Value) -> Table {
    let (first, rest) = match key.split_once('.') {
        Some((first, rest)) => (first, Value::Table(nested(rest, value))),
        None => (key, value),
    };
    Table::from_iter([(first.to_owned(), rest)])
}
