//! tonic: gRPC over TLS 1.3 and TCP, at `$PEER_HOST`.
//!
//! ```text
//! peer-tonic initiate|respond latency|stream SIZE COUNT WINDOW
//! ```
//! `peer.h` describes the roles and the measured quantities; this program does the same. Messages
//! are plain bytes, without protobuf. A latency is measured in one call whose messages stream both
//! ways, which is quicker than a call for each; a stream is one call with a stream of messages and
//! one answer. Each end has a runtime of one thread; windows and frames of HTTP/2 are larger than
//! the defaults, and TCP has no delay. The cipher is aws-lc's AES-256-GCM. `$PEER_ADDRESS` is a
//! directory in which the responder puts its port and its certificate, made for this run.

use bytes::{Buf, BufMut, Bytes};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WINDOW_BYTES: u32 = 64 << 20;
const FRAME_BYTES: u32 = 1 << 20;
const MESSAGE_BYTES_MAX: usize = 64 << 20;
const NAME: &str = "peer-tonic";

// ---- messages that are bytes as they are

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
    type Error = Status;
    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

// ---- the responder

type Answered<T, E> = Pin<Box<dyn Future<Output = std::result::Result<T, E>> + Send>>;

/// Sends all messages back unchanged.
struct Echo;

impl tonic::server::StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Streaming<Bytes>;
    type Future = std::future::Ready<std::result::Result<Response<Streaming<Bytes>>, Status>>;
    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        std::future::ready(Ok(Response::new(request.into_inner())))
    }
}

/// Answers when all has come.
struct Count;

impl tonic::server::ClientStreamingService<Bytes> for Count {
    type Response = Bytes;
    type Future = Answered<Response<Bytes>, Status>;
    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let (mut messages, mut count) = (request.into_inner(), 0_u64);
            while messages.message().await?.is_some() {
                count += 1;
            }
            Ok(Response::new(Bytes::copy_from_slice(&count.to_le_bytes())))
        })
    }
}

#[derive(Clone)]
struct Answer;

impl tonic::server::NamedService for Answer {
    const NAME: &'static str = "peer.Peer";
}

impl tower::Service<http::Request<tonic::body::Body>> for Answer {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answered<Self::Response, Infallible>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc =
                tonic::server::Grpc::new(Raw).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(if request.uri().path() == "/peer.Peer/Echo" {
                grpc.streaming(Echo, request).await
            } else {
                grpc.client_streaming(Count, request).await
            })
        })
    }
}

async fn respond(host: IpAddr, directory: PathBuf) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let identity = Identity::from_pem(made.cert.pem(), made.signing_key.serialize_pem());
    let listener = tokio::net::TcpListener::bind((host, 0)).await?;
    let said = format!("{}\n{}", listener.local_addr()?.port(), made.cert.pem());
    std::fs::write(directory.join("being written"), said)?;
    std::fs::rename(directory.join("being written"), directory.join("responder"))?;
    // The initiator leaves this file when it is done.
    let is_done = async {
        while !directory.join("done").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let connections = TcpListenerStream::new(listener);
    let connections = tokio_stream::StreamExt::map(connections, |connection| {
        connection.and_then(|connection| connection.set_nodelay(true).map(|()| connection))
    });
    Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))?
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .add_service(Answer)
        .serve_with_incoming_shutdown(connections, is_done)
        .await?;
    Ok(())
}

// ---- the initiator

async fn initiate(host: IpAddr, directory: PathBuf, plan: &Plan) -> Result<()> {
    let from = Instant::now();
    let said = loop {
        match std::fs::read_to_string(directory.join("responder")) {
            Ok(said) => break said,
            Err(error) if from.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let (port, certificate) = said.split_once('\n').ok_or("no port and certificate")?;
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(certificate)).domain_name(NAME);
    let channel =
        Endpoint::from_shared(format!("https://{}", SocketAddr::new(host, port.parse()?)))?
            .tls_config(tls)?
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .connect()
            .await?;
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let message = Bytes::from(vec![7; plan.size]);
    if plan.is_latency {
        let (send, messages) = mpsc::channel(1);
        grpc.ready().await?;
        let path = PathAndQuery::from_static("/peer.Peer/Echo");
        let request = Request::new(ReceiverStream::new(messages));
        let mut echoes = grpc.streaming(request, path, Raw).await?.into_inner();
        let trips = plan.warm_up + plan.count;
        let clock = quanta::Clock::new();
        let mut ends = vec![1; trips as usize + 1];
        ends.clear();
        ends.push(clock.raw());
        for _ in 0..trips {
            send.send(message.clone()).await?;
            let echo = echoes.message().await?.ok_or("the echoes ended")?;
            if echo.len() != plan.size {
                return Err("a message of another size".into());
            }
            ends.push(clock.raw());
        }
        let mut times = BTreeMap::<u64, u64>::new();
        for ends in ends.windows(2).skip(plan.warm_up as usize) {
            *times.entry(clock.delta_as_nanos(ends[0], ends[1])).or_default() += 1;
        }
        let times: Vec<_> = times.iter().map(|(ns, n)| format!("[{ns},{n}]")).collect();
        println!("{{\"round_trips_ns\":[{}]}}", times.join(","));
    } else {
        let mut seconds = 0.0;
        for part in [plan.warm_up, plan.count] {
            let from = Instant::now();
            let message = message.clone();
            let messages = tokio_stream::iter((0..part).map(move |_| message.clone()));
            grpc.ready().await?;
            let path = PathAndQuery::from_static("/peer.Peer/Count");
            let answer = grpc.client_streaming(Request::new(messages), path, Raw).await?;
            if answer.into_inner()[..] != part.to_le_bytes() {
                return Err("not all has come".into());
            }
            seconds = from.elapsed().as_secs_f64();
        }
        println!("{{\"count\":{},\"seconds\":{seconds}}}", plan.count);
    }
    std::fs::write(directory.join("done"), "")?;
    Ok(())
}

struct Plan {
    is_latency: bool,
    size: usize,
    warm_up: u64,
    count: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, test, size, count, _window] = arguments.as_slice() else {
        return Err("wants initiate|respond latency|stream SIZE COUNT WINDOW".into());
    };
    let (size, count) = (size.parse()?, count.parse::<u64>()?);
    let plan = Plan { is_latency: test == "latency", size, warm_up: count / 10 + 1, count };
    let host = std::env::var("PEER_HOST")?.parse()?;
    let directory = PathBuf::from(std::env::var("PEER_ADDRESS")?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match role.as_str() {
        "initiate" => runtime.block_on(initiate(host, directory, &plan)),
        _ => runtime.block_on(respond(host, directory)),
    }
}
