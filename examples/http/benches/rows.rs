//! hyper, axum and tonic over Hamlyn against the same over a Unix socket. The same program measures
//! them in turn, each between two processes on processors of their own.
//!
//! ```text
//!   cargo bench                                          # one row a line, as JSON
//!   HAMLYN_BENCH_RUNS=5 HAMLYN_BENCH_CALLS=5000 HAMLYN_BENCH_MODES=adaptive cargo bench
//!   cargo test --bench rows                              # a moment: everything arrives as it was sent
//! ```
//! A row has the median, the minimum and the maximum of its runs: microseconds of a call whose 16
//! bytes come back, and gigabytes per second of one call whose body is sent in pieces of 64 KiB and
//! counted at the other end. There is one connection, and one call at a time; each side has a
//! runtime of one thread. hyper and axum use HTTP/1.1, tonic HTTP/2 with its initial windows.
//! `wait_mode` is Hamlyn's; the Unix socket always sleeps. A row with a process that could not be
//! pinned says `"pinned": false`.

use axum::Router;
use axum::routing::post;
use bytes::{Buf, BufMut, Bytes};
use hamlyn::config::WaitMode;
use hamlyn::io::{Connection, Listener};
use hamlyn::{Access, Config};
use hamlyn_http::{AxumListener, LIMIT, Result, incoming, manager};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::{Stream, StreamExt};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;

/// Beyond this a run hangs.
const LONG: Duration = Duration::from_secs(120);
const PIECE: usize = 64 << 10;
const NAME: &str = "http-rows";
const WHAT: [&str; 3] = ["hyper", "axum", "tonic"];

/// Whether this run measures (`cargo bench`) or tests (`cargo test`).
fn measures() -> bool {
    std::env::args().any(|word| word == "--bench")
}

fn number(variable: &str, measured: u64, tested: u64) -> u64 {
    let otherwise = if measures() { measured } else { tested };
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// As many pieces as are asked for, of one memory.
fn pieces(count: u64) -> impl Stream<Item = Bytes> + Send + Unpin {
    let piece = Bytes::from(vec![7; PIECE]);
    tokio_stream::iter((0..count).map(move |_| piece.clone()))
}

/// How many bytes came, as the answer to a body of pieces.
fn counted(bytes: u64) -> Bytes {
    Bytes::copy_from_slice(&bytes.to_le_bytes())
}

/// An answer that [`counted`] made.
fn count_of(answer: &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(answer.try_into()?))
}

// ---- messages of tonic that are bytes as they are

#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = tonic::Status;
    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = tonic::Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, tonic::Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[derive(Clone)]
struct Answer;

impl tonic::server::UnaryService<Bytes> for Answer {
    type Response = Bytes;
    type Future = std::future::Ready<Result<tonic::Response<Bytes>, tonic::Status>>;
    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new(request.into_inner())))
    }
}

impl tonic::server::ClientStreamingService<Bytes> for Answer {
    type Response = Bytes;
    type Future = Answered<tonic::Response<Bytes>, tonic::Status>;
    fn call(&mut self, request: tonic::Request<tonic::Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let (mut pieces, mut bytes) = (request.into_inner(), 0);
            while let Some(piece) = pieces.message().await? {
                bytes += piece.len() as u64;
            }
            Ok(tonic::Response::new(counted(bytes)))
        })
    }
}

type Answered<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl tonic::server::NamedService for Answer {
    const NAME: &'static str = "rows.Rows";
}

impl tower::Service<http::Request<tonic::body::Body>> for Answer {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answered<Self::Response, Infallible>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Raw);
            Ok(if request.uri().path() == "/rows.Rows/Echo" {
                grpc.unary(Self, request).await
            } else {
                grpc.client_streaming(Self, request).await
            })
        })
    }
}

// ---- the other process

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let echoes = request.uri().path() == "/echo";
    let mut body = request.into_body();
    let answer = if echoes {
        body.collect().await?.to_bytes()
    } else {
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len) as u64;
        }
        counted(bytes)
    };
    Ok(Response::new(Full::new(answer)))
}

async fn serve_hyper(io: impl AsyncRead + AsyncWrite + Unpin + 'static) -> Result {
    let http = hyper::server::conn::http1::Builder::new();
    Ok(http.serve_connection(TokioIo::new(io), service_fn(answer)).await?)
}

async fn count(body: axum::body::Body) -> std::result::Result<Bytes, String> {
    let (mut pieces, mut bytes) = (body.into_data_stream(), 0);
    while let Some(piece) = pieces.next().await {
        bytes += piece.map_err(|error| error.to_string())?.len() as u64;
    }
    Ok(counted(bytes))
}

