//! In which settings the committed records differ from what their experiment files stand for today. A number on a page
//! is that of the settings in its record; whoever runs the same file now runs today's.

use crate::Part;
use crate::markdown::{code, table};
use anyhow::{Context, Result, bail};
use fedanchor::Experiment;
use fedanchor::experiment::{resolve_file, settle, sweep_file};
use fedanchor_data::Shape;
use fedanchor_record::{KeyRole, files};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What runs did before a setting existed, as a value of it.
const BEFORE: [(&str, &str); 29] = [
    ("aggregation.hostile", "0.3"), // no rule used it
    ("aggregation.rule", "\"mean\""),
    ("aggregation.weight_limit", "0.0"),
    ("batch_norm.images", "10000"), // of static-all, which no such run used
    ("checks.anchor_margin", "0.0"),
    ("checks.distance", "0.0"),
    ("checks.length", "0.0"),
    ("checks.offences", "0"),
    ("checks.quorum", "1"),
    ("checks.size", "2.0"), // of messages, which a simulation does not encode
    ("checks.updates", "false"),
    ("data.validation", "0"),
    ("faults.claim", "1.0"), // times the images that a client has
    ("faults.kind", "\"none\""),
    ("faults.share", "0.3"), // of no kind
    ("fleet.ask", "0"),
    ("fleet.clients_per_node", "1"), // of no fleet
    ("fleet.deadline", "0.0"),
    ("method.agreement", "false"),
    ("method.alignment", "0.0"),
    ("method.confidence", "0.0"),
    ("method.labelled_by", "\"global\""),
    ("method.local_prior", "0.0"),
    ("method.logit_adjustment", "0.0"),
    ("method.warm_up.predictor", "512"), // of no warm-up
    ("method.warm_up.rounds", "0"),
    ("method.warm_up.target_decay", "0.99"),
    ("pretrain.fitted", "0.0"),
    ("server.average", "0.0"),
];

/// Dotted keys and their values, without those that change nothing that is learnt.
type Settings = BTreeMap<String, Value>;

/// A record under `results/`.
struct Record {
    sweep: String,
    cell: Option<String>,
    /// Its path below `results/`.
    name: String,
    settings: Settings,
}

/// A setting that is not what it was.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    key: String,
    recorded: String,
    today: String,
}

/// How a record differs from today.
#[derive(Debug, Default)]
struct Comparison {
    differences: Vec<Difference>,
    /// Settings that did not exist, with the value that has the same effect.
    later: Vec<(String, String)>,
}

pub(crate) fn parts() -> Result<Vec<Part>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let Found { records, without_config } = find(&root.join("results"))?;
    let mut differences: BTreeMap<Difference, BTreeSet<&str>> = BTreeMap::new();
    let mut later: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for sweep in records.iter().map(|record| &record.sweep).collect::<BTreeSet<_>>() {
        let of_sweep: Vec<&Record> =
            records.iter().filter(|record| record.sweep == *sweep).collect();
        let today = today(&root, sweep, &of_sweep)?;
        for record in of_sweep {
            let compared = compare(&record.settings, &today[&record.cell])
                .with_context(|| format!("results/{}", record.name))?;
            for difference in compared.differences {
                differences.entry(difference).or_default().insert(&record.name);
            }
            for setting in compared.later {
                later.entry(setting).or_default().insert(&record.name);
            }
        }
    }
    let differences = differences.iter().map(|(difference, names)| {
        let Difference { key, recorded, today } = difference;
        vec![code(key), recorded.clone(), today.clone(), shortened(names, &records)]
    });
    let later = later
        .iter()
        .map(|((key, value), names)| vec![code(key), code(value), shortened(names, &records)]);
    let mut differences = table(&["setting", "in the records", "today", "records"], differences);
    for (sweep, runs) in without_config {
        differences += &format!("\nThe configs of the {runs} runs of `{sweep}` were not kept.\n");
    }
    Ok(vec![
        ("differences", differences),
        ("later settings", table(&["setting", "as with", "records"], later)),
    ])
}

