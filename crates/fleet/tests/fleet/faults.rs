//! Nodes that fail, hang, lie and come back.

use crate::transport::{Far, ask};
use crate::{coordinate, pictures, records, same, simulated, start_nodes};
use fedanchor_fleet::{Mailbox, Socket, coordinator};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

const ALL: &str = "client.per_round=3";

fn place() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_owned();
    pictures(&path);
    (folder, path)
}

fn numbers(record: &Value, key: &str) -> Vec<u64> {
    record[key].as_array().map_or(Vec::new(), |all| all.iter().filter_map(Value::as_u64).collect())
}

/// One is silent: the round does not wait for it longer than the deadline, and it is not punished.
#[test]
fn a_round_ends_at_its_deadline() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    far.insert("8".to_owned(), Far::Silent(nodes[1].path().to_owned()));
    let out = place.join("fleet");
    coordinate(&place, &out, false, &[ALL, "fleet.deadline=8", "rounds=1"], far).unwrap();
    let record = &records(&out)[1];
    assert_eq!(numbers(record, "absent"), [1], "{record}");
    assert_eq!((&record["trained"], &record["rejected"]), (&json!(2), &json!([])), "{record}");
}

/// What is no answer is rejected and counted; what is too long is not even read.
#[test]
fn garbage_is_rejected_and_named() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    let says = |at: usize, reply: Vec<u8>| Far::Says(nodes[at].path().to_owned(), 200, reply);
    far.insert("9".to_owned(), says(0, b"no answer at all".to_vec()));
    far.insert("8".to_owned(), says(1, vec![0; 64 << 20]));
    let out = place.join("fleet");
    coordinate(&place, &out, false, &[ALL, "rounds=4", "method.threshold=-1"], far).unwrap();
    let records = records(&out);
    for record in &records[1..=3] {
        assert_eq!(record["rejected"][0]["client"], 0, "{record}");
        assert!(record["rejected"][0]["reason"].as_str().unwrap().contains("cannot be decoded"));
        assert_eq!(numbers(record, "absent"), [1], "{record}");
    }
    // After three offences it is not asked again.
    assert_eq!(numbers(&records[4], "clients"), [1, 2]);
}

/// A node that answers with an error is absent; the run goes on.
#[test]
fn a_node_that_fails_is_absent() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    let broken = Far::Says(nodes[2].path().to_owned(), 500, b"out of \x1b[31mmemory".to_vec());
    far.insert("7".to_owned(), broken);
    let out = place.join("fleet");
    coordinate(&place, &out, false, &[ALL, "rounds=2"], far).unwrap();
    assert!(records(&out)[1..].iter().all(|record| numbers(record, "absent") == [2]));
}

/// The coordinator and all nodes are started anew between two rounds: the run ends in the same bytes, with what
/// clients keep.
#[test]
fn a_fleet_that_was_stopped_resumes_to_the_same_bytes() {
    let (_folder, place) = place();
    let more = ["method.name=fedcon", "method.predictor=64", ALL];
    let simulated = simulated(&place, &more);
    let out = place.join("fleet");
    for (resume, rounds) in [(false, "rounds=1"), (true, "rounds=2")] {
        let (_nodes, far) = start_nodes(&place);
        coordinate(&place, &out, resume, &[&more[..], &[rounds]].concat(), far).unwrap();
    }
    same(&simulated, &out);
}

/// Requests that make no sense are refused by both sockets, which go on.
#[test]
fn nonsense_is_refused() {
    let (_folder, place) = place();
    let (nodes, _) = start_nodes(&place);
    let mailbox = Arc::new(Mailbox::new(&place.join("replies")).unwrap());
    let id = mailbox.post("7", "/v1/join", b"terms".to_vec().into(), None, 100);
    let routes = coordinator::routes(mailbox);
    let socket = Socket::serve(&place.join("c.sock"), routes).unwrap();
    let asking = |nodes: &Value, protocol: u32| {
        json!({ "protocol": protocol, "session": "s", "nodes": nodes }).to_string().into_bytes()
    };
    let reply = format!("/v1/replies/{id}");
    for (method, path, body, status) in [
        ("POST", "/v1/work", b"{".to_vec(), 400),
        ("POST", "/v1/work", asking(&json!([]), 2), 409),
        ("POST", "/v1/work", asking(&json!({ "a": 1 }), 1), 400),
        ("GET", "/v1/work", vec![], 405),
        ("GET", "/v1/requests/12345", vec![], 410),
        ("GET", "/v1/requests/x", vec![], 400),
        ("POST", "/v1/replies/12345?status=200", vec![1], 410),
        ("POST", &reply, vec![1], 400),
        ("POST", &format!("{reply}?status=99999"), vec![1], 400),
        ("POST", "/v1/failures/12345", b"{\"reason\":\"x\"}".to_vec(), 410),
        ("GET", "/../../etc/passwd", vec![], 404),
        ("GET", &format!("/v1/requests/{id}"), vec![], 200),
    ] {
        let found = ask(socket.path(), method, path, &body).unwrap();
        assert_eq!(found.0, status, "{method} {path}: {}", String::from_utf8_lossy(&found.1));
    }
    let node = nodes[0].path();
    for (path, body, status) in [
        ("/v1/join", b"{}".to_vec(), 409),
        ("/v1/train", b"anything".to_vec(), 428),
        ("/v1/other", vec![], 404),
    ] {
        assert_eq!(ask(node, "POST", path, &body).unwrap().0, status, "{path}");
    }
}
