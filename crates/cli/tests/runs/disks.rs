//! Disks that are full or read-only: a clear error, and what was saved before can be resumed.

use crate::kills::{checkpoints, outcome, resume};
use crate::workspace::{DRAWN, Workspace, text};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A run of two rounds, to be extended on a disk that fails, and the run it must become in the end.
fn begun() -> Workspace {
    let workspace = Workspace::with_pictures(16);
    workspace.run("whole", &[DRAWN, &["rounds=4"]]);
    workspace.run("run", &[DRAWN]);
    workspace
}

/// Resumes the run through a shell that makes the disk fail first.
fn resume_behind(workspace: &Workspace, shell: &[&str], before: &str) -> Output {
    let plain = resume(workspace, "run", &["--set", "rounds=4"]);
    let mut command = Command::new(shell[0]);
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").args(&shell[1..]);
    command.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]);
    command.arg(plain.get_program()).args(plain.get_args());
    command.output().unwrap()
}

fn bytes(files: Vec<PathBuf>) -> BTreeMap<PathBuf, Vec<u8>> {
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// No file may grow beyond 100 KiB, which a checkpoint does: as on a disk without room.
#[test]
fn a_full_disk_costs_the_round_in_flight() {
    let workspace = begun();
    let before = bytes(checkpoints(&workspace, "run"));
    let output = resume_behind(&workspace, &["bash"], "trap '' XFSZ && ulimit -f 100");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: run/checkpoints/round-000003.checkpoint: "), "{said}");
    assert!(last.contains("what was saved before is intact"), "{said}");
    assert!(last.ends_with("resume with `fedanchor run --resume run`"), "{said}");
    assert!(before == bytes(checkpoints(&workspace, "run")), "checkpoints were changed");
    assert_eq!(workspace.records("run").len(), 3); // no line of a round that was not saved
    workspace.succeed(&mut resume(&workspace, "run", &["--set", "rounds=4"]));
    assert!(outcome(&workspace, "whole") == outcome(&workspace, "run"));
}

/// A folder that may not be written is refused and left as it is.
#[test]
fn a_read_only_disk_is_refused() {
    let workspace = begun();
    let before = (workspace.content("run"), bytes(checkpoints(&workspace, "run")));
    // Whoever is root may write everywhere, but for what is mounted read-only.
    let mount = "mount --bind run run && mount -o remount,bind,ro run";
    let mounts = Command::new("unshare").args(["-rm", "true"]).status();
    let output = if mounts.is_ok_and(|status| status.success()) {
        resume_behind(&workspace, &["unshare", "-rm", "bash"], mount)
    } else {
        resume_behind(&workspace, &["bash"], "chmod -R a-w run")
    };
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: run/rounds.jsonl: "), "{said}");
    assert!(last.contains("Read-only") || last.contains("denied"), "{said}");
    Command::new("chmod")
        .args(["-R", "u+w", "run"])
        .current_dir(workspace.at(""))
        .status()
        .unwrap();
    assert!(before == (workspace.content("run"), bytes(checkpoints(&workspace, "run"))));
    workspace.succeed(&mut resume(&workspace, "run", &["--set", "rounds=4"]));
    assert!(outcome(&workspace, "whole") == outcome(&workspace, "run"));
}
