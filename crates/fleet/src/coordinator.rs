//! The coordinator's socket: where a transport takes requests and puts replies.

use crate::mailbox::{Asking, Mailbox};
use crate::protocol::PROTOCOL;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// How long a transport that asks for work is kept waiting.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest list of nodes or reason for a failure, in bytes: a million nodes.
const LONGEST_LIST: usize = 32 << 20;

/// The routes of the socket.
pub fn routes(mailbox: Arc<Mailbox>) -> Router {
    Router::new()
        .route("/v1/work", post(work))
        .route("/v1/requests/{id}", get(request))
        .route("/v1/replies/{id}", post(reply))
        .route("/v1/failures/{id}", post(failure))
        .with_state(mailbox)
}

async fn work(State(mailbox): State<Arc<Mailbox>>, body: Body) -> Response {
    let asking: Asking = match read(body, LONGEST_LIST).await {
        Ok(asking) => asking,
        Err(refused) => return refused,
    };
    if asking.protocol != PROTOCOL {
        let problem = format!("protocol version {} instead of {PROTOCOL}", asking.protocol);
        return refusal(StatusCode::CONFLICT, &problem);
    }
    // Waiting blocks its thread.
    match tokio::task::spawn_blocking(move || mailbox.work(&asking, PAUSE)).await {
        Ok(work) => Json(work).into_response(),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn request(State(mailbox): State<Arc<Mailbox>>, Path(id): Path<u64>) -> Response {
    match mailbox.body(id) {
        Some(body) => body.into_response(),
        None => refusal(StatusCode::GONE, "nobody waits for this request any more"),
    }
}

#[derive(Deserialize)]
struct Replied {
    status: u16,
}

async fn reply(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<u64>,
    Query(Replied { status }): Query<Replied>,
    body: Body,
) -> Response {
    // The limit comes before the bytes.
    let Some(longest) = mailbox.longest(id) else {
        return refusal(StatusCode::GONE, "nobody waits for this reply any more");
    };
    let Ok(body) = to_bytes(body, longest).await else {
        let problem = format!("sent more than {longest} bytes, or broke off");
        mailbox.failure(id, problem.clone());
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, &problem);
    };
    let put = move || mailbox.reply(id, status, &body);
    match tokio::task::spawn_blocking(put).await {
        Ok(Ok(true)) => StatusCode::NO_CONTENT.into_response(),
        Ok(Ok(false)) => refusal(StatusCode::GONE, "nobody waits for this reply any more"),
        Ok(Err(error)) => refusal(StatusCode::INSUFFICIENT_STORAGE, &error.to_string()),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[derive(Deserialize)]
struct Failed {
    reason: String,
}

async fn failure(State(mailbox): State<Arc<Mailbox>>, Path(id): Path<u64>, body: Body) -> Response {
    let Failed { reason } = match read(body, LONGEST_LIST).await {
        Ok(failed) => failed,
        Err(refused) => return refused,
    };
    match mailbox.failure(id, reason) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => refusal(StatusCode::GONE, "nobody waits for this reply any more"),
    }
}

/// A JSON body of at most so many bytes.
async fn read<T: for<'a> Deserialize<'a>>(body: Body, longest: usize) -> Result<T, Response> {
    let bytes: Bytes = to_bytes(body, longest).await.map_err(|_| {
        let problem = format!("a body of more than {longest} bytes, or one that broke off");
        refusal(StatusCode::PAYLOAD_TOO_LARGE, &problem)
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| refusal(StatusCode::BAD_REQUEST, &error.to_string()))
}

fn refusal(status: StatusCode, problem: &str) -> Response {
    (status, problem.to_owned()).into_response()
}
