//! A sweep is an experiment with choices: a file of a few lines that stands for a table of runs.
//!
//! `[base]` is an experiment. Every `[axes.NAME]` is a list of named choices, each with the keys it
//! sets; every key in `[grid]` is a list of values. A cell is one choice of every axis and one value of
//! every grid key, and is named by them; it is run once per seed. One file per cell was rejected: a
//! reader compares cells, not files.

use super::layers::{check_length, lay_over, nested};
use super::resolve::resolve_file;
use crate::config::{Experiment, MAX_SEED, at_most, check_keys, ensure};
use crate::error::{Error, Result};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Spanned, Table, Value};

/// A sweep file, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The seeds of every cell.
    pub seeds: Vec<u64>,
    /// The cells, in the file's order: the last axis turns fastest.
    pub cells: Vec<Cell>,
    /// Settings that have no effect in some cells.
    pub notes: Vec<String>,
}

/// One cell: a name and the experiment it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Its choices, joined by `-`.
    pub name: String,
    /// The experiment, with the first seed.
    pub experiment: Experiment,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct File {
    seeds: Option<Vec<u64>>,
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Any>")]
    base: Table,
    // Places in the file: a table forgets the order of its keys.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, BTreeMap<String, BTreeMap<String, Any>>>")]
    axes: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Table>>>>,
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Any>")]
    grid: BTreeMap<String, Spanned<Value>>,
}

/// Any value, in the schema.
type Any = serde_json::Value;

/// Reads a sweep: the cells whose names match one of `patterns`, in which `*` stands for anything, or all
/// of them without a pattern. `settings` (`key=value`) are laid over each. For a file, use [`sweep_file`].
pub fn sweep(text: &str, patterns: &[String], settings: &[String]) -> Result<Sweep> {
    sweep_file(text, Path::new(""), patterns, settings)
}

/// The same for the text of a file in `folder`, to which its `data.path` is relative.
pub fn sweep_file(
    text: &str,
    folder: &Path,
    patterns: &[String],
    settings: &[String],
) -> Result<Sweep> {
    check_length("the sweep file", text)?;
    let invalid =
        |error: toml::de::Error| Error::config("the sweep file", error.to_string().trim_end());
    check_keys::<File>("", &text.parse().map_err(invalid)?)?;
    let file: File = toml::from_str(text).map_err(invalid)?;
    let seeds = file.seeds.unwrap_or_else(|| vec![0]);
    ensure(!seeds.is_empty(), "seeds", "must list at least one seed")?;
    for &seed in &seeds {
        at_most("seeds", seed as usize, MAX_SEED as usize)?;
    }
    let mut cells = vec![(String::new(), Vec::new())];
    for (axis, choices) in in_order(file.axes) {
        let choices = in_order(choices);
        ensure(!choices.is_empty(), &format!("axes.{axis}"), "must have at least one choice")?;
        cells = product(&cells, &choices)?;
    }
    let mut grid = Vec::new();
    for (key, value) in in_order(file.grid) {
        flatten(&key, value, &mut grid)?;
    }
    for (key, values) in grid {
        let choices: Vec<(String, Table)> = values
            .into_iter()
            .map(|value| (format!("{key}={}", plain(&value)), nested(&key, value)))
            .collect();
        cells = product(&cells, &choices)?;
    }
    let seed = seeds[0];
    let sets_seed = |table: &Table| table.contains_key("seed");
    let is_set = sets_seed(&file.base)
        || cells.iter().any(|(_, layers)| layers.iter().any(sets_seed))
        || settings.iter().any(|setting| setting.split('=').next().map(str::trim) == Some("seed"));
    ensure(!is_set, "seed", "not allowed in a sweep: list seeds in `seeds`, or use --seeds")?;
    check_names(&cells)?;
    if let Some(pattern) =
        patterns.iter().find(|pattern| !cells.iter().any(|(name, _)| matches(pattern, name)))
    {
        let names: Vec<&str> = cells.iter().map(|(name, _)| name.as_str()).collect();
        let problem = format!("no cell of that name; there are {}", names.join(", "));
        return Err(Error::config(pattern, problem));
    }
    cells.retain(|(name, _)| patterns.is_empty() || patterns.iter().any(|p| matches(p, name)));
    let mut notes = Vec::new();
    let cells = cells.into_iter().map(|(name, layers)| {
        let mut table = file.base.clone();
        let name = if name.is_empty() { "all".to_owned() } else { name };
        let in_cell = |error: Error| Error::config(format!("cell {name}"), error.to_string());
        for layer in layers {
            notes.extend(lay_over(&mut table, layer).map_err(in_cell)?);
        }
        table.insert("seed".to_owned(), Value::Integer(seed as i64));
        let resolved = resolve_file(&table.to_string(), folder, settings).map_err(in_cell)?;
        notes.extend(resolved.notes);
        Ok(Cell { name, experiment: resolved.experiment })
    });
    let cells = cells.collect::<Result<_>>()?;
    notes.sort();
    notes.dedup();
    Ok(Sweep { cells, seeds, notes })
}

/// Names must differ, and be names of folders.
fn check_names(cells: &Layers) -> Result<()> {
    for (index, (name, _)) in cells.iter().enumerate() {
        let problem = match name {
            name if cells[..index].iter().any(|(other, _)| other == name) => "is a duplicate",
            name if name.contains(['/', '\\']) || name.starts_with('.') => {
                "cannot be a folder's name"
            }
            _ => continue,
        };
        return Err(Error::config(format!("cell {name}"), problem));
    }
    Ok(())
}

