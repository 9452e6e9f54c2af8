//! The coordinator's socket, on which a transport takes requests and delivers replies.

use crate::mailbox::{Mailbox, Poll, Reply};
use crate::spool::Spooled;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// Version of the protocol with a transport, which is independent of the messages that it carries.
const PROTOCOL: u32 = 1;

/// How long a transport that polls waits for work.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest list of nodes, in bytes: a million nodes.
const LONGEST_LIST: usize = 32 << 20;
/// The longest reason for a failure, in bytes.
const LONGEST_REASON: usize = 64 << 10;

/// An error as a response.
type Refusal = (StatusCode, String);

/// The routes of the socket.
pub fn routes(mailbox: Arc<Mailbox>) -> Router {
    Router::new()
        .route("/v1/work", post(work))
        .route("/v1/requests/{id}", get(request))
        .route("/v1/replies/{id}", post(reply))
        .route("/v1/failures/{id}", post(failure))
        .with_state(mailbox)
}

fn expired() -> Refusal {
    (StatusCode::GONE, "request expired".to_owned())
}

fn bad_request(problem: String) -> Refusal {
    (StatusCode::BAD_REQUEST, problem)
}

async fn work(State(mailbox): State<Arc<Mailbox>>, body: Body) -> Result<Response, Refusal> {
    let poll: Poll = read(body, LONGEST_LIST).await?;
    if poll.protocol != PROTOCOL {
        let problem = format!("expected protocol version {PROTOCOL}, got {}", poll.protocol);
        return Err((StatusCode::CONFLICT, problem));
    }
    // Waiting blocks its thread.
    match tokio::task::spawn_blocking(move || mailbox.work(&poll, PAUSE)).await {
        Ok(Some(work)) => Ok(Json(work).into_response()),
        Ok(None) => {
            Err((StatusCode::CONFLICT, "another ServerApp serves this coordinator now".to_owned()))
        }
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

async fn request(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<u64>,
) -> Result<Response, Refusal> {
    let parts = mailbox.body(id).ok_or_else(expired)?;
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // The parts may be shared with other bodies, and are not copied.
    let body = Body::from_stream(stream::iter(parts.into_iter().map(Ok::<_, Infallible>)));
    Ok(([(CONTENT_LENGTH, length)], body).into_response())
}

#[derive(Deserialize)]
struct Replied {
    status: u16,
}

async fn reply(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<u64>,
    query: Result<Query<Replied>, QueryRejection>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    // The limit is known before the body is read.
    let longest = mailbox.longest(id).ok_or_else(expired)?;
    let received = match query {
        Ok(Query(Replied { status })) if (100..600).contains(&status) => {
            let body = spool(&mailbox, body, longest).await;
            body.map(|body| body.map(|body| Reply::Answer(status, body)))
        }
        Ok(Query(Replied { status })) => Err(bad_request(format!("invalid HTTP status {status}"))),
        Err(error) => Err(bad_request(error.body_text())),
    };
    match received {
        Ok(Some(reply)) => acknowledge(&mailbox, id, reply),
        // The transport may send it again.
        Ok(None) => Err(bad_request("the reply broke off".to_owned())),
        Err((status, problem)) => {
            mailbox.deliver(id, Reply::Failure(format!("its reply was refused: {problem}")));
            Err((status, problem))
        }
    }
}

fn acknowledge(mailbox: &Mailbox, id: u64, reply: Reply) -> Result<StatusCode, Refusal> {
    mailbox.deliver(id, reply).then_some(StatusCode::NO_CONTENT).ok_or_else(expired)
}

/// Writes a body to disk while it arrives; `None` if it breaks off.
async fn spool(mailbox: &Mailbox, body: Body, longest: usize) -> Result<Option<Spooled>, Refusal> {
    let full = |error: &dyn ToString| (StatusCode::INSUFFICIENT_STORAGE, error.to_string());
    let (spooled, mut file) = mailbox.spool().map_err(|error| full(&error))?;
    let mut length = 0;
    let mut body = body.into_data_stream();
    while let Some(bytes) = body.next().await {
        let Ok(bytes) = bytes else { return Ok(None) };
        length += bytes.len();
        if length > longest {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, format!("more than {longest} bytes")));
        }
        tokio::task::block_in_place(|| file.write_all(&bytes)).map_err(|error| full(&error))?;
    }
    Ok(Some(spooled))
}

#[derive(Deserialize)]
struct Failed {
    reason: String,
}

async fn failure(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<u64>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    // The request has failed even if its reason cannot be read.
    let failed = read(body, LONGEST_REASON).await;
    let reason = match &failed {
        Ok(Failed { reason }) => reason.clone(),
        Err(_) => "the transport gave no readable reason".to_owned(),
    };
    let acknowledged = acknowledge(&mailbox, id, Reply::Failure(reason))?;
    failed.map(|_| acknowledged)
}

/// Reads a JSON body of at most this many bytes.
async fn read<T: for<'a> Deserialize<'a>>(body: Body, longest: usize) -> Result<T, Refusal> {
    let bytes = to_bytes(body, longest).await.map_err(|_| {
        let problem = format!("the body has more than {longest} bytes or broke off");
        (StatusCode::PAYLOAD_TOO_LARGE, problem)
    })?;
    serde_json::from_slice(&bytes).map_err(|error| bad_request(error.to_string()))
}
