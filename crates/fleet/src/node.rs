//! A node: images that stay here, and the clients that train on them.

mod data;
mod state;

pub use data::{Clients, Source};

use crate::protocol::{
    JOIN, Joined, LocalClient, NOT_JOINED, PROTOCOL, TRAIN, Terms, TrainHeader, bad_names,
    join_parts, split_parts,
};
use crate::socket::{Bound, Socket};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use data::LocalData;
use fedanchor::clients::{ClientSite, LocalClients};
use fedanchor::engine::tensors::Params;
use fedanchor::engine::training::Context;
use fedanchor::messages::{Answer, Broadcast, ClientOutcome};
use fedanchor::methods::{self, Method};
use fedanchor::{Error, Experiment, Result};
use state::{Kept, StateFolder};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The longest request, in bytes: a model of 250 million parameters.
const LONGEST: usize = 1 << 30;
/// Requests that are held in memory at the same time.
const WAITING: usize = 4;
/// What is said of a failure whose reason stays on this machine: it may name files.
const PRIVATE: &str = "the node's own log says why";

/// What a node has.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its images.
    pub source: Source,
    /// Where its clients keep what they need in their next round.
    pub state: PathBuf,
    /// Where it trains: `cpu` or `cuda:N`.
    pub device: String,
    /// Threads that augment images [default: one per core].
    pub workers: Option<usize>,
}

/// Something to do, and where the answer goes: a status and a body.
struct Job {
    task: Task,
    answer: oneshot::Sender<(u16, Vec<u8>)>,
    /// Its place among those that are held in memory.
    _place: OwnedSemaphorePermit,
}

enum Task {
    Join(Bytes),
    Train(Bytes),
}

/// A node that answers on its socket until it is stopped.
#[derive(Debug)]
pub struct Node {
    socket: Option<Socket>,
    path: PathBuf,
    /// One thread, which holds images, model and device.
    worker: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
}

impl Node {
    /// Answers on this socket.
    pub fn start(socket: &Path, settings: Settings) -> Result<Self> {
        let bound = Bound::new(socket)?;
        let folder = StateFolder::open(&settings.state)?;
        let (jobs, queue) = mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let queue = Queue { jobs: queue, stopping: stopping.clone() };
        let worker = std::thread::spawn(move || work(&settings, &folder, &queue));
        let desk = Desk { jobs, places: Arc::new(Semaphore::new(WAITING)) };
        let router =
            Router::new().route(JOIN, post(join)).route(TRAIN, post(train)).with_state(desk);
        // What is being trained is waited for.
        let served = bound.serve(router, Duration::MAX)?;
        let (socket, path) = (Some(served), socket.to_owned());
        Ok(Self { socket, path, worker: Some(worker), stopping })
    }

