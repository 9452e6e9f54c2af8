use super::*;
use crate::mailbox::Asking;
use crate::protocol::CLIENTS;
use fedanchor_record::Build;
use std::io::Write;
use tempfile::TempDir;

fn roster() -> (TempDir, Roster) {
    roster_with(10)
}

fn roster_with(per_node: usize) -> (TempDir, Roster) {
    let folder = TempDir::new().unwrap();
    let mailbox = Mailbox::new(&folder.path().join("replies"));
    mailbox.open().unwrap();
    (folder, Roster::new(Arc::new(mailbox), Bytes::new(), per_node))
}

fn connect(roster: &mut Roster, nodes: &[&str]) {
    let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
    let asking = Asking { protocol: 1, session: "a".to_owned(), nodes, holds: None };
    roster.mailbox.work(&asking, Duration::ZERO).unwrap();
    roster.tend();
}

fn answer(roster: &mut Roster, node: &str, status: u16, body: &[u8]) {
    let Some(Node::Asked { request, .. }) = roster.nodes.get(node) else { panic!("{node}") };
    let (request, (spooled, mut file)) = (*request, roster.mailbox.spool().unwrap());
    file.write_all(body).unwrap();
    roster.take(request, Reply::Answer(status, spooled));
}

fn join(roster: &mut Roster, node: &str, clients: &[(&str, usize)]) {
    let client =
        |(name, samples): &(&str, usize)| serde_json::json!({ "name": name, "samples": samples });
    let clients: Vec<_> = clients.iter().map(client).collect();
    let joined = serde_json::json!({ "protocol": PROTOCOL, "version": "0", "clients": clients });
    answer(roster, node, 200, joined.to_string().as_bytes());
}

fn present(roster: &Roster) -> Vec<(String, usize)> {
    let members = roster.present().into_iter();
    members.map(|member| (member.key.to_string(), member.samples)).collect()
}

fn clients(names: &[(&str, usize)]) -> Vec<(String, usize)> {
    names.iter().map(|(name, samples)| ((*name).to_owned(), *samples)).collect()
}

#[test]
fn a_node_that_joins_again_has_the_clients_that_it_names_now() {
    let (_folder, mut roster) = roster();
    connect(&mut roster, &["7"]);
    join(&mut roster, "7", &[("a", 10), ("b", 20)]);
    assert_eq!(present(&roster), clients(&[("a", 10), ("b", 20)]));
    roster.ask("7");
    assert_eq!(present(&roster), []);
    join(&mut roster, "7", &[("b", 21), ("c", 5)]);
    assert_eq!(present(&roster), clients(&[("b", 21), ("c", 5)]));
    connect(&mut roster, &[]);
    assert_eq!(present(&roster), []);
}

#[test]
fn another_build_is_noted_once() {
    let (_folder, mut roster) = roster();
    connect(&mut roster, &["7", "8", "9"]);
    let mut join = |node: &str, build: serde_json::Value| {
        let mut joined = serde_json::json!({
            "protocol": PROTOCOL, "clients": [{ "name": format!("at {node}"), "samples": 1 }],
        });
        joined.as_object_mut().unwrap().extend(build.as_object().unwrap().clone());
        answer(&mut roster, node, 200, joined.to_string().as_bytes());
        roster.ask(node);
        std::mem::take(&mut roster.notes)
    };
    let here = Build::current();
    assert_eq!(join("7", serde_json::json!(here)), [""; 0]);
    let other =
        serde_json::json!({ "version": "0.0.9", "commit": "abc\u{1b}[2J", "changed": true });
    let note = format!("node 8 has another build: 0.0.9 (abc\u{fffd}[2J, changed), not {here}");
    assert_eq!(join("8", other.clone()), [note]);
    assert_eq!(join("8", other), [""; 0]);
    // A node of an earlier version has a commit that nobody knows.
    let earlier = join("9", serde_json::json!({ "version": "0.0.8" }));
    assert_eq!(earlier, [format!("node 9 has another build: 0.0.8 (commit unknown), not {here}")]);
}

/// Whatever a node sends, it alone is left out, and asked again later.
#[test]
fn a_node_that_does_not_join_is_asked_again() {
    let (_folder, mut roster) = roster();
    let long = vec![b'x'; 20 << 20];
    let refusals: [(u16, &[u8]); 4] = [(409, b"no"), (500, &long), (200, b"garbage"), (200, &long)];
    for (status, body) in refusals {
        connect(&mut roster, &["7"]);
        answer(&mut roster, "7", status, body);
        assert!(matches!(roster.node("7"), Some(Node::Out { .. })));
        assert!(roster.troubles["7"].0.len() < 500);
        assert_eq!(roster.asked().count(), 0);
        connect(&mut roster, &["7"]);
        assert_eq!(roster.asked().count(), 0, "not at once");
        connect(&mut roster, &[]);
    }
    connect(&mut roster, &["7"]);
    answer(&mut roster, "7", 409, b"no");
    roster.nodes.insert("7".to_owned(), Node::Out { until: Instant::now() });
    roster.tend();
    join(&mut roster, "7", &[("a", 1)]);
    assert_eq!(present(&roster), clients(&[("a", 1)]));
}

