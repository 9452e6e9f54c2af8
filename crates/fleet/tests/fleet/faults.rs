//! Nodes that fail, hang, lie and come back.

use crate::transport::{Far, ask};
use crate::{
    coordinate, coordinate_with_heartbeats, join_parts, pictures, records, same, serve, simulated,
    start_nodes,
};
use fedanchor::experiment::client_settings;
use fedanchor::messages::Broadcast;
use fedanchor_fleet::node::Node;
use fedanchor_fleet::protocol::{JoinRequest, PROTOCOL, TrainHeader};
use fedanchor_fleet::{Mailbox, Reply};
use fedanchor_record::Build;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub const ALL: &str = "client.per_round=3";

pub fn place() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_owned();
    pictures(&path);
    (folder, path)
}

pub fn numbers(record: &Value, key: &str) -> Vec<u64> {
    record[key].as_array().map_or(Vec::new(), |all| all.iter().filter_map(Value::as_u64).collect())
}

/// The round waits for a silent node until the deadline, and does not punish it.
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

/// A node has lost a request, as a SuperNode does that is killed and restarted: although there is no deadline, the round
/// does not wait for it once a heartbeat does not list the request.
#[test]
fn a_request_that_a_node_has_lost_is_given_up() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    far.insert("8".to_owned(), Far::Silent(nodes[1].path().to_owned()));
    let out = place.join("fleet");
    let waits = [1, 3].map(Duration::from_secs);
    coordinate_with_heartbeats(&place, &out, false, &[ALL, "rounds=1"], far, waits).unwrap();
    let record = &records(&out)[1];
    let reason = "its node has lost the request, or its answer was lost";
    assert_eq!(record["lost"], json!([{ "client": 1, "reason": reason }]), "{record}");
    assert_eq!(record["trained"], json!(2), "{record}");
}

/// A round that asks more clients than it needs does not wait for the slowest.
#[test]
fn a_round_does_not_wait_for_more_than_it_needs() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    far.insert("9".to_owned(), Far::Silent(nodes[0].path().to_owned()));
    let out = place.join("fleet");
    coordinate(&place, &out, false, &["client.per_round=2", "fleet.ask=1", "rounds=2"], far)
        .unwrap();
    for record in &records(&out)[1..] {
        assert_eq!(numbers(record, "clients"), [0, 1, 2], "{record}");
        assert_eq!(
            (numbers(record, "absent"), &record["trained"]),
            (vec![0], &json!(2)),
            "{record}"
        );
    }
}

/// An answer that is rejected does not count towards those that a round needs.
#[test]
fn a_round_that_asks_more_waits_for_answers_that_count() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    far.insert("9".to_owned(), Far::Says(nodes[0].path().to_owned(), 200, b"garbage".to_vec()));
    let out = place.join("fleet");
    let settings = ["client.per_round=2", "fleet.ask=1", "rounds=2", "method.threshold=-1"];
    coordinate(&place, &out, false, &settings, far).unwrap();
    for record in &records(&out)[1..] {
        let absent = numbers(record, "absent");
        assert!(!absent.contains(&1) && !absent.contains(&2), "{record}");
    }
}

/// A malformed answer is rejected and counted; one that is too long is not read.
#[test]
fn malformed_answers_are_rejected_and_recorded() {
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
        // The other node has to join again first.
        assert_eq!(record["trained"], 1, "{record}");
    }
    let lost = &records[1]["lost"][0];
    assert_eq!(lost["client"], 1, "{lost}");
    assert!(lost["reason"].as_str().unwrap().starts_with("its reply was refused: more than"));
    // After three offences it is excluded.
    assert!(!numbers(&records[4], "clients").contains(&0), "{}", records[4]);
}

/// A node that answers with an error is absent until it has joined again; the run continues.
#[test]
fn a_node_that_fails_is_absent() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    let broken = Far::Says(nodes[2].path().to_owned(), 500, b"out of \x1b[31mmemory".to_vec());
    far.insert("7".to_owned(), broken);
    let out = place.join("fleet");
    coordinate(&place, &out, false, &[ALL, "rounds=2"], far).unwrap();
    let records = records(&out);
    let reason = "its node answered with status 500: out of \u{fffd}[31mmemory";
    assert_eq!(numbers(&records[1], "absent"), [2], "{}", records[1]);
    assert_eq!(records[1]["lost"], json!([{ "client": 2, "reason": reason }]), "{}", records[1]);
    assert_eq!(numbers(&records[2], "clients"), [0, 1], "{}", records[2]);
}

fn away(nodes: &[Node], long: u64, returns: bool) -> Far {
    let (node, trained) = (nodes[1].path().to_owned(), Arc::default());
    Far::Away { node, trained, long: Duration::from_secs(long), returns }
}

