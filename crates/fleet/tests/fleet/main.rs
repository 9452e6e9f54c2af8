//! A fleet gives the results of the simulation of the same clients, byte for byte.

#![allow(clippy::unwrap_used)]

mod changes;
mod faults;
mod limits;
mod privacy;
mod transport;

use axum::body::Bytes;
use fedanchor::{ConnectFleet, Resume, RunClients, RunOptions};
use fedanchor_data::sample;
use fedanchor_data::thumbnail::write_png;
use fedanchor_fleet::node::{Clients, Node, Settings, Source};
use fedanchor_fleet::protocol::framed;
use fedanchor_fleet::{Bound, Mailbox, RemoteFleet, Socket, coordinator};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tempfile::TempDir;
use transport::Far;

/// In the order of a simulation, which is not alphabetical.
const CLIENTS: [&str; 3] = ["client-2", "client-10", "client-30"];

const BRIEF: &[&str] = &[
    "rounds=2",
    "data.name=mine",
    "model.name=small",
    "data.anchors=0",
    "data.clients=3",
    "partition.kind=iid",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=16",
    "client.keep_momentum=true",
    "pretrain.epochs=2",
    "pretrain.fitted=0",
    "optimiser.lr=0.05",
    "augment.flip=false",
];

/// Writes pictures of the sample: `all` for a simulation, `server` and a folder per client for a fleet.
fn pictures(place: &Path) {
    let data = sample::load().unwrap();
    let labels = data.train.labels.clone().unwrap();
    let write = |images: &fedanchor_data::ImageSet, index: usize, folders: &[String]| {
        for folder in folders {
            let folder = place.join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join(format!("{index:05}.png"));
            write_png(images.shape, images.image(index), &path).unwrap();
        }
    };
    let class = |label: u16| ["zero", "one", "two"][label as usize];
    let mut count = [0; 3];
    for (index, &label) in labels.iter().enumerate().filter(|(_, label)| **label < 3) {
        let seen = &mut count[label as usize];
        *seen += 1;
        match *seen {
            0..=10 => {
                let class = class(label);
                write(
                    &data.train,
                    index,
                    &[format!("all/labelled/{class}"), format!("server/train/{class}")],
                );
            }
            11..=40 => {
                let client = CLIENTS[index % CLIENTS.len()];
                write(&data.train, index, &[format!("all/unlabelled/{client}")]);
            }
            _ => {}
        }
    }
    let test = data.test.labels.clone().unwrap();
    for (index, &label) in test.iter().enumerate().filter(|(_, label)| **label < 3).take(60) {
        let class = class(label);
        write(&data.test, index, &[format!("all/test/{class}"), format!("server/test/{class}")]);
    }
}

fn experiment(place: &Path, data: &str, more: &[&str]) -> fedanchor::Experiment {
    let path = format!("data.path={}", place.join(data).display());
    let keys = BRIEF.iter().chain(more).map(|key| (*key).to_owned()).chain([path]);
    fedanchor::resolve("preset = \"paper\"", &keys.collect::<Vec<_>>()).unwrap()
}

/// A node with a socket.
fn start_node(place: &Path, name: &str, clients: Clients, folder: &str) -> Node {
    let settings = Settings {
        source: Source { path: place.join(folder), clients, skip_unreadable: false },
        test: Some(place.join(format!("{name}-test"))).filter(|folder| folder.exists()),
        state: place.join(format!("state-{name}")),
        trunk: None,
        loss: Some(place.join(format!("{name}.loss"))).filter(|file| file.exists()),
        metrics: None,
        device: "cpu".to_owned(),
        workers: Some(1),
    };
    Node::start(&place.join(format!("{name}.sock")), settings).unwrap()
}

/// The coordinator's socket.
fn serve(path: &Path, mailbox: &Arc<Mailbox>) -> Socket {
    let bound = Bound::new(path).unwrap();
    bound.serve(coordinator::routes(mailbox.clone()), Duration::from_secs(3)).unwrap()
}

/// Runs the coordinator, with a transport to these nodes.
fn coordinate(
    place: &Path,
    out: &Path,
    resume: bool,
    more: &[&str],
    nodes: BTreeMap<String, Far>,
) -> fedanchor::Result<()> {
    let waits = [300, 3].map(Duration::from_secs);
    coordinate_with_heartbeats(place, out, resume, more, nodes, waits)
}