/// What is under `results/`.
#[derive(Default)]
struct Found {
    /// Sorted by path: `SWEEP/CELL/seedN`, or `EXPERIMENT/seedN`.
    records: Vec<Record>,
    /// How many runs of a sweep have no config.
    without_config: BTreeMap<String, usize>,
}

/// Reads all records: folders, and lines of `SWEEP.jsonl`.
fn find(results: &Path) -> Result<Found> {
    let mut found = Found::default();
    let mut folders = vec![results.to_owned()];
    while let Some(folder) = folders.pop() {
        let config = folder.join(files::CONFIG);
        if config.exists() {
            let name = folder.strip_prefix(results)?.to_string_lossy().into_owned();
            found.records.push(Record::new(name, &fs_err::read_to_string(&config)?)?);
            continue;
        }
        for entry in fs_err::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "jsonl") {
                found.read_lines(&path)?;
            }
        }
    }
    found.records.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

impl Found {
    /// Reads the records of a sweep that has a line per run.
    fn read_lines(&mut self, path: &Path) -> Result<()> {
        let sweep = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for line in fs_err::read_to_string(path)?.lines() {
            let line: serde_json::Value = serde_json::from_str(line)?;
            let run =
                line["run"].as_str().with_context(|| format!("{sweep}: a line without `run`"))?;
            match line["config"].as_str() {
                Some(config) => self.records.push(Record::new(format!("{sweep}/{run}"), config)?),
                None => *self.without_config.entry(sweep.clone()).or_default() += 1,
            }
        }
        Ok(())
    }
}

impl Record {
    fn new(name: String, config: &str) -> Result<Self> {
        let parts: Vec<&str> = name.split('/').collect();
        let (sweep, cell) = match parts[..] {
            [sweep, cell, _] => (sweep.to_owned(), Some(cell.to_owned())),
            [experiment, _] => (experiment.to_owned(), None),
            _ => bail!("results/{name}: expected SWEEP/CELL/seedN"),
        };
        let settings = settings(&config.parse().with_context(|| format!("results/{name}"))?);
        Ok(Self { sweep, cell, name, settings })
    }
}

/// The settings of each cell as its file has them today; `None` is an experiment without cells.
fn today(
    root: &Path,
    sweep: &str,
    records: &[&Record],
) -> Result<BTreeMap<Option<String>, Settings>> {
    if sweep == FLEET {
        let settings = complete(&of_fleet(root)?)?;
        let cells = records.iter().map(|record| (record.cell.clone(), settings.clone()));
        return Ok(cells.collect());
    }
    let folder = root.join("experiments");
    let file = [folder.join(sweep), folder.join("paper").join(sweep)]
        .map(|path| path.with_extension("toml"))
        .into_iter()
        .find(|path| path.is_file());
    let Some(file) = file else { bail!("results/{sweep}: no file of that name in experiments") };
    let text = fs_err::read_to_string(&file)?;
    let cells: BTreeSet<&String> = records.iter().filter_map(|one| one.cell.as_ref()).collect();
    if cells.is_empty() {
        let resolved = resolve_file(&text, Path::new(""), &[])?;
        return Ok([(None, complete(&resolved.experiment)?)].into());
    }
    let cells: Vec<String> = cells.into_iter().cloned().collect();
    let read = sweep_file(&text, Path::new(""), &cells, &[])
        .with_context(|| format!("{}: a cell of a record is gone", file.display()))?;
    let cells = read.cells.into_iter();
    cells.map(|cell| Ok((Some(cell.name), complete(&cell.experiment)?))).collect()
}

/// Records of `scripts/hostile_fleet.py`, whose experiment is that of `scripts/fleet.py`.
const FLEET: &str = "hostile-fleet";

