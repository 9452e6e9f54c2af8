//! A node: images that stay here, and the clients that train on them.

mod data;
mod refusal;
mod state;
mod trainer;

pub use data::{Clients, Source};

use crate::protocol::{
    ALIVE, JOIN, Joined, LocalClient, NOT_JOINED, PROTOCOL, TRAIN, Terms, bad_names,
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
use fedanchor::methods::{self, Method};
use fedanchor::{Error, Experiment, Result};
use refusal::Refusal;
use state::StateFolder;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use trainer::Trainer;

/// The longest request, in bytes: a model of 250 million parameters.
const LONGEST: usize = 1 << 30;
/// Requests that are held in memory at the same time.
const WAITING: usize = 4;

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
    answer: oneshot::Sender<(u16, Bytes)>,
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
        let router = Router::new()
            .route(JOIN, post(join))
            .route(TRAIN, post(train))
            .route(ALIVE, post(alive));
        let router = router.with_state(desk);
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

async fn alive() -> StatusCode {
    StatusCode::NO_CONTENT
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
                        let names = site.data.clients.iter().map(|(name, _)| name.as_str());
                        folder.forget_other_runs(&site.terms.run, names);
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
        let data = LocalData::read(&settings.source, &experiment.data, terms.shape)?;
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

    fn joined(&self) -> Bytes {
        let client = |(name, local): &(String, Vec<u32>)| LocalClient {
            name: name.clone(),
            samples: local.len(),
        };
        let joined = Joined {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clients: self.data.clients.iter().map(client).collect(),
        };
        serde_json::to_vec(&joined).unwrap_or_default().into()
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
        let mut trainer = Trainer::new(self, LocalClients::new(site), folder);
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
