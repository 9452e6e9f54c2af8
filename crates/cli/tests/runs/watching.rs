//! Runs that are watched while they go on.

#![cfg(unix)]

use crate::workspace::{DRAWN, Workspace, text};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// `fedanchor watch` with its output in a pipe, which does not outlive its test.
struct Watching(Child);

impl Watching {
    fn start(workspace: &Workspace, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(workspace.at("")).env("FEDANCHOR_CACHE", "");
        command.arg("watch").args(arguments);
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
    let mut watching = Watching::start(&workspace, &["run"]);
    let lines = watching.lines();
    // Before the run has begun.
    let mut said = BufReader::new(watching.0.stderr.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "waiting for a run in run");
    let records = workspace.run("run", &[DRAWN, &["rounds=6"]]);
    assert_eq!(watching.end(), Some(0));
    assert!(said.next().is_none());
    let lines: Vec<String> = lines.lines().map(Result::unwrap).collect();
    assert_eq!(lines.len(), records.len() + 2, "{lines:?}");
    assert_eq!(lines[0], "run: fedanchor on drawn: 36 anchors, small, seed 0, 6 rounds");
    // The time left is known while the run is in progress.
    let rounds = lines[1..=records.len()].iter();
    let rounds = rounds.map(|line| line.split_once(" s, ").map_or(line.as_str(), |(line, _)| line));
    let rounds: Vec<&str> = rounds.map(|line| line.trim_end_matches(" s")).collect();
    for (record, line) in records.iter().zip(&rounds) {
        let start = match record.round {
            0 => "pre-trained: accuracy".to_owned(),
            round => format!("round {round}/6: accuracy"),
        };
        let start = format!("{start} {:.2} %", record.test_accuracy);
        assert!(line.starts_with(&start), "{line}");
    }
    let last = lines.last().unwrap();
    let state = "run: fedanchor on drawn, seed 0: finished, round 6 of 6, accuracy ";
    assert!(last.starts_with(state), "{last}");
    // The same again after the run.
    let mut after = Watching::start(&workspace, &["run"]);
    let again: Vec<String> = after.lines().lines().map(Result::unwrap).collect();
    assert_eq!(after.end(), Some(0));
    assert_eq!(again.len(), lines.len());
    for (line, round) in again[1..].iter().zip(rounds) {
        assert_eq!(*line, format!("{round} s"));
    }
    assert_eq!(again.last(), lines.last());
}

#[test]
fn a_run_that_is_killed_is_stopped_and_can_be_resumed_while_it_is_watched() {
    let workspace = Workspace::with_pictures(16);
    let mut command = workspace.command("run", &[DRAWN, &["rounds=100000"]]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut watching = Watching::start(&workspace, &["run"]);
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

/// `fedanchor watch --web`, and the address it serves at.
struct Served {
    watching: Watching,
    address: String,
}

impl Served {
    fn start(workspace: &Workspace, folder: &str) -> Self {
        let mut watching = Watching::start(workspace, &[folder, "--web"]);
        let line = watching.lines().lines().next().unwrap().unwrap();
        let (start, address) = line.split_once(" at http://").unwrap();
        assert_eq!(start, format!("watching {folder}"));
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        Self { address: address.to_owned(), watching }
    }

    /// The status and the body of an answer.
    fn get(&self, path: &str, host: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
    }

    fn page(&self) -> String {
        let (status, body) = self.get("/", &self.address);
        assert_eq!(status, "200");
        body
    }

    /// Waits until the page shows a state of the runs.
    fn wait_for(&self, state: &str) -> String {
        let start = Instant::now();
        loop {
            let page = self.page();
            let shown = between(&page, "<span id=\"live\" role=\"status\">", "</span>");
            if shown.starts_with(state) {
                return page;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{shown}, not {state}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a user does.
    fn interrupt(self) {
        let id = self.watching.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        assert_eq!(self.watching.end(), Some(0));
        assert!(TcpStream::connect(&self.address).is_err());
    }
}

/// The first text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before).and_then(|(_, rest)| rest.split_once(after)).unwrap().0
}

#[test]
fn a_page_follows_a_run_from_before_its_start_to_after_its_end() {
    let workspace = Workspace::with_pictures(16);
    let served = Served::start(&workspace, "run");
    assert!(!served.wait_for("waiting for a run").contains("<figure"));
    let mut command = workspace.command("run", &[DRAWN, &["rounds=100000"]]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    served.wait_for("running, round 1");
    run.kill().unwrap();
    run.wait().unwrap();
    served.wait_for("stopped, round ");
    let done = workspace.records("run").len();
    let set = format!("rounds={done}");
    workspace.succeed(&mut crate::kills::resume(&workspace, "run", &["--force", "--set", &set]));
    let page = served.wait_for(&format!("finished, round {done} of {done}"));
    // So few rounds may make the model worse, which the page says; nothing else is wrong.
    if page.contains("id=\"problems\"") {
        let problems = between(&page, "id=\"problems\"", "</ul>");
        let mut problems = problems.split("<li>").skip(1);
        assert!(problems.all(|one| one.contains("the rounds made the model worse")), "{page}");
    }
    let line = between(&page, "<g data-line=\"fedanchor\" data-x=\"", "\"");
    assert_eq!(line.split(' ').count(), done + 1, "{line}");
    assert!(served.get("/", "localhost").1.contains("· fedanchor report</title>"));
    std::fs::remove_dir_all(workspace.at("run")).unwrap();
    served.wait_for("waiting for a run");
    served.interrupt();
}

#[test]
fn only_the_page_is_served_and_only_to_this_host() {
    let workspace = Workspace::with_pictures(16);
    for seed in ["seed=1", "seed=2"] {
        let brief = [seed, "rounds=1", "compare=false", "checks.anchor_margin=0"];
        workspace.run(&format!("runs/{seed}"), &[DRAWN, &brief]);
    }
    let served = Served::start(&workspace, "runs");
    served.wait_for("2 finished");
    let (status, body) = served.get("/", "attacker.example");
    assert_eq!((status.as_str(), body.lines().count()), ("421", 1), "{body}");
    for path in [
        "/data.json",
        "/seed=1/config.toml",
        "/../paper.toml",
        "/%2e%2e/paper.toml",
        "/config.toml",
    ] {
        assert_eq!(served.get(path, &served.address).0, "404", "{path}");
    }
    served.interrupt();
}
