//! A node: images that stay here, and the clients that train on them.

mod data;
mod desk;
mod limits;
mod refusal;
mod state;
mod trainer;

pub use data::{Clients, Source};

use crate::protocol::{Joined, LocalClient, NOT_JOINED, PROTOCOL, Terms, bad_names};
use crate::socket::{Bound, Socket};
use axum::body::Bytes;
use axum::http::StatusCode;
use data::LocalData;
use desk::{Desk, Job, Queue, Task};
use fedanchor::clients::{ClientSite, LocalClients};
use fedanchor::engine::tensors::Params;
use fedanchor::engine::training::Context;
use fedanchor::experiment::resolve_client_settings;
use fedanchor::methods::{self, Method};
use fedanchor::{Error, Experiment, Result};
use fedanchor_record::Build;
use fedanchor_record::words::excerpt;
use refusal::Refusal;
use serde::Deserialize;
use state::StateFolder;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use trainer::Trainer;

/// How long the last answer may take to be read once the node is stopped.
const GRACE: Duration = Duration::from_secs(5);

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

/// A node that answers on its socket until it is stopped.
#[derive(Debug)]
pub struct Node {
    socket: Option<Socket>,
    path: PathBuf,
    /// One thread, which holds images, model and device.
    worker: Option<JoinHandle<()>>,
    desk: Desk,
}

impl Node {
    /// Answers on this socket.
    pub fn start(socket: &Path, settings: Settings) -> Result<Self> {
        let bound = Bound::new(socket)?;
        let folder = StateFolder::open(&settings.state)?;
        let (desk, queue) = Desk::new();
        let worker = std::thread::spawn(move || work(&settings, &folder, &queue));
        let served = bound.serve(desk.routes(), GRACE)?;
        let (socket, path) = (Some(served), socket.to_owned());
        Ok(Self { socket, path, worker: Some(worker), desk })
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
        self.desk.stop();
        let ended = self.worker.take().map_or(Ok(()), JoinHandle::join);
        drop(self.socket.take());
        ended
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Does one job after the other. What is trained follows from the terms of the run that was joined last.
fn work(settings: &Settings, folder: &StateFolder, queue: &Queue) {
    let mut next = queue.next();
    while let Some(Job { task, answer, .. }) = next.take() {
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

/// The terms of a run, of this version.
fn read_terms(terms: &[u8]) -> std::result::Result<Terms, Refusal> {
    // The version first: another version may have other terms.
    #[derive(Deserialize)]
    struct Versions {
        protocol: u32,
        version: String,
    }
    let malformed = |error: serde_json::Error| {
        let problem = excerpt(&error.to_string());
        Refusal::new(409, format!("malformed terms of a run: {problem}"))
    };
    let Versions { protocol, version } = serde_json::from_slice(terms).map_err(malformed)?;
    if protocol != PROTOCOL {
        let problem = format!(
            "the coordinator has version {} with protocol {protocol}, this node {} with protocol {PROTOCOL}: install \
             the same version",
            excerpt(&version),
            Build::current()
        );
        return Err(Refusal::new(409, problem));
    }
    serde_json::from_slice(terms).map_err(malformed)
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
        let terms = read_terms(terms)?;
        // It speaks of what was sent, and of nothing on this machine.
        let unknown = |error: Error| {
            let problem = excerpt(&error.to_string());
            Refusal::new(409, format!("cannot train this experiment: {problem}"))
        };
        let mut experiment = resolve_client_settings(&terms.experiment).map_err(unknown)?;
        let method = methods::build(&experiment.method).map_err(unknown)?;
        experiment.device.clone_from(&settings.device);
        let other = |error: Error| Refusal::private(409, "cannot train this experiment", &error);
        let training = experiment.training(method.properties().heads).map_err(other)?;
        limits::check(&terms, &experiment, &training)?;
        let data = LocalData::read(&settings.source, &experiment.data, terms.shape)?;
        if let Some(problem) = bad_names(data.clients.iter().map(|(name, _)| name.as_str())) {
            return Err(Refusal::private(409, "it cannot name its clients", &problem));
        }
        let context = Context::new(
            training,
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
            build: Build::current().clone(),
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
            measures: false,
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
