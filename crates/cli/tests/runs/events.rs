//! Event files for TensorBoard. What is in them, `scripts/check_events.py` reads with TensorBoard itself.

use crate::kills::{outcome, resume};
use crate::workspace::{SMALL, Workspace, text};
use std::path::PathBuf;
use std::process::Command;

fn event_files(workspace: &Workspace, out: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(workspace.at(out).join("tensorboard")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn every_run_of_a_command_has_its_event_file_and_no_other_records() {
    let workspace = Workspace::new();
    workspace.run("plain", &[SMALL]);
    assert!(!workspace.at("plain/tensorboard").exists());
    let mut command = workspace.command("seeds", &[SMALL]);
    workspace.succeed(command.args(["--seeds", "0,1", "--tensorboard"]));
    for out in ["seeds/seed0", "seeds/seed1"] {
        assert_eq!(event_files(&workspace, out).len(), 1, "{out}");
    }
    assert!(outcome(&workspace, "plain") == outcome(&workspace, "seeds/seed0"));

    let keys: String = SMALL
        .iter()
        .map(|key| {
            let (key, value) = key.split_once('=').unwrap();
            let word = value.parse::<f64>().is_err();
            format!("{key} = {}\n", if word { format!("\"{value}\"") } else { value.to_owned() })
        })
        .collect();
    std::fs::write(
        workspace.at("some.toml"),
        format!("seeds = [0]\n[base]\npreset = \"paper\"\n{keys}"),
    )
    .unwrap();
    let mut sweep = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    sweep.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1");
    sweep.args(["sweep", "some.toml", "--tensorboard", "--out", "sweep"]);
    workspace.succeed(&mut sweep);
    let [run] = &std::fs::read_dir(workspace.at("sweep")).unwrap().collect::<Vec<_>>()[..] else {
        panic!("one cell")
    };
    let run = run.as_ref().unwrap().path().join("seed0");
    assert_eq!(event_files(&workspace, run.to_str().unwrap()).len(), 1);
}

/// A finished run gets an event file from its records, and a run whose event file cannot be written has its rounds.
#[test]
fn event_files_come_late_or_not_at_all_and_the_run_is_the_same() {
    let workspace = Workspace::new();
    workspace.run("whole", &[SMALL, &["rounds=3"]]);
    workspace.run("run", &[SMALL]);
    workspace.succeed(&mut resume(&workspace, "run", &["--tensorboard"]));
    assert_eq!(event_files(&workspace, "run").len(), 1);

    std::fs::remove_dir_all(workspace.at("run/tensorboard")).unwrap();
    std::fs::write(workspace.at("run/tensorboard"), "a file where the folder should be").unwrap();
    let more = ["--tensorboard", "--set", "rounds=3"];
    let output = workspace.succeed(&mut resume(&workspace, "run", &more));
    let said = text(&output.stderr);
    assert_eq!(said.matches("note: no more events for TensorBoard: ").count(), 1, "{said}");
    assert!(outcome(&workspace, "whole") == outcome(&workspace, "run"));
}