fn in_order<T>(table: BTreeMap<String, Spanned<T>>) -> Vec<(String, T)> {
    let mut entries: Vec<(String, Spanned<T>)> = table.into_iter().collect();
    entries.sort_by_key(|(_, value)| value.span().start);
    entries.into_iter().map(|(name, value)| (name, value.into_inner())).collect()
}

/// Adds the keys of the grid with their values: `client.batch = [10, 32]`, dotted or as nested tables.
fn flatten(key: &str, value: Value, out: &mut Vec<(String, Vec<Value>)>) -> Result<()> {
    match value {
        Value::Table(table) => table
            .into_iter()
            .try_for_each(|(inner, value)| flatten(&format!("{key}.{inner}"), value, out)),
        Value::Array(values) if !values.is_empty() => {
            out.push((key.to_owned(), values));
            Ok(())
        }
        other => {
            let problem = format!("expected a non-empty list of values, got {other}");
            Err(Error::config(format!("grid.{key}"), problem))
        }
    }
}

type Layers = Vec<(String, Vec<Table>)>;

/// More cells than this are a mistake, not an experiment.
const MOST_CELLS: usize = 10_000;

fn product(cells: &Layers, choices: &[(String, Table)]) -> Result<Layers> {
    let count = cells.len().saturating_mul(choices.len());
    let problem = format!("has {count} cells or more; at most {MOST_CELLS} are allowed");
    ensure(count <= MOST_CELLS, "the sweep file", problem)?;
    let each = cells.iter().flat_map(|(name, layers)| {
        choices.iter().map(move |(choice, keys)| {
            let joined = if name.is_empty() { choice.clone() } else { format!("{name}-{choice}") };
            (joined, layers.iter().chain([keys]).cloned().collect())
        })
    });
    Ok(each.collect())
}

/// A value as it stands in a name.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a name matches a pattern with `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            (0..=left.len())
                .filter(|&at| left.is_char_boundary(at))
                .any(|at| matches(rest, &left[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
seeds = [3, 4]

[base]
rounds = 7
method = { threshold = 0.7 }

[axes.data]
ten = { data.anchors = 250 }
"0.1" = { data.anchors = 500, partition.alpha = 0.1 }

[axes.method]
fedanchor = {}
semifl = { method.name = "semifl" }

[grid]
client.batch = [10, 32]
"#;

    #[test]
    fn a_cell_is_one_choice_of_every_axis() {
        let sweep = sweep(FILE, &[], &["rounds=9".to_owned()]).unwrap();
        let names: Vec<&str> = sweep.cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "ten-fedanchor-client.batch=10",
                "ten-fedanchor-client.batch=32",
                "ten-semifl-client.batch=10",
                "ten-semifl-client.batch=32",
                "0.1-fedanchor-client.batch=10",
                "0.1-fedanchor-client.batch=32",
                "0.1-semifl-client.batch=10",
                "0.1-semifl-client.batch=32",
            ]
        );
        assert_eq!(sweep.seeds, [3, 4]);
        let cell = &sweep.cells[5].experiment;
        assert_eq!((cell.rounds, cell.seed, cell.client.batch), (9, 3, 32));
        assert_eq!((cell.data.anchors, cell.method.name.as_str()), (500, "fedanchor"));
        // What the base says of FedAnchor does not reach SemiFL.
        assert_eq!(sweep.cells[2].experiment.method.name, "semifl");
    }

    #[test]
    fn cells_are_chosen_by_name() {
        let count = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            sweep(FILE, &patterns, &[]).map(|s| s.cells.len()).map_err(|error| error.to_string())
        };
        assert_eq!(count(&[]), Ok(8));
        assert_eq!(count(&["ten-semifl-client.batch=10"]), Ok(1));
        assert_eq!(count(&["*semifl*", "ten-*"]), Ok(6));
        assert!(count(&["semifl"]).unwrap_err().contains("no cell of that name; there are ten-"));
    }

    #[test]
    fn mistakes_are_named() {
        let problem = |text: &str| sweep(text, &[], &[]).unwrap_err().to_string();
        assert!(problem("seed = [1]").contains("unknown key"));
        assert!(problem("seeds = []").contains("must list at least one seed"));
        assert!(
            problem("seeds = [0, 9007199254740992]")
                .contains("seeds: must be at most 9007199254740991")
        );
        assert!(
            problem("[grid]\nrounds = 3")
                .contains("grid.rounds: expected a non-empty list of values")
        );
        assert!(problem("[axes.a]").contains("axes.a: must have at least one choice"));
        let cell = problem("[axes.a]\nx = { rounds = 0 }");
        assert!(cell.contains("cell x") && cell.contains("rounds: must be between 1"), "{cell}");
        assert!(problem("[grid]\nseed = [1, 2]").contains("list seeds in `seeds`"));
        // A key that only some methods have may be set where only those are chosen.
        let only = |pattern: &str| {
            sweep(FILE, &[pattern.to_owned()], &["method.score=softmax".to_owned()]).is_ok()
        };
        assert!(only("*fedanchor*") && !only("*semifl*"));
        let rounds: Vec<String> = (1..=101).map(|n| n.to_string()).collect();
        let (a, b) = (rounds.join(","), rounds.join(","));
        let many = problem(&format!("[grid]\nrounds = [{a}]\nclient.batch = [{b}]"));
        assert!(many.contains("has 10201 cells or more; at most 10000"), "{many}");
        assert!(problem("[axes.a]\n\"a/b\" = {}").contains("cannot be a folder's name"));
    }
}
