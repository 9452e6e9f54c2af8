//! What a coordinator or a node tells its monitoring: `/metrics` as Prometheus reads it, and `/healthz`, which answers as
//! long as the process does.
//!
//! A family of metrics is a constant with its help; values are set where things happen, and what changes by itself
//! (memory, disk, connected nodes) is looked up when it is asked for. They name no client: alerts need numbers, and a page
//! that is scraped may be read by more people than a run folder.

use crate::mailbox::Mailbox;
use crate::socket::Server;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use fedanchor::{Error, Result};
use fedanchor_record::{Build, RoundRecord, SiteTest, Timing};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// A family of metrics.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: "gauge", help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: "counter", help }
}

const BUILD: Family = gauge("fedanchor_build_info", "The build, as labels; always 1.");
const MEMORY: Family = gauge("fedanchor_resident_memory_bytes", "Memory of this process.");
const DISK: Family = gauge("fedanchor_disk_free_bytes", "Space left where runs or states are.");
const ROUND: Family = gauge("fedanchor_round", "The last finished round; 0 is pre-training.");
const PLANNED: Family = gauge("fedanchor_rounds_planned", "Rounds of the run.");
const FINISHED: Family =
    gauge("fedanchor_round_finished_timestamp_seconds", "When the last round was finished.");
const ACCURACY: Family =
    gauge("fedanchor_test_accuracy_percent", "Accuracy of the global model on the test images.");
const APPLIED: Family =
    gauge("fedanchor_round_applied", "1 if the last round changed the model, 0 if it was undone.");
const SITES: Family = gauge(
    "fedanchor_site_accuracy_percent",
    "Accuracy on labelled pictures of clients in the last round: of the worst, on average, of the best.",
);
const EPSILON: Family =
    gauge("fedanchor_privacy_epsilon", "What the rounds of a private run cost so far.");
const BUDGET: Family = gauge("fedanchor_privacy_epsilon_left", "What is left of its budget.");
const CLIENTS: Family =
    gauge("fedanchor_round_clients", "Clients of the last round by what became of their answers.");
const ANSWERS: Family =
    counter("fedanchor_clients_total", "The same over all rounds since this process started.");
const BYTES: Family =
    counter("fedanchor_bytes_total", "Bytes of messages to clients (down) and from them (up).");
const SECONDS: Family = gauge("fedanchor_round_seconds", "Seconds of the last round by phase.");
const NODES: Family = gauge("fedanchor_nodes_connected", "Nodes that the transport lists.");
const TRANSPORT: Family =
    gauge("fedanchor_transport_connected", "1 if the transport has polled in the last seconds.");
const JOINED: Family = gauge("fedanchor_node_joined", "1 if this node has joined a run.");
const IMAGES: Family = gauge("fedanchor_node_images", "Images of this node in its run.");
const REQUESTS: Family =
    counter("fedanchor_node_requests_total", "Requests to this node by kind and HTTP status.");
const TRAINING: Family =
    counter("fedanchor_node_training_seconds_total", "Seconds this node has spent on training.");
const TRAINED: Family =
    gauge("fedanchor_node_trained_timestamp_seconds", "When this node last answered a task.");

/// The metrics of a process; copies share them.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

struct Shared {
    /// The folder whose disk is watched.
    folder: PathBuf,
    mailbox: Option<Arc<Mailbox>>,
    values: Mutex<Values>,
}

#[derive(Default)]
struct Values {
    /// By family and labels.
    numbers: BTreeMap<&'static str, (&'static Family, BTreeMap<String, f64>)>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// A server of metrics that runs until this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    /// Where it listens.
    pub address: SocketAddr,
    _server: Server,
}

impl Metrics {
    /// Those of a process that writes into this folder; a coordinator has a mailbox.
    pub fn new(folder: PathBuf, mailbox: Option<Arc<Mailbox>>) -> Self {
        let metrics = Self(Arc::new(Shared { folder, mailbox, values: Mutex::default() }));
        let Build { version, commit, .. } = Build::current();
        metrics.set(&BUILD, &[("version", version), ("commit", commit)], 1.0);
        metrics
    }

    /// Serves them at an address of this machine.
    pub fn serve(&self, address: &str) -> Result<MetricsServer> {
        let problem =
            |error: std::io::Error| Error::config("--metrics", format!("{address}: {error}"));
        let listener = TcpListener::bind(address).map_err(problem)?;
        listener.set_nonblocking(true).map_err(problem)?;
        let address = listener.local_addr().map_err(problem)?;
        let metrics = self.clone();
        let router = Router::new()
            .route("/metrics", get(|| async move { metrics.page() }))
            .route("/healthz", get(|| async { "ok\n" }));
        let listen = || tokio::net::TcpListener::from_std(listener);
        let server = Server::start(listen, router, Duration::ZERO).map_err(problem)?;
        Ok(MetricsServer { address, _server: server })
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.0.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, family: &'static Family, labels: &[(&str, &str)], value: f64) {
        let mut values = self.lock();
        let (_, series) = values.numbers.entry(family.name).or_insert((family, BTreeMap::new()));
        series.insert(labelled(labels), value);
    }

    fn add(&self, family: &'static Family, labels: &[(&str, &str)], value: f64) {
        let mut values = self.lock();
        let (_, series) = values.numbers.entry(family.name).or_insert((family, BTreeMap::new()));
        *series.entry(labelled(labels)).or_default() += value;
    }

    /// A run of this many rounds begins.
    pub fn started(&self, rounds: u32) {
        self.set(&PLANNED, &[], rounds.into());
    }

