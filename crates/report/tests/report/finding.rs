//! Which folders hold runs.

use crate::folders::{Folders, Made, names};
use fedanchor_report::{ReportError, Runs, Unfinished, find_runs};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

fn finished(runs: &Runs) -> Vec<String> {
    names(runs.finished.iter().map(|run| run.path.as_path()))
}

fn problem(dirs: &[PathBuf]) -> String {
    find_runs(dirs).unwrap_err().to_string()
}

#[test]
fn runs_are_found_at_any_depth_and_by_path() {
    let folders = Folders::new();
    folders.run("x/deep/down/c", 2, 80.0, &[]);
    folders.run("x/b", 1, 80.0, &[]);
    folders.run("a", 0, 80.0, &[]);
    fs_err::write(folders.path("x/notes.txt"), "not a run").unwrap();
    let runs = find_runs(&[folders.path("")]).unwrap();
    assert_eq!(finished(&runs), ["a", "b", "c"]);
    assert_eq!(runs.finished[1].heading.data, "cifar10");
    assert_eq!(runs.finished[1].config["client"]["batch"].as_integer(), Some(10));
    assert_eq!(runs.finished[1].summary.seed, 1);
    assert_eq!(finished(&find_runs(&[folders.path("x/b")]).unwrap()), ["b"]);
}

#[test]
fn a_run_that_is_named_twice_counts_once() {
    let folders = Folders::new();
    folders.run("x/a", 0, 80.0, &[]);
    symlink(folders.path("x/a"), folders.path("linked")).unwrap();
    let dirs = ["x", "x/a", "linked", "x"].map(|name| folders.path(name));
    assert_eq!(finished(&find_runs(&dirs).unwrap()), ["a"]);
}

#[test]
fn hidden_folders_are_left_out() {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    fs_err::create_dir(folders.path(".cargo")).unwrap();
    fs_err::write(folders.path(".cargo/config.toml"), "[build]").unwrap();
    assert_eq!(find_runs(&[folders.path("")]).unwrap().unfinished, []);
}

#[test]
fn unfinished_runs_are_listed_apart() {
    let folders = Folders::new();
    folders.run("whole", 0, 80.0, &[]);
    folders.make("going", Made { changes: &[], last: 0.0, best: 0.0, rounds: None });
    folders.make("stopped", Made { changes: &[], last: 50.0, best: 50.0, rounds: Some(12) });
    let runs = find_runs(&[folders.path("")]).unwrap();
    assert_eq!(finished(&runs), ["whole"]);
    let wanted = [
        Unfinished { path: folders.path("going"), rounds: None },
        Unfinished { path: folders.path("stopped"), rounds: Some((12, 500)) },
    ];
    assert_eq!(runs.unfinished, wanted);
    let notes = folders.table().notes().join("\n");
    assert_eq!(
        folders.relative(&notes),
        "not in the table: RUNS/going: no summary.json, still running or failed\n\
         not in the table: RUNS/stopped: stopped after 12 of 500 rounds"
    );
}

#[test]
fn a_link_back_up_is_an_error_that_names_it() {
    let folders = Folders::new();
    folders.run("x/a", 0, 80.0, &[]);
    symlink(folders.path("x"), folders.path("x/again")).unwrap();
    let failed = find_runs(&[folders.path("")]);
    let Err(ReportError::Loop { path, folder }) = failed else { panic!("{failed:?}") };
    assert_eq!(path, folders.path("x/again"));
    assert_eq!(folder, folders.path("x").canonicalize().unwrap());
}

#[test]
fn a_link_to_itself_or_to_nothing_is_an_error_that_names_it() {
    for target in ["turn", "gone"] {
        let folders = Folders::new();
        folders.run("a", 0, 80.0, &[]);
        symlink(folders.path(target), folders.path("turn")).unwrap();
        let text = problem(&[folders.path("")]);
        assert!(text.contains(&folders.path("turn").display().to_string()), "{text}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_that_names_it() {
    // A folder in place of a file: no one may read it as one, the superuser included.
    let folders = Folders::new();
    folders.make("a", Made { changes: &[], last: 0.0, best: 0.0, rounds: None });
    fs_err::create_dir(folders.path("a/summary.json")).unwrap();
    let text = problem(&[folders.path("")]);
    assert!(text.contains(&folders.path("a/summary.json").display().to_string()), "{text}");

    let text = problem(&[folders.path("nowhere")]);
    assert!(text.contains(&folders.path("nowhere").display().to_string()), "{text}");
}

#[test]
fn a_file_that_no_run_wrote_is_an_error_that_says_why() {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    let of = |file: &str, content: &str| {
        let before = fs_err::read(folders.path(file)).unwrap();
        fs_err::write(folders.path(file), content).unwrap();
        let text = folders.relative(&problem(&[folders.path("")]));
        fs_err::write(folders.path(file), before).unwrap();
        text
    };
    let advice = "; run it again, or name folders without it";
    assert_eq!(
        of("a/summary.json", "{}"),
        format!("RUNS/a/summary.json: missing field `version` at line 1 column 2{advice}")
    );
    assert_eq!(
        of("a/config.toml", "seed = 1"),
        format!("RUNS/a/config.toml: missing field `preset`{advice}")
    );
    let broken = of("a/config.toml", "seed = ");
    assert!(broken.starts_with("RUNS/a/config.toml: TOML parse error at line 1"), "{broken}");
}

#[test]
fn a_folder_without_runs_is_an_error_that_says_what_to_name() {
    let folders = Folders::new();
    fs_err::create_dir(folders.path("empty")).unwrap();
    assert_eq!(
        folders.relative(&problem(&[folders.path("empty")])),
        "RUNS/empty: no run in it: name a folder that `fedanchor run` wrote, or one that contains \
         such folders"
    );
}
