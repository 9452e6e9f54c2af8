//! Serves a page to a browser.
//!
//! One address answers to GET, `/`, from memory: no path of a request ever reaches the file system. The page has an
//! `ETag`, and a browser that sends it back in `If-None-Match` is told with 304 that nothing has changed. Polling in
//! this way was chosen over a stream of events because it needs no state per reader and survives a restart of either
//! side.
//!
//! A browser lets any page on the internet send requests to this machine. What keeps such a page from the data is that
//! it cannot read answers of another origin; and since its owner could point a name at this machine, a request for
//! another host is refused. All sizes and times are bounded. Beyond the allowed number of connections a new one
//! replaces the oldest, first of those that have not sent a request: idle connections block nobody.

mod hosts;
#[cfg(test)]
mod tests;

use hosts::{Hosts, Verdict};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

/// Headers of every answer. The page contains its script and styles and contacts this server only.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
         font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A page, which may change while it is served.
#[derive(Debug)]
pub struct Site(RwLock<Content>);

#[derive(Debug, Clone)]
struct Content {
    page: Bytes,
    /// Differs whenever the page differs, also from that of an earlier process on the same port.
    tag: HeaderValue,
}

impl Site {
    /// Of an HTML page.
    pub fn new(page: impl Into<Vec<u8>>) -> Self {
        Self(RwLock::new(Content::new(page.into())))
    }

    /// Replaces the page: readers get it with their next request.
    pub fn publish(&self, page: impl Into<Vec<u8>>) {
        let content = Content::new(page.into());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = content;
    }
}

impl Content {
    fn new(page: Vec<u8>) -> Self {
        let tag = HeaderValue::try_from(format!("\"{}\"", &blake3::hash(&page).to_hex()[..32]));
        // Hexadecimal digits are a valid value.
        Self { page: Bytes::from(page), tag: tag.unwrap_or(HeaderValue::from_static("")) }
    }
}

/// Headers of a request, and bytes in all of them.
const HEADER_COUNT: usize = 64;
const HEADER_BYTES: usize = 16 << 10;

/// What one connection may take. Each has one request.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at the same time.
    connections: usize,
    /// Time until the headers are there, and for the whole connection.
    header_time: Duration,
    time: Duration,
}

const LIMITS: Limits = Limits {
    connections: 256,
    header_time: Duration::from_secs(10),
    time: Duration::from_secs(60),
};

/// A server that has an address and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    hosts: Hosts,
}

impl Server {
    /// Listens on an address: `HOST:PORT`, where the port may be 0 for any that is free.
    pub fn bind(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let hosts = Hosts::new(address, listener.local_addr()?.ip());
        Ok(Self { listener, hosts })
    }

    /// The address it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests in a separate thread until the returned value is dropped.
    pub fn start(self, site: Arc<Site>) -> io::Result<Serving> {
        self.start_with(site, LIMITS)
    }

    fn start_with(self, site: Arc<Site>, limits: Limits) -> io::Result<Serving> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let hosts = self.hosts;
        let answer = Arc::new(move |request: &Request<Incoming>| answer(request, &site, &hosts));
        let listener = {
            let _runtime = runtime.enter();
            tokio::net::TcpListener::from_std(self.listener)?
        };
        runtime.spawn(accept(listener, answer, limits));
        Ok(Serving { _runtime: runtime })
    }
}

/// A server that answers. Dropping the runtime closes all connections and ends its thread.
#[derive(Debug)]
pub struct Serving {
    _runtime: Runtime,
}

/// A connection, which is answered in a separate task.
struct Connection {
    task: AbortHandle,
    /// Whether its request has arrived.
    asked: Arc<AtomicBool>,
}

/// Takes connections, and makes room for new ones.
async fn accept<A>(listener: tokio::net::TcpListener, answer: Arc<A>, limits: Limits)
where
    A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync + 'static,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .keep_alive(false)
        .max_headers(HEADER_COUNT)
        .max_header_size(HEADER_BYTES)
        .header_read_timeout(limits.header_time);
    let mut open: VecDeque<Connection> = VecDeque::new(); // the oldest first
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // No more files can be opened, or the client has disconnected already: neither lasts.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        open.retain(|connection| !connection.task.is_finished());
        if open.len() >= limits.connections {
            let silent = open.iter().position(|one| !one.asked.load(Ordering::Relaxed));
            if let Some(replaced) = open.remove(silent.unwrap_or(0)) {
                replaced.task.abort();
            }
        }
        let asked = Arc::new(AtomicBool::new(false));
        let (answer, arrived) = (Arc::clone(&answer), Arc::clone(&asked));
        let service = service_fn(move |request| {
            arrived.store(true, Ordering::Relaxed);
            std::future::ready(Ok::<_, Infallible>(answer(&request)))
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let task = tokio::spawn(async move {
            // A client that misbehaves or disconnects does not affect others.
            let _ = tokio::time::timeout(limits.time, connection).await;
        });
        open.push_back(Connection { task: task.abort_handle(), asked });
        // A request that is there already is read before the next connection may replace this one.
        tokio::task::yield_now().await;
    }
}

/// The answer to a request. Those for other hosts are refused.
fn answer(request: &Request<Incoming>, site: &Site, hosts: &Hosts) -> Response<Full<Bytes>> {
    let mut headers = HeaderMap::new();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let (status, body) = match hosts.judge(request.uri(), request.headers()) {
        Verdict::Foreign => {
            let text = "this server does not answer for that host name\n";
            (StatusCode::MISDIRECTED_REQUEST, text.into())
        }
        Verdict::Malformed => (StatusCode::BAD_REQUEST, "a request needs one Host header\n".into()),
        Verdict::Ours if request.uri().path() != "/" => {
            (StatusCode::NOT_FOUND, "not found\n".into())
        }
        Verdict::Ours if ![Method::GET, Method::HEAD].contains(request.method()) => {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
            (StatusCode::METHOD_NOT_ALLOWED, Bytes::new())
        }
        Verdict::Ours => {
            let content = site.0.read().unwrap_or_else(PoisonError::into_inner).clone();
            headers.insert(header::ETAG, content.tag.clone());
            if is_known(request.headers(), &content.tag) {
                (StatusCode::NOT_MODIFIED, Bytes::new())
            } else {
                let kind = HeaderValue::from_static("text/html; charset=utf-8");
                headers.insert(header::CONTENT_TYPE, kind);
                (StatusCode::OK, content.page)
            }
        }
    };
    let mut response = Response::new(Full::new(body));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// Whether the reader has the version with this tag.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let mut known = known.map(<[u8]>::trim_ascii);
    known.any(|known| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag)
}
