//! Where a node's requests arrive. They are read side by side and handed to the worker one after the other.
//!
//! Memory is limited by the bytes that have arrived, not by the number of requests or by what they announce: a body that
//! does not come to its end keeps nobody else waiting.

use crate::protocol::{ALIVE, Alive, JOIN, TRAIN};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use fedanchor_data::formats::free_memory;
use serde::Deserialize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// The longest request to train, in bytes: a model of 250 million parameters.
pub(super) const LONGEST_TASK: usize = 1 << 30;
/// The longest request to join: a run's settings are a few kilobytes.
const LONGEST_TERMS: usize = 2 << 20;
/// The most bytes of requests that are in memory at the same time, or half of what is free: one that is worked on, and
/// one that waits.
const ROOM: usize = 2 * LONGEST_TASK;
/// What a request takes beside its body.
const OVERHEAD: usize = 64 << 10;
/// Requests come from a process on this machine, which has them in memory: they neither pause ...
const PAUSE: Duration = Duration::from_secs(10);
/// ... nor take longer than this.
const ARRIVES_WITHIN: Duration = Duration::from_secs(120);

const STOPPING: &str = "node is shutting down";

/// Something to do, and where the answer goes: a status and a body.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) answer: oneshot::Sender<(u16, Bytes)>,
    /// Its part of the memory for requests.
    _room: OwnedSemaphorePermit,
}

pub(super) enum Task {
    Join(Bytes),
    Train(Bytes),
}

/// What the worker is to do.
pub(super) struct Queue {
    jobs: mpsc::Receiver<Job>,
    stopping: watch::Receiver<bool>,
}

impl Queue {
    /// The next job whose asker still waits for it; `None` at the end.
    pub(super) fn next(&self) -> Option<Job> {
        let wanted = |job: &Job| !job.answer.is_closed();
        self.jobs.iter().take_while(|_| !*self.stopping.borrow()).find(wanted)
    }
}

/// Takes requests in.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    /// Nowhere once the node is stopped.
    jobs: Arc<Mutex<Option<mpsc::Sender<Job>>>>,
    stopping: watch::Sender<bool>,
    room: Arc<Semaphore>,
    /// The numbers of the tasks that somebody waits for.
    tasks: Arc<Mutex<Vec<u64>>>,
}

impl Desk {
    /// A desk, and the queue of what arrives there.
    pub(super) fn new() -> (Self, Queue) {
        let (jobs, queue) = mpsc::channel();
        let (stopping, stops) = watch::channel(false);
        let room = free_memory().map_or(ROOM, |free| ROOM.min(free as usize / 2));
        let desk = Self {
            jobs: Arc::new(Mutex::new(Some(jobs))),
            stopping,
            room: Arc::new(Semaphore::new(room)),
            tasks: Arc::default(),
        };
        (desk, Queue { jobs: queue, stopping: stops })
    }

    /// Where requests arrive.
    pub(super) fn routes(&self) -> Router {
        Router::new()
            .route(JOIN, post(join))
            .route(TRAIN, post(train))
            .route(ALIVE, post(alive))
            .with_state(self.clone())
    }

    /// Lets the worker end after the job that it works on, and refuses all others.
    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
        lock(&self.jobs).take();
    }

    async fn hand_over(&self, body: Body, longest: usize, task: fn(Bytes) -> Task) -> Response {
        let mut stopping = self.stopping.subscribe();
        let received = tokio::select! {
            received = receive(body, longest, &self.room) => received,
            () = async { _ = stopping.wait_for(|stopping| *stopping).await } => {
                Err((StatusCode::SERVICE_UNAVAILABLE, STOPPING.to_owned()))
            }
        };
        let (body, room) = match received {
            Ok(received) => received,
            Err(refused) => return refused.into_response(),
        };
        let (answer, answered) = oneshot::channel();
        let job = Job { task: task(body), answer, _room: room };
        // Where there is no worker any longer, the job is dropped, and with it the way to answer.
        match &*lock(&self.jobs) {
            Some(jobs) => _ = jobs.send(job),
            None => drop(job),
        }
        match answered.await {
            Ok((status, body)) => {
                let status =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                (status, body).into_response()
            }
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, STOPPING).into_response(),
        }
    }
}

/// A task that somebody waits for, until this is dropped: also when whoever waits has hung up.
struct InHand<'a> {
    desk: &'a Desk,
    task: u64,
}

impl<'a> InHand<'a> {
    fn new(desk: &'a Desk, task: u64) -> Self {
        lock(&desk.tasks).push(task);
        Self { desk, task }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut tasks = lock(&self.desk.tasks);
        if let Some(at) = tasks.iter().position(|task| *task == self.task) {
            tasks.swap_remove(at);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn alive(State(desk): State<Desk>) -> Json<Alive> {
    Json(Alive { tasks: lock(&desk.tasks).iter().copied().collect() })
}

async fn join(State(desk): State<Desk>, body: Body) -> Response {
    desk.hand_over(body, LONGEST_TERMS, Task::Join).await
}

#[derive(Deserialize)]
struct TaskNumber {
    task: Option<u64>,
}

async fn train(
    State(desk): State<Desk>,
    Query(TaskNumber { task }): Query<TaskNumber>,
    body: Body,
) -> Response {
    let _in_hand = task.map(|task| InHand::new(&desk, task));
    desk.hand_over(body, LONGEST_TASK, Task::Train).await
}

/// Reads a body, and takes room for it as it arrives.
async fn receive(
    mut body: Body,
    longest: usize,
    room: &Arc<Semaphore>,
) -> Result<(Bytes, OwnedSemaphorePermit), (StatusCode, String)> {
    let too_long = || {
        let problem = format!("the request has more than {longest} bytes");
        Err((StatusCode::PAYLOAD_TOO_LARGE, problem))
    };
    let take = |bytes: usize| {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        room.clone().try_acquire_many_owned(permits).map_err(|_| {
            (StatusCode::SERVICE_UNAVAILABLE, "no memory left for another request".to_owned())
        })
    };
    if body.size_hint().lower() > longest as u64 {
        return too_long();
    }
    let (mut whole, mut place) = (Vec::new(), take(OVERHEAD)?);
    let until = Instant::now() + ARRIVES_WITHIN;
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let bytes = match timeout_at(until, timeout(PAUSE, frame)).await {
            Err(_) | Ok(Err(_)) => {
                let problem = "the request stalled before its end".to_owned();
                return Err((StatusCode::REQUEST_TIMEOUT, problem));
            }
            Ok(Ok(None)) => return Ok((whole.into(), place)),
            Ok(Ok(Some(Err(_)))) => {
                let problem = "the request broke off before its end".to_owned();
                return Err((StatusCode::BAD_REQUEST, problem));
            }
            Ok(Ok(Some(Ok(frame)))) => frame.into_data().unwrap_or_default(),
        };
        if whole.len() + bytes.len() > longest {
            return too_long();
        }
        place.merge(take(bytes.len())?);
        whole.extend_from_slice(&bytes);
    }
}
