//! The coordinator's socket: where a transport takes requests and puts replies.

use crate::mailbox::{Asking, Mailbox};
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body::{Frame, SizeHint};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Version of the conversation with a transport, which does not know what it carries.
const PROTOCOL: u32 = 1;

/// How long a transport that asks for work is kept waiting.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest list of nodes, in bytes: a million nodes.
const LONGEST_LIST: usize = 32 << 20;
/// The longest reason for a failure, in bytes.
const LONGEST_REASON: usize = 64 << 10;

const UNWANTED: &str = "nobody waits for this any longer";

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
        Ok(Some(work)) => Json(work).into_response(),
        Ok(None) => {
            refusal(StatusCode::CONFLICT, "a later ServerApp works for this coordinator now")
        }
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn request(State(mailbox): State<Arc<Mailbox>>, Path(id): Path<u64>) -> Response {
    match mailbox.body(id) {
        Some(parts) => Body::new(Parts(parts.into())).into_response(),
        None => refusal(StatusCode::GONE, UNWANTED),
    }
}

/// A body in parts, which may be shared with other bodies.
struct Parts(VecDeque<Bytes>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
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
) -> Response {
    // The limit comes before the bytes.
    let Some(longest) = mailbox.longest(id) else {
        return refusal(StatusCode::GONE, UNWANTED);
    };
    let spooled = match query {
        Ok(Query(Replied { status })) if (100..600).contains(&status) => {
            spool(&mailbox, body, longest).await.map(|spooled| (status, spooled))
        }
        Ok(Query(Replied { status })) => {
            Err(Refused::with(StatusCode::BAD_REQUEST, format!("{status} is not an HTTP status")))
        }
        Err(error) => Err(Refused::with(StatusCode::BAD_REQUEST, error.body_text())),
    };
    match spooled {
        Ok((status, spooled)) => match mailbox.reply(id, status, spooled) {
            true => StatusCode::NO_CONTENT.into_response(),
            false => refusal(StatusCode::GONE, UNWANTED),
        },
        Err(Refused { status, problem, ends }) => {
            // Nobody is to wait for a reply that was refused.
            if ends {
                mailbox.failure(id, format!("its reply was refused: {problem}"));
            }
            refusal(status, &problem)
        }
    }
}

/// Why a reply is not taken.
struct Refused {
    status: StatusCode,
    problem: String,
    /// Whether that is the end of its request.
    ends: bool,
}

impl Refused {
    fn with(status: StatusCode, problem: impl ToString) -> Self {
        Self { status, problem: problem.to_string(), ends: true }
    }
}

/// Writes a body to disk while it arrives.
async fn spool(
    mailbox: &Mailbox,
    mut body: Body,
    longest: usize,
) -> Result<crate::spool::Spooled, Refused> {
    let full =
        |error: &dyn ToString| Refused::with(StatusCode::INSUFFICIENT_STORAGE, error.to_string());
    let (spooled, mut file) = mailbox.spool().map_err(|error| full(&error))?;
    let mut length = 0;
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(frame) = frame else {
            // Whoever sent it may try again.
            let (status, problem) = (StatusCode::BAD_REQUEST, "the reply broke off".to_owned());
            return Err(Refused { status, problem, ends: false });
        };
        let Ok(bytes) = frame.into_data() else { continue };
        length += bytes.len();
        if length > longest {
            let problem = format!("more than {longest} bytes");
            return Err(Refused::with(StatusCode::PAYLOAD_TOO_LARGE, problem));
        }
        tokio::task::block_in_place(|| file.write_all(&bytes)).map_err(|error| full(&error))?;
    }
    Ok(spooled)
}

#[derive(Deserialize)]
struct Failed {
    reason: String,
}

async fn failure(State(mailbox): State<Arc<Mailbox>>, Path(id): Path<u64>, body: Body) -> Response {
    // That it failed is known, whatever the reason.
    let (reason, refused) = match read(body, LONGEST_REASON).await {
        Ok(Failed { reason }) => (reason, None),
        Err(refused) => ("no reason that could be read".to_owned(), Some(refused)),
    };
    match (mailbox.failure(id, reason), refused) {
        (true, None) => StatusCode::NO_CONTENT.into_response(),
        (true, Some(refused)) => refused,
        (false, _) => refusal(StatusCode::GONE, UNWANTED),
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
