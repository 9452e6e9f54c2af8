//! The queue of a node's requests. Bodies are received concurrently and executed by the worker one after the other.
//!
//! Memory is limited by the bytes that have arrived, not by the number of requests or the length that they announce: a
//! body that stalls does not block others.

use crate::protocol::{ALIVE, Heartbeat, JOIN, TRAIN};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use fedanchor_data::formats::free_memory;
use futures_util::StreamExt;
use serde::Deserialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// The longest request to train, in bytes: a model of 250 million parameters.
pub(super) const LONGEST_TASK: usize = 1 << 30;
/// The longest request to join: a run's settings have a few kilobytes.
const LONGEST_JOIN: usize = 2 << 20;
/// The most bytes of requests in memory, or half of the free memory: the current request, and one that waits.
const ROOM: usize = 2 * LONGEST_TASK;
/// The memory of a request in addition to its body.
const OVERHEAD: usize = 64 << 10;
/// Requests come from a process on this machine, which has them in memory: they neither pause for longer than this ...
const PAUSE: Duration = Duration::from_secs(10);
/// ... nor take longer than this.
const ARRIVES_WITHIN: Duration = Duration::from_secs(120);

const STOPPING: &str = "node is shutting down";

/// A task, and the channel for its reply: a status and a body.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) answer: oneshot::Sender<(u16, Bytes)>,
    /// Its share of [`ROOM`].
    _room: OwnedSemaphorePermit,
}

pub(super) enum Task {
    Join(Bytes),
    Train(Bytes),
}

impl Task {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Join(_) => "join",
            Self::Train(_) => "train",
        }
    }
}

/// The worker's end of the queue.
pub(super) struct Queue {
    jobs: mpsc::Receiver<Option<Job>>,
    stopping: watch::Receiver<bool>,
}

impl Queue {
    /// Waits for the next job whose connection is still open; `None` once the node is stopped.
    pub(super) fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.iter().map_while(|job| job.filter(|_| !*self.stopping.borrow()));
        jobs.find(|job| !job.answer.is_closed())
    }
}

/// The socket's end of the queue.
#[derive(Debug, Clone)]
pub(super) struct RequestQueue {
    /// `None` wakes the worker when the node is stopped.
    jobs: mpsc::Sender<Option<Job>>,
    stopping: watch::Sender<bool>,
    room: Arc<Semaphore>,
    /// The numbers of pending requests to train.
    tasks: Arc<Mutex<Vec<u64>>>,
}

impl RequestQueue {
    /// A queue's two ends.
    pub(super) fn new() -> (Self, Queue) {
        let (sender, jobs) = mpsc::channel();
        let (stop, stopping) = watch::channel(false);
        let room = free_memory().map_or(ROOM, |free| ROOM.min(free as usize / 2));
        let (room, tasks) = (Arc::new(Semaphore::new(room)), Arc::default());
        (Self { jobs: sender, stopping: stop, room, tasks }, Queue { jobs, stopping })
    }

    /// The routes of the node's socket.
    pub(super) fn routes(&self) -> Router {
        Router::new()
            .route(JOIN, post(join))
            .route(TRAIN, post(train))
            .route(ALIVE, post(alive))
            .with_state(self.clone())
    }

    /// Lets the worker end after the current job, and refuses all others.
    pub(super) fn stop(&self) {
        self.stopping.send_replace(true);
        let _ = self.jobs.send(None);
    }

    async fn execute(
        &self,
        body: Body,
        longest: usize,
        task: fn(Bytes) -> Task,
    ) -> Result<Response, (StatusCode, String)> {
        let stopped = || (StatusCode::SERVICE_UNAVAILABLE, STOPPING.to_owned());
        let mut stopping = self.stopping.subscribe();
        let (body, room) = tokio::select! {
            received = receive(body, longest, &self.room) => received?,
            _ = stopping.wait_for(|stopping| *stopping) => return Err(stopped()),
        };
        let (answer, answered) = oneshot::channel();
        // Once the worker has ended, the job is dropped, and with it the channel.
        let _ = self.jobs.send(Some(Job { task: task(body), answer, _room: room }));
        let (status, body) = answered.await.map_err(|_| stopped())?;
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Ok((status, body).into_response())
    }
}

/// A pending request to train, until this is dropped: also if its connection was closed.
struct Pending<'a> {
    queue: &'a RequestQueue,
    task: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut tasks = lock(&self.queue.tasks);
        if let Some(at) = tasks.iter().position(|task| *task == self.task) {
            tasks.swap_remove(at);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn alive(State(queue): State<RequestQueue>) -> Json<Heartbeat> {
    Json(Heartbeat { tasks: lock(&queue.tasks).iter().copied().collect() })
}

async fn join(State(queue): State<RequestQueue>, body: Body) -> impl IntoResponse {
    queue.execute(body, LONGEST_JOIN, Task::Join).await
}

#[derive(Deserialize)]
struct TaskNumber {
    task: Option<u64>,
}

async fn train(
    State(queue): State<RequestQueue>,
    Query(TaskNumber { task }): Query<TaskNumber>,
    body: Body,
) -> impl IntoResponse {
    let _pending = task.map(|task| {
        lock(&queue.tasks).push(task);
        Pending { queue: &queue, task }
    });
    queue.execute(body, LONGEST_TASK, Task::Train).await
}

/// Receives a body, and takes room for it as it arrives.
async fn receive(
    body: Body,
    longest: usize,
    room: &Arc<Semaphore>,
) -> Result<(Bytes, OwnedSemaphorePermit), (StatusCode, String)> {
    let refusal = |status: StatusCode, problem: &str| (status, problem.to_owned());
    let too_long = || {
        let problem = format!("the request has more than {longest} bytes");
        (StatusCode::PAYLOAD_TOO_LARGE, problem)
    };
    let take = |bytes: usize| {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        room.clone().try_acquire_many_owned(permits).map_err(|_| {
            refusal(StatusCode::SERVICE_UNAVAILABLE, "no memory left for another request")
        })
    };
    if body.size_hint().lower() > longest as u64 {
        return Err(too_long());
    }
    let (mut whole, mut taken) = (Vec::new(), take(OVERHEAD)?);
    let until = Instant::now() + ARRIVES_WITHIN;
    let mut body = body.into_data_stream();
    loop {
        let next =
            timeout_at(until, timeout(PAUSE, body.next())).await.flatten().map_err(|_| {
                refusal(StatusCode::REQUEST_TIMEOUT, "the request stalled before its end")
            })?;
        let Some(bytes) = next else { return Ok((whole.into(), taken)) };
        let bytes = bytes.map_err(|_| {
            refusal(StatusCode::BAD_REQUEST, "the request broke off before its end")
        })?;
        if whole.len() + bytes.len() > longest {
            return Err(too_long());
        }
        taken.merge(take(bytes.len())?);
        whole.extend_from_slice(&bytes);
    }
}