fn of_fleet(root: &Path) -> Result<Experiment> {
    let script: PathBuf = root.join("scripts/fleet.py");
    let text = fs_err::read_to_string(&script)?;
    let template =
        text.split_once("EXPERIMENT = \"\"\"").and_then(|(_, rest)| rest.split_once("\"\"\""));
    let Some((template, _)) = template else { bail!("{}: no EXPERIMENT", script.display()) };
    let values = [
        ("rounds", "10"),
        ("path", "server"),
        ("clients", "3"),
        ("per_round", "3"),
        ("per_node", "1"),
    ];
    let mut text = template.replace("{{", "{").replace("}}", "}");
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    // As many as there are, which the records name.
    Ok(resolve_file(&text, Path::new(""), &["data.anchors=25".to_owned()])?.experiment)
}

/// All settings of an experiment, also those that depend on its data.
fn complete(experiment: &Experiment) -> Result<Settings> {
    let colour = Shape { side: 32, channels: 3 };
    let grey = Shape { side: 28, channels: 1 };
    let (shape, flip) = match experiment.data.name.as_str() {
        "cifar10" => (colour, true),
        "sample" | "digits" => (grey, false),
        other => bail!("say here which images `{other}` has"),
    };
    Ok(settings(&Table::try_from(settle(experiment, shape, 10, flip)?)?))
}

fn settings(table: &Table) -> Settings {
    let mut found = Settings::new();
    flatten(table, "", &mut found);
    found
}

fn flatten(table: &Table, path: &str, found: &mut Settings) {
    for (key, value) in table {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            Value::Table(inner) => flatten(inner, &name, found),
            value if KeyRole::of(&name) == KeyRole::Experiment => {
                found.insert(name, value.clone());
            }
            _ => {}
        }
    }
}

fn compare(recorded: &Settings, today: &Settings) -> Result<Comparison> {
    let mut compared = Comparison::default();
    let text = |value: Option<&Value>| value.map_or_else(|| "not a setting".to_owned(), code);
    for key in recorded.keys().chain(today.keys()).collect::<BTreeSet<_>>() {
        let (there, now) = (recorded.get(key), today.get(key));
        let mut difference =
            Difference { key: key.clone(), recorded: text(there), today: text(now) };
        match (there, now) {
            (Some(there), Some(now)) if same(there, now) => continue,
            (None, Some(now)) if !chosen_otherwise(key, recorded) => {
                let before = BEFORE.iter().find(|(later, _)| later == key);
                let Some((_, before)) = before else {
                    bail!("lacks {key}: say in BEFORE what runs did before it was a setting")
                };
                let value = format!("value = {before}").parse::<Table>()?["value"].clone();
                if same(&value, now) {
                    compared.later.push((key.clone(), value.to_string()));
                    continue;
                }
                difference.recorded = format!("{} (not yet a setting)", code(value));
            }
            _ => {}
        }
        compared.differences.push(difference);
    }
    Ok(compared)
}

/// Whether a record has another form of a setting: a number where there is now a table, or the other way round.
fn chosen_otherwise(key: &str, recorded: &Settings) -> bool {
    let below =
        |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'));
    recorded.keys().any(|other| below(key, other) || below(other, key))
}

/// Whether two values are the same setting: a number need not have a point.
fn same(one: &Value, other: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
    one == other || number(one).is_some_and(|one| Some(one) == number(other))
}

