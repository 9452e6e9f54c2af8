//! Inputs without end, or larger than memory: each is refused with its name and a number, and nothing hangs.

use crate::workspace::{DRAWN, Workspace, text};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs a command that must fail soon; what it says.
#[track_caller]
fn refused(workspace: &Workspace, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").env("FEDANCHOR_CACHE", "");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{arguments:?}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let said = text(&stderr).to_owned();
    assert_eq!(status.code(), Some(1), "{arguments:?}: {said}");
    said
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_named_pipe_is_refused_wherever_a_file_is_read() {
    const PIPE: &str = "expected a regular file, found a named pipe";
    let workspace = Workspace::with_pictures(16);
    workspace.run("run", &[DRAWN, &["rounds=1"]]);
    pipe(&workspace.at("pipe"));
    pipe(&workspace.at("pipe.bin"));
    std::fs::create_dir(workspace.at("some")).unwrap();
    for (from, to) in [("drawn/train", "some/labelled"), ("drawn/test", "some/unlabelled")] {
        let copied =
            Command::new("cp").arg("-r").args([workspace.at(from), workspace.at(to)]).status();
        assert!(copied.unwrap().success());
    }
    for arguments in [
        &["run", "pipe"][..],
        &["sweep", "pipe"],
        &["predict", "pipe", "drawn"],
        &["data", "check", "pipe.bin"],
        &["init", "some", "--labels", "pipe", "--out", "some.toml"],
    ] {
        let said = refused(&workspace, arguments);
        assert!(said.contains("pipe") && said.contains(PIPE), "{arguments:?}: {said}");
    }
    // A picture, and each file of a run.
    pipe(&workspace.at("drawn/train/lying/pipe.png"));
    let said = refused(&workspace, &["data", "check", "drawn"]);
    assert!(said.contains("pipe.png"), "{said}");
    std::fs::remove_file(workspace.at("drawn/train/lying/pipe.png")).unwrap();
    for name in ["config.toml", "rounds.jsonl", "checksums.txt"] {
        let (path, aside) = (workspace.at("run").join(name), workspace.at("aside"));
        std::fs::rename(&path, &aside).unwrap();
        pipe(&path);
        let said = refused(&workspace, &["run", "--resume", "run", "--set", "rounds=2"]);
        assert!(said.contains(name), "{name}: {said}");
        refused(&workspace, &["verify", "run"]);
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
    }
    // Where a page is written, one is read first: an earlier report is replaced, and nothing else.
    std::fs::create_dir(workspace.at("report")).unwrap();
    pipe(&workspace.at("report/index.html"));
    let said = refused(&workspace, &["report", "run", "--out", "report"]);
    assert!(said.contains("report"), "{said}");
}

/// What a command writes replaces a link of that name, and what the link points to stays.
#[test]
fn nothing_is_written_through_a_link() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("run", &[DRAWN, &["rounds=1"]]);
    let precious = workspace.at("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::fs::create_dir(workspace.at("labels")).unwrap();
    for (link, arguments) in [
        ("labels/labels.html", &["label", "run", "drawn/test", "--out", "labels"][..]),
        ("sheet.svg", &["data", "show", "drawn", "--out", "sheet.svg"]),
    ] {
        std::os::unix::fs::symlink(&precious, workspace.at(link)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(workspace.at("")).env("FEDANCHOR_CACHE", "").args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious", "{arguments:?}");
        assert!(std::fs::symlink_metadata(workspace.at(link)).unwrap().is_file(), "{link}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_number() {
    let workspace = Workspace::with_pictures(16);
    let said = refused(&workspace, &["run", "/dev/zero"]);
    assert!(said.contains("/dev/zero") && said.contains("found a device"), "{said}");
    let said = refused(&workspace, &["sweep", "/dev/zero"]);
    assert!(said.contains("found a device"), "{said}");
    let huge = workspace.at("huge.toml");
    std::fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let said = refused(&workspace, &["run", "huge.toml"]);
    assert!(said.contains("expected at most 16777216 bytes, found more"), "{said}");
    let said = refused(&workspace, &["data", "check", "drawn", "--size", "16384"]);
    assert!(said.contains("the size must be between 1 and 4096, got 16384"), "{said}");
    let mut command = workspace.command("many", &[DRAWN]);
    let output = command.args(["--workers", "65535"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("expected at most 1024 threads, got 65535"), "{said}");
    let output = workspace.command("large", &[DRAWN, &["client.batch=8192"]]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("client.batch: must be at most 64: the largest client has"), "{said}");
    assert!(!workspace.at("large").exists() && !workspace.at("many").exists());
}