/// The server's line once clients can connect: also whether it is pinned.
fn ready(is_pinned: bool) -> &'static str {
    if is_pinned { "ready, pinned" } else { "ready, not pinned" }
}

/// Ends this process when its standard input ends, as it does when the other process is gone.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
}

async fn serve(what: &str, transport: &str, dir: &Path, is_pinned: bool) -> Result {
    let router = || {
        Router::new()
            .route("/echo", post(|body: Bytes| async { body }))
            .route("/count", post(count))
            .layer(axum::extract::DefaultBodyLimit::disable())
    };
    let tonic = || tonic::transport::Server::builder().add_service(Answer);
    if transport == "unix" {
        let listener = UnixListener::bind(dir.join(what))?;
        println!("{}", ready(is_pinned));
        match what {
            "hyper" => serve_hyper(listener.accept().await?.0).await,
            "axum" => Ok(axum::serve(listener, router()).await?),
            _ => {
                let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
                Ok(tonic().serve_with_incoming(incoming).await?)
            }
        }
    } else {
        let listener = Listener::bind(&manager(Config::from_env()?)?, NAME, Access::SameUser)?;
        println!("{}", ready(is_pinned));
        match what {
            "hyper" => serve_hyper(listener.accept().await?).await,
            "axum" => Ok(axum::serve(AxumListener(listener), router()).await?),
            _ => Ok(tonic().serve_with_incoming(incoming(listener)).await?),
        }
    }
}

// ---- this process

/// Microseconds of a call of 16 bytes; gigabytes a second of a body in pieces.
type Run = [f64; 2];

const TESTS: [(&str, &str); 2] =
    [("a call of 16 bytes", "us"), ("a body in pieces of 64 KiB", "GB/s")];

async fn measure<E, C>(echo: impl Fn(Bytes) -> E, count: impl Fn(u64) -> C) -> Result<Run>
where
    E: Future<Output = Result<Bytes>>,
    C: Future<Output = Result<Bytes>>,
{
    let message = Bytes::from_static(b"sixteen bytes ..");
    let calls = number("HAMLYN_BENCH_CALLS", 5000, 20);
    let mut latency = 0.0;
    for calls in [calls / 10 + 1, calls] {
        let began = Instant::now();
        for _ in 0..calls {
            assert_eq!(echo(message.clone()).await?, message);
        }
        latency = began.elapsed().as_nanos() as f64 / calls as f64 / 1e3;
    }
    let mut rate = 0.0;
    for mib in [1, number("HAMLYN_BENCH_MIB", 256, 2)] {
        let bytes = mib << 20;
        let began = Instant::now();
        assert_eq!(count_of(&count(bytes / PIECE as u64).await?)?, bytes);
        rate = bytes as f64 / began.elapsed().as_nanos() as f64;
    }
    Ok([latency, rate])
}

async fn measure_http(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Run> {
    type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;
    let (sender, http) = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(io)).await?;
    tokio::spawn(http);
    let sender = tokio::sync::Mutex::new(sender);
    let call = async |path: &str, body: Body| {
        let mut sender = sender.lock().await;
        sender.ready().await?;
        let request = Request::post(path).header("host", "rows").body(body)?;
        let response = sender.send_request(request).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    };
    measure(
        |message| call("/echo", Full::new(message).boxed_unsync()),
        |count| {
            let frames = pieces(count).map(|piece| Ok(Frame::data(piece)));
            call("/count", StreamBody::new(frames).boxed_unsync())
        },
    )
    .await
}

async fn measure_tonic(channel: tonic::transport::Channel) -> Result<Run> {
    use http::uri::PathAndQuery;
    let grpc = tonic::client::Grpc::new(channel);
    measure(
        async |message| {
            let mut grpc = grpc.clone();
            grpc.ready().await?;
            let path = PathAndQuery::from_static("/rows.Rows/Echo");
            Ok(grpc.unary(tonic::Request::new(message), path, Raw).await?.into_inner())
        },
        async |count| {
            let mut grpc = grpc.clone();
            grpc.ready().await?;
            let path = PathAndQuery::from_static("/rows.Rows/Count");
            let request = tonic::Request::new(pieces(count));
            Ok(grpc.client_streaming(request, path, Raw).await?.into_inner())
        },
    )
    .await
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that is ready before `end`, and whether it is pinned.
fn start(
    what: &str,
    transport: &str,
    dir: &Path,
    mode: &str,
    end: Instant,
) -> Result<(Server, bool)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(measures().then_some("--bench"));
    command.env("HAMLYN_BENCH_SERVER", format!("{what},{transport}"));
    command.env("HAMLYN_DIR", dir).env("HAMLYN_WAIT_MODE", mode);
    // It ends when its input does: that is held here, with the child, and nothing is written to it.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Server(command.spawn()?);
    let mut output = BufReader::new(server.0.stdout.take().expect("piped"));
    let (said, says) = std::sync::mpsc::channel();
    // Ends with the server at the latest, which is killed where this returns an error.
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = said.send(output.read_line(&mut line).map(|_| line));
    });
    let line = says
        .recv_timeout(end.saturating_duration_since(Instant::now()))
        .map_err(|_| format!("{what} over {transport}, {mode}: not ready after {LONG:?}"))??;
    for is_pinned in [true, false] {
        if line.trim_end() == ready(is_pinned) {
            return Ok((server, is_pinned));
        }
    }
    Err(format!("{what} over {transport}, {mode}: the server is not ready, and says {line:?}")
        .into())
}

