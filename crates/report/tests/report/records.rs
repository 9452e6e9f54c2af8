//! Runs with damaged or older files.

use crate::folders::{Folders, Made, names};
use fedanchor_report::{Run, find_runs};
use std::path::Path;

/// Two runs of one experiment, seeds 0 and 1.
fn two_runs() -> Folders {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    folders.run("b", 1, 90.0, &[]);
    folders
}

fn change(file: &Path, change: impl Fn(&str) -> String) {
    let text = fs_err::read_to_string(file).unwrap();
    let changed = change(&text);
    assert_ne!(text, changed);
    fs_err::write(file, changed).unwrap();
}

/// The note on run `b` in a table that still shows run `a`.
fn note(folders: &Folders) -> String {
    let table = folders.table();
    let [row] = &table.rows[..] else { panic!("{table:?}") };
    assert_eq!((row.seeds, row.last.mean), (1, 80.0));
    let [note] = &table.notes()[..] else { panic!("{table:?}") };
    let note = folders.relative(note);
    note.strip_prefix("not in the table: RUNS/b: ").expect(&note).to_owned()
}

#[test]
fn a_changed_digit_in_the_records_is_noticed() {
    let folders = two_runs();
    change(&folders.path("b/rounds.jsonl"), |text| text.replace("\"round\":2", "\"round\":7"));
    assert_eq!(note(&folders), "rounds.jsonl: line 3 does not match its checksum");

    let runs = find_runs(&[folders.path("")], &|_| None).unwrap();
    assert_eq!(names(runs.finished.iter().map(|run| run.setup.path.as_path())), ["a"]);
    assert_eq!(names(runs.damaged.iter().map(|run| run.path.as_path())), ["b"]);
    let error = Run::finished(&folders.path("b"), &|_| None).unwrap_err().to_string();
    assert_eq!(
        folders.relative(&error),
        "RUNS/b/rounds.jsonl: line 3 does not match its checksum; restore the file from a copy, \
         or run the experiment again"
    );
}

#[test]
fn missing_lines_and_missing_records_are_noticed() {
    let folders = two_runs();
    change(&folders.path("b/rounds.jsonl"), |text| {
        text.lines().filter(|line| !line.contains(":3,")).map(|line| format!("{line}\n")).collect()
    });
    assert_eq!(note(&folders), "rounds.jsonl: line 4 does not match its checksum");
    fs_err::remove_file(folders.path("b/rounds.jsonl")).unwrap();
    assert_eq!(note(&folders), "rounds.jsonl: the file is missing");
}

#[test]
fn records_without_checksums_are_accepted() {
    let folders = two_runs();
    let unsealed: String = (0..=500).map(|round| format!("{{\"round\":{round}}}\n")).collect();
    fs_err::write(folders.path("b/rounds.jsonl"), unsealed).unwrap();
    let table = folders.table();
    assert_eq!((table.rows[0].seeds, table.rows[0].last.mean), (2, 85.0));
    assert!(table.notes().is_empty());
    assert!(Run::finished(&folders.path("b"), &|_| None).unwrap().is_some());
}

#[test]
fn records_of_an_unfinished_run_are_not_checked() {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    folders.make("b", Made { changes: &[], last: 50.0, best: 50.0, rounds: Some(12) });
    change(&folders.path("b/rounds.jsonl"), |text| text.replace("\"round\":2", "\"round\":7"));
    assert_eq!(note(&folders), "stopped after 12 of 500 rounds");
    assert!(Run::finished(&folders.path("b"), &|_| None).unwrap().is_none());
}

#[test]
fn invalid_files_are_named_with_the_problem() {
    let folders = two_runs();
    let with = |file: &str, content: &str| {
        let before = fs_err::read(folders.path(file)).unwrap();
        fs_err::write(folders.path(file), content).unwrap();
        let note = note(&folders);
        fs_err::write(folders.path(file), before).unwrap();
        note
    };
    assert_eq!(
        with("b/summary.json", "{}"),
        "summary.json: missing field `method` at line 1 column 2"
    );
    assert_eq!(with("b/config.toml", "seed = 1"), "config.toml: missing field `preset`");
    let broken = with("b/config.toml", "preset = \"paper\"\nseed = ");
    assert!(broken.starts_with("config.toml: line 2: "), "{broken}");
    assert!(!broken.contains('\n'), "{broken}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    // A folder in place of the file cannot be read by any user, root included.
    let folders = two_runs();
    for file in ["b/rounds.jsonl", "b/summary.json"] {
        fs_err::remove_file(folders.path(file)).unwrap();
        fs_err::create_dir(folders.path(file)).unwrap();
        let note = note(&folders);
        assert!(note.contains(&format!("RUNS/{file}")), "{note}");
    }
}