/// Names of records, those of whole sweeps and cells as one.
fn shortened(names: &BTreeSet<&str>, all: &[Record]) -> String {
    let mut left = names.clone();
    let mut short = BTreeSet::new();
    let cells = all.iter().filter_map(|one| Some(format!("{}/{}", one.sweep, one.cell.as_ref()?)));
    for group in all.iter().map(|record| record.sweep.clone()).chain(cells) {
        let prefix = format!("{group}/");
        let mut members =
            all.iter().map(|one| one.name.as_str()).filter(|one| one.starts_with(&prefix));
        if members.clone().any(|one| left.contains(one)) && members.all(|one| left.contains(one)) {
            left.retain(|one| !one.starts_with(&prefix));
            short.insert(group);
        }
    }
    short.extend(left.into_iter().map(str::to_owned));
    short.into_iter().map(code).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(recorded: &str, today: &str) -> Result<Comparison> {
        compare(&settings(&recorded.parse()?), &settings(&today.parse()?))
    }

    #[test]
    fn every_setting_that_is_not_the_same_is_a_difference() {
        let same =
            compared("seed = 1\nrounds = 5\ndevice = 'cpu'", "rounds = 5.0\ndevice = 'cuda:0'")
                .unwrap();
        assert!(same.differences.is_empty() && same.later.is_empty());
        let found = compared("rounds = 5\ngone = 1", "rounds = 6\n[checks]\nlength = 2.0").unwrap();
        let difference = |key: &str, recorded: &str, today: &str| Difference {
            key: key.to_owned(),
            recorded: recorded.to_owned(),
            today: today.to_owned(),
        };
        let expected = [
            difference("checks.length", "`0.0` (not yet a setting)", "`2.0`"),
            difference("gone", "`1`", "not a setting"),
            difference("rounds", "`5`", "`6`"),
        ];
        assert_eq!(found.differences, expected);
        assert!(found.later.is_empty());
    }

    #[test]
    fn a_later_setting_without_effect_is_no_difference() {
        let found = compared("", "[checks]\nlength = 0").unwrap();
        assert!(found.differences.is_empty());
        assert_eq!(found.later, [("checks.length".to_owned(), "0.0".to_owned())]);
        let problem = compared("", "new = 1").unwrap_err().to_string();
        assert!(problem.contains("lacks new"), "{problem}");
        // Another form of a setting that existed is a difference.
        let found = compared("threshold = 0.6", "threshold = { rule = 'rising' }").unwrap();
        assert_eq!((found.differences.len(), found.later.len()), (2, 0));
    }

    #[test]
    fn records_are_folders_and_lines() {
        let results = tempfile::tempdir().unwrap();
        let run = results.path().join("one/cell/seed3");
        fs_err::create_dir_all(&run).unwrap();
        fs_err::write(run.join(files::CONFIG), "rounds = 5").unwrap();
        let lines = [
            r#"{"run": "x/seed0", "config": "rounds = 6"}"#,
            r#"{"run": "x/seed1", "stopped": "early"}"#,
        ];
        fs_err::write(results.path().join("two.jsonl"), lines.join("\n")).unwrap();
        let found = find(results.path()).unwrap();
        let records = found.records.iter();
        let records: Vec<_> =
            records.map(|one| (one.name.as_str(), one.settings["rounds"].as_integer())).collect();
        assert_eq!(records, [("one/cell/seed3", Some(5)), ("two/x/seed0", Some(6))]);
        assert_eq!(found.without_config, [("two".to_owned(), 1)].into());
    }

    #[test]
    fn whole_sweeps_and_cells_have_one_name() {
        let record = |sweep: &str, cell: &str, seed: u32| Record {
            sweep: sweep.to_owned(),
            cell: Some(cell.to_owned()),
            name: format!("{sweep}/{cell}/seed{seed}"),
            settings: Settings::new(),
        };
        let all =
            [record("a", "x", 0), record("a", "x", 1), record("a", "y", 0), record("b", "x", 0)];
        let short = |names: &[&str]| shortened(&names.iter().copied().collect(), &all);
        assert_eq!(short(&["a/x/seed0", "a/x/seed1", "a/y/seed0"]), "`a`");
        assert_eq!(short(&["a/x/seed0", "a/x/seed1", "b/x/seed0"]), "`a/x`, `b`");
        assert_eq!(short(&["a/x/seed1"]), "`a/x/seed1`");
    }
}
