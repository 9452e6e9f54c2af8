//! A node: private images, and the clients that train on them.

mod data;
mod limits;
mod queue;
mod state;
mod trainer;

pub use data::{Clients, Source};

use crate::metrics::Metrics;
use crate::protocol::{JoinReply, JoinRequest, LocalClient, NOT_JOINED, PROTOCOL, check_names};
use crate::socket::{Bound, Socket};
use axum::body::Bytes;
use data::LocalData;
use fedanchor::clients::{ClientSite, LocalClients};
use fedanchor::engine::tensors::Params;
use fedanchor::engine::training::Context;
use fedanchor::experiment::resolve_client_settings;
use fedanchor::methods::{self, Method};
use fedanchor::{Error, Experiment, Result};
use fedanchor_record::Build;
use fedanchor_record::words::excerpt;
use queue::{Job, Queue, RequestQueue, Task};
use serde::Deserialize;
use state::StateFolder;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use trainer::Trainer;

/// How long the last reply may take to be read once the node is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its images.
    pub source: Source,
    /// Labelled pictures of its own, on which it tests the model for a run that asks for it: a folder per class.
    pub test: Option<PathBuf>,
    /// The folder in which its clients keep their states between rounds.
    pub state: PathBuf,
    /// The file of its trunk, for a run that has one [default: the file of that name where trunks are].
    pub trunk: Option<String>,
    /// The file of the clients' loss, for a run that has one of its own.
    pub loss: Option<PathBuf>,
    /// What its monitoring is told, if it has any.
    pub metrics: Option<Metrics>,
    /// Where it trains: `cpu` or `cuda:N`.
    pub device: String,
    /// Threads that augment images [default: one per core].
    pub workers: Option<usize>,
}

impl Settings {
    fn tell(&self, what: impl FnOnce(&Metrics)) {
        if let Some(metrics) = &self.metrics {
            what(metrics);
        }
    }

    /// Answers a request of this kind, which the node began to execute then.
    fn reply(
        &self,
        kind: &str,
        began: Instant,
        answer: oneshot::Sender<(u16, Bytes)>,
        reply: (u16, Bytes),
    ) {
        self.tell(|metrics| metrics.answered(kind, reply.0, began.elapsed()));
        let _ = answer.send(reply); // the connection may be gone
    }
}

/// A node that serves its socket until it is stopped.
#[derive(Debug)]
pub struct Node {
    socket: Socket,
    /// One thread, which holds images, model and device.
    worker: Option<JoinHandle<()>>,
    requests: RequestQueue,
}

impl Node {
    /// Starts a node on this socket.
    pub fn start(socket: &Path, settings: Settings) -> Result<Self> {
        let bound = Bound::new(socket)?;
        let folder = StateFolder::open(&settings.state)?;
        let (requests, queue) = RequestQueue::new();
        let worker = std::thread::spawn(move || work(&settings, &folder, &queue));
        let socket = bound.serve(requests.routes(), GRACE)?;
        Ok(Self { socket, worker: Some(worker), requests })
    }

