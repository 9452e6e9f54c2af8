use super::*;
use crate::mailbox::Poll;
use crate::protocol::CLIENTS;
use fedanchor_record::Build;
use std::io::Write;
use tempfile::TempDir;

fn members() -> (TempDir, MemberList) {
    members_with(10)
}

fn members_with(per_node: usize) -> (TempDir, MemberList) {
    let folder = TempDir::new().unwrap();
    let mailbox = Mailbox::new(&folder.path().join("replies"));
    mailbox.open().unwrap();
    (folder, MemberList::new(Arc::new(mailbox), Bytes::new(), per_node))
}

fn connect(members: &mut MemberList, nodes: &[&str]) {
    connect_with_keys(members, &nodes.iter().map(|&node| (node, "")).collect::<Vec<_>>());
}

/// Nodes with their keys; no key where it is empty.
fn connect_with_keys(members: &mut MemberList, nodes: &[(&str, &str)]) {
    let keys = nodes.iter().filter(|(_, key)| !key.is_empty());
    let keys = keys.map(|&(node, key)| (node.to_owned(), key.to_owned())).collect();
    let nodes = nodes.iter().map(|&(node, _)| node.to_owned()).collect();
    let poll = Poll { protocol: 1, session: "a".to_owned(), nodes, keys, holds: None };
    members.mailbox.work(&poll, Duration::ZERO).unwrap();
    members.poll();
}

fn answer(members: &mut MemberList, node: &str, status: u16, body: &[u8]) {
    let Some(NodeState::Joining { request, .. }) = members.nodes.get(node) else {
        panic!("{node}")
    };
    let (request, (spooled, mut file)) = (*request, members.mailbox.spool().unwrap());
    file.write_all(body).unwrap();
    members.take(request, Reply::Answer(status, spooled));
}

fn join(members: &mut MemberList, node: &str, clients: &[(&str, usize)]) {
    let client =
        |(name, samples): &(&str, usize)| serde_json::json!({ "name": name, "samples": samples });
    let clients: Vec<_> = clients.iter().map(client).collect();
    let joined = serde_json::json!({ "protocol": PROTOCOL, "version": "0", "clients": clients });
    answer(members, node, 200, joined.to_string().as_bytes());
}

fn present(members: &MemberList) -> Vec<(String, usize)> {
    let members = members.present().into_iter();
    members.map(|member| (member.key.to_string(), member.samples)).collect()
}

fn clients(names: &[(&str, usize)]) -> Vec<(String, usize)> {
    names.iter().map(|(name, samples)| ((*name).to_owned(), *samples)).collect()
}

/// How many clients were last on each node.
fn counts(members: &MemberList) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    members
        .last_nodes
        .values()
        .flatten()
        .for_each(|node| *counts.entry(node.clone()).or_default() += 1);
    counts
}

#[test]
fn a_node_that_joins_again_has_the_clients_that_it_lists_now() {
    let (_folder, mut members) = members();
    connect(&mut members, &["7"]);
    join(&mut members, "7", &[("a", 10), ("b", 20)]);
    assert_eq!(present(&members), clients(&[("a", 10), ("b", 20)]));
    members.request_join("7");
    assert_eq!(present(&members), []);
    join(&mut members, "7", &[("b", 21), ("c", 5)]);
    assert_eq!(present(&members), clients(&[("b", 21), ("c", 5)]));
    connect(&mut members, &[]);
    assert_eq!(present(&members), []);
}