/// A node disconnects before it takes its request: the round does not wait for it, although there is no deadline.
#[test]
fn a_node_that_left_before_it_was_asked_is_absent() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    far.insert("8".to_owned(), away(&nodes, 2, false));
    let out = place.join("fleet");
    coordinate(&place, &out, false, &[ALL, "rounds=3"], far).unwrap();
    let records = records(&out);
    let lost = json!([{ "client": 1, "reason": "its node has disconnected" }]);
    // A machine so busy that the round begins after the node has left draws the others.
    let late = records[2]["lost"].is_null() && numbers(&records[2], "clients") == [0, 2];
    assert!(records[2]["lost"] == lost || late, "{}", records[2]);
    assert_eq!(numbers(&records[3], "clients"), [0, 2], "{}", records[3]);
}

/// Without a transport no round starts, although there is a deadline.
#[test]
fn rounds_wait_for_the_transport() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    far.insert("8".to_owned(), away(&nodes, 12, true));
    let out = place.join("fleet");
    let rounds = 8;
    let settings = [ALL, "fleet.deadline=2", &format!("rounds={rounds}")];
    coordinate(&place, &out, false, &settings, far).unwrap();
    let outcomes: Vec<String> =
        records(&out)[1..].iter().map(|record| record["outcome"].to_string()).collect();
    // Those that began before anybody could know.
    let lost = outcomes.iter().filter(|outcome| *outcome == "\"no-quorum\"").count();
    assert!(lost <= 3 && outcomes[rounds - 1] == "\"applied\"", "{outcomes:?}");
}

/// The coordinator and all nodes are restarted between two rounds: the run ends in the same bytes, since the states of
/// clients are kept.
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

