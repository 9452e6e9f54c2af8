//! Which folders are run folders.

use crate::folders::{Folders, Made, names};
use fedanchor_report::{LeftOut, Runs, find_runs};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

fn finished(runs: &Runs) -> Vec<String> {
    names(runs.finished.iter().map(|run| run.setup.path.as_path()))
}

fn problem(dirs: &[PathBuf]) -> String {
    find_runs(dirs, &|_| None).unwrap_err().to_string()
}

#[test]
fn runs_are_found_at_any_depth_and_sorted_by_path() {
    let folders = Folders::new();
    folders.run("x/deep/down/c", 2, 80.0, &[]);
    folders.run("x/b", 1, 80.0, &[]);
    folders.run("a", 0, 80.0, &[]);
    fs_err::write(folders.path("x/notes.txt"), "not a run").unwrap();
    let runs = find_runs(&[folders.path("")], &|_| None).unwrap();
    assert_eq!(finished(&runs), ["a", "b", "c"]);
    assert_eq!(runs.finished[1].setup.heading.data, "cifar10");
    assert_eq!(runs.finished[1].setup.config["client"]["batch"].as_integer(), Some(10));
    assert_eq!(runs.finished[1].summary.seed, 1);
    assert_eq!(finished(&find_runs(&[folders.path("x/b")], &|_| None).unwrap()), ["b"]);
}

#[test]
fn a_run_that_is_given_twice_counts_once() {
    let folders = Folders::new();
    folders.run("x/a", 0, 80.0, &[]);
    symlink(folders.path("x/a"), folders.path("linked")).unwrap();
    let dirs = ["x", "x/a", "linked", "x"].map(|name| folders.path(name));
    assert_eq!(finished(&find_runs(&dirs, &|_| None).unwrap()), ["a"]);
}

#[test]
fn hidden_folders_are_skipped() {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    fs_err::create_dir(folders.path(".cargo")).unwrap();
    fs_err::write(folders.path(".cargo/config.toml"), "[build]").unwrap();
    assert_eq!(find_runs(&[folders.path("")], &|_| None).unwrap().unfinished, []);
}

#[test]
fn unfinished_runs_are_listed_separately() {
    let folders = Folders::new();
    folders.run("whole", 0, 80.0, &[]);
    folders.make("running", Made { changes: &[], last: 0.0, best: 0.0, rounds: None });
    folders.make("stopped", Made { changes: &[], last: 50.0, best: 50.0, rounds: Some(12) });
    let runs = find_runs(&[folders.path("")], &|_| None).unwrap();
    assert_eq!(finished(&runs), ["whole"]);
    let wanted = [
        ("running", "summary.json is missing: still running, or failed"),
        ("stopped", "stopped after 12 of 500 rounds"),
    ];
    let wanted = wanted
        .map(|(name, problem)| LeftOut { path: folders.path(name), problem: problem.to_owned() });
    assert_eq!(runs.unfinished, wanted);
    let notes = folders.table().notes().join("\n");
    assert_eq!(
        folders.relative(&notes),
        "not in the table: RUNS/running: summary.json is missing: still running, or failed\n\
         not in the table: RUNS/stopped: stopped after 12 of 500 rounds"
    );
}

#[test]
fn a_link_to_a_parent_folder_is_named_and_left_out() {
    let folders = Folders::new();
    folders.run("x/a", 0, 80.0, &[]);
    symlink(folders.path("x"), folders.path("x/again")).unwrap();
    let runs = find_runs(&[folders.path("")], &|_| None).unwrap();
    assert_eq!(finished(&runs), ["a"]);
    let [LeftOut { path, problem }] = &runs.damaged[..] else { panic!("{:?}", runs.damaged) };
    assert_eq!(*path, folders.path("x/again"));
    assert!(problem.contains("which contains it: remove the link"), "{problem}");
}

#[test]
fn a_cyclic_or_dangling_link_is_named_and_left_out() {
    for target in ["link", "missing"] {
        let folders = Folders::new();
        folders.run("a", 0, 80.0, &[]);
        symlink(folders.path(target), folders.path("link")).unwrap();
        let runs = find_runs(&[folders.path("")], &|_| None).unwrap();
        assert_eq!(finished(&runs), ["a"]);
        let [LeftOut { path, .. }] = &runs.damaged[..] else { panic!("{:?}", runs.damaged) };
        assert_eq!(*path, folders.path("link"));
    }
}

#[test]
fn a_missing_folder_is_an_error_that_names_it() {
    let folders = Folders::new();
    let text = problem(&[folders.path("missing")]);
    assert!(text.contains(&folders.path("missing").display().to_string()), "{text}");
}

#[test]
fn a_folder_without_runs_is_an_error_that_says_what_to_give() {
    let folders = Folders::new();
    fs_err::create_dir(folders.path("empty")).unwrap();
    assert_eq!(
        folders.relative(&problem(&[folders.path("empty")])),
        "RUNS/empty: contains no run: give a folder written by `fedanchor run`, or one that \
         contains such folders"
    );
}