#[test]
fn another_build_is_noted_once() {
    let (_folder, mut members) = members();
    connect(&mut members, &["7", "8", "9"]);
    let mut join = |node: &str, build: serde_json::Value| {
        let mut joined = serde_json::json!({
            "protocol": PROTOCOL, "clients": [{ "name": format!("at {node}"), "samples": 1 }],
        });
        joined.as_object_mut().unwrap().extend(build.as_object().unwrap().clone());
        answer(&mut members, node, 200, joined.to_string().as_bytes());
        members.request_join(node);
        std::mem::take(&mut members.notes)
    };
    let here = Build::current();
    assert_eq!(join("7", serde_json::json!(here)), [""; 0]);
    let other =
        serde_json::json!({ "version": "0.0.9", "commit": "abc\u{1b}[2J", "changed": true });
    let note = format!("node 8 has another build: 0.0.9 (abc\u{fffd}[2J, changed), not {here}");
    assert_eq!(join("8", other.clone()), [note]);
    assert_eq!(join("8", other), [""; 0]);
    // A node of an earlier version does not send its commit.
    let earlier = join("9", serde_json::json!({ "version": "0.0.8" }));
    assert_eq!(earlier, [format!("node 9 has another build: 0.0.8 (commit unknown), not {here}")]);
}

/// Whatever a node sends, it alone is suspended, and asked again later.
#[test]
fn a_node_that_does_not_join_is_asked_again() {
    let (_folder, mut members) = members();
    let long = vec![b'x'; 20 << 20];
    let refusals: [(u16, &[u8]); 4] = [(409, b"no"), (500, &long), (200, b"garbage"), (200, &long)];
    for (status, body) in refusals {
        connect(&mut members, &["7"]);
        answer(&mut members, "7", status, body);
        assert!(matches!(members.node("7"), Some(NodeState::Suspended { .. })));
        assert!(members.failures["7"].0.len() < 500);
        assert_eq!(members.pending().count(), 0);
        connect(&mut members, &["7"]);
        assert_eq!(members.pending().count(), 0, "not at once");
        connect(&mut members, &[]);
    }
    connect(&mut members, &["7"]);
    answer(&mut members, "7", 409, b"no");
    members.nodes.insert("7".to_owned(), NodeState::Suspended { until: Instant::now() });
    members.poll();
    join(&mut members, "7", &[("a", 1)]);
    assert_eq!(present(&members), clients(&[("a", 1)]));
}

/// While a node joins again or is suspended, no other node can take its clients' names.
#[test]
fn a_connected_node_keeps_its_names() {
    let (_folder, mut members) = members();
    connect(&mut members, &["7", "8"]);
    join(&mut members, "7", &[("a", 1)]);
    let refused = |members: &mut MemberList| {
        members.request_join("8");
        join(members, "8", &[("a", 2)]);
        matches!(members.node("8"), Some(NodeState::Suspended { .. }))
    };
    members.request_join("7");
    assert!(refused(&mut members));
    answer(&mut members, "7", 500, b"no");
    assert!(refused(&mut members));
    members.request_join("7");
    join(&mut members, "7", &[("a", 1)]);
    assert_eq!(present(&members), clients(&[("a", 1)]));
}

#[test]
fn a_node_that_keeps_failing_is_asked_less_often() {
    let (_folder, mut members) = members();
    connect(&mut members, &["7"]);
    let mut wait = || {
        members.request_join("7");
        members.mark_failed("7", "no".to_owned());
        members.mark_failed("7", "no".to_owned()); // the same failure
        let Some(NodeState::Suspended { until, .. }) = members.node("7") else { panic!() };
        until.saturating_duration_since(Instant::now()).as_secs_f64().round() as u64
    };
    assert_eq!([(); 6].map(|()| wait()), [10, 20, 40, 80, 160, 160]);
    members.mark_ok("7");
    members.request_join("7");
    members.mark_failed("7", "no".to_owned());
    assert_eq!(members.failures["7"].1, 1);
    connect(&mut members, &[]);
    assert!(members.failures.is_empty());
}

/// A node that still works on a cancelled request is asked again once it has finished.
#[test]
fn a_busy_node_is_not_present() {
    let (_folder, mut members) = members();
    connect(&mut members, &["7"]);
    join(&mut members, "7", &[("a", 1)]);
    let id = members.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    let hold = |members: &MemberList, holds: &[u64]| {
        let holds = Some(holds.iter().copied().collect());
        let nodes = [String::from("7")].into();
        let poll =
            Poll { protocol: 1, session: "a".to_owned(), nodes, keys: BTreeMap::new(), holds };
        members.mailbox.work(&poll, Duration::ZERO).unwrap();
    };
    hold(&members, &[]);
    members.mailbox.cancel(id);
    assert_eq!(present(&members), []);
    hold(&members, &[id]);
    assert_eq!(present(&members), []);
    hold(&members, &[]);
    assert_eq!(present(&members), clients(&[("a", 1)]));
}

