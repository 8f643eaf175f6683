//! `hamlyn exporter`: the figures of `stat` over HTTP, for Prometheus.
//!
//! ```text
//!   client --GET /metrics--> hyper --> the last look, or a new one if that is a second old
//! ```
//! Clients may be hostile, and cost little: at most [`CONNECTIONS_MAX`] are served at a time, a
//! request must arrive within one second and a connection ends after ten, a body is not read, and a
//! connection serves one request. A page in a browser that has rebound its name to this machine
//! (DNS rebinding) shows that name in its Host line, and is refused if the command listens at
//! loopback only.
//!
//! Never: two looks at a time, or more than one in a second, for any number of clients.

use crate::arguments::ExporterArguments;
use crate::look::{self, Watched};
use crate::prometheus;
use anyhow::{Context, Result, ensure};
use hamlyn_tools::output;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HOST};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections that are served at a time; others wait in the listener's queue.
const CONNECTIONS_MAX: usize = 64;
/// The time limits of a request's arrival and of a whole connection.
const REQUEST_WITHIN: Duration = Duration::from_secs(1);
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// One look serves all requests within this time.
const LOOK_FOR: Duration = Duration::from_secs(1);
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The pause after `accept` has failed for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The state that all connections share.
struct Exporter {
    config: hamlyn::Config,
    /// The Host line may hold only names and addresses of loopback.
    is_loopback: bool,
    watched: Mutex<Watched>,
    last: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

/// `hamlyn exporter [NAME..]`.
pub fn run(arguments: &ExporterArguments) -> Result<()> {
    let is_loopback = arguments.listen.ip().is_loopback();
    ensure!(
        is_loopback || arguments.beyond_loopback,
        "{} can be reached from other machines, and there is no password; if that is meant, say \
         --beyond-loopback",
        arguments.listen.ip()
    );
    let exporter = Arc::new(Exporter {
        config: hamlyn::Config::from_env()?,
        is_loopback,
        watched: Mutex::new(Watched::new(&arguments.names)),
        last: tokio::sync::Mutex::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start serving: the system refuses what that needs")?;
    runtime.block_on(serve(exporter, arguments.listen))
}

async fn serve(exporter: Arc<Exporter>, address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("at {address}"))?;
    let address = listener.local_addr()?;
    output::line(format_args!("The metrics are at http://{address}/metrics."))?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = room.clone().acquire_owned().await?;
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(exporter.clone(), stream, place))),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn connection(exporter: Arc<Exporter>, stream: TcpStream, _place: OwnedSemaphorePermit) {
    let answer = service_fn(move |request| {
        let exporter = exporter.clone();
        async move { Ok::<_, Infallible>(exporter.answer(&request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    // A client that sends nothing, or does not read, is no failure of this command.
    let _ = tokio::time::timeout(CONNECTION_WITHIN, served).await;
}

impl Exporter {
    async fn answer(self: Arc<Self>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        if self.is_loopback && !host.is_some_and(is_loopback_host) {
            return plain(
                StatusCode::MISDIRECTED_REQUEST,
                "this is served to this machine alone\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
            answer.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("a header's value"));
            return answer;
        }
        match request.uri().path() {
            "/metrics" => match self.text().await {
                Some(text) => with_type("text/plain; version=0.0.4; charset=utf-8", text),
                None => plain(StatusCode::INTERNAL_SERVER_ERROR, "the look failed\n"),
            },
            "/" => plain(StatusCode::OK, "the metrics are at /metrics\n"),
            _ => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
        }
    }

    /// The text of the last look, or of a new one. A look goes on to its end even if its client has
    /// left; the next request uses its result.
    async fn text(self: Arc<Self>) -> Option<Bytes> {
        tokio::spawn(self.look()).await.ok()?
    }

    async fn look(self: Arc<Self>) -> Option<Bytes> {
        let mut last = self.last.lock().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < LOOK_FOR
        {
            return Some(text.clone());
        }
        let this = self.clone();
        let text = tokio::task::spawn_blocking(move || {
            let found = {
                let mut watched = this.watched.lock().unwrap_or_else(PoisonError::into_inner);
                watched.find(&this.config)
            };
            prometheus::text(&look::ask_all(&this.config, &found, look::SILENCE))
        });
        let text = Bytes::from(text.await.ok()?);
        *last = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

fn with_type(kind: &'static str, text: Bytes) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(text));
    answer.headers_mut().insert(CONTENT_TYPE, kind.parse().expect("a header's value"));
    answer
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = with_type("text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()));
    *answer.status_mut() = status;
    answer
}

/// Whether a Host line names this machine by a loopback name or address.
fn is_loopback_host(host: &str) -> bool {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && !name.contains(':') => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_pass_as_a_host() {
        for host in
            ["localhost", "LOCALHOST:9464", "127.0.0.1", "127.0.0.1:1", "[::1]:9464", "[::1]"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "10.0.0.1:1",
            "127.0.0.1.x",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
