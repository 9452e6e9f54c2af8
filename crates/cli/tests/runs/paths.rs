//! Where the data is: relative to the file that says so, and found again when a run is resumed.

use crate::workspace::{DRAWN, Workspace, text};
use fedanchor_record::files;
use std::process::Command;

/// `DRAWN` without its path as an experiment file.
fn settings() -> String {
    let keys = DRAWN.iter().filter(|key| !key.starts_with("data.path"));
    let keys = keys.map(|key| {
        let (key, value) = key.split_once('=').unwrap();
        let quote = if value.parse::<f64>().is_ok() { "" } else { "\"" };
        format!("{key} = {quote}{value}{quote}\n")
    });
    format!("preset = \"paper\"\n{}", keys.collect::<String>())
}

fn fedanchor(workspace: &Workspace, folder: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at(folder)).env("OMP_NUM_THREADS", "1").args(arguments);
    command
}

#[test]
fn a_path_in_a_file_is_relative_to_the_file() {
    let workspace = Workspace::with_pictures(16);
    std::fs::create_dir_all(workspace.at("files/deep")).unwrap();
    let file = format!("{}data.path = \"../../drawn\"\n", settings());
    std::fs::write(workspace.at("files/deep/some.toml"), &file).unwrap();
    let run = |folder: &str, arguments: &[&str]| {
        workspace.succeed(&mut fedanchor(&workspace, folder, arguments));
    };
    run("", &["run", "files/deep/some.toml", "--out", "first"]);
    run("files", &["run", "deep/some.toml", "--out", "../second"]);
    assert_eq!(workspace.records("first"), workspace.records("second"));
    // Of a setting, to the working directory.
    run("files", &["run", "deep/some.toml", "--set", "data.path=../drawn", "--out", "../third"]);
    let wrong = ["run", "files/deep/some.toml", "--set", "data.path=../../drawn"];
    let refused = fedanchor(&workspace, "", &wrong).output().unwrap();
    assert!(text(&refused.stderr).contains("no data set `drawn` at ../../drawn"));
    // A sweep file is a file, too.
    let lines: String = file.lines().map(|line| format!("base.{line}\n")).collect();
    std::fs::write(workspace.at("files/sweep.toml"), lines.replace("../../", "../")).unwrap();
    run("", &["sweep", "files/sweep.toml", "--out", "swept"]);
    assert_eq!(workspace.records("swept/all/seed0"), workspace.records("first"));

    // The run finds its data again from anywhere, and from another place.
    std::fs::create_dir(workspace.at("elsewhere")).unwrap();
    std::fs::rename(workspace.at("first"), workspace.at("elsewhere/moved")).unwrap();
    run("elsewhere", &["run", "--resume", "moved", "--set", "rounds=3"]);
    assert_eq!(workspace.records("elsewhere/moved").len(), 4);
}

/// The same for a data set in its usual place, which is relative to the working directory.
#[test]
fn a_run_without_a_path_finds_its_data_again() {
    let workspace = Workspace::with_pictures(16);
    std::fs::create_dir_all(workspace.at("data")).unwrap();
    std::fs::create_dir_all(workspace.at("elsewhere")).unwrap();
    std::fs::rename(workspace.at("drawn"), workspace.at("data/drawn")).unwrap();
    std::fs::write(workspace.at("some.toml"), settings()).unwrap();
    let mut command = fedanchor(&workspace, "", &["run", "some.toml", "--out", "run"]);
    workspace.succeed(&mut command);
    let resume = ["run", "--resume", "../run", "--set", "rounds=3"];
    workspace.succeed(&mut fedanchor(&workspace, "elsewhere", &resume));
    assert_eq!(workspace.records("run").len(), 4);
    let config: toml::Table = workspace.read("run", files::CONFIG).parse().unwrap();
    let path = workspace.at("data/drawn");
    assert_eq!(config["data"]["path"].as_str(), path.to_str());
}