    /// A round of the coordinator is over.
    pub fn round(&self, record: &RoundRecord, timing: &Timing) {
        self.set(&ROUND, &[], record.round.into());
        self.set(&FINISHED, &[], now());
        self.set(&ACCURACY, &[], record.test_accuracy);
        let applied = record.outcome == fedanchor_record::Outcome::Applied;
        self.set(&APPLIED, &[], f64::from(u8::from(applied)));
        for (at, accuracy) in SiteTest::range(&record.sites)
            .into_iter()
            .flat_map(|range| ["worst", "mean", "best"].into_iter().zip(range))
        {
            self.set(&SITES, &[("of", at)], accuracy);
        }
        if let Some(spent) = record.privacy {
            self.set(&EPSILON, &[], spent.epsilon);
            spent.left.inspect(|left| self.set(&BUDGET, &[], *left));
        }
        for (outcome, count) in [
            ("asked", record.clients.len()),
            ("trained", record.trained),
            ("rejected", record.rejected.len()),
            ("lost", record.lost.len()),
            ("failed", record.failed.len()),
            ("absent", record.absent.len()),
            ("excluded", record.excluded.len()),
        ] {
            self.set(&CLIENTS, &[("outcome", outcome)], count as f64);
            self.add(&ANSWERS, &[("outcome", outcome)], count as f64);
        }
        self.add(&BYTES, &[("direction", "down")], record.bytes_down as f64);
        self.add(&BYTES, &[("direction", "up")], record.bytes_up as f64);
        for (phase, seconds) in [
            ("broadcast", timing.broadcast),
            ("clients", timing.clients),
            ("aggregate", timing.aggregate),
            ("server", timing.server),
            ("test", timing.test),
            ("total", timing.total),
        ] {
            self.set(&SECONDS, &[("phase", phase)], seconds);
        }
    }

    /// A node has joined a run with this many images, or has left it.
    pub fn joined(&self, images: Option<usize>) {
        self.set(&JOINED, &[], f64::from(u8::from(images.is_some())));
        self.set(&IMAGES, &[], images.unwrap_or_default() as f64);
    }

    /// A node has answered a request of this kind with this HTTP status after this time.
    pub fn answered(&self, kind: &str, status: u16, took: Duration) {
        self.add(&REQUESTS, &[("kind", kind), ("status", &status.to_string())], 1.0);
        if kind == "train" && status == 200 {
            self.add(&TRAINING, &[], took.as_secs_f64());
            self.set(&TRAINED, &[], now());
        }
    }

    /// The page, in version 0.0.4 of Prometheus' text format.
    fn page(&self) -> impl IntoResponse + use<> {
        let Shared { folder, mailbox, .. } = &*self.0;
        if let Some(bytes) = resident_memory() {
            self.set(&MEMORY, &[], bytes as f64);
        }
        if let Ok(disk) = rustix::fs::statvfs(folder) {
            self.set(&DISK, &[], disk.f_bavail as f64 * disk.f_frsize as f64);
        }
        if let Some(mailbox) = mailbox {
            self.set(&NODES, &[], mailbox.nodes().len() as f64);
            self.set(&TRANSPORT, &[], f64::from(u8::from(mailbox.has_transport())));
        }
        let mut text = String::new();
        for (Family { name, kind, help }, series) in self.lock().numbers.values() {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // a String takes all
            for (labels, value) in series {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
    }
}

/// Labels as the format has them; empty without any.
fn labelled(labels: &[(&str, &str)]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// Memory of this process in bytes.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn now() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_record::ClientNote;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_round_is_in_the_page() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new(folder.path().to_owned(), None);
        let server = metrics.serve("127.0.0.1:0").unwrap();
        metrics.started(9);
        let note = ClientNote { client: 3, reason: "ward is no number".to_owned() };
        let record = RoundRecord {
            round: 2,
            clients: vec![1, 3],
            trained: 1,
            rejected: vec![note],
            bytes_down: 70,
            test_accuracy: 81.5,
            ..RoundRecord::default()
        };
        let timing = Timing { clients: 1.5, ..Timing::default() };
        metrics.round(&record, &timing);
        metrics.round(&record, &timing);
        let page = ask(server.address, "/metrics");
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("version=0.0.4"), "{page}");
        for line in [
            "# TYPE fedanchor_round gauge",
            "fedanchor_round 2",
            "fedanchor_rounds_planned 9",
            "fedanchor_test_accuracy_percent 81.5",
            "fedanchor_round_clients{outcome=\"rejected\"} 1",
            "fedanchor_clients_total{outcome=\"rejected\"} 2",
            "fedanchor_bytes_total{direction=\"down\"} 140",
            "fedanchor_round_seconds{phase=\"clients\"} 1.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
        assert!(page.contains("fedanchor_disk_free_bytes ") && page.contains("memory_bytes "));
        assert!(!page.contains("ward"), "clients are not named: {page}");
    }

    #[test]
    fn an_address_that_is_taken_is_named() {
        let metrics = Metrics::new(PathBuf::from("/"), None);
        let server = metrics.serve("127.0.0.1:0").unwrap();
        assert!(ask(server.address, "/healthz").starts_with("HTTP/1.1 200"));
        assert!(ask(server.address, "/").starts_with("HTTP/1.1 404"));
        let taken = metrics.serve(&server.address.to_string()).unwrap_err().to_string();
        assert!(taken.starts_with(&format!("--metrics: {}: ", server.address)), "{taken}");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(labelled(&[("a", "b\"c\\d\n"), ("e", "f")]), r#"{a="b\"c\\d\n",e="f"}"#);
    }
}