/// While a node joins again, or is left out, nobody takes its clients' names.
#[test]
fn a_connected_node_keeps_its_names() {
    let (_folder, mut roster) = roster();
    connect(&mut roster, &["7", "8"]);
    join(&mut roster, "7", &[("a", 1)]);
    let refused = |roster: &mut Roster| {
        roster.ask("8");
        join(roster, "8", &[("a", 2)]);
        matches!(roster.node("8"), Some(Node::Out { .. }))
    };
    roster.ask("7");
    assert!(refused(&mut roster));
    answer(&mut roster, "7", 500, b"no");
    assert!(refused(&mut roster));
    roster.ask("7");
    join(&mut roster, "7", &[("a", 1)]);
    assert_eq!(present(&roster), clients(&[("a", 1)]));
}

#[test]
fn a_node_that_fails_again_and_again_is_asked_less_often() {
    let (_folder, mut roster) = roster();
    connect(&mut roster, &["7"]);
    let mut wait = || {
        roster.ask("7");
        roster.leave_out("7", "no".to_owned());
        roster.leave_out("7", "no".to_owned()); // the same incident
        let Some(Node::Out { until, .. }) = roster.node("7") else { panic!() };
        until.saturating_duration_since(Instant::now()).as_secs_f64().round() as u64
    };
    assert_eq!([(); 6].map(|()| wait()), [10, 20, 40, 80, 160, 160]);
    roster.went_well("7");
    roster.ask("7");
    roster.leave_out("7", "no".to_owned());
    assert_eq!(roster.troubles["7"].1, 1);
    connect(&mut roster, &[]);
    assert!(roster.troubles.is_empty());
}

/// Nobody waits for its answer any longer, but it works on it: it is asked again once it has ended.
#[test]
fn a_node_that_is_behind_is_not_present() {
    let (_folder, mut roster) = roster();
    connect(&mut roster, &["7"]);
    join(&mut roster, "7", &[("a", 1)]);
    let id = roster.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    let hold = |roster: &Roster, holds: &[u64]| {
        let holds = Some(holds.iter().copied().collect());
        let nodes = [String::from("7")].into();
        let asking = Asking { protocol: 1, session: "a".to_owned(), nodes, holds };
        roster.mailbox.work(&asking, Duration::ZERO).unwrap();
    };
    hold(&roster, &[]);
    roster.mailbox.withdraw(id);
    assert_eq!(present(&roster), []);
    hold(&roster, &[id]);
    assert_eq!(present(&roster), []);
    hold(&roster, &[]);
    assert_eq!(present(&roster), clients(&[("a", 1)]));
}

/// What a node does not work on, by its own words, nobody waits for; that it answers is not enough.
#[test]
fn a_node_that_has_lost_a_request_is_not_busy_for_ever() {
    let (_folder, mut roster) = roster();
    let ask = |roster: &Roster, holds: &[u64]| {
        let holds = Some(holds.iter().copied().collect());
        let nodes = [String::from("7")].into();
        let asking = Asking { protocol: 1, session: "a".to_owned(), nodes, holds };
        roster.mailbox.work(&asking, Duration::ZERO).unwrap()
    };
    connect(&mut roster, &["7"]);
    join(&mut roster, "7", &[("a", 1)]);
    let lost = roster.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
    ask(&roster, &[]);
    roster.mailbox.withdraw(lost);
    roster.tend();
    assert_eq!(roster.asked().count(), 0, "it may still work on it");
    roster.probes.after = Duration::ZERO;
    roster.tend();
    roster.tend();
    let probes: Vec<u64> = roster.asked().collect();
    let [probe] = probes[..] else { panic!("{probes:?}") };
    // The transport could not deliver it: that says nothing of the node.
    roster.take(probe, Reply::Failure("no".to_owned()));
    assert!(roster.mailbox.withdrawn().contains_key(&lost));
    let say = |roster: &mut Roster, status: u16, body: &str| {
        roster.tend();
        let probe = roster.asked().next().unwrap();
        let (spooled, mut file) = roster.mailbox.spool().unwrap();
        file.write_all(body.as_bytes()).unwrap();
        roster.take(probe, Reply::Answer(status, spooled));
    };
    for _ in 0..2 {
        say(&mut roster, 200, &format!("{{\"tasks\":[1,{lost}]}}"));
        assert_eq!((present(&roster), roster.asked().count()), (vec![], 0));
        assert!(roster.mailbox.withdrawn().contains_key(&lost));
    }
    say(&mut roster, 200, "{\"tasks\":[1]}");
    assert_eq!((present(&roster), roster.asked().count()), (vec![], 0));
    roster.tend();
    assert_eq!(present(&roster), clients(&[("a", 1)]));
    assert_eq!(ask(&roster, &[lost]).forget, [lost]);
}

