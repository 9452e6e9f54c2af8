//! Runs that are watched while they go on.

use crate::workspace::{DRAWN, Workspace, text};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// `fedanchor watch` with its output in a pipe, which does not outlive its test.
struct Watching(Child);

impl Watching {
    fn start(workspace: &Workspace, folder: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(workspace.at("")).args(["watch", folder]);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn lines(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }

    /// Waits until it ends by itself; its exit status.
    fn end(mut self) -> Option<i32> {
        let start = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(120), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.wait().unwrap().code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended already unless the test failed
    }
}

#[test]
fn every_round_is_printed_once_and_then_it_ends() {
    let workspace = Workspace::with_pictures(16);
    let mut watching = Watching::start(&workspace, "run");
    let lines = watching.lines();
    // Before the run has begun.
    let mut said = BufReader::new(watching.0.stderr.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "waiting for a run in run");
    let records = workspace.run("run", &[DRAWN, &["rounds=6"]]);
    assert_eq!(watching.end(), Some(0));
    assert!(said.next().is_none());
    let lines: Vec<String> = lines.lines().map(Result::unwrap).collect();
    assert_eq!(lines.len(), records.len() + 1, "{lines:?}");
    for (record, line) in records.iter().zip(&lines) {
        let start = match record.round {
            0 => "pre-trained: accuracy".to_owned(),
            round => format!("round {round}/6: accuracy"),
        };
        let start = format!("{start} {:.2} %", record.test_accuracy);
        assert!(line.starts_with(&start) && line.ends_with(" s"), "{line}");
    }
    let last = &lines[records.len()];
    let state = "run: fedanchor on drawn, seed 0: finished, round 6 of 6, accuracy ";
    assert!(last.starts_with(state), "{last}");
    // The same again after the run.
    let mut after = Watching::start(&workspace, "run");
    let again: Vec<String> = after.lines().lines().map(Result::unwrap).collect();
    assert_eq!((after.end(), again), (Some(0), lines));
}

#[test]
fn a_run_that_is_killed_is_stopped_and_can_be_resumed_while_it_is_watched() {
    let workspace = Workspace::with_pictures(16);
    let mut command = workspace.command("run", &[DRAWN, &["rounds=100000"]]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut watching = Watching::start(&workspace, "run");
    let mut lines = watching.lines().lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("round 1/100000: ")));
    run.kill().unwrap();
    run.wait().unwrap();
    let last = lines.last().unwrap();
    assert!(last.starts_with("run: fedanchor on drawn, seed 0: stopped, round "), "{last}");
    assert!(last.ends_with("; resume with `fedanchor run --resume run`"), "{last}");
    assert_eq!(watching.end(), Some(0));
    // One line with the same state, and a folder that several watch is free to be written to.
    let once = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(workspace.at("")).args(["watch", "--once", "."]);
        workspace.succeed(&mut command)
    };
    assert_eq!(
        text(&once().stdout),
        format!("{}\n", last.replacen("run:", "./run:", 1).replace("resume run", "resume ./run"))
    );
    let done = workspace.records("run").len();
    let set = format!("rounds={done}");
    let mut resume = crate::kills::resume(&workspace, "run", &["--force", "--set", &set]);
    workspace.succeed(&mut resume);
    assert!(text(&once().stdout).contains(&format!(": finished, round {done} of {done}, ")));
}