/// A cancelled request is forgotten once a heartbeat of its node does not list it; any other heartbeat is not enough.
#[test]
fn a_node_that_has_lost_a_request_is_not_busy_for_ever() {
    let (_folder, mut members) = members();
    let ask = |members: &MemberList, holds: &[u64]| {
        let holds = Some(holds.iter().copied().collect());
        let nodes = [String::from("7")].into();
        let poll =
            Poll { protocol: 1, session: "a".to_owned(), nodes, keys: BTreeMap::new(), holds };
        members.mailbox.work(&poll, Duration::ZERO).unwrap()
    };
    connect(&mut members, &["7"]);
    join(&mut members, "7", &[("a", 1)]);
    let lost = members.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    ask(&members, &[]);
    members.mailbox.cancel(lost);
    members.poll();
    assert_eq!(members.pending().count(), 0, "it may still work on it");
    members.heartbeats.interval = Duration::ZERO;
    members.poll();
    members.poll();
    let pending: Vec<u64> = members.pending().collect();
    let [heartbeat] = pending[..] else { panic!("{pending:?}") };
    // A transport that cannot deliver it proves nothing about the node.
    members.take(heartbeat, Reply::Failure("no".to_owned()));
    assert!(members.mailbox.cancelled().contains_key(&lost));
    let say = |members: &mut MemberList, status: u16, body: &str| {
        members.poll();
        let heartbeat = members.pending().next().unwrap();
        let (spooled, mut file) = members.mailbox.spool().unwrap();
        file.write_all(body.as_bytes()).unwrap();
        members.take(heartbeat, Reply::Answer(status, spooled));
    };
    for _ in 0..2 {
        say(&mut members, 200, &format!("{{\"tasks\":[1,{lost}]}}"));
        assert_eq!((present(&members), members.pending().count()), (vec![], 0));
        assert!(members.mailbox.cancelled().contains_key(&lost));
    }
    say(&mut members, 200, "{\"tasks\":[1]}");
    assert_eq!((present(&members), members.pending().count()), (vec![], 0));
    members.poll();
    assert_eq!(present(&members), clients(&[("a", 1)]));
    assert_eq!(ask(&members, &[lost]).forget, [lost]);
}

/// A node whose process is gone, or that does not list its tasks, works on nothing.
#[test]
fn a_node_without_a_list_of_tasks_works_on_nothing() {
    for (status, said) in [(502, "nothing listens there"), (204, ""), (200, "garbage")] {
        let (_folder, mut members) = members();
        connect(&mut members, &["7"]);
        join(&mut members, "7", &[("a", 1)]);
        members.heartbeats.interval = Duration::ZERO;
        let asked = members.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
        let is_lost = |members: &mut MemberList| {
            members.heartbeats.is_lost("7", asked, Instant::now(), Duration::ZERO)
        };
        assert!(!is_lost(&mut members));
        let heartbeat = members.pending().next().unwrap();
        let (spooled, mut file) = members.mailbox.spool().unwrap();
        file.write_all(said.as_bytes()).unwrap();
        members.take(heartbeat, Reply::Answer(status, spooled));
        assert!(is_lost(&mut members), "{status} {said}");
    }
}

