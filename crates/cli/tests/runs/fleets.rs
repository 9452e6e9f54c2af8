//! The two ends of a fleet, and how each is stopped.

#![cfg(unix)]

use crate::workspace::{DRAWN, Workspace};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A process that does not outlive its test.
struct Running(Child);

impl Running {
    /// Starts a command whose talk goes to a file, and waits until its socket is there.
    fn start(workspace: &Workspace, name: &str, arguments: &[&str]) -> Self {
        let talk = std::fs::File::create(workspace.at(format!("{name}.txt"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").stderr(talk);
        let socket = format!("{name}.sock");
        let running = Self(command.args(arguments).args(["--socket", &socket]).spawn().unwrap());
        wait_until(|| workspace.at(&socket).exists());
        running
    }

    fn coordinator(workspace: &Workspace, settings: &[&str]) -> Self {
        std::fs::write(workspace.at("paper.toml"), "preset = \"paper\"").unwrap();
        let mut arguments = vec!["coordinator", "paper.toml", "--out", "run"];
        let fleet = ["data.clients=1", "client.per_round=1", "data.anchors=0"];
        for setting in DRAWN.iter().chain(&fleet).chain(settings) {
            arguments.extend(["--set", setting]);
        }
        Self::start(workspace, "coordinator", &arguments)
    }

    fn interrupt(&self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }

    fn end(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended already unless the test failed
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "timed out");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One exchange over a Unix socket.
fn ask(socket: &Path, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: local\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut whole = Vec::new();
    stream.read_to_end(&mut whole).unwrap();
    let end = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&whole[9..12]).unwrap().parse().unwrap();
    (status, whole[end + 4..].to_vec())
}

/// The next request for a node: its number, where it goes and its body.
fn next_request(coordinator: &Path) -> (u64, String, Vec<u8>) {
    let asking = json!({ "protocol": 1, "session": "test", "nodes": ["7"] }).to_string();
    loop {
        let (status, work) = ask(coordinator, "POST", "/v1/work", asking.as_bytes());
        assert_eq!(status, 200);
        let work: Value = serde_json::from_slice(&work).unwrap();
        if let Some(order) = work["requests"].get(0) {
            let id = order["id"].as_u64().unwrap();
            let (_, body) = ask(coordinator, "GET", &format!("/v1/requests/{id}"), b"");
            return (id, order["path"].as_str().unwrap().to_owned(), body);
        }
    }
}

#[test]
fn a_coordinator_that_waits_for_nodes_is_stopped_with_advice() {
    let workspace = Workspace::with_pictures(16);
    let coordinator = Running::coordinator(&workspace, &[]);
    let talk = || std::fs::read_to_string(workspace.at("coordinator.txt")).unwrap();
    wait_until(|| talk().contains("pre-trained"));
    // Another one that is started by mistake takes nothing from it.
    let reply = workspace.at("run/replies/1.reply");
    std::fs::write(&reply, "precious").unwrap();
    for (out, socket, problem) in [
        ("other", "coordinator.sock", "another process listens there"),
        ("run", "other.sock", "is writing to this folder"),
    ] {
        let mut second = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        second.current_dir(workspace.at("")).args(["coordinator", "paper.toml", "--out", out]);
        let second = second.args(["--socket", socket]).output().unwrap();
        let refused = String::from_utf8(second.stderr).unwrap();
        assert!(refused.contains(problem), "{refused}");
        assert!(reply.exists());
    }
    coordinator.interrupt();
    assert_eq!(coordinator.end(), Some(130));
    let socket = workspace.at("coordinator.sock");
    let advice =
        format!("resume with `fedanchor coordinator --resume run --socket {}`", socket.display());
    assert!(talk().trim_end().ends_with(&advice), "{}", talk());
}

/// A node that is stopped while it trains answers first: it neither crashes nor is its work lost.
#[test]
fn a_node_that_is_stopped_finishes_its_request() {
    let workspace = Workspace::with_pictures(16);
    let training = ["client.epochs=100", "method.threshold=-1"];
    let coordinator = Running::coordinator(&workspace, &training);
    let node = ["node", "--data", "drawn/test", "--name", "ward", "--state", "state"];
    let node = Running::start(&workspace, "node", &node);
    let (there, here) = (workspace.at("coordinator.sock"), workspace.at("node.sock"));
    let (id, path, terms) = next_request(&there);
    let (status, joined) = ask(&here, "POST", &path, &terms);
    assert_eq!((status, path.as_str()), (200, "/v1/join"), "{}", String::from_utf8_lossy(&joined));
    assert_eq!(ask(&there, "POST", &format!("/v1/replies/{id}?status=200"), &joined).0, 204);
    let (_, path, broadcast) = next_request(&there);
    assert!(path.starts_with("/v1/train?task="), "{path}");
    let answer = std::thread::spawn(move || ask(&here, "POST", &path, &broadcast));
    // Time for the request to arrive; one that has not been begun is refused.
    std::thread::sleep(Duration::from_millis(500));
    node.interrupt();
    assert_eq!(node.end(), Some(0));
    let status = answer.join().unwrap().0;
    assert!([200, 503].contains(&status), "{status}");
    coordinator.interrupt();
    assert_eq!(coordinator.end(), Some(130));
}
