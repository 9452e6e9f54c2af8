//! The presets, and how one layer of settings is laid over another.

use crate::config::{Node, dotted, ensure};
use crate::error::{Error, Result};
use crate::methods::{self, Registration};
use schemars::SchemaGenerator;
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
        let path = dotted(path, &key);
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

/// Lays a layer over those below it; returns a note about settings of their method that another method lacks. Where it
/// names another method, the settings that this one has too remain. Dropping all was rejected: `--set
/// method.name=server-only` must reproduce the comparison of a file that sets `method.contrastive`. Keeping all would be
/// an error for every key that the other method lacks.
pub(super) fn lay_over(below: &mut Table, layer: Table) -> Result<Option<String>> {
    let mut note = None;
    if let Some(new) = name_of(&layer, "method", "name")? {
        let old = name_of(below, "method", "name")?.unwrap_or(DEFAULT_METHOD.to_owned());
        if new != old
            && let Some(Value::Table(settings)) = below.remove("method")
        {
            let (kept, left) = keep_shared(settings, &old, &new)?;
            below.insert("method".to_owned(), Value::Table(kept));
            note = left;
        }
    }
    merge(below, layer, "")?;
    Ok(note)
}

/// The settings of `old` as settings of `new`, and a note about those that are left behind.
fn keep_shared(settings: Table, old: &str, new: &str) -> Result<(Table, Option<String>)> {
    let schema = (methods::find(new)?.settings)(&mut SchemaGenerator::default());
    let known = Node::root(schema.as_value());
    let (mut kept, mut left) = (Table::new(), Vec::new());
    for (key, value) in leaves(settings, "") {
        if key == "name" {
            continue;
        } else if !another_meaning(&key, old, new) && known.has(&key) {
            merge(&mut kept, nested(&key, value), "method")?;
        } else {
            left.push(format!("method.{key}"));
        }
    }
    let note = format!("not used by {new}, but set for {old}: {}", left.join(", "));
    Ok((kept, (!left.is_empty()).then_some(note)))
}

/// FedAnchor's threshold is one of similarities, those of the other methods are probabilities.
fn another_meaning(key: &str, old: &str, new: &str) -> bool {
    key.starts_with("threshold") && (old == "fedanchor" || new == "fedanchor")
}

/// The settings one by one, by dotted keys. A table with a `rule` is one setting.
fn leaves(table: Table, path: &str) -> Vec<(String, Value)> {
    let each = table.into_iter().flat_map(|(key, value)| {
        let key = dotted(path, &key);
        match value {
            Value::Table(inner) if !inner.contains_key("rule") => leaves(inner, &key),
            value => vec![(key, value)],
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use crate::experiment::resolve_file;
    use crate::experiment::sweep;
    use std::path::Path;

    const FILE: &str = "preset = \"best\"\n[method]\nthreshold = 0.7\nscore = \"softmax\"\n\
                        server_mixup = false\nmixup.alpha = 0.5\n\
                        [method.contrastive]\norder = \"first\"\nbatch = 60\n";

    fn resolved(settings: &[&str]) -> (crate::Experiment, Vec<String>) {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let resolved = resolve_file(FILE, Path::new(""), &settings).unwrap();
        (resolved.experiment, resolved.notes)
    }

    #[test]
    fn the_server_alone_keeps_what_it_shares_with_fedanchor() {
        let (experiment, notes) = resolved(&["method.name=server-only"]);
        let settings = &experiment.method.settings;
        assert_eq!(settings["contrastive"]["order"].as_str(), Some("first"));
        // Also a key without a default, and over the preset's value.
        assert_eq!(settings["contrastive"]["batch"].as_integer(), Some(60));
        assert_eq!(settings["server_mixup"].as_bool(), Some(false));
        assert_eq!(settings["mixup"]["alpha"].as_float(), Some(0.5));
        assert_eq!(settings["contrastive"]["temperature"].as_float(), Some(0.1));
        let note = "not used by server-only, but set for fedanchor: method.score, method.threshold";
        assert_eq!(notes, [note]);
    }

    #[test]
    fn a_threshold_of_similarities_is_none_of_probabilities() {
        let (experiment, notes) = resolved(&["method.name=semifl"]);
        assert_eq!(experiment.method.settings["threshold"].as_float(), Some(0.95));
        assert_eq!(experiment.method.settings["mixup"]["alpha"].as_float(), Some(0.5));
        assert!(notes[0].contains("method.contrastive.batch") && notes[0].contains("threshold"));
        // What is set together with the name holds.
        let (experiment, _) = resolved(&["method.name=semifl", "method.threshold=0.8"]);
        assert_eq!(experiment.method.settings["threshold"].as_float(), Some(0.8));
        // Among methods that mean the same by it, it stays.
        let file = "[method]\nname = \"semifl\"\nthreshold = 0.9";
        let other = ["method.name=fedavg-fixmatch".to_owned()];
        let fixmatch = resolve_file(file, Path::new(""), &other).unwrap();
        assert_eq!(fixmatch.experiment.method.settings["threshold"].as_float(), Some(0.9));
        assert!(fixmatch.notes.is_empty(), "{:?}", fixmatch.notes);
    }

    #[test]
    fn what_is_set_with_the_name_must_be_a_setting_of_the_method() {
        let settings = ["method.name=server-only", "method.score=softmax"].map(str::to_owned);
        let error = resolve_file(FILE, Path::new(""), &settings).unwrap_err().to_string();
        assert!(error.contains("method.score: unknown key"), "{error}");
    }

    #[test]
    fn the_same_method_keeps_everything_without_a_note() {
        let (experiment, notes) = resolved(&["method.name=fedanchor"]);
        assert_eq!(experiment.method.settings["threshold"].as_float(), Some(0.7));
        assert!(notes.is_empty());
    }

    #[test]
    fn cells_of_a_sweep_are_laid_the_same_way() {
        let file = "[base.method]\nthreshold = 0.7\ncontrastive.order = \"first\"\n\
                    [axes.method]\nfedanchor = {}\nalone = { method.name = \"server-only\" }\n";
        let sweep = sweep(file, &[], &[]).unwrap();
        let order = |cell: usize| {
            let settings = &sweep.cells[cell].experiment.method.settings;
            settings["contrastive"]["order"].as_str().map(str::to_owned)
        };
        assert_eq!((order(0).as_deref(), order(1).as_deref()), (Some("first"), Some("first")));
        assert_eq!(
            sweep.notes,
            ["not used by server-only, but set for fedanchor: method.threshold"]
        );
    }
}