/// An impossible number of images is refused before anything is computed with it.
#[test]
fn a_client_has_a_possible_number_of_images() {
    let (_folder, mut members) = members();
    for samples in [0, SAMPLES + 1, usize::MAX] {
        connect(&mut members, &["7"]);
        join(&mut members, "7", &[("a", 1), ("b", samples)]);
        let (reason, _) = &members.failures["7"];
        assert!(
            reason
                .contains(&format!("client \"b\": expected 1 to {SAMPLES} images, got {samples}")),
            "{reason}"
        );
        connect(&mut members, &[]);
    }
    connect(&mut members, &["7"]);
    join(&mut members, "7", &[("a", 1), ("b", SAMPLES)]);
    assert_eq!(present(&members).len(), 2);
}

/// A name is free again once its node has disconnected.
#[test]
fn a_name_belongs_to_one_node_at_a_time() {
    let (_folder, mut members) = members();
    connect(&mut members, &["7", "8"]);
    join(&mut members, "7", &[("a", 1)]);
    join(&mut members, "8", &[("a", 2)]);
    assert_eq!(present(&members), clients(&[("a", 1)]));
    let (reason, _) = &members.failures["8"];
    assert!(reason.contains("names must differ"), "{reason}");
    connect(&mut members, &["8"]);
    members.request_join("8");
    join(&mut members, "8", &[("a", 2)]);
    assert_eq!(present(&members), clients(&[("a", 2)]));
}

/// The limit counts all clients that a node had in this run.
#[test]
fn clients_per_node_are_limited() {
    let (_folder, mut members) = members_with(2);
    connect(&mut members, &["7", "8"]);
    join(&mut members, "7", &[("a", 1), ("b", 1), ("c", 1)]);
    let (reason, _) = &members.failures["7"];
    assert!(
        reason.starts_with("3 clients of this node would have joined")
            && reason.ends_with("allows 2")
    );
    let again = |members: &mut MemberList, node: &str, names: &[&str]| {
        members.request_join(node);
        let clients: Vec<(&str, usize)> = names.iter().map(|name| (*name, 1)).collect();
        join(members, node, &clients);
        matches!(members.node(node), Some(NodeState::Joined))
    };
    assert!(again(&mut members, "7", &["a", "b"]));
    assert!(again(&mut members, "7", &["b", "a"]));
    assert!(!again(&mut members, "7", &["a", "d"]), "a third name");
    assert!(again(&mut members, "7", &["a"]));
    // A client that has moved counts for its new node.
    join(&mut members, "8", &[("b", 1)]);
    assert!(matches!(members.node("8"), Some(NodeState::Joined)));
    assert!(again(&mut members, "7", &["a", "d"]));
    assert_eq!(counts(&members), [("7".to_owned(), 2), ("8".to_owned(), 1)].into());
    // A new name of the node, as after a restart without registered keys.
    connect(&mut members, &["9"]);
    join(&mut members, "9", &[("a", 1), ("d", 1)]);
    assert_eq!(counts(&members), [("8".to_owned(), 1), ("9".to_owned(), 2)].into());
}

#[test]
fn clients_of_a_run_are_limited() {
    let (_folder, mut members) = members();
    members.expect((0..CLIENTS - 1).map(|number| number.to_string()));
    connect(&mut members, &["7"]);
    join(&mut members, "7", &[("5", 1), ("new", 1)]);
    assert_eq!(present(&members).len(), 2);
    connect(&mut members, &["7", "8"]);
    join(&mut members, "8", &[("newer", 1)]);
    assert!(matches!(members.node("8"), Some(NodeState::Suspended { .. })));
}

const ITS_KEY: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const ANOTHER: &str = "2222222222222222222222222222222222222222222222222222222222222222";
const A_NEW_KEY: &str = "3333333333333333333333333333333333333333333333333333333333333333";