    /// Where it answers.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its worker has ended, which it does only if something is wrong with the program.
    pub fn has_failed(&self) -> bool {
        self.worker.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the request that is being worked on is answered, and ends. A process must not end while the worker
    /// computes: libtorch would be torn down under it.
    pub fn stop(mut self) -> std::thread::Result<()> {
        self.end()
    }

    fn end(&mut self) -> std::thread::Result<()> {
        self.stopping.store(true, Ordering::Relaxed);
        drop(self.socket.take());
        self.worker.take().map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Takes requests and hands them to the worker.
#[derive(Clone)]
struct Desk {
    jobs: mpsc::Sender<Job>,
    places: Arc<Semaphore>,
}

async fn join(State(desk): State<Desk>, body: Body) -> Response {
    hand_over(desk, body, Task::Join).await
}

async fn train(State(desk): State<Desk>, body: Body) -> Response {
    hand_over(desk, body, Task::Train).await
}

async fn hand_over(desk: Desk, body: Body, task: fn(Bytes) -> Task) -> Response {
    let Ok(place) = desk.places.try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the node is busy").into_response();
    };
    let Ok(body) = to_bytes(body, LONGEST).await else {
        let problem = format!("a body of more than {LONGEST} bytes, or one that broke off");
        return (StatusCode::PAYLOAD_TOO_LARGE, problem).into_response();
    };
    let (answer, answered) = oneshot::channel();
    let sent = desk.jobs.send(Job { task: task(body), answer, _place: place });
    match (sent, answered.await) {
        (Ok(()), Ok((status, body))) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, body).into_response()
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the node ends").into_response(),
    }
}

/// What the worker is to do.
struct Queue {
    jobs: mpsc::Receiver<Job>,
    stopping: Arc<AtomicBool>,
}

impl Queue {
    /// The next job whose asker still waits for it; `None` at the end.
    fn next(&self) -> Option<Job> {
        let wanted = |job: &Job| !job.answer.is_closed();
        self.jobs.iter().take_while(|_| !self.stopping.load(Ordering::Relaxed)).find(wanted)
    }
}

/// Does one job after the other. What is trained follows from the terms of the run that was joined last.
fn work(settings: &Settings, folder: &StateFolder, queue: &Queue) {
    let mut next = queue.next();
    while let Some(Job { task, answer, _place }) = next.take() {
        let reply = match task {
            Task::Train(_) => Err(Refusal::new(NOT_JOINED, "join first")),
            Task::Join(terms) => match Site::open(settings, &terms) {
                Err(refusal) => Err(refusal),
                Ok(site) => match site.context.enter() {
                    Err(error) => Err(Refusal::private(409, "its device cannot be used", &error)),
                    Ok(_device) => {
                        let _ = answer.send((StatusCode::OK.as_u16(), site.joined()));
                        next = site.serve(folder, queue, &terms);
                        continue;
                    }
                },
            },
        };
        let _ = answer.send(reply.unwrap_or_else(Refusal::tell));
        next = queue.next();
    }
}

/// Everything that a run needs here.
struct Site {
    terms: Terms,
    experiment: Experiment,
    method: Box<dyn Method>,
    context: Context,
    data: LocalData,
    /// A model of the network, to read states by.
    like: Params,
}

impl Site {
    /// Brings the images into the form that the terms ask for, or says what does not fit.
    fn open(settings: &Settings, terms: &[u8]) -> std::result::Result<Self, Refusal> {
        let terms: Terms = serde_json::from_slice(terms).map_err(|error| {
            Refusal::new(409, format!("the terms of the run make no sense: {error}"))
        })?;
        if terms.protocol != PROTOCOL {
            let problem = format!(
                "the coordinator has version {} with protocol {}, this node {} with protocol {PROTOCOL}: \
                 install the same version",
                terms.version,
                terms.protocol,
                env!("CARGO_PKG_VERSION")
            );
            return Err(Refusal::new(409, problem));
        }
        let device = format!("device={}", settings.device);
        let other = |error: Error| Refusal::private(409, "it cannot train this experiment", &error);
        let experiment = fedanchor::resolve(&terms.experiment, &[device]).map_err(other)?;
        let method = methods::build(&experiment.method).map_err(other)?;
        let data = LocalData::read(&settings.source, &experiment.data, terms.shape)
            .map_err(|error| Refusal::private(409, "its images do not fit the run", &error))?;
        if let Some(problem) = bad_names(data.clients.iter().map(|(name, _)| name.as_str())) {
            return Err(Refusal::private(409, "it cannot name its clients", &problem));
        }
        let context = Context::new(
            experiment.training(method.heads()).map_err(other)?,
            terms.shape,
            terms.classes,
            &terms.normalisation,
            terms.flip,
            settings.workers,
        );
        let context = context.map_err(|error| other(error.into()))?;
        let like = context.initial().map_err(|error| other(error.into()))?;
        Ok(Self { terms, experiment, method, context, data, like })
    }

    fn joined(&self) -> Vec<u8> {
        let client = |(name, local): &(String, Vec<u32>)| LocalClient {
            name: name.clone(),
            samples: local.len(),
        };
        let joined = Joined {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clients: self.data.clients.iter().map(client).collect(),
        };
        serde_json::to_vec(&joined).unwrap_or_default()
    }

    /// Trains for this run until another one is joined, whose job is returned.
    fn serve(&self, folder: &StateFolder, queue: &Queue, terms: &Bytes) -> Option<Job> {
        let site = ClientSite {
            experiment: &self.experiment,
            context: &self.context,
            method: &*self.method,
            images: &self.data.images,
            labels: None,
        };
        let (clients, new) = (LocalClients::new(site), BTreeSet::new());
        let mut trainer = Trainer { site: self, clients, folder, last: None, new };
        while let Some(job) = queue.next() {
            let reply = match &job.task {
                Task::Join(other) if other == terms => (StatusCode::OK.as_u16(), self.joined()),
                Task::Join(_) => return Some(job),
                Task::Train(body) => trainer.train(body),
            };
            let _ = job.answer.send(reply);
        }
        None
    }
}

/// Why a request is not carried out: an HTTP status, words that may leave this machine, and perhaps others that may
/// not.
struct Refusal {
    status: u16,
    problem: String,
    private: Option<String>,
}

impl Refusal {
    /// For a reason that says nothing of this machine.
    fn new(status: u16, problem: impl ToString) -> Self {
        Self { status, problem: problem.to_string(), private: None }
    }

