//! The settings in which committed records differ from what their experiment files mean today. A number in the
//! documentation belongs to the settings in its record; running the same file now uses today's.

use crate::Part;
use crate::markdown::{code, item};
use anyhow::{Context, Result, bail};
use fedanchor::Experiment;
use fedanchor::experiment::{resolve_file, settle, sweep_file};
use fedanchor_data::Shape;
use fedanchor_record::{KeyRole, files, with_current_keys};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Settings that were added or removed since the first records, with the value that has the effect of not having the
/// setting.
const WITHOUT_SETTING: [(&str, &str); 30] = [
    ("aggregation.hostile", "0.3"), // used by no rule of that time
    ("aggregation.rule", "\"mean\""),
    ("batch_norm.images", "10000"), // used by static-all only
    ("checks.anchor_margin", "0.0"),
    ("checks.clip", "0.0"),
    ("checks.distance", "0.0"),
    ("checks.offences", "0"),
    ("checks.quorum", "1"),
    ("checks.size", "2.0"), // of messages, which a simulation does not encode
    ("checks.updates", "false"),
    ("data.validation", "0"),
    ("faults.claim", "1.0"),
    ("faults.kind", "\"none\""),
    ("faults.share", "0.3"), // of no fault
    ("fleet.ask", "0"),
    ("fleet.clients_per_node", "1"),
    ("fleet.deadline", "0.0"),
    ("method.client_mixup", "false"),
    ("method.local_prior", "0.0"),
    ("method.logit_adjustment", "0.0"),
    ("method.mixup.alpha", "0.75"), // of no mixup
    ("method.mixup.augment", "\"before\""),
    ("method.mixup.draw", "\"batch\""),
    ("method.mixup.mix_set", "\"epoch\""),
    ("method.mixup.weight", "1.0"),
    ("method.server_mixup", "false"),
    ("method.warm_up.predictor", "512"), // of no warm-up
    ("method.warm_up.rounds", "0"),
    ("method.warm_up.target_decay", "0.99"),
    ("pretrain.fitted", "0.0"),
];

/// Dotted keys and their values, without those that change nothing that is learnt.
type Settings = BTreeMap<String, Value>;

/// A setting, its value in a record and its value today.
type Difference = [String; 3];

pub(crate) fn parts() -> Result<Vec<Part>> {
    let root = crate::root();
    let mut differences: BTreeMap<Difference, BTreeMap<String, usize>> = BTreeMap::new();
    let mut recorded = BTreeMap::new();
    for folder in folders(&root.join("results"))? {
        let sweep = name(&folder);
        let Some(cells) = Cells::read(&root.join("experiments"), &sweep)? else { continue };
        let runs = runs(&folder)?;
        for (cell, run) in &runs {
            let config: Table = fs_err::read_to_string(run.join(files::CONFIG))?.parse()?;
            let found = compare(&settings(&config), &cells.settings(cell.as_deref())?)
                .with_context(|| run.display().to_string())?;
            for difference in found {
                *differences.entry(difference).or_default().entry(sweep.clone()).or_default() += 1;
            }
        }
        recorded.insert(sweep, runs.len());
    }
    let rows = differences.into_iter().map(|([setting, there, today], sweeps)| {
        let sweeps = sweeps.iter().map(|(sweep, &runs)| match recorded[sweep] {
            all if all == runs => code(sweep),
            all => format!("{} ({runs} of {all} runs)", code(sweep)),
        });
        let sweeps = sweeps.collect::<Vec<_>>().join(", ");
        item(&format!("{}: {there} in {sweeps}; today: {today}.", code(setting)), &[])
    });
    Ok(vec![("differences", rows.collect())])
}

/// The folders in a folder, sorted.
fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut found: Vec<PathBuf> = entries.collect::<Result<_>>()?;
    found.retain(|path| path.is_dir());
    found.sort();
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The runs of a sweep with their cells: `CELL/seedN`, or `seedN` of an experiment without cells.
pub(crate) fn runs(sweep: &Path) -> Result<Vec<(Option<String>, PathBuf)>> {
    let mut found = Vec::new();
    for folder in folders(sweep)? {
        if folder.join(files::CONFIG).exists() {
            found.push((None, folder));
        } else {
            found.extend(folders(&folder)?.into_iter().map(|run| (Some(name(&folder)), run)));
        }
    }
    Ok(found)
}

/// The cells of an experiment file; one without a name for an experiment that is no sweep.
struct Cells(BTreeMap<Option<String>, Experiment>);

