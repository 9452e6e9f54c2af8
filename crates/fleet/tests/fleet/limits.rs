//! Limits on the requests of a coordinator, or of another process on the machine of a node.

use crate::faults::{ALL, broadcast, place, request, terms};
use crate::transport::{Far, ask};
use crate::{coordinate_with_heartbeats, join_parts, records, start_node, start_nodes};
use fedanchor_fleet::node::{Clients, Node};
use fedanchor_fleet::protocol::TrainHeader;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

fn start(place: &Path) -> Node {
    start_node(place, "ward", Clients::One("ward".to_owned()), "all/unlabelled/client-2")
}

fn post(node: &Node, path: &str, body: &[u8]) -> (u16, String) {
    let (status, words) = ask(node.path(), "POST", path, body).unwrap();
    (status, String::from_utf8_lossy(&words).into_owned())
}

/// Numbers that would cost memory or hours are refused with their keys, and the node keeps serving.
#[test]
fn an_excessive_run_is_not_joined() {
    let (_folder, place) = place();
    let node = start(&place);
    let terms = terms(&place, &[]);
    let good: Value = serde_json::from_slice(&terms).unwrap();
    let text = good["experiment"].as_str().unwrap();
    let with = |setting: &str| {
        let mut experiment: toml::Table = text.parse().unwrap();
        let (path, value) = setting.split_once('=').unwrap();
        let (section, key) = path.split_once('.').unwrap();
        let section = experiment[section].as_table_mut().unwrap();
        section.insert(key.to_owned(), value.parse().unwrap());
        json!(experiment.to_string())
    };
    let own = "its images do not fit the run: see the node's log";
    for (key, value, problem) in [
        ("/classes", json!(1_000_000_000), "expected 1 to 65536 classes, got 1000000000"),
        ("/classes", json!(10_000_000), "classes, got 10000000"),
        ("/classes", json!(0), "classes, got 0"),
        ("/format/shape/side", json!(225), own), // images of 28 pixels would be enlarged more than eightfold
        ("/format/shape/side", json!(4097), "expected 16 to 4096 pixels per side, got 4097"),
        ("/format/shape/side", json!(15), "pixels per side, got 15"),
        ("/format/shape/channels", json!(1_000_000), "expected 1 or 3 channels, got 1000000"),
        ("/normalisation/mean", json!([0.5, 0.5]), "the normalisation does not fit"),
        ("/normalisation/std", json!([0.0]), "the normalisation does not fit"),
        ("/experiment", with("client.epochs=1001"), "client.epochs: must be at most 1000"),
        (
            "/experiment",
            with("client.batch=8193"),
            "client.batch: must be between 2 and 8192, got 8193",
        ),
        (
            "/experiment",
            with("model.latent_dim=65537"),
            "model.latent_dim: must be between 1 and 65536, got 65537",
        ),
        ("/experiment", with("model.init_from=\"/etc/passwd\""), "model.init_from: a client does"),
        ("/protocol", json!(1), "with protocol 1, this node"),
    ] {
        let mut terms = good.clone();
        *terms.pointer_mut(key).unwrap() = value.clone();
        let (status, words) = post(&node, "/v1/join", terms.to_string().as_bytes());
        assert_eq!(status, 409, "{key} = {value}: {words}");
        assert!(words.contains(problem), "{key} = {value}: {words}");
    }
    let mut large = good.clone();
    large["classes"] = json!(65_536);
    large["format"]["shape"]["side"] = json!(224);
    large["experiment"] = with("client.batch=8192");
    let (status, words) = post(&node, "/v1/join", large.to_string().as_bytes());
    let problem = "of memory, more than is free on this node";
    assert!(status == 409 && words.contains(problem), "{status}: {words}");
    let long = vec![b' '; 3 << 20];
    assert_eq!(post(&node, "/v1/join", &long).0, 413);
    assert_eq!(post(&node, "/v1/join", &terms).0, 200);
}