    /// For one that may name files.
    fn private(status: u16, what: &str, error: &impl ToString) -> Self {
        let problem = format!("{what}: {PRIVATE}");
        Self { status, problem, private: Some(error.to_string()) }
    }

    /// The reply, after saying why on this machine.
    fn tell(self) -> (u16, Vec<u8>) {
        let Self { status, problem, private } = self;
        // That it has to join first is no news.
        if status != NOT_JOINED {
            let reason = private.as_ref().unwrap_or(&problem);
            tracing::warn!(status, reason, "refused");
        }
        (status, problem.into_bytes())
    }
}

/// The node's own fault.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::private(500, "it failed", &error)
    }
}

/// Trains the clients of a node, round by round.
struct Trainer<'a> {
    site: &'a Site,
    clients: LocalClients<'a>,
    folder: &'a StateFolder,
    /// The last request and its reply: a request that a transport delivers again is not trained again.
    last: Option<(blake3::Hash, Vec<u8>)>,
    /// Clients that have trained without anything kept from a round before.
    new: BTreeSet<String>,
}

impl Trainer<'_> {
    fn train(&mut self, body: &[u8]) -> (u16, Vec<u8>) {
        let digest = blake3::hash(body);
        if let Some((last, reply)) = &self.last
            && *last == digest
        {
            return (StatusCode::OK.as_u16(), reply.clone());
        }
        match self.train_anew(body) {
            Ok(reply) => {
                self.last = Some((digest, reply.clone()));
                (StatusCode::OK.as_u16(), reply)
            }
            Err(refusal) => refusal.tell(),
        }
    }

    fn train_anew(&mut self, body: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let Site { terms, context, data, like, .. } = self.site;
        let parts = split_parts(body).unwrap_or_default();
        let [broadcast, header] = parts[..] else {
            return Err(Refusal::new(400, "a request to train has a broadcast and a header"));
        };
        let Ok(TrainHeader { run, clients }) = serde_json::from_slice(header) else {
            return Err(Refusal::new(400, "the header of a request to train makes no sense"));
        };
        if run != terms.run {
            return Err(Refusal::new(NOT_JOINED, "another run: join first"));
        }
        let layout = &context.network.layout;
        let decoded = Broadcast::decode(broadcast, layout, terms.classes, context.device);
        let (broadcast, _) = decoded.map_err(|error| Refusal::new(400, error))?;
        let numbers: Vec<u32> = clients.iter().map(|(_, number)| *number).collect();
        if numbers.iter().collect::<BTreeSet<_>>().len() < numbers.len() || numbers.is_empty() {
            return Err(Refusal::new(400, "a request to train names each client once"));
        }
        let mut without = BTreeSet::new();
        for (name, number) in &clients {
            let Some((_, local)) = data.clients.iter().find(|(there, _)| there == name) else {
                return Err(Refusal::new(404, "one of these clients is not here"));
            };
            self.clients.add(*number, local);
            // From disk, even if it is in memory: a round that is asked for again starts where it started before.
            match self.folder.load(&run, name, broadcast.round)? {
                Kept::State(round, kept)
                    if self.clients.restore(*number, round, &kept, like).is_ok() => {}
                Kept::Nothing => {
                    self.clients.forget(*number);
                    without.insert(*number);
                }
                Kept::State(..) | Kept::Damaged => {
                    tracing::warn!(client = name, "starts without what it kept, which is damaged");
                    self.clients.forget(*number);
                }
            }
        }
        let mut answers = Vec::new();
        self.clients.train(&numbers, &broadcast, &mut |answer, _| {
            answers.push(without_reason(answer).encode()?);
            Ok(())
        })?;
        // On disk before the answer leaves: the coordinator may count on it.
        for (number, kept) in self.clients.save(broadcast.round, like)? {
            let Some((name, _)) = clients.iter().find(|(_, other)| *other == number) else {
                continue;
            };
            self.folder.save(&run, name, broadcast.round, &kept)?;
            let (client, round) = (name, broadcast.round);
            if round > 1 && without.contains(&number) && self.new.insert(name.clone()) {
                tracing::warn!(
                    client,
                    round,
                    "has kept nothing from earlier rounds of this run: it trains for the first time, or its state is \
                     not in the folder of --state"
                );
            }
        }
        let answers: Vec<&[u8]> = answers.iter().map(Vec::as_slice).collect();
        Ok(join_parts(&answers))
    }
}

/// An answer that may leave this machine: why a client failed may name files.
fn without_reason(mut answer: Answer) -> Answer {
    if let ClientOutcome::Failed { reason } = &mut answer.outcome {
        tracing::warn!(client = answer.client, reason, "could not train");
        *reason = format!("it could not train: {PRIVATE}");
    }
    answer
}
