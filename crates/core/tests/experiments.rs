//! The committed experiment files: each can be read, and what they say of one another holds.

#![allow(clippy::unwrap_used)]

use fedanchor::experiment::{resolve_file, sweep_file};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|p| p.is_dir());
    files.extend(folders.iter().flat_map(|folder| self::files(folder)));
    files
}

#[test]
fn every_experiment_can_be_read() {
    let files = files(&folder());
    assert!(files.len() > 15, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let table: toml::Table = text.parse().unwrap();
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
    for pair in steps.windows(2) {
        assert_ne!(pair[0].experiment, pair[1].experiment, "{}", pair[1].name);
    }
}