impl Cells {
    /// `None` if there is no experiment file of that name: `scripts/hostile_fleet.py` has its own.
    fn read(folder: &Path, sweep: &str) -> Result<Option<Self>> {
        let files = [folder.join(sweep), folder.join("paper").join(sweep)];
        let mut files = files.into_iter().map(|path| path.with_extension("toml"));
        let Some(file) = files.find(|path| path.is_file()) else { return Ok(None) };
        let text = fs_err::read_to_string(&file)?;
        if !text.parse::<Table>()?.contains_key("axes") {
            let experiment = resolve_file(&text, Path::new(""), &[])?.experiment;
            return Ok(Some(Self([(None, experiment)].into())));
        }
        let cells = sweep_file(&text, Path::new(""), &[], &[])?.cells.into_iter();
        Ok(Some(Self(cells.map(|cell| (Some(cell.name), cell.experiment)).collect())))
    }

    /// All settings of a cell, including those that depend on its data.
    fn settings(&self, cell: Option<&str>) -> Result<Settings> {
        let key = cell.map(str::to_owned);
        let experiment =
            self.0.get(&key).context("its cell is no longer in the experiment file")?;
        let (shape, flip) = match experiment.data.name.as_str() {
            "cifar10" => (Shape { side: 32, channels: 3 }, true),
            "sample" => (Shape { side: 28, channels: 1 }, false),
            other => bail!("unknown image size of `{other}`: add it to record_settings.rs"),
        };
        Ok(settings(&Table::try_from(settle(experiment, shape, 10, flip)?)?))
    }
}

fn settings(table: &Table) -> Settings {
    let mut found = Settings::new();
    flatten(&with_current_keys(table.clone()), "", &mut found);
    found
}

fn flatten(table: &Table, path: &str, found: &mut Settings) {
    for (key, value) in table {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            // A threshold is a number or a table: one value either way.
            Value::Table(inner) if name != "method.threshold" => flatten(inner, &name, found),
            value if KeyRole::of(&name) == KeyRole::Experiment => {
                found.insert(name, value.clone());
            }
            _ => {}
        }
    }
}

fn compare(recorded: &Settings, today: &Settings) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    for key in recorded.keys().chain(today.keys()).collect::<BTreeSet<_>>() {
        let without = WITHOUT_SETTING.iter().find(|(setting, _)| setting == key);
        let without = without.map(|(_, value)| format!("value = {value}").parse::<Table>());
        let without = without.transpose()?.map(|table| table["value"].clone());
        let (there, now) = match (recorded.get(key), today.get(key)) {
            (Some(there), Some(now)) if same(there, now) => continue,
            (Some(value), None) | (None, Some(value))
                if without.as_ref().is_some_and(|without| same(without, value)) =>
            {
                continue;
            }
            (None, Some(now)) => {
                let problem = || format!("has no {key}: add it to WITHOUT_SETTING");
                (format!("{} (not yet a setting)", code(without.with_context(problem)?)), code(now))
            }
            (there, now) => {
                let text = |value: Option<&Value>| value.map_or("not a setting".to_owned(), code);
                (text(there), text(now))
            }
        };
        differences.push([key.clone(), there, now]);
    }
    Ok(differences)
}

/// Whether two values are the same setting: a number need not have a point.
fn same(one: &Value, other: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
    one == other || number(one).is_some_and(|one| Some(one) == number(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(recorded: &str, today: &str) -> Result<Vec<Difference>> {
        compare(&settings(&recorded.parse()?), &settings(&today.parse()?))
    }

    #[test]
    fn differences_are_found() {
        let recorded = "seed = 1\nrounds = 5\ndevice = 'cpu'\n[checks]\nlength = 2";
        let today = "rounds = 5.0\ndevice = 'cuda:0'\n[checks]\nclip = 2.0";
        assert_eq!(compared(recorded, today).unwrap(), Vec::<Difference>::new());
        let found = compared("rounds = 5\ngone = 1", "rounds = 6\n[checks]\nclip = 2.0").unwrap();
        let expected = [
            ["checks.clip", "`0.0` (not yet a setting)", "`2.0`"],
            ["gone", "`1`", "not a setting"],
            ["rounds", "`5`", "`6`"],
        ];
        assert_eq!(found, expected.map(|row| row.map(str::to_owned)));
    }

    #[test]
    fn a_setting_without_effect_may_be_missing_on_either_side() {
        assert_eq!(compared("", "[checks]\nclip = 0").unwrap().len(), 0);
        assert_eq!(compared("[server]\naverage = 0.0", "").unwrap().len(), 0);
        let problem = compared("", "new = 1").unwrap_err().to_string();
        assert!(problem.contains("has no new"), "{problem}");
        let rising = "[method]\nthreshold = { rule = 'rising' }";
        assert_eq!(compared("[method]\nthreshold = 0.6", rising).unwrap().len(), 1);
    }
}