/// A name belongs to the key that first joined with it: also while its node is gone, under another number, and after a
/// restart of the coordinator.
#[test]
fn a_name_is_bound_to_a_key() {
    let (folder, mut members) = members();
    let file = folder.path().join("node-keys.json");
    members.bindings = Some(Bindings::read(file.clone()).unwrap());
    connect_with_keys(&mut members, &[("7", ITS_KEY), ("8", ANOTHER)]);
    join(&mut members, "7", &[("ward", 1)]);
    join(&mut members, "8", &[("other", 2)]);
    assert_eq!(present(&members), clients(&[("other", 2), ("ward", 1)]));
    let takes_it = |members: &mut MemberList, node: &str, key: &str| {
        connect_with_keys(members, &[]);
        connect_with_keys(members, &[(node, key)]);
        join(members, node, &[("ward", 9)]);
        let joined = matches!(members.node(node), Some(NodeState::Joined));
        let reason = members.failures.get(node).map(|(reason, _)| reason.clone());
        assert!(
            joined
                || reason.is_some_and(|reason| {
                    reason.contains("bound to the key of another node")
                        || reason.contains("gives no key")
                })
        );
        joined
    };
    assert!(!takes_it(&mut members, "8", ANOTHER));
    assert!(!takes_it(&mut members, "9", ""), "a transport that gives no keys");
    assert!(takes_it(&mut members, "9", ITS_KEY), "its node under another number");

    // The coordinator is restarted.
    let (_other, mut members) = members_with(10);
    members.bindings = Some(Bindings::read(file.clone()).unwrap());
    members.expect(["ward".to_owned()].into_iter());
    assert!(!takes_it(&mut members, "8", ANOTHER));
    assert!(takes_it(&mut members, "7", ITS_KEY));

    // Its node has a new key. The same command again changes nothing.
    let release = [("ward".to_owned(), ITS_KEY[..8].to_owned())];
    Bindings::read(file.clone()).unwrap().release(&release).unwrap();
    assert_eq!(Bindings::read(file.clone()).unwrap().key("ward"), None);
    let (_other, mut members) = members_with(10);
    members.bindings = Some(Bindings::read(file.clone()).unwrap());
    assert!(takes_it(&mut members, "7", A_NEW_KEY));
    Bindings::read(file.clone()).unwrap().release(&release).unwrap();
    assert_eq!(Bindings::read(file).unwrap().key("ward"), Some(A_NEW_KEY));
    assert!(!takes_it(&mut members, "7", ITS_KEY));
}

/// The limit of clients per node holds for a key over restarts.
#[test]
fn clients_per_key_are_limited() {
    let (folder, mut members) = members_with(1);
    let file = folder.path().join("node-keys.json");
    members.bindings = Some(Bindings::read(file.clone()).unwrap());
    connect_with_keys(&mut members, &[("7", ITS_KEY)]);
    join(&mut members, "7", &[("a", 1)]);
    let (_other, mut members) = members_with(1);
    members.bindings = Some(Bindings::read(file).unwrap());
    connect_with_keys(&mut members, &[("9", ITS_KEY)]);
    join(&mut members, "9", &[("b", 1)]);
    let (reason, _) = &members.failures["9"];
    assert!(reason.starts_with("2 clients of this node would have joined"), "{reason}");
    connect_with_keys(&mut members, &[]);
    connect_with_keys(&mut members, &[("9", ITS_KEY)]);
    join(&mut members, "9", &[("a", 1)]);
    assert_eq!(present(&members), clients(&[("a", 1)]));
}

/// A file that is damaged is no reason to bind names anew.
#[test]
fn damaged_bindings_are_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("node-keys.json");
    for text in ["", "[]", "{\"y\":", "{\"y\":\"nothex\"}"] {
        std::fs::write(&file, text).unwrap();
        let refused = Bindings::read(file.clone()).unwrap_err().to_string();
        assert!(refused.starts_with("fleet.keys: ") && refused.contains("restore it"), "{refused}");
    }
}

#[test]
fn a_transport_without_keys_is_noted_once() {
    let (folder, mut members) = members();
    members.bindings = Some(Bindings::read(folder.path().join("keys")).unwrap());
    connect(&mut members, &["7", "8"]);
    join(&mut members, "7", &[("a", 1)]);
    join(&mut members, "8", &[("b", 1)]);
    let notes = members.notes.iter().filter(|note| note.contains("names of clients are not bound"));
    assert_eq!(notes.count(), 1, "{:?}", members.notes);
}