/// An answer contains at most one update per client, whatever the request.
#[test]
fn a_client_is_trained_once_per_request() {
    let (_folder, place) = place();
    let node = start(&place);
    assert_eq!(post(&node, "/v1/join", &terms(&place, &["method.threshold=-1"])).0, 200);
    let mut sent = broadcast(&place);
    let encoded = sent.encode(0).unwrap();
    let with = |clients: Vec<(String, u32)>| {
        let header = TrainHeader { run: "run".to_owned(), clients };
        join_parts(&[&encoded, &serde_json::to_vec(&header).unwrap()])
    };
    let once = "a train request must list each client exactly once";
    let ward = |number: u32| ("ward".to_owned(), number);
    for (clients, status, problem) in [
        ((0..600).map(ward).collect(), 400, once),
        (vec![ward(0), ("other".to_owned(), 0)], 400, once),
        (vec![ward(0), ("other".to_owned(), 1)], 404, "unknown client in train request"),
        (vec![ward(100_000)], 400, "client number 100000 is not below 100000"),
        (vec![ward(u32::MAX)], 400, "client number 4294967295"),
    ] {
        let (found, words) = post(&node, "/v1/train", &with(clients));
        assert_eq!((found, words.contains(problem)), (status, true), "{words}");
    }
    sent.round = 3;
    let late = request(&sent, "ward");
    assert_eq!(
        post(&node, "/v1/train", &late),
        (400, "round 3 is out of range: the run has 2 rounds".to_owned())
    );
    let (status, answer) = ask(node.path(), "POST", "/v1/train", &with(vec![ward(9)])).unwrap();
    assert!(status == 200 && answer.len() < 2 * encoded.len(), "{status}, {} bytes", answer.len());
}

/// Requests that never end neither block others nor keep the node from stopping.
#[test]
fn stalled_requests_block_nothing() {
    let (_folder, place) = place();
    let node = start(&place);
    let mut stalled = Vec::new();
    for beginning in [
        "POST /v1/train HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\nsome of it",
        "POST /v1/join HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n",
        "POST /v1/train HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nsome ",
        "POST /v1/tr",
        "",
    ] {
        for _ in 0..20 {
            let mut stream = UnixStream::connect(node.path()).unwrap();
            stream.write_all(beginning.as_bytes()).unwrap();
            stalled.push(stream);
        }
    }
    assert_eq!(post(&node, "/v1/join", &terms(&place, &["method.threshold=-1"])).0, 200);
    let request = request(&broadcast(&place), "ward");
    assert_eq!(post(&node, "/v1/train?task=5", &request).0, 200);
    node.stop().unwrap();
    drop(stalled);
}

/// A heartbeat lists requests while the node works on them.
#[test]
fn heartbeats_list_pending_requests() {
    let (_folder, place) = place();
    let node = start(&place);
    let training = ["method.threshold=-1", "client.epochs=100"];
    assert_eq!(post(&node, "/v1/join", &terms(&place, &training)).0, 200);
    let request = request(&broadcast(&place), "ward");
    let tasks = || {
        let (status, said) = post(&node, "/v1/alive", b"");
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<Value>(&said).unwrap()
    };
    assert_eq!(tasks(), json!({ "tasks": [] }));
    std::thread::scope(|scope| {
        let trained = [7, 8].map(|task| {
            let (node, request, path) = (&node, &request, format!("/v1/train?task={task}"));
            scope.spawn(move || post(node, &path, request).0)
        });
        while tasks() != json!({ "tasks": [7, 8] }) {
            assert!(!trained.iter().all(|one| one.is_finished()), "trained without being listed");
        }
        assert_eq!(trained.map(|one| one.join().unwrap()), [200, 200]);
    });
    assert_eq!(tasks(), json!({ "tasks": [] }));
}

/// Heartbeats are answered during training: a round waits for a node that trains for much longer than their interval.
#[test]
fn a_round_waits_for_a_slow_node() {
    let (_folder, place) = place();
    let (_nodes, far) = start_nodes(&place);
    let side_by_side = |far: Far| match far {
        Far::Node(node) => Far::SideBySide(node),
        other => other,
    };
    let far: BTreeMap<String, Far> =
        far.into_iter().map(|(name, far)| (name, side_by_side(far))).collect();
    let out = place.join("fleet");
    let more = [ALL, "rounds=1", "client.epochs=40", "method.threshold=-1"];
    let soon = Duration::from_millis(50);
    coordinate_with_heartbeats(&place, &out, false, &more, far, [soon; 2]).unwrap();
    let record = &records(&out)[1];
    assert_eq!((&record["trained"], &record["lost"]), (&json!(3), &Value::Null), "{record}");
}
