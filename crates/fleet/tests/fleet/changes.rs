//! Replaced nodes, repeated replies, resumed runs.

use crate::faults::{ALL, numbers, place};
use crate::transport::Far;
use crate::{CLIENTS, coordinate, experiment, records, same, simulated, start_node, start_nodes};
use fedanchor::{Resume, RunOptions};
use fedanchor_fleet::node::Clients;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const EVERYTHING: &str = "method.threshold=-1";

/// A node that is restarted during a round joins again, and gets its request again.
#[test]
fn a_node_that_was_restarted_in_mid_round_trains() {
    trains_as_simulated(|node| Far::Replaced(node.clone(), node, Arc::default()));
}

/// The fleet's model equals that of the simulation if one of its nodes behaves in this way.
fn trains_as_simulated(reached: fn(PathBuf) -> Far) {
    let (_folder, place) = place();
    let more = [ALL, EVERYTHING];
    let simulated = simulated(&place, &more);
    let (nodes, mut far) = start_nodes(&place);
    far.insert("8".to_owned(), reached(nodes[1].path().to_owned()));
    let out = place.join("fleet");
    coordinate(&place, &out, false, &more, far).unwrap();
    same(&simulated, &out);
}

/// A node is replaced by one with other clients: clients that are gone are absent.
#[test]
fn a_node_may_come_back_with_other_clients() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    let list = place.join("clients.txt");
    std::fs::write(&list, "client-2\n").unwrap();
    let other = start_node(&place, "other", Clients::Listed(list), "all/unlabelled");
    // Node 8 had client-10 and is now called client-2, whose own node is gone.
    far.remove("9");
    far.insert(
        "8".to_owned(),
        Far::Replaced(nodes[1].path().to_owned(), other.path().to_owned(), Arc::default()),
    );
    let out = place.join("fleet");
    let settings = ["data.clients=2", "client.per_round=2", "fleet.clients_per_node=2", EVERYTHING];
    coordinate(&place, &out, false, &settings, far).unwrap();
    let records = records(&out);
    assert_eq!(
        (numbers(&records[1], "clients"), numbers(&records[1], "absent")),
        (vec![0, 1], vec![0])
    );
    // Client 0 was client-10; client-2 is a new one.
    assert_eq!(
        (numbers(&records[2], "clients"), numbers(&records[2], "absent")),
        (vec![1, 2], vec![])
    );
}

/// A client may have more images than before: its updates are not rejected.
#[test]
fn a_client_may_come_back_with_other_images() {
    let (_folder, place) = place();
    let (nodes, mut far) = start_nodes(&place);
    let more = place.join("more");
    for client in &CLIENTS[1..] {
        for entry in std::fs::read_dir(place.join("all/unlabelled").join(client)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::create_dir_all(&more).unwrap();
            std::fs::copy(&path, more.join(path.file_name().unwrap())).unwrap();
        }
    }
    let grown = start_node(&place, "grown", Clients::One(CLIENTS[1].to_owned()), "more");
    far.insert(
        "8".to_owned(),
        Far::Replaced(nodes[1].path().to_owned(), grown.path().to_owned(), Arc::default()),
    );
    let out = place.join("fleet");
    coordinate(&place, &out, false, &[ALL, EVERYTHING], far).unwrap();
    let records = records(&out);
    assert_eq!(numbers(&records[1], "absent"), [1]);
    assert_eq!((&records[2]["trained"], &records[2]["rejected"]), (&json!(3), &json!([])));
    assert!(records[2]["seen"].as_u64() > Some(90), "{}", records[2]);
}

#[test]
fn a_reply_that_comes_twice_counts_once() {
    trains_as_simulated(Far::Twice);
}

/// A client whose state is damaged starts without one; others are not affected.
#[test]
fn a_damaged_state_costs_one_client_its_state() {
    let (_folder, place) = place();
    let out = place.join("fleet");
    let more = ["method.name=fedcon", "method.predictor=64", ALL];
    for (resume, rounds) in [(false, "rounds=1"), (true, "rounds=2")] {
        let (_nodes, far) = start_nodes(&place);
        coordinate(&place, &out, resume, &[&more[..], &[rounds]].concat(), far).unwrap();
        for entry in std::fs::read_dir(place.join("state-client-10")).unwrap() {
            std::fs::write(entry.unwrap().path(), "damaged").unwrap();
        }
    }
    let last = &records(&out)[2];
    assert_eq!((&last["trained"], &last["failed"]), (&json!(3), &json!([])), "{last}");
    assert!(numbers(last, "absent").is_empty());
}

/// A run of a fleet is not resumed as a simulation, nor a simulation as a fleet.
#[test]
fn clients_stay_where_they_are() {
    let (_folder, place) = place();
    let out = place.join("fleet");
    let (_nodes, far) = start_nodes(&place);
    coordinate(&place, &out, false, &["rounds=1"], far).unwrap();
    let file = || std::fs::read_to_string(out.join("fleet.json")).unwrap();
    let before = file();
    let stop = AtomicBool::new(false);
    let resume = |out: &Path, force| {
        let experiment = experiment(&place, "server", &["rounds=2"]);
        fedanchor::run(
            &experiment,
            RunOptions {
                resume: if force { Resume::Force } else { Resume::Yes },
                workers: Some(1),
                stop: &stop,
                ..RunOptions::new(out)
            },
            &mut (),
        )
    };
    for force in [false, true] {
        let refused = resume(&out, force).unwrap_err().to_string();
        let command = format!(
            "`fedanchor coordinator --resume {} --socket {}/",
            out.display(),
            place.display()
        );
        assert!(refused.contains(&command), "{refused}");
    }
    let simulated = simulated(&place, &[]);
    let nobody = std::collections::BTreeMap::new();
    let refused = coordinate(&place, &simulated, true, &[], nobody).unwrap_err().to_string();
    let command = format!("`fedanchor run --resume {}`", simulated.display());
    assert!(refused.contains(&command), "{refused}");
    // The run keeps its identifier.
    assert_eq!(file(), before);
    assert!(fedanchor::verify(&out).unwrap().is_intact());
}