/// The same, with this interval between heartbeats and this patience.
fn coordinate_with_heartbeats(
    place: &Path,
    out: &Path,
    resume: bool,
    more: &[&str],
    nodes: BTreeMap<String, Far>,
    [interval, patience]: [Duration; 2],
) -> fedanchor::Result<()> {
    let experiment = experiment(place, "server", more);
    let mailbox = Arc::new(Mailbox::new(&place.join("replies")));
    let socket = serve(&place.join("coordinator.sock"), &mailbox);
    let path = socket.path().to_owned();
    let transport = std::thread::spawn(move || transport::carry(path, nodes));
    let stop = Arc::new(AtomicBool::new(false));
    let (there, asked) = (mailbox.clone(), stop.clone());
    let connect: &ConnectFleet = &move |simulation, run| {
        let (mailbox, stop) = (there.clone(), asked.clone());
        let fleet = RemoteFleet::new(mailbox, stop, simulation, run)?;
        let mut fleet = fleet.heartbeat_after(interval);
        fleet.patience = patience;
        Ok(Box::new(fleet))
    };
    let resume = if resume { Resume::Yes } else { Resume::No };
    let clients = RunClients::Real { socket: socket.path(), connect };
    let options = RunOptions { out, resume, workers: Some(1), stop: &stop, clients };
    let done = fedanchor::run(&experiment, options, &mut ());
    mailbox.end(done.is_ok(), String::new(), Duration::from_secs(10));
    drop(socket);
    assert_eq!(transport.join().unwrap(), done.is_ok());
    done.map(drop)
}

/// A node per client, by the transport's names, whose order differs from that of the clients.
fn start_nodes(place: &Path) -> (Vec<Node>, BTreeMap<String, Far>) {
    let start = |name: &str| {
        let one = Clients::One(name.to_owned());
        start_node(place, name, one, &format!("all/unlabelled/{name}"))
    };
    let nodes: Vec<Node> = CLIENTS.into_iter().map(start).collect();
    let far = nodes.iter().enumerate();
    let far = far.map(|(at, node)| ((9 - at).to_string(), Far::Node(node.path().to_owned())));
    let far = far.collect();
    (nodes, far)
}

/// Byte strings, each preceded by its length.
fn join_parts(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| framed(Bytes::copy_from_slice(part))).collect::<Vec<_>>().concat()
}

fn records(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("rounds.jsonl")).unwrap();
    text.lines()
        .map(|line| {
            let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
            record.as_object_mut().unwrap().remove("checksum");
            record
        })
        .collect()
}

fn same(one: &Path, other: &Path) {
    let read = |folder: &Path, name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(
        read(one, "model.safetensors") == read(other, "model.safetensors"),
        "the models differ"
    );
    assert_eq!(records(one), records(other));
}

fn simulated(place: &Path, more: &[&str]) -> PathBuf {
    let out = place.join("simulated");
    let stop = AtomicBool::new(false);
    fedanchor::run(
        &experiment(place, "all", more),
        RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(&out) },
        &mut (),
    )
    .unwrap();
    out
}

#[test]
fn a_fleet_is_the_simulation_of_the_same_clients() {
    let counted = "record.label_counts=true";
    let methods: [&[&str]; 3] = [
        &["method.threshold=-1", counted],
        &["method.threshold=1", counted, "aggregation.without_samples=unchanged"],
        &["method.name=fedcon", "method.predictor=64"],
    ];
    for more in methods {
        let place = TempDir::new().unwrap();
        let place = place.path();
        pictures(place);
        let simulated = simulated(place, more);
        let (_nodes, far) = start_nodes(place);
        let out = place.join("fleet");
        coordinate(place, &out, false, more, far).unwrap();
        same(&simulated, &out);
        // Requested counts are those of all pseudo-labels.
        let asked = more.contains(&counted);
        for record in &records(&out)[1..] {
            let counts = record["label_counts"].as_array();
            let sum = counts.map(|counts| counts.iter().map(|count| count.as_u64().unwrap()).sum());
            assert_eq!(sum, asked.then(|| record["seen"].as_u64().unwrap()));
        }
    }
}

/// Every node has the trunk itself, and makes the features that a simulation makes; it needs none where all is trained.
#[test]
fn a_fleet_on_a_trunk_is_the_simulation_too() {
    for (name, unfreeze) in
        [("adapter", "none"), ("efficientnet-lite0", "last"), ("efficientnet-lite0", "all")]
    {
        let (name, unfreeze) = (format!("model.name={name}"), format!("model.unfreeze={unfreeze}"));
        let more = ["model.trunk=efficientnet-lite0", &name, &unfreeze, "data.size=48"];
        let place = TempDir::new().unwrap();
        let place = place.path();
        pictures(place);
        let simulated = simulated(place, &more);
        let (_nodes, far) = start_nodes(place);
        let out = place.join("fleet");
        coordinate(place, &out, false, &more, far).unwrap();
        same(&simulated, &out);
    }
}

/// One node may represent several clients.
#[test]
fn two_nodes_represent_three_clients() {
    let place = TempDir::new().unwrap();
    let place = place.path();
    pictures(place);
    let simulated = simulated(place, &[]);
    let list = place.join("clients.txt");
    std::fs::write(&list, "client-2\nclient-30\n").unwrap();
    let two = start_node(place, "two", Clients::Listed(list), "all/unlabelled");
    let one =
        start_node(place, "one", Clients::One("client-10".to_owned()), "all/unlabelled/client-10");
    let sockets = BTreeMap::from([
        ("11".to_owned(), Far::Node(two.path().to_owned())),
        ("12".to_owned(), Far::Node(one.path().to_owned())),
    ]);
    let out = place.join("fleet");
    coordinate(place, &out, false, &["fleet.clients_per_node=2"], sockets).unwrap();
    same(&simulated, &out);
}
