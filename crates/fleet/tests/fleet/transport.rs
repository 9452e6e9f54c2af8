//! A transport without a network: like the apps in the folder `flower`, it takes requests from the coordinator's socket,
//! passes them to the nodes' sockets, and returns their replies.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One exchange over a Unix socket.
pub fn ask(
    socket: &Path,
    method: &str,
    path: &str,
    body: &[u8],
) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket)?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: local\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    // A server may refuse a request before it has read all of it; its answer can still be read.
    let sent = stream.write_all(&[head.as_bytes(), body].concat());
    let mut whole = Vec::new();
    let read = stream.read_to_end(&mut whole);
    if whole.is_empty() {
        sent?;
        read?;
    }
    let end = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(whole.len());
    let status = String::from_utf8_lossy(&whole[..end]);
    let status = status.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, whole[(end + 4).min(whole.len())..].to_vec()))
}

/// The behaviour of a node.
#[derive(Clone)]
pub enum Far {
    /// It answers on its socket.
    Node(PathBuf),
    /// It joins through its socket, but loses requests to train.
    Silent(PathBuf),
    /// It joins through its socket, and then always sends this answer.
    Says(PathBuf, u16, Vec<u8>),
    /// It answers several requests at a time: the transport does not wait for one to be answered before it delivers
    /// another.
    SideBySide(PathBuf),
    /// Its replies are delivered twice, at the same time.
    Twice(PathBuf),
    /// After its first answer to `train`, the transport pauses for this long; then the node is connected again, or not.
    Away { node: PathBuf, trained: Arc<AtomicBool>, long: Duration, returns: bool },
    /// It joins through the first socket. At its first request to train, it is replaced by the node on the second
    /// socket.
    Replaced(PathBuf, PathBuf, Arc<AtomicBool>),
}

/// Works until the coordinator is done; returns whether the run was successful.
pub fn carry(coordinator: PathBuf, nodes: BTreeMap<String, Far>) -> bool {
    let mut names: Vec<&String> = nodes.keys().collect();
    let mut was_away = false;
    std::thread::scope(|throughout| {
        loop {
            let asking = json!({ "protocol": 1, "session": "test", "nodes": names }).to_string();
            let Ok((200, work)) = ask(&coordinator, "POST", "/v1/work", asking.as_bytes()) else {
                return false;
            };
            let work: Value = serde_json::from_slice(&work).unwrap();
            if work["state"] == "done" {
                return work["ok"].as_bool().unwrap();
            }
            std::thread::scope(|scope| {
                for order in work["requests"].as_array().unwrap() {
                    let (coordinator, nodes) = (&coordinator, &nodes);
                    if let Far::SideBySide(_) = nodes[order["node"].as_str().unwrap()] {
                        let order = order.clone();
                        throughout.spawn(move || deliver(coordinator, nodes, &order));
                    } else {
                        scope.spawn(move || deliver(coordinator, nodes, order));
                    }
                }
            });
            for (name, node) in &nodes {
                if let Far::Away { trained, long, returns, .. } = node
                    && trained.swap(false, Ordering::Relaxed)
                    && !std::mem::replace(&mut was_away, true)
                {
                    std::thread::sleep(*long);
                    names.retain(|other| *returns || *other != name);
                }
            }
        }
    })
}

fn deliver(coordinator: &Path, nodes: &BTreeMap<String, Far>, order: &Value) {
    let id = &order["id"];
    let path = format!("/v1/requests/{id}");
    let Ok((200, body)) = ask(coordinator, "GET", &path, b"") else { return };
    let path = order["path"].as_str().unwrap();
    let reply = |status: u16, reply: &[u8]| {
        let path = format!("/v1/replies/{id}?status={status}");
        // The coordinator may refuse it before it has read all of it.
        ask(coordinator, "POST", &path, reply).map_or(0, |found| found.0)
    };
    let through = |node: &Path| match ask(node, "POST", path, &body) {
        Ok((status, body)) => {
            reply(status, &body);
        }
        Err(error) => {
            let reason = json!({ "reason": error.to_string() }).to_string();
            ask(coordinator, "POST", &format!("/v1/failures/{id}"), reason.as_bytes()).unwrap();
        }
    };
    match &nodes[order["node"].as_str().unwrap()] {
        Far::Node(node) | Far::SideBySide(node) => through(node),
        Far::Away { node, trained, .. } => {
            through(node);
            trained.store(path.starts_with("/v1/train"), Ordering::Relaxed);
        }
        Far::Silent(node) | Far::Says(node, ..) if !path.starts_with("/v1/train") => through(node),
        Far::Silent(_) => {}
        Far::Twice(node) => {
            let (status, body) = ask(node, "POST", path, &body).unwrap();
            std::thread::scope(|scope| {
                let twice = [(); 2].map(|()| scope.spawn(|| reply(status, &body)));
                let taken = twice.map(|one| one.join().unwrap() == 204);
                assert_ne!(taken[0], taken[1]);
            });
        }
        Far::Replaced(_, node, replaced) if replaced.load(Ordering::Relaxed) => through(node),
        Far::Replaced(node, ..) if path == "/v1/join" => through(node),
        Far::Replaced(_, _, replaced) => {
            replaced.store(true, Ordering::Relaxed);
            reply(428, b"join first");
        }
        Far::Says(_, status, reply) => {
            let path = format!("/v1/replies/{id}?status={status}");
            // A reply that is too long is not read completely.
            let _ = ask(coordinator, "POST", &path, reply);
        }
    }
}
