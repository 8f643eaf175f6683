//! Unmodified hyper, axum and tonic, over byte streams of Hamlyn instead of sockets.
//!
//! This file has all the glue: axum needs a listener of its own trait, tonic a stream of
//! connections. hyper takes any `AsyncRead` and `AsyncWrite`.

use hamlyn::io::{Connection, Listener};
use hamlyn::protocol::{AsyncManager, Manager};
use hamlyn::{Config, Peer};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The result of an example.
pub type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The time in which a server must answer a new connection.
pub const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

/// A manager in the runtime that this is called in.
pub fn manager(config: Config) -> Result<AsyncManager> {
    Ok(AsyncManager::new(&Manager::with_config(config)?)?)
}

// ---- axum

/// A [`Listener`] for `axum::serve`. Handlers get the caller by `ConnectInfo<Caller>`.
pub struct AxumListener(pub Listener);

/// The caller's identity, from the kernel.
#[derive(Clone, Debug)]
pub struct Caller(pub Peer);

impl axum::serve::Listener for AxumListener {
    type Io = Connection;
    type Addr = Caller;

    async fn accept(&mut self) -> (Connection, Caller) {
        loop {
            match self.0.accept().await {
                Ok(connection) => {
                    let caller = Caller(connection.peer().clone());
                    return (connection, caller);
                }
                // Only where nothing can be accepted ever again.
                Err(e) => {
                    eprintln!("accepting: {e}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Caller> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a listener has a name, and no peer"))
    }
}

impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, AxumListener>>
    for Caller
{
    fn connect_info(stream: axum::serve::IncomingStream<'_, AxumListener>) -> Self {
        stream.remote_addr().clone()
    }
}

// ---- hyper

/// One request by HTTP/1.1 over a connection of its own; the body of the answer.
pub async fn get(connection: Connection, path: &str) -> Result<(hyper::StatusCode, bytes::Bytes)> {
    let io = TokioIo::new(connection);
    let (mut sender, http) = hyper::client::conn::http1::handshake(io).await?;
    let serving = tokio::spawn(http);
    let request = hyper::Request::get(path).header("host", "hamlyn");
    let response = sender.send_request(request.body(Full::<bytes::Bytes>::default())?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    drop(sender);
    serving.await??;
    Ok((status, body))
}

// ---- tonic

/// A [`Connection`] for tonic's server, which asks each whose it is.
pub struct TonicConnection(Connection);

impl tonic::transport::server::Connected for TonicConnection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller(self.0.peer().clone())
    }
}

impl AsyncRead for TonicConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl AsyncWrite for TonicConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The connections of a [`Listener`], for `serve_with_incoming`.
pub fn incoming(
    listener: Listener,
) -> impl tokio_stream::Stream<Item = io::Result<TonicConnection>> {
    struct Incoming(Listener);
    impl tokio_stream::Stream for Incoming {
        type Item = io::Result<TonicConnection>;
        fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0.poll_accept(context).map(|accepted| Some(accepted.map(TonicConnection)))
        }
    }
    Incoming(listener)
}

/// A channel of tonic to a service by its name, as often as it is connected anew.
pub async fn channel(
    manager: &AsyncManager,
    name: &'static str,
) -> Result<tonic::transport::Channel> {
    let manager = manager.clone();
    let connector = tower::service_fn(move |_: hyper::Uri| {
        let manager = manager.clone();
        async move { Connection::connect(&manager, name, LIMIT).await.map(TokioIo::new) }
    });
    // The address is never looked at.
    let endpoint = tonic::transport::Endpoint::from_static("http://hamlyn");
    Ok(endpoint.connect_with_connector(connector).await?)
}
