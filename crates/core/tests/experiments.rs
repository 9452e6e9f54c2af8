//! The committed experiment files: each can be read, and what they say of one another holds.

#![allow(clippy::unwrap_used)]

use fedanchor::config::{Experiment, differences};
use fedanchor::experiment::{resolve_file, sweep_file};
use fedanchor_record::with_current_keys;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::Table;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|p| p.is_dir());
    files.extend(folders.iter().flat_map(|folder| self::files(folder)));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files
}

#[test]
fn every_experiment_can_be_read() {
    let files = files(&folder());
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let table: Table = text.parse().unwrap();
        if table.contains_key("axes") || table.contains_key("grid") {
            let sweep = sweep_file(&text, file.parent().unwrap(), &[], &[]);
            assert!(!sweep.unwrap_or_else(|e| panic!("{}: {e}", file.display())).cells.is_empty());
        } else {
            resolve_file(&text, file.parent().unwrap(), &[])
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
    }
}

/// From preset `paper` to preset `best`, one thing at a time.
#[test]
fn the_last_step_of_the_ablation_is_the_best_recipe() {
    let file = folder().join("ablation.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let cells = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&s| s.to_owned()).collect();
        sweep_file(&text, &folder(), &["iid-*".to_owned()], &settings).unwrap().cells
    };
    let steps = cells(&[]);
    let best = cells(&["preset=best"]).swap_remove(0).experiment;
    let mut last = steps.last().unwrap().experiment.clone();
    assert_ne!(last, best); // by its name
    last.preset.clone_from(&best.preset);
    assert_eq!(last, best);
    let mut changed = BTreeSet::new();
    for pair in steps.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|cell| settings_of(&cell.experiment));
        let found = differences(&before, &after);
        assert!((1..=2).contains(&found.len()), "{}: {found:?}", pair[1].name);
        assert!(found.into_iter().all(|one| changed.insert(one.key)), "{}: again", pair[1].name);
    }
}

/// The quick experiment's records are of the quick experiment as it is.
#[test]
fn the_records_of_the_quick_experiment_are_of_its_settings() {
    let quick = std::fs::read_to_string(folder().join("quick.toml")).unwrap();
    for seed in 0..3 {
        let record = folder().join(format!("../results/quick/seed{seed}/config.toml"));
        let record = std::fs::read_to_string(record).unwrap();
        let settings = [format!("seed={seed}")];
        let expected = resolve_file(&quick, &folder(), &settings).unwrap().experiment;
        let (expected, found) =
            (settings_of(&expected), with_current_keys(record.parse::<Table>().unwrap()));
        // A record has some values beside that depend on the data.
        let mut different = differences(&expected, &found);
        different.retain(|one| one.there.is_some());
        assert!(different.is_empty(), "{different:?}");
        assert_eq!(expected["rounds"], found["rounds"]); // more of them are no difference
    }
}

fn settings_of(experiment: &Experiment) -> Table {
    Table::try_from(experiment).unwrap()
}