    /// The path of its socket.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Whether its worker has ended, which is a bug.
    pub fn has_failed(&self) -> bool {
        self.worker.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the node once the current request is answered; returns the panic of its worker, if any. A process must not
    /// exit while the worker computes: libtorch would be unloaded.
    pub fn stop(mut self) -> std::thread::Result<()> {
        self.join()
    }

    fn join(&mut self) -> std::thread::Result<()> {
        self.requests.stop();
        self.worker.take().map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// Executes one job after the other, for the run that was joined last.
fn work(settings: &Settings, folder: &StateFolder, queue: &Queue) {
    let mut next = queue.next();
    while let Some(Job { task, answer, .. }) = next.take() {
        let (kind, began) = (task.kind(), Instant::now());
        let reply = |reply: (u16, Bytes)| settings.reply(kind, began, answer, reply);
        let refusal = match task {
            Task::Train(_) => Refusal::new(NOT_JOINED, "join first"),
            Task::Join(request) => match Site::open(settings, &request) {
                Err(refusal) => refusal,
                Ok(site) => match site.context.enter() {
                    Err(error) => Refusal::private(409, "its device cannot be used", &error),
                    Ok(_device) => {
                        reply((200, site.join_reply()));
                        let names = site.data.clients.iter().map(|(name, _)| name.as_str());
                        folder.remove_expired(&site.run.run, names);
                        settings.tell(|metrics| metrics.joined(Some(site.data.images.len())));
                        next = site.serve(settings, folder, queue, &request);
                        settings.tell(|metrics| metrics.joined(None));
                        continue;
                    }
                },
            },
        };
        reply(refusal.into_reply());
        next = queue.next();
    }
}

/// Replaces a reason that must stay on this machine, because it may name files.
const PRIVATE: &str = "see the node's log";

/// Why a request is refused: an HTTP status, and a message that may leave this machine.
struct Refusal(u16, String);

impl Refusal {
    /// A refusal that reveals nothing about this machine.
    fn new(status: u16, problem: impl ToString) -> Self {
        let problem = problem.to_string();
        // A node that has not joined yet is no incident.
        if status != NOT_JOINED {
            tracing::warn!(status, reason = problem, "refused");
        }
        Self(status, problem)
    }

    /// A refusal whose reason may name files. It is logged here and not sent.
    fn private(status: u16, problem: &str, reason: &impl ToString) -> Self {
        tracing::warn!(status, reason = reason.to_string(), "refused");
        Self(status, format!("{problem}: {PRIVATE}"))
    }

    fn into_reply(self) -> (u16, Bytes) {
        (self.0, self.1.into())
    }
}

/// A failure of the node itself.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::private(500, "internal error", &error)
    }
}

/// Parses a join request of this version.
fn parse_request(request: &[u8]) -> std::result::Result<JoinRequest, Refusal> {
    // The version first: the request of another version may have other fields.
    #[derive(Deserialize)]
    struct Versions {
        protocol: u32,
        version: String,
    }
    let malformed = |error: serde_json::Error| {
        let problem = excerpt(&error.to_string());
        Refusal::new(409, format!("malformed join request: {problem}"))
    };
    let Versions { protocol, version } = serde_json::from_slice(request).map_err(malformed)?;
    if protocol != PROTOCOL {
        let problem = format!(
            "the coordinator has version {} with protocol {protocol}, this node {} with protocol {PROTOCOL}: install \
             the same version",
            excerpt(&version),
            Build::current()
        );
        return Err(Refusal::new(409, problem));
    }
    serde_json::from_slice(request).map_err(malformed)
}

/// Everything that a run needs on this node.
struct Site {
    run: JoinRequest,
    experiment: Experiment,
    method: Box<dyn Method>,
    context: Context,
    data: LocalData,
    /// A model of the network, by which states are decoded.
    like: Params,
}

impl Site {
    /// Reads the images as the run needs them; refuses a run that does not fit.
    fn open(settings: &Settings, request: &[u8]) -> std::result::Result<Self, Refusal> {
        const UNFIT: &str = "cannot train this experiment";
        let run = parse_request(request)?;
        // These errors are about the request only, not about this machine.
        let unfit = |error: Error| {
            let problem = excerpt(&error.to_string());
            Refusal::new(409, format!("{UNFIT}: {problem}"))
        };
        let mut experiment = resolve_client_settings(&run.experiment).map_err(unfit)?;
        let method = methods::build(&experiment.method).map_err(unfit)?;
        experiment.device.clone_from(&settings.device);
        if let Some(loss) = &mut experiment.client.loss {
            // Code of this machine: a coordinator sends its name and hash.
            let Some(file) = settings.loss.as_ref().filter(|_| loss.hash.is_some()) else {
                let (name, hash) = (loss.file.display(), loss.hash.as_deref().unwrap_or("none"));
                let problem = format!(
                    "its clients have a loss of their own: start the node with --loss FILE, the one called {name} with \
                     the blake3 hash {hash}"
                );
                return Err(Refusal::new(409, format!("{UNFIT}: {}", excerpt(&problem))));
            };
            loss.file.clone_from(file);
        }
        let private = |error: Error| Refusal::private(409, UNFIT, &error);
        let training = experiment.training(method.properties().heads).map_err(private)?;
        limits::check(&run, &experiment, &training)?;
        let data = LocalData::read(settings, &experiment, &run)?;
        check_names(data.clients.iter().map(|(name, _)| name.as_str()))
            .map_err(|problem| Refusal::private(409, "invalid clients", &problem))?;
        let JoinRequest { format, classes, normalisation, flip, .. } = &run;
        let context =
            Context::new(training, *format, *classes, normalisation, *flip, settings.workers);
        let context = context.map_err(|error| private(error.into()))?;
        let like = context.initial().map_err(|error| private(error.into()))?;
        Ok(Self { run, experiment, method, context, data, like })
    }

    fn join_reply(&self) -> Bytes {
        let client = |(name, local): &(String, Vec<u32>)| LocalClient {
            name: name.clone(),
            samples: local.len(),
        };
        let reply = JoinReply {
            protocol: PROTOCOL,
            build: Build::current().clone(),
            clients: self.data.clients.iter().map(client).collect(),
        };
        serde_json::to_vec(&reply).unwrap_or_default().into()
    }

    /// Trains for this run until another is joined, whose job is returned.
    fn serve(
        &self,
        settings: &Settings,
        folder: &StateFolder,
        queue: &Queue,
        request: &Bytes,
    ) -> Option<Job> {
        let site = ClientSite {
            experiment: &self.experiment,
            context: &self.context,
            method: &*self.method,
            images: &self.data.images,
            labels: None,
            test: self.data.test.as_ref(),
            measures: false,
        };
        let mut trainer = Trainer::new(self, LocalClients::new(site), folder);
        while let Some(job) = queue.next() {
            let began = Instant::now();
            let reply = match &job.task {
                Task::Join(other) if other == request => (200, self.join_reply()),
                Task::Join(_) => return Some(job),
                Task::Train(body) => trainer.train(body),
            };
            settings.reply(job.task.kind(), began, job.answer, reply);
        }
        None
    }
}
