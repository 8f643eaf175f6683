//! Byte streams for tokio's tasks: protocols for Unix sockets run over these.
//!
//! ```text
//!   Listener::bind(&manager, "name", access)       Connection::connect(&manager, "name", limit)
//!   accept().await  ---- Connection ------ bytes both ways ------ Connection
//!                        AsyncRead + AsyncWrite, into_split
//! ```
//! A [`Connection`] is a [`ByteStream`] that waits in the runtime: `poll_shutdown` closes one
//! direction, a peer that dies or breaks the rules is an error with a kind and a sentence, and a
//! peer may send no more unread bytes than its window holds ([`ByteConfig`]). So hyper, axum and
//! tonic run over it unchanged: see `examples/http`.
//!
//! One task of the runtime polls for all connections of a manager. The manager's settings choose
//! how it waits: with `wait_mode` adaptive, the default, it polls for `spin_ns` before it sleeps,
//! and lets other tasks run meanwhile; blocking, it sleeps at once; polled, it never sleeps, and
//! takes a core.
//!
//! Every future here may be dropped at any time. A connection that [`accept`](Listener::accept) has
//! not returned waits for the next `accept`; a dropped read has taken no byte, a dropped write has
//! sent no byte; no credit is lost.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let dir = std::env::temp_dir().join(format!("hamlyn-doc-io-{}", std::process::id()));
//! # let config = hamlyn::Config::from_env()?.dir(&dir);
//! use hamlyn::Access;
//! use hamlyn::io::{Connection, Listener};
//! use hamlyn::protocol::{AsyncManager, Manager};
//! use std::time::Duration;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
//! let listener = Listener::bind(&manager, "echo", Access::SameUser)?;
//! tokio::spawn(async move {
//!     let (mut read, mut write) = listener.accept().await?.into_split();
//!     tokio::io::copy(&mut read, &mut write).await?;
//!     write.shutdown().await
//! });
//!
//! // Usually another process.
//! let manager = AsyncManager::new(&Manager::with_config(config)?)?;
//! let mut echo = Connection::connect(&manager, "echo", Some(Duration::from_secs(10))).await?;
//! echo.write_all(b"as over a socket").await?;
//! echo.shutdown().await?;
//! let mut back = String::new();
//! echo.read_to_string(&mut back).await?;
//! assert_eq!(back, "as over a socket");
//! # std::fs::remove_dir_all(&dir).ok();
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::control::{self, Access, Peer};
use crate::node::{ConnectError, OfferError};
use crate::protocol::{
    AsyncManager, Awaiting, ByteConfig, ByteListener, ByteStream, ByteStreamError, GrowError,
    Manager, ReceiveError, Seed, Turned,
};
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io::{self, IoSlice};
use std::string::String;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

/// Accepts byte streams in tasks. Dropping it frees its name and closes the connections that were
/// not accepted; accepted ones go on. The [module](self) shows both ends.
#[derive(Debug)]
pub struct Listener {
    listener: ByteListener,
    manager: AsyncManager,
}

impl Listener {
    /// Serves `name` with this `access`. Fails with [`AddrInUse`](io::ErrorKind::AddrInUse) if the
    /// name is served already, with [`InvalidInput`](io::ErrorKind::InvalidInput) if it is not
    /// valid; nothing is left then.
    pub fn bind(manager: &AsyncManager, name: &str, access: Access) -> io::Result<Self> {
        Self::bind_with(manager, name, access, ByteConfig::default())
    }

    /// [`bind`](Self::bind) with these settings.
    pub fn bind_with(
        manager: &AsyncManager,
        name: &str,
        access: Access,
        config: ByteConfig,
    ) -> io::Result<Self> {
        let listener = ByteListener::new(manager.manager(), config).map_err(of_growing)?;
        listener.serve(name, access).map_err(of_offering)?;
        Ok(Self::new(manager, listener))
    }

    /// An existing listener, in tasks, for example one with a [seed](ByteListener::seed). It must
    /// belong to the same manager.
    pub fn new(manager: &AsyncManager, listener: ByteListener) -> Self {
        // New connections are answered though no task waits.
        manager.driver();
        Self { listener, manager: manager.clone() }
    }

    /// The listener itself, for its count of connections and of misbehaving peers.
    pub fn get_ref(&self) -> &ByteListener {
        &self.listener
    }

