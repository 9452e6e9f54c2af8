//! How a run ends early, and who may write where.

#![cfg(unix)]

use crate::workspace::{DRAWN, Workspace, text};
use fedanchor_record::files;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run in progress, which does not outlive its test.
struct Running(Child);

impl Running {
    /// Starts a run whose talk goes to the file `OUT.txt`.
    fn start(workspace: &Workspace, out: &str, settings: &[&str]) -> Self {
        let talk = std::fs::File::create(workspace.at(format!("{out}.txt"))).unwrap();
        let mut command = workspace.command(out, &[DRAWN, settings]);
        Self(command.stdout(Stdio::null()).stderr(talk).spawn().unwrap())
    }

    fn interrupt(&self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended already unless the test failed
    }
}

/// Waits until a file holds a text.
fn wait_for(path: &Path, text: &str) {
    let start = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|content| content.contains(text)) {
        assert!(start.elapsed() < Duration::from_secs(120), "{}: no `{text}`", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_first_ends_the_run_after_its_round() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "long", &["rounds=100000"]);
    wait_for(&workspace.at("long.txt"), "round 1/100000");
    run.interrupt();
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    let (summary, records) = (workspace.summary("long"), workspace.records("long"));
    assert!(summary.rounds >= 1 && summary.rounds < summary.rounds_planned, "{summary:?}");
    assert_eq!(records.last().unwrap().round, summary.rounds);
    assert_eq!(records.last().unwrap().test_accuracy, summary.final_accuracy);
    assert!(workspace.at("long").join(files::MODEL).exists());
}

#[test]
fn pre_training_ends_after_its_epoch() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "early", &["pretrain.epochs=100000"]);
    wait_for(&workspace.at("early.txt"), "anchors");
    run.interrupt();
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    assert_eq!((workspace.summary("early").rounds, workspace.records("early").len()), (0, 1));
}

#[test]
fn no_seed_begins_after_it_and_nothing_is_averaged() {
    let workspace = Workspace::with_pictures(16);
    let talk = std::fs::File::create(workspace.at("seeds.txt")).unwrap();
    let mut command = workspace.command("seeds", &[DRAWN, &["rounds=100000"]]);
    command.args(["--seeds", "0,1"]).stdout(Stdio::null()).stderr(talk);
    let mut run = Running(command.spawn().unwrap());
    wait_for(&workspace.at("seeds.txt"), "seed 0: round 1/100000");
    run.interrupt();
    assert_eq!(run.0.wait().unwrap().code(), Some(1));
    let said = std::fs::read_to_string(workspace.at("seeds.txt")).unwrap();
    assert!(said.contains("interrupted: 0 of 2 seeds"), "{said}");
    assert!(workspace.at("seeds/seed0").exists() && !workspace.at("seeds/seed1").exists());
}

/// And a process that is killed does not leave its claim behind.
#[test]
fn a_folder_belongs_to_one_process() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "one", &["pretrain.epochs=100000"]);
    wait_for(&workspace.at("one.txt"), "anchors");
    let refused = workspace.command("one", &[DRAWN]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("another run is writing to this folder"), "{said}");
    wait_for(&workspace.at("one").join(files::CONFIG), "checkpoint");
    let set = ["--set", "pretrain.epochs=100000"];
    let refused = crate::kills::resume(&workspace, "one", &set).output().unwrap();
    let said = text(&refused.stderr);
    assert!(said.contains("another run is writing to this folder"), "{said}");
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    assert_eq!(workspace.run("one", &[DRAWN]).len(), 3);
}

#[test]
fn the_second_ends_it_at_once() {
    let workspace = Workspace::with_pictures(16);
    // A round that would not end today.
    let mut run = Running::start(&workspace, "endless", &["client.epochs=100000"]);
    wait_for(&workspace.at("endless.txt"), "pre-trained");
    run.interrupt();
    wait_for(&workspace.at("endless.txt"), "stopping after this round");
    assert!(run.0.try_wait().unwrap().is_none());
    run.interrupt();
    let status = run.0.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(!workspace.at("endless").join(files::SUMMARY).exists());
}
