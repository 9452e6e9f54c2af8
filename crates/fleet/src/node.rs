//! A node: images that stay here, and the clients that train on them.

mod data;
mod state;

pub use data::{Clients, Source};

use crate::protocol::{
    JOIN, Joined, LocalClient, NOT_JOINED, PROTOCOL, TRAIN, Terms, TrainHeader, join_parts,
    split_parts,
};
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
use fedanchor::messages::Broadcast;
use fedanchor::methods::{self, Method};
use fedanchor::{Error, Experiment, Result};
use state::StateFolder;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// The longest request, in bytes: a model of 250 million parameters.
const LONGEST: usize = 1 << 30;

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
}

enum Task {
    Join(Bytes),
    Train(Bytes),
}

/// The routes of a node's socket, and its worker: one thread, which holds images, model and device.
pub fn routes(settings: Settings) -> Result<Router> {
    let folder = StateFolder::open(&settings.state)?;
    let (jobs, queue) = mpsc::channel();
    std::thread::spawn(move || work(&settings, &folder, &queue));
    Ok(Router::new().route(JOIN, post(join)).route(TRAIN, post(train)).with_state(jobs))
}

async fn join(State(jobs): State<mpsc::Sender<Job>>, body: Body) -> Response {
    hand_over(&jobs, body, Task::Join).await
}

async fn train(State(jobs): State<mpsc::Sender<Job>>, body: Body) -> Response {
    hand_over(&jobs, body, Task::Train).await
}

async fn hand_over(jobs: &mpsc::Sender<Job>, body: Body, task: fn(Bytes) -> Task) -> Response {
    let Ok(body) = to_bytes(body, LONGEST).await else {
        let problem = format!("a body of more than {LONGEST} bytes, or one that broke off");
        return (StatusCode::PAYLOAD_TOO_LARGE, problem).into_response();
    };
    let (answer, answered) = oneshot::channel();
    let sent = jobs.send(Job { task: task(body), answer });
    match (sent, answered.await) {
        (Ok(()), Ok((status, body))) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, body).into_response()
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "the node's worker has ended").into_response(),
    }
}

/// Does one job after the other. What is trained follows from the terms of the run that was joined last.
fn work(settings: &Settings, folder: &StateFolder, queue: &mpsc::Receiver<Job>) {
    let mut next = queue.recv().ok();
    while let Some(Job { task, answer }) = next.take() {
        let reply = match task {
            Task::Train(_) => (NOT_JOINED, b"join first".to_vec()),
            Task::Join(terms) => match Site::open(settings, &terms) {
                Err(error) => (StatusCode::CONFLICT.as_u16(), error.to_string().into_bytes()),
                Ok(site) => {
                    let _ = answer.send((StatusCode::OK.as_u16(), site.joined()));
                    next = site.serve(folder, queue, &terms);
                    continue;
                }
            },
        };
        let _ = answer.send(reply);
        next = queue.recv().ok();
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
    /// Brings the images into the form that the terms ask for; an error says what does not fit.
    fn open(settings: &Settings, terms: &[u8]) -> Result<Self> {
        let terms: Terms = serde_json::from_slice(terms).map_err(|error| {
            Error::Fleet(format!("the terms of the run make no sense: {error}"))
        })?;
        if terms.protocol != PROTOCOL {
            return Err(Error::Fleet(format!(
                "the coordinator has version {} with protocol {}, this node {} with protocol {PROTOCOL}: \
                 install the same version",
                terms.version,
                terms.protocol,
                env!("CARGO_PKG_VERSION")
            )));
        }
        let device = format!("device={}", settings.device);
        let experiment = fedanchor::resolve(&terms.experiment, &[device])?;
        let method = methods::build(&experiment.method)?;
        let data = LocalData::read(&settings.source, &experiment.data, terms.shape)?;
        let context = Context::new(
            experiment.training(method.heads())?,
            terms.shape,
            terms.classes,
            &terms.normalisation,
            terms.flip,
            settings.workers,
        )?;
        let like = context.initial()?;
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
    fn serve(
        &self,
        folder: &StateFolder,
        queue: &mpsc::Receiver<Job>,
        terms: &Bytes,
    ) -> Option<Job> {
        let site = ClientSite {
            experiment: &self.experiment,
            context: &self.context,
            method: &*self.method,
            images: &self.data.images,
            labels: None,
        };
        let _queue = self.context.enter();
        let mut trainer =
            Trainer { site: self, clients: LocalClients::new(site), folder, last: None };
        while let Ok(job) = queue.recv() {
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

/// Why a request is not carried out: an HTTP status, and words.
struct Refusal {
    status: u16,
    problem: String,
}

impl Refusal {
    fn new(status: u16, problem: impl ToString) -> Self {
        Self { status, problem: problem.to_string() }
    }
}

/// The node's own fault.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR.as_u16(), error)
    }
}

/// Trains the clients of a node, round by round.
struct Trainer<'a> {
    site: &'a Site,
    clients: LocalClients<'a>,
    folder: &'a StateFolder,
    /// The last request and its reply: a request that a transport delivers again is not trained again.
    last: Option<(blake3::Hash, Vec<u8>)>,
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
            Err(Refusal { status, problem }) => {
                tracing::warn!(status, problem, "not trained");
                (status, problem.into_bytes())
            }
        }
    }

    fn train_anew(&mut self, body: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let Site { terms, context, data, like, .. } = self.site;
        let parts = split_parts(body).unwrap_or_default();
        let [header, broadcast] = parts[..] else {
            return Err(Refusal::new(400, "a request to train has a header and a broadcast"));
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
        let mut numbers = Vec::new();
        for (name, number) in &clients {
            let Some((_, local)) = data.clients.iter().find(|(there, _)| there == name) else {
                return Err(Refusal::new(404, format!("there is no client {name:?} here")));
            };
            self.clients.add(*number, local);
            // From disk, even if it is in memory: a round that is asked for again starts where it started before.
            match self.folder.load(&run, name, broadcast.round)? {
                Some((round, kept)) => self.clients.restore(*number, round, &kept, like)?,
                None => self.clients.forget(*number),
            }
            numbers.push(*number);
        }
        if numbers.iter().collect::<BTreeSet<_>>().len() < numbers.len() || numbers.is_empty() {
            return Err(Refusal::new(400, "a request to train names each client once"));
        }
        let mut answers = Vec::new();
        self.clients.train(&numbers, &broadcast, &mut |answer, _| {
            answers.push(answer.encode()?);
            Ok(())
        })?;
        // On disk before the answer leaves: the coordinator may count on it.
        for (number, kept) in self.clients.save(broadcast.round, like)? {
            if let Some((name, _)) = clients.iter().find(|(_, other)| *other == number) {
                self.folder.save(&run, name, broadcast.round, &kept)?;
            }
        }
        let answers: Vec<&[u8]> = answers.iter().map(Vec::as_slice).collect();
        Ok(join_parts(&answers))
    }
}