/// Malformed requests are refused by both sockets, which keep serving.
#[test]
fn malformed_requests_are_refused() {
    let (_folder, place) = place();
    let (nodes, _) = start_nodes(&place);
    let mailbox = Arc::new(Mailbox::new(&place.join("replies")));
    mailbox.open().unwrap();
    let post = || mailbox.post("7", "/v1/join", vec![b"terms".to_vec().into()], None, 100);
    let ids = [(); 5].map(|()| post());
    let socket = serve(&place.join("c.sock"), &mailbox);
    let poll = |nodes: &Value, protocol: u32| {
        json!({ "protocol": protocol, "session": "s", "nodes": nodes }).to_string().into_bytes()
    };
    let later = json!({ "protocol": 1, "session": "t", "nodes": ["7"] }).to_string().into_bytes();
    let reply = |at: usize| format!("/v1/replies/{}", ids[at]);
    for (method, path, body, status) in [
        ("POST", "/v1/work", b"{".to_vec(), 400),
        ("POST", "/v1/work", poll(&json!([]), 2), 409),
        ("POST", "/v1/work", poll(&json!({ "a": 1 }), 1), 400),
        ("GET", "/v1/work", vec![], 405),
        ("GET", "/v1/requests/12345", vec![], 410),
        ("GET", "/v1/requests/x", vec![], 400),
        ("POST", "/v1/replies/12345?status=200", vec![1], 410),
        ("POST", "/v1/work", poll(&json!(["7"]), 1), 200),
        ("POST", "/v1/work", later, 200),
        ("POST", "/v1/work", poll(&json!(["7"]), 1), 409),
        ("GET", &format!("/v1/requests/{}", ids[0]), vec![], 200),
        // A reply that is refused ends its request.
        ("POST", &reply(0), vec![1], 400),
        ("POST", &format!("{}?status=99999", reply(1)), vec![1], 400),
        ("POST", &format!("{}?status=7", reply(2)), vec![1], 400),
        ("POST", &format!("{}?status=200", reply(3)), vec![1; 101], 413),
        ("POST", &format!("/v1/failures/{}", ids[4]), b"{".to_vec(), 400),
        ("POST", "/v1/failures/12345", b"{\"reason\":\"x\"}".to_vec(), 410),
        ("GET", "/../../etc/passwd", vec![], 404),
        ("GET", &format!("/v1/requests/{}", ids[0]), vec![], 410),
    ] {
        let found = ask(socket.path(), method, path, &body).unwrap();
        assert_eq!(found.0, status, "{method} {path}: {}", String::from_utf8_lossy(&found.1));
    }
    for id in ids {
        let found = mailbox.next_reply(&BTreeSet::from([id]), Duration::ZERO).unwrap().1;
        assert!(matches!(found.reply, Reply::Failure(_)), "{id}: {found:?}");
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

/// Random requests to both sockets, some of them nearly valid: neither crashes, and memory does not grow.
/// FEDANCHOR_REQUESTS sets how many.
#[test]
fn random_requests_do_no_harm() {
    let (_folder, place) = place();
    let (nodes, _) = start_nodes(&place);
    let mailbox = Arc::new(Mailbox::new(&place.join("replies")));
    let socket = serve(&place.join("c.sock"), &mailbox);
    let count = std::env::var("FEDANCHOR_REQUESTS").map_or(2000, |count| count.parse().unwrap());
    let (join, train) = (terms(&place, &[]), request(&broadcast(&place), "client-2"));
    assert_eq!(ask(nodes[0].path(), "POST", "/v1/join", &join).unwrap().0, 200);
    let whole = ask(nodes[0].path(), "POST", "/v1/train", &train).unwrap();
    assert_eq!(whole.0, 200, "{}", String::from_utf8_lossy(&whole.1));
    let mut random = Random(7);
    let mut before = 0;
    let mut seen = std::collections::BTreeMap::new();
    for number in 0..count {
        if number == count / 4 {
            before = resident(); // everything has been used once by now
        }
        if number == count / 2 {
            mailbox.end(true, String::new(), Duration::ZERO); // the other half arrives after the end of the run
        }
        let id = mailbox.post("7", "/v1/train", vec![vec![0; 10].into()], None, 1000);
        let paths = ["/v1/work", "/v1/join", "/v1/train", "/", "/v1/requests/", "/v1/replies/"];
        let path = match random.below(4) {
            0 => format!("/v1/replies/{}?status={}", id + random.below(2), random.below(700)),
            1 => format!("/v1/failures/{id}"),
            _ => format!(
                "{}{}",
                paths[random.below(6) as usize],
                ["", "1", "%00"][random.below(3) as usize]
            ),
        };
        let body = match random.below(5) {
            0 => random.mutate(&train),
            1 => random.mutate(&join),
            2 => random.mutate(br#"{"protocol":1,"session":"a","nodes":["7"]}"#),
            3 => vec![0; random.below(3000) as usize],
            _ => Vec::new(),
        };
        let to = if random.below(2) == 0 { socket.path() } else { nodes[0].path() };
        // There is work for node 7, so that polls before the end return at once.
        let status = ask(to, ["GET", "POST", "PUT"][random.below(3) as usize], &path, &body);
        *seen.entry(status.map_or(0, |found| found.0)).or_insert(0) += 1;
        mailbox.cancel(id);
    }
    let grown = resident().saturating_sub(before);
    // One request in five is a request to train, of 340 kB: a leak of a sixth of them would exceed this.
    assert!(grown < 16 << 20, "memory has grown by {} MiB", grown >> 20);
    assert!(seen.len() > 5, "{seen:?}");
    assert_eq!(ask(nodes[0].path(), "POST", "/v1/join", &join).unwrap().0, 200);
    assert_eq!(ask(socket.path(), "GET", "/v1/requests/1", b"").unwrap().0, 410);
}

/// The bytes of memory that this process holds.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// A small random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// The bytes with some of them changed, and perhaps cut off.
    fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..self.below(4) {
            // Most of a message are weights: its structure is at the beginning.
            let end = if self.below(2) == 0 { bytes.len().min(600) } else { bytes.len() };
            let at = self.below(end as u64) as usize;
            bytes[at] = self.below(256) as u8;
        }
        if self.below(4) == 0 {
            bytes.truncate(self.below(bytes.len() as u64) as usize);
        }
        bytes
    }
}

fn federation(place: &Path, more: &[&str]) -> fedanchor::Federation {
    let experiment = crate::experiment(place, "server", more);
    let data = fedanchor::simulation::load(&experiment).unwrap();
    fedanchor::Federation::new(&experiment, data, Some(1)).unwrap()
}

/// The join request of a coordinator.
pub fn terms(place: &Path, more: &[&str]) -> Vec<u8> {
    let federation = federation(place, more);
    let images = &federation.context.images;
    let experiment = federation.settled().unwrap();
    serde_json::to_vec(&JoinRequest {
        protocol: PROTOCOL,
        build: Build::current().clone(),
        run: "run".to_owned(),
        experiment: client_settings(&experiment).unwrap(),
        classes: federation.classes.len(),
        class_names: federation.classes.clone(),
        format: images.format,
        trunk: federation.trunk.clone(),
        normalisation: images.normalisation.clone(),
        flip: images.flip,
    })
    .unwrap()
}

/// The broadcast of the first round.
pub fn broadcast(place: &Path) -> Broadcast {
    let federation = federation(place, &[]);
    let server = federation.coordinator().unwrap().server;
    federation.method.broadcast(&server, 1, &[0]).unwrap().unwrap()
}

/// The request to train a client of this name.
pub fn request(broadcast: &Broadcast, client: &str) -> Vec<u8> {
    let header = TrainHeader { run: "run".to_owned(), clients: vec![(client.to_owned(), 0)] };
    join_parts(&[&broadcast.encode(0).unwrap(), &serde_json::to_vec(&header).unwrap()])
}