    /// The next connection; [`Connection::peer`] is its other end. Any number of tasks may accept.
    /// Dropped before it is ready, the future has taken no connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        let wait = Awaiting::default();
        poll_fn(|context| self.poll_accepted(context, Some(&wait))).await
    }

    /// [`accept`](Self::accept), for hand-written futures.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        self.poll_accepted(context, None)
    }

    fn poll_accepted(
        &self,
        context: &mut Context<'_>,
        wait: Option<&Awaiting>,
    ) -> Poll<io::Result<Connection>> {
        let coop = ready!(poll_proceed(context));
        let accepted = self.manager.driver().check().and_then(|()| {
            self.listener.accept_or_wait(context.waker(), wait).map_err(|e| match e {
                ReceiveError::Forked(e) => ByteStreamError::Forked(e).into(),
                e => io::Error::other(e),
            })
        });
        match accepted {
            Ok(Turned { ready: None, .. }) => {
                self.manager.driver().kick();
                Poll::Pending
            }
            Ok(Turned { ready: Some(stream), arm }) => {
                if arm {
                    self.manager.driver().kick();
                }
                coop.made_progress();
                Poll::Ready(Ok(Connection::new(&self.manager, stream)))
            }
            Err(e) => Poll::Ready(Err(e)),
        }
    }
}

/// A byte stream for tasks: [`AsyncRead`] and [`AsyncWrite`], including vectored writes. It does
/// not buffer, so there is nothing to flush. Dropping it closes it: the peer reads the written
/// bytes, and then the end.
///
/// One task may read while another writes; see [`into_split`](Self::into_split).
///
/// The [module](self) shows both ends.
#[derive(Debug)]
pub struct Connection {
    inner: ConnectionInner,
}

/// The half that reads.
#[derive(Debug)]
pub struct ReadHalf {
    inner: Arc<ConnectionInner>,
}

/// The half that writes. Dropping it shuts this direction: the peer reads the written bytes, and
/// then the end, which is sent as soon as the link has room for it.
#[derive(Debug)]
pub struct WriteHalf {
    inner: Arc<ConnectionInner>,
}

#[derive(Debug)]
struct ConnectionInner {
    stream: ByteStream,
    manager: AsyncManager,
}

impl Connection {
    /// Connects to `[user@]name`, in one of the runtime's threads for blocking work, within `limit`
    /// (`None`: without limit). Fails with [`NotFound`](io::ErrorKind::NotFound) if the name is not
    /// served, [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if its owner refuses, and
    /// [`TimedOut`](io::ErrorKind::TimedOut) if its owner does not answer; the error within is a
    /// [`GrowError`]. Dropped before it is ready, it leaves no connection and no attempt behind.
    pub async fn connect(
        manager: &AsyncManager,
        name: &str,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        Self::connect_with(manager, name, ByteConfig::default(), limit).await
    }

    /// [`connect`](Self::connect) with these settings.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-io-with-{}", std::process::id()));
    /// use hamlyn::Access;
    /// use hamlyn::io::{Connection, Listener};
    /// use hamlyn::protocol::{AsyncManager, ByteConfig, Manager};
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// # let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
    /// let small = ByteConfig { window_bytes: 4096, ..ByteConfig::default() };
    /// let listener = Listener::bind_with(&manager, "io", Access::SameUser, small.clone())?;
    /// let seed = listener.get_ref().seed()?;
    /// # let manager = AsyncManager::new(&Manager::with_config(config)?)?;
    /// let connecting = Connection::connect_with(&manager, "io", small, limit);
    /// let (connected, accepted) = tokio::try_join!(connecting, listener.accept())?;
    /// let (read, write) = accepted.into_split();
    /// assert_eq!(read.peer().node, write.peer().node);
    /// println!("{}: {}", connected.peer().node, connected.get_ref().explain());
    /// // By a seed, without a name.
    /// tokio::try_join!(Connection::grow(&manager, &seed, limit), listener.accept())?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn connect_with(
        manager: &AsyncManager,
        name: &str,
        config: ByteConfig,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        let name = String::from(name);
        Self::made(manager, move |m| ByteStream::connect_with(m, &name, config, limit)).await
    }

    /// Connects to the listener of a [seed](ByteListener::seed), as [`connect`](Self::connect) does
    /// by name.
    pub async fn grow(
        manager: &AsyncManager,
        seed: &Seed,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        let seed = seed.clone();
        Self::made(manager, move |m| ByteStream::grow(m, &seed, limit)).await
    }

    async fn made(
        manager: &AsyncManager,
        make: impl FnOnce(&Manager) -> Result<ByteStream, GrowError> + Send + 'static,
    ) -> io::Result<Self> {
        // The answer comes though no thread waits for anything else.
        manager.driver();
        let made = manager.set_up(make).await;
        Ok(Self::new(manager, made.map_err(of_growing)?))
    }

    /// An existing stream, in tasks. It must belong to the same manager.
    pub fn new(manager: &AsyncManager, stream: ByteStream) -> Self {
        manager.driver();
        Self { inner: ConnectionInner { stream, manager: manager.clone() } }
    }

    /// The identity of the other end, from the kernel.
    pub fn peer(&self) -> &Peer {
        self.inner.stream.peer()
    }

    /// The stream itself, for the path of its bytes ([`ByteStream::explain`]).
    pub fn get_ref(&self) -> &ByteStream {
        &self.inner.stream
    }

    /// Two halves, for two tasks. The connection is closed when both are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let inner = Arc::new(self.inner);
        (ReadHalf { inner: inner.clone() }, WriteHalf { inner })
    }
}

