//! Everything that a node sends, verbatim.

use crate::faults::{ALL, broadcast, place, request, terms};
use crate::transport::ask;
use crate::{coordinate, join_parts, records, simulated, start_node, start_nodes};
use fedanchor_fleet::node::{Clients, Node};
use fedanchor_fleet::protocol::split_parts;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

fn start(place: &Path, folder: &str) -> Node {
    start_node(place, folder, Clients::One("ward".to_owned()), &format!("secret/{folder}"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The header of a message, and the names of its tensors.
fn header(message: &[u8]) -> (Value, BTreeSet<String>) {
    let length = u64::from_le_bytes(message[..8].try_into().unwrap()) as usize;
    let mut all: Value = serde_json::from_slice(&message[8..8 + length]).unwrap();
    let metadata = all.as_object_mut().unwrap().remove("__metadata__").unwrap();
    let names = all.as_object().unwrap().keys().cloned().collect();
    let fields: Vec<&Value> = metadata.as_object().unwrap().values().collect();
    let [Value::String(header)] = fields[..] else { panic!("{metadata}") };
    (serde_json::from_str(header).unwrap(), names)
}

/// Moves the client's pictures to a secret folder, and starts its node.
fn with_pictures(place: &Path) -> Node {
    std::fs::create_dir_all(place.join("secret")).unwrap();
    std::fs::rename(place.join("all/unlabelled/client-2"), place.join("secret/pictures")).unwrap();
    start(place, "pictures")
}

/// The header of the only answer to a request, and the names of its tensors.
fn answer(node: &Node, request: &[u8]) -> (Value, BTreeSet<String>) {
    let (status, answer) = ask(node.path(), "POST", "/v1/train", request).unwrap();
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    let parts = split_parts(&answer).unwrap();
    assert_eq!(parts.len(), 1);
    header(parts[0])
}

#[test]
fn a_node_sends_these_fields_and_no_others() {
    let always = [
        "client", "fix_loss", "kept", "kind", "method", "mix_loss", "protocol", "round", "samples",
    ];
    let mut asked = always.to_vec();
    asked.insert(4, "labels");
    sends_these_fields(&[], &always);
    sends_these_fields(&["record.label_counts=true"], &asked);
}

fn sends_these_fields(more: &[&str], expected: &[&str]) {
    let (_folder, place) = place();
    let node = with_pictures(&place);
    let settings = [&["method.threshold=-1"], more].concat();
    let (status, joined) = ask(node.path(), "POST", "/v1/join", &terms(&place, &settings)).unwrap();
    let joined: Value = serde_json::from_slice(&joined).unwrap();
    let of_node = vec!["changed", "clients", "commit", "protocol", "version"];
    assert_eq!((status, keys(&joined)), (200, of_node));
    let count = std::fs::read_dir(place.join("secret/pictures")).unwrap().count();
    assert_eq!(joined["clients"], json!([{ "name": "ward", "samples": count }]));
    let request = request(&broadcast(&place), "ward");
    let (said, tensors) = answer(&node, &request);
    assert_eq!(keys(&said), expected);
    // Nothing but tensors of the model that was sent.
    let (_, sent) = header(split_parts(&request).unwrap()[0]);
    assert!(tensors.is_subset(&sent) && tensors.iter().all(|name| name.starts_with("model/")));
}

/// A client without pseudo-labels sends no loss, one that fails only that it did; neither sends a tensor.
#[test]
fn without_an_update_a_node_sends_less() {
    let always = ["client", "kind", "method", "protocol", "round"];
    let (_folder, place) = place();
    let node = with_pictures(&place);
    let mut broadcast = broadcast(&place);
    for (more, labels) in [(&[][..], None), (&["record.label_counts=true"], Some("labels"))] {
        let terms = terms(&place, &[&["method.threshold=1"], more].concat());
        assert_eq!(ask(node.path(), "POST", "/v1/join", &terms).unwrap().0, 200);
        let (said, tensors) = answer(&node, &request(&broadcast, "ward"));
        let mut expected: Vec<&str> = always.into_iter().chain(["samples"]).chain(labels).collect();
        expected.sort_unstable();
        assert_eq!((keys(&said), &said["kind"]), (expected, &json!("nothing-kept")));
        assert!(tensors.is_empty(), "{tensors:?}");
    }
    broadcast.arrays = Default::default(); // it cannot label
    let (said, tensors) = answer(&node, &request(&broadcast, "ward"));
    let mut expected: Vec<&str> = always.into_iter().chain(["reason"]).collect();
    expected.sort_unstable();
    assert_eq!((keys(&said), &said["kind"]), (expected, &json!("failed")));
    assert_eq!(said["reason"], json!("could not train: see the node's log"));
    assert!(tensors.is_empty(), "{tensors:?}");
}

/// A loss that clients minimise is a file of the node: a coordinator names its hash, and neither sends nor names code
/// that runs.
#[test]
fn a_loss_is_a_file_of_the_node() {
    let (_folder, place) = place();
    let example = |name: &str| {
        std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python"))
            .join(name)
    };
    let file = format!("client.loss.file={}", example("fix_mix.loss").display());
    let terms = terms(&place, &["method.threshold=-1", &file, "client.loss.arguments.b=1"]);
    let sent: Value = serde_json::from_slice(&terms).unwrap();
    let sent = sent["experiment"].as_str().unwrap();
    assert!(sent.contains("file = \"fix_mix.loss\"") && sent.contains("hash = "), "{sent}");
    let folder = "all/unlabelled/client-2";
    let join = |name: &str| {
        let node = start_node(&place, name, Clients::One("ward".to_owned()), folder);
        let (status, words) = ask(node.path(), "POST", "/v1/join", &terms).unwrap();
        (node, status, String::from_utf8_lossy(&words).into_owned())
    };
    let (_, status, words) = join("without");
    assert_eq!(status, 409);
    assert!(
        words.contains("start the node with --loss FILE, the one called fix_mix.loss"),
        "{words}"
    );
    std::fs::copy(example("fedprox.loss"), place.join("other.loss")).unwrap();
    let (_, status, words) = join("other");
    assert_eq!((status, &*words), (409, "cannot train this experiment: see the node's log"));
    std::fs::copy(example("fix_mix.loss"), place.join("same.loss")).unwrap();
    let (node, status, words) = join("same");
    assert_eq!(status, 200, "{words}");
    let (said, _) = answer(&node, &request(&broadcast(&place), "ward"));
    assert!(said["fix_loss"].is_number() && said["mix_loss"].is_number(), "{said}");
}

/// No error reveals a path, the name of a file or the text of another error.
#[test]
fn refusals_are_these() {
    let (_folder, place) = place();
    let secret = place.join("secret");
    for folder in ["unreadable", "empty", "torn"] {
        std::fs::create_dir_all(secret.join(folder)).unwrap();
    }
    std::fs::write(secret.join("unreadable/patient-42.png"), "not a picture").unwrap();
    let why = "see the node's log";
    let refused = |node: &Node, path: &str, body: &[u8]| {
        let (status, words) = ask(node.path(), "POST", path, body).unwrap();
        (status, String::from_utf8(words).unwrap())
    };
    let terms = terms(&place, &[]);
    for folder in ["unreadable", "empty", "missing"] {
        let node = start(&place, folder);
        let words = format!("its images do not fit the run: {why}");
        assert_eq!(refused(&node, "/v1/join", &terms), (409, words), "{folder}");
    }
    // A folder whose name cannot be that of a client.
    let name = Clients::One("x".repeat(201));
    let unnamed = start_node(&place, "unnamed", name, "all/unlabelled/client-10");
    let words = format!("invalid clients: {why}");
    assert_eq!(refused(&unnamed, "/v1/join", &terms), (409, words));
    let node = with_pictures(&place);
    let request = request(&broadcast(&place), "ward");
    assert_eq!(refused(&node, "/v1/train", &request), (428, "join first".to_owned()));
    let mut other: Value = serde_json::from_slice(&terms).unwrap();
    for (kind, problem) in
        [("method", "unknown method `nothing`;"), ("model", "expected `resnet18`,")]
    {
        other["experiment"] = json!(format!("{kind}.name = \"nothing\""));
        let words = refused(&node, "/v1/join", &other.to_string().into_bytes()).1;
        let unknown = format!("{kind}.name: {problem}");
        assert!(words.starts_with(&format!("cannot train this experiment: {unknown}")), "{words}");
    }
    other["experiment"] = json!("model.init_from = \"/etc/passwd\"");
    let words = "cannot train this experiment: model.init_from: a client does not take this setting from a \
                 coordinator"
        .to_owned();
    let other = other.to_string().into_bytes();
    assert_eq!(refused(&node, "/v1/join", &other), (409, words));
    assert_eq!(refused(&node, "/v1/join", &terms).0, 200);
    let parts = split_parts(&request).unwrap();
    let with = |header: &str| join_parts(&[parts[0], header.as_bytes()]);
    for (body, status, words) in [
        (with("{}"), 400, "malformed header in train request"),
        (with(r#"{"run":"other","clients":[]}"#), 428, "another run: join first"),
        (
            with(r#"{"run":"run","clients":[]}"#),
            400,
            "a train request must list each client exactly once",
        ),
        (with(r#"{"run":"run","clients":[["x",1]]}"#), 404, "unknown client in train request"),
        (b"x".to_vec(), 400, "malformed train request: expected a broadcast and a header"),
        (
            join_parts(&[&[0xff; 8], parts[1]]),
            400,
            "the description of its tensors has 18446744073709551615 bytes; the limit is 1048576",
        ),
    ] {
        assert_eq!(refused(&node, "/v1/train", &body), (status, words.to_owned()));
    }
    // Its folder of states cannot be read: a file is in its place.
    let state = place.join("state-pictures");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "x").unwrap();
    assert_eq!(refused(&node, "/v1/train", &request), (500, format!("internal error: {why}")));
}

const PRIVATE: &str = "privacy={noise=0.5, delta=1e-2, clip=1.0}";

/// Nobody who knows the seed can subtract the noise; a restart costs a round more, since it may have been published.
#[test]
fn the_noise_of_a_fleet_is_not_that_of_the_seed() {
    let (_folder, place) = place();
    let model = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    let (nodes, far) = start_nodes(&place);
    let more = |rounds| [ALL, PRIVATE, "optimiser.schedule=constant", rounds];
    let [one, other] = ["one", "other"].map(|name| place.join(name));
    for out in [&one, &other] {
        coordinate(&place, out, false, &more("rounds=1"), far.clone()).unwrap();
    }
    let simulated = simulated(&place, &more("rounds=1"));
    assert!(model(&one) != model(&other) && model(&one) != model(&simulated));
    let found = records(&one);
    assert_eq!((&found[1]["clients"], &found[1]["privacy"]["releases"]), (&json!([]), &json!(1)));
    // As if the coordinator had been killed after the broadcast of a round that it then repeats.
    let published = || std::fs::read_to_string(one.join("published")).unwrap();
    assert_eq!(published(), "0\n", "before the only round");
    std::fs::write(one.join("published"), "7\n").unwrap();
    coordinate(&place, &one, true, &more("rounds=2"), far.clone()).unwrap();
    assert_eq!((&records(&one)[2]["privacy"]["releases"], &*published()), (&json!(8), "7\n"));
    // What was published by one noise is not counted by another, or as if it had had none.
    let other = "privacy={noise=5.0, delta=1e-2, clip=1.0}";
    let more = [ALL, other, "optimiser.schedule=constant", "rounds=3"];
    let refused = coordinate(&place, &one, true, &more, far).unwrap_err().to_string();
    assert!(refused.contains("privacy.noise: cannot change in a private run"), "{refused}");
    drop(nodes);
}

/// Sites test the model of the round before, and send counts by class. Their folders are named as the run's classes, in
/// any order and number.
#[test]
fn sites_test_the_model_on_pictures_of_their_own() {
    let (_folder, place) = place();
    for (site, classes) in [("client-2", vec!["two", "zero"]), ("client-30", vec!["one"])] {
        for class in classes {
            let (from, to) =
                (place.join("server/test").join(class), place.join(format!("{site}-test")));
            std::fs::create_dir_all(to.join(class)).unwrap();
            for picture in std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().path()) {
                std::fs::copy(&picture, to.join(class).join(picture.file_name().unwrap())).unwrap();
            }
        }
    }
    let (nodes, far) = start_nodes(&place);
    let count = |class: &str| {
        std::fs::read_dir(place.join("server/test").join(class)).unwrap().count() as u64
    };
    let (asked, silent) = (place.join("asked"), place.join("silent"));
    coordinate(&place, &asked, false, &[ALL, "record.sites=true"], far.clone()).unwrap();
    for record in &records(&asked)[1..] {
        let sites = record["sites"].as_array().unwrap();
        // By number: client-2, client-10, client-30, of which the second has no test pictures.
        assert_eq!(sites.iter().map(|site| &site["client"]).collect::<Vec<_>>(), [0, 2]);
        // Classes are sorted by name: one, two, zero.
        let counts = |site: usize| -> Vec<u64> {
            let classes = sites[site]["classes"].as_array().unwrap().iter();
            classes.map(|class| class[0].as_u64().unwrap()).collect()
        };
        assert_eq!(counts(0), [0, count("two"), count("zero")]);
        assert_eq!(counts(1), [count("one"), 0, 0]);
    }
    // All test pictures of the server are at one of the two: their results are the server's, of the round before.
    let found = records(&asked);
    let right: u64 = found[2]["sites"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|site| {
            site["classes"].as_array().unwrap().iter().map(|class| class[1].as_u64().unwrap())
        })
        .sum();
    let all = count("one") + count("two") + count("zero");
    let accuracy = found[1]["test_accuracy"].as_f64().unwrap();
    assert!(
        (100.0 * right as f64 / all as f64 - accuracy).abs() < 1e-9,
        "{right} of {all}: {accuracy}"
    );
    coordinate(&place, &silent, false, &[ALL], far).unwrap();
    assert!(records(&silent).iter().all(|record| record.get("sites").is_none()));
    drop(nodes);
}

#[test]
fn test_pictures_of_another_class_are_refused() {
    let (_folder, place) = place();
    std::fs::create_dir_all(place.join("ward-test")).unwrap();
    std::fs::rename(place.join("server/test/one"), place.join("ward-test/seven")).unwrap();
    let node =
        start_node(&place, "ward", Clients::One("ward".to_owned()), "all/unlabelled/client-2");
    std::fs::create_dir_all(place.join("server/test/one")).unwrap();
    let pictures = std::fs::read_dir(place.join("ward-test/seven")).unwrap();
    for picture in pictures.map(|entry| entry.unwrap().path()) {
        std::fs::copy(&picture, place.join("server/test/one").join(picture.file_name().unwrap()))
            .unwrap();
    }
    let terms = terms(&place, &["record.sites=true"]);
    let (status, words) = ask(node.path(), "POST", "/v1/join", &terms).unwrap();
    let words = String::from_utf8_lossy(&words).into_owned();
    assert_eq!(
        (status, &*words),
        (409, "its test pictures do not fit the run: see the node's log")
    );
}