async fn measure_over(what: &str, transport: &str, dir: &Path, mode: &str) -> Result<Run> {
    if transport == "unix" {
        let socket = dir.join(what);
        if what != "tonic" {
            return measure_http(UnixStream::connect(&socket).await?).await;
        }
        let connector = tower::service_fn(move |_: hyper::Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://rows");
        return measure_tonic(endpoint.connect_with_connector(connector).await?).await;
    }
    let mode = match mode {
        "polled" => WaitMode::Polled,
        "adaptive" => WaitMode::Adaptive,
        "blocking" => WaitMode::Blocking,
        _ => return Err(format!("{mode:?} is none of polled, adaptive and blocking").into()),
    };
    let manager = manager(Config::from_env()?.dir(dir).wait_mode(mode))?;
    match what {
        "tonic" => measure_tonic(hamlyn_http::channel(&manager, NAME).await?).await,
        _ => measure_http(Connection::connect(&manager, NAME, LIMIT).await?).await,
    }
}

/// The measured values, and whether the server was pinned.
fn run(what: &str, transport: &str, dir: &Path, mode: &str) -> Result<(Run, bool)> {
    let end = Instant::now() + LONG;
    let _ = std::fs::remove_file(dir.join(what));
    let (_server, is_pinned) = start(what, transport, dir, mode, end)?;
    let left = end.saturating_duration_since(Instant::now());
    let run = runtime().block_on(async {
        tokio::time::timeout(left, measure_over(what, transport, dir, mode))
            .await
            .map_err(|_| format!("{what} over {transport}, {mode}: not done after {LONG:?}"))?
    })?;
    Ok((run, is_pinned))
}

/// Pins this process to that processor; `false` if it does not exist or is not allowed.
fn pin(processor: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

fn median(runs: &[Run], which: usize) -> (f64, f64, f64) {
    let mut all: Vec<f64> = runs.iter().map(|run| run[which]).collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

fn main() -> Result {
    if let Ok(words) = std::env::var("HAMLYN_BENCH_SERVER") {
        end_with_input();
        let is_pinned = pin(1);
        let dir = PathBuf::from(std::env::var_os("HAMLYN_DIR").expect("set by the other process"));
        let (what, transport) = words.split_once(',').expect("two words");
        return runtime().block_on(serve(what, transport, &dir, is_pinned));
    }
    let is_pinned = pin(0);
    let dir = tempfile::tempdir()?;
    let modes = std::env::var("HAMLYN_BENCH_MODES").unwrap_or("polled,adaptive,blocking".into());
    for mode in modes.split(',') {
        for what in WHAT {
            let (mut ours, mut theirs, mut are_pinned) = (Vec::new(), Vec::new(), is_pinned);
            for _ in 0..number("HAMLYN_BENCH_RUNS", 5, 1) {
                for (transport, runs) in [("unix", &mut theirs), ("hamlyn", &mut ours)] {
                    let (run, is_pinned) = run(what, transport, dir.path(), mode)?;
                    runs.push(run);
                    are_pinned &= is_pinned;
                }
            }
            for (which, (test, unit)) in TESTS.into_iter().enumerate() {
                let (ours, theirs) = (median(&ours, which), median(&theirs, which));
                println!(
                    "{{\"what\": \"{what}: {test}\", \"wait_mode\": \"{mode}\", \"unit\": \
                     \"{unit}\", \"hamlyn\": {:.2}, \"least\": {:.2}, \"most\": {:.2}, \"unix\": \
                     {:.2}, \"unix_least\": {:.2}, \"unix_most\": {:.2}, \"ratio\": {:.3}, \
                     \"pinned\": {are_pinned}}}",
                    ours.0,
                    ours.1,
                    ours.2,
                    theirs.0,
                    theirs.1,
                    theirs.2,
                    ours.0 / theirs.0
                );
            }
        }
    }
    Ok(())
}
