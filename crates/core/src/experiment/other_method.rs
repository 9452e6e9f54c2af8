//! What remains of the settings in `[method]` when a later layer names another method: those that the other
//! method has too. Dropping all of them was rejected: `--set method.name=server-only` must reproduce the
//! comparison of a file that sets `method.contrastive`. Keeping all would be an error for every key that
//! the other method lacks.

use super::layers::{DEFAULT_METHOD, merge, name_of, nested};
use crate::config::Node;
use crate::error::Result;
use crate::methods;
use schemars::SchemaGenerator;
use toml::{Table, Value};

/// Lays a layer over those below it; returns a note about settings of their method that another method lacks.
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
        let key = if path.is_empty() { key } else { format!("{path}.{key}") };
        match value {
            Value::Table(inner) if !inner.contains_key("rule") => leaves(inner, &key),
            value => vec![(key, value)],
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::resolve::resolve_file;
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