/// A node whose process is gone works on nothing, and neither does one that does not say what it works on.
#[test]
fn a_node_without_a_list_of_tasks_works_on_nothing() {
    for (status, said) in [(502, "nothing listens there"), (204, ""), (200, "garbage")] {
        let (_folder, mut roster) = roster();
        connect(&mut roster, &["7"]);
        join(&mut roster, "7", &[("a", 1)]);
        roster.probes.after = Duration::ZERO;
        let asked = roster.mailbox.post("7", "/v1/train", Vec::new(), None, 100);
        let is_lost =
            |roster: &mut Roster| roster.probes.is_lost("7", asked, Instant::now(), Duration::ZERO);
        assert!(!is_lost(&mut roster));
        let probe = roster.asked().next().unwrap();
        let (spooled, mut file) = roster.mailbox.spool().unwrap();
        file.write_all(said.as_bytes()).unwrap();
        roster.take(probe, Reply::Answer(status, spooled));
        assert!(is_lost(&mut roster), "{status} {said}");
    }
}

/// A number of images that no client can have is refused before anything is computed with it.
#[test]
fn a_client_has_a_possible_number_of_images() {
    let (_folder, mut roster) = roster();
    for samples in [0, SAMPLES + 1, usize::MAX] {
        connect(&mut roster, &["7"]);
        join(&mut roster, "7", &[("a", 1), ("b", samples)]);
        let (reason, _) = &roster.troubles["7"];
        assert!(reason.contains(&format!("its client \"b\" has {samples} images")), "{reason}");
        connect(&mut roster, &[]);
    }
    connect(&mut roster, &["7"]);
    join(&mut roster, "7", &[("a", 1), ("b", SAMPLES)]);
    assert_eq!(present(&roster).len(), 2);
}

/// A name that is taken is free again once whoever has it is gone.
#[test]
fn a_name_is_one_nodes_at_a_time() {
    let (_folder, mut roster) = roster();
    connect(&mut roster, &["7", "8"]);
    join(&mut roster, "7", &[("a", 1)]);
    join(&mut roster, "8", &[("a", 2)]);
    assert_eq!(present(&roster), clients(&[("a", 1)]));
    let (reason, _) = &roster.troubles["8"];
    assert!(reason.contains("names must differ"), "{reason}");
    connect(&mut roster, &["8"]);
    roster.ask("8");
    join(&mut roster, "8", &[("a", 2)]);
    assert_eq!(present(&roster), clients(&[("a", 2)]));
}

/// Neither all at once nor one after the other does a node get more clients than it may have.
#[test]
fn a_node_stands_for_only_so_many_clients() {
    let (_folder, mut roster) = roster_with(2);
    connect(&mut roster, &["7", "8"]);
    join(&mut roster, "7", &[("a", 1), ("b", 1), ("c", 1)]);
    let (reason, _) = &roster.troubles["7"];
    assert!(
        reason.contains("3 clients of this node in this run; `fleet.clients_per_node` allows 2")
    );
    let again = |roster: &mut Roster, node: &str, names: &[&str]| {
        roster.ask(node);
        let clients: Vec<(&str, usize)> = names.iter().map(|name| (*name, 1)).collect();
        join(roster, node, &clients);
        matches!(roster.node(node), Some(Node::Joined))
    };
    assert!(again(&mut roster, "7", &["a", "b"]));
    assert!(again(&mut roster, "7", &["b", "a"]));
    assert!(!again(&mut roster, "7", &["a", "d"]), "a third name");
    assert!(again(&mut roster, "7", &["a"]));
    // A client that has moved counts where it is now.
    join(&mut roster, "8", &[("b", 1)]);
    assert!(matches!(roster.node("8"), Some(Node::Joined)));
    assert!(again(&mut roster, "7", &["a", "d"]));
    assert_eq!(*roster.names.counts(), BTreeMap::from([("7".to_owned(), 2), ("8".to_owned(), 1)]));
    // Under other names of the transport, as after a restart without registered keys.
    connect(&mut roster, &["9"]);
    join(&mut roster, "9", &[("a", 1), ("d", 1)]);
    assert_eq!(*roster.names.counts(), BTreeMap::from([("8".to_owned(), 1), ("9".to_owned(), 2)]));
}

#[test]
fn a_run_remembers_only_so_many_clients() {
    let (_folder, mut roster) = roster();
    roster.know((0..CLIENTS - 1).map(|number| number.to_string()));
    connect(&mut roster, &["7"]);
    join(&mut roster, "7", &[("5", 1), ("new", 1)]);
    assert_eq!(present(&roster).len(), 2);
    connect(&mut roster, &["7", "8"]);
    join(&mut roster, "8", &[("newer", 1)]);
    assert!(matches!(roster.node("8"), Some(Node::Out { .. })));
}