impl ReadHalf {
    /// The identity of the other end, from the kernel.
    pub fn peer(&self) -> &Peer {
        self.inner.stream.peer()
    }
}

impl WriteHalf {
    /// The identity of the other end, from the kernel.
    pub fn peer(&self) -> &Peer {
        self.inner.stream.peer()
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // If there is no room for that now, a polling thread sends it later.
        if self.inner.stream.shut_soon() {
            self.inner.manager.driver().kick();
        }
    }
}

impl ConnectionInner {
    fn poll_read(&self, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let max = to.remaining();
        if max == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut sink = |bytes: &[u8]| to.put_slice(bytes);
        self.poll(context, |waker| self.stream.read_or_wait(waker, max, &mut sink)).map_ok(drop)
    }

    fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(context, |waker| self.stream.write_or_wait(waker, slices))
    }

    fn poll_shut(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll(context, |waker| self.stream.shut_or_wait(waker)) {
            // Like a socket: the peer needs no further message.
            Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::BrokenPipe => Poll::Ready(Ok(())),
            polled => polled,
        }
    }

    /// A look of a task, which polling threads wake.
    #[inline]
    fn poll<R>(
        &self,
        context: &mut Context<'_>,
        look: impl FnOnce(&core::task::Waker) -> Result<Turned<R>, ByteStreamError>,
    ) -> Poll<io::Result<R>> {
        // It may always be ready, but lets other tasks run.
        let coop = ready!(poll_proceed(context));
        let driver = self.manager.driver();
        driver.check()?;
        let Turned { ready, arm } = look(context.waker())?;
        if arm {
            driver.kick();
        }
        match ready {
            Some(ready) => {
                coop.made_progress();
                Poll::Ready(Ok(ready))
            }
            None => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner.poll_read(context, to)
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner.poll_read(context, to)
    }
}

macro_rules! writes {
    ($($type:ty),*) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.inner.poll_write(context, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.inner.poll_write(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                self.inner.poll_shut(context)
            }
        }
    )*};
}

writes!(Connection, WriteHalf);

/// The error of a connection attempt, as sockets return it.
fn of_growing(error: GrowError) -> io::Error {
    let kind = match &error {
        GrowError::Connect(error) => match error {
            ConnectError::Name(_) => io::ErrorKind::InvalidInput,
            ConnectError::TimedOut(_) => io::ErrorKind::TimedOut,
            ConnectError::Find(_) => io::ErrorKind::NotFound,
            ConnectError::NotPermitted(_) | ConnectError::WrongUser { .. } => {
                io::ErrorKind::PermissionDenied
            }
            ConnectError::Misbehaved(_) | ConnectError::Memory(_) => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::ConnectionRefused,
        },
        GrowError::Refused(_) | GrowError::Full(_) => io::ErrorKind::ConnectionRefused,
        GrowError::Answer(_) | GrowError::NotAnEndPoint => io::ErrorKind::InvalidData,
        GrowError::Seed(_) | GrowError::Kind { .. } => io::ErrorKind::InvalidInput,
        GrowError::Forked(_) => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn of_offering(error: OfferError) -> io::Error {
    let kind = match &error {
        OfferError::Name(_) => io::ErrorKind::InvalidInput,
        OfferError::Serve(control::ServeError::NotPermitted { .. }) => {
            io::ErrorKind::PermissionDenied
        }
        OfferError::Serve(control::ServeError::InUse { .. }) => io::ErrorKind::AddrInUse,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
