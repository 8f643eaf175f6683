//! End points in tokio tasks.
//!
//! ```text
//!   task: try; nothing there -> leave a waker with the manager, try, arm, sleep on the descriptor
//!   a packet comes     -> the sender saw the arming: the descriptor is readable: all tasks look
//!   a thread polls     -> the manager wakes the tasks: it may have taken their packets
//! ```
//! Never: a task sleeps between another's poll and its own look; it leaves its waker first, looks
//! once more, and arms after that; likewise for room, if that look found no room. Every future here
//! may be dropped at any time: an arrival waits for the next receive, and a call that was dropped
//! is forgotten.

use super::aperture_stream::{ApertureRecord, ApertureRecordGuard, ApertureStreamReceiver};
use super::call::{Bytes, CallError, Client, Request, Server};
use super::datagram::{Datagram, DatagramReceiver};
use super::driver::{Driver, Registered};
use super::group::{Group, GroupError};
use super::group_member::GroupMember;
use super::manager::UntilGivenUp;
use super::manager::{Awaiting, Connection, Manager, Protocol, ReceiveError, Seat};
use super::publish::{Sample, Subscriber};
use super::stream::{Record, RecordGuard, StreamReceiver};
use super::tagged::{Tag, TaggedReceiver};
use crate::node::{Look, Node, WaitError};
use core::future::poll_fn;
use core::pin::pin;
use core::sync::atomic::AtomicBool;
use core::task::Poll;
use std::io;
use std::sync::{Arc, OnceLock};
use std::vec::Vec;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

/// An end point that can receive without waiting.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-next-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::protocol::{Manager, StreamConfig, StreamReceiver, TryReceive};
///
/// /// Takes the next message, of any protocol.
/// fn empty<E: TryReceive>(end_point: &mut E) -> Result<usize, E::Error> {
///     let mut taken = 0;
///     while end_point.try_next()?.is_some() {
///         taken += 1;
///     }
///     Ok(taken)
/// }
/// let manager = Manager::with_config(config)?;
/// let mut receiver = StreamReceiver::new(&manager, StreamConfig::default())?;
/// assert_eq!(empty(&mut receiver)?, 0);
/// # drop((receiver, manager));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TryReceive {
    /// The received message.
    type Item;
    /// The error of a receive.
    type Error: From<WaitError>;
    /// The next message, if it is there or comes in one turn.
    fn try_next(&mut self) -> Result<Option<Self::Item>, Self::Error>;
}

macro_rules! try_receive {
    ($($end_point:ty: $item:ty, $error:ty, $with:ident;)*) => {$(
        impl TryReceive for $end_point {
            type Item = $item;
            type Error = $error;
            fn try_next(&mut self) -> Result<Option<$item>, $error> {
                self.$with()
            }
        }
    )*};
}

try_receive! {
    TaggedReceiver: Tag, ReceiveError, try_get_tag;
    DatagramReceiver: Datagram, ReceiveError, try_receive;
    GroupMember: Vec<u8>, GroupError, try_receive;
    Subscriber: Sample, ReceiveError, try_receive;
}

/// The record is [kept](super::RecordGuard::keep); release it when you have read it, by dropping
/// the guard that [`StreamReceiver::guard`] makes of it, or by [`StreamReceiver::release`]. Until
/// then it and all later records stay in memory, and in the end the sender waits.
impl TryReceive for StreamReceiver {
    type Item = Record;
    type Error = ReceiveError;
    fn try_next(&mut self) -> Result<Option<Record>, ReceiveError> {
        Ok(self.try_receive()?.map(RecordGuard::keep))
    }
}

/// The same as for a [`StreamReceiver`].
impl TryReceive for ApertureStreamReceiver {
    type Item = ApertureRecord;
    type Error = ReceiveError;
    fn try_next(&mut self) -> Result<Option<ApertureRecord>, ReceiveError> {
        Ok(self.try_receive()?.map(ApertureRecordGuard::keep))
    }
}

impl<'a> TryReceive for &'a Server {
    type Item = Request<'a>;
    type Error = ReceiveError;
    fn try_next(&mut self) -> Result<Option<Request<'a>>, ReceiveError> {
        self.try_receive()
    }
}

/// As many parts as are [wanted](Group::set_wanted) have arrived; [`Group::parts`] returns them.
impl TryReceive for Group {
    type Item = ();
    type Error = GroupError;
    fn try_next(&mut self) -> Result<Option<()>, GroupError> {
        Ok(self.try_gather()?.then_some(()))
    }
}

/// A manager in a tokio runtime. Cloning shares it; any number of tasks may use it at once.
#[derive(Clone)]
pub struct AsyncManager {
    manager: Manager,
    fd: Arc<Registered>,
    runtime: tokio::runtime::Handle,
    /// Polls for the tasks at byte streams, once there are such.
    driver: Arc<OnceLock<Driver>>,
}

impl core::fmt::Debug for AsyncManager {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AsyncManager").field("fd", self.fd.get()).finish_non_exhaustive()
    }
}

/// Dropped before the task is done, it gives the task's work up.
struct GivesUp {
    manager: Manager,
    given_up: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Drop for GivesUp {
    fn drop(&mut self) {
        if self.task.is_finished() || self.manager.is_forked() {
            return;
        }
        self.task.abort();
        UntilGivenUp::give_up(&self.given_up, &self.manager);
    }
}

impl AsyncManager {
    /// Registers the manager's descriptor with the runtime that this is called in.
    pub fn new(manager: &Manager) -> io::Result<Self> {
        // The deprecated part is a type whose descriptor may change; an `OwnedFd`'s does not.
        #[allow(deprecated)]
        let fd = AsyncFd::with_interest(manager.try_clone_fd()?, Interest::READABLE)?;
        let runtime = tokio::runtime::Handle::current();
        let fd = Arc::new(Registered::new(fd));
        Ok(Self { manager: manager.clone(), fd, runtime, driver: Arc::default() })
    }

    /// The task that polls for tasks, from now on.
    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        self.driver.get_or_init(|| Driver::start(&self.manager, &self.fd, &self.runtime))
    }

    /// The manager itself.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Growing and connecting wait in the calling thread; this runs them in one of the runtime's
    /// threads for such work.
    ///
    /// If the future is dropped before it is ready, work that has not begun does not run. Growing
    /// and connecting in there fails at once, now and later, with
    /// [`GrowError::GivenUp`](super::GrowError), and leaves nothing behind, so that the thread is
    /// free again; the result of `make` is dropped.
    pub async fn set_up<R: Send + 'static>(
        &self,
        make: impl FnOnce(&Manager) -> R + Send + 'static,
    ) -> R {
        let (manager, given_up) = (self.manager.clone(), Arc::<AtomicBool>::default());
        let flag = given_up.clone();
        let made = tokio::task::spawn_blocking(move || {
            let _until = UntilGivenUp::new(flag);
            make(&manager)
        });
        let (manager, task) = (self.manager.clone(), made.abort_handle());
        let _unless_ready = GivesUp { manager, given_up, task };
        match made.await {
            Ok(made) => made,
            Err(e) => match e.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(e) => panic!("the runtime is shutting down: {e}"),
            },
        }
    }

    /// The next message of an end point: a tag, a datagram, a record, a published sample, a message
    /// of a group's root, or (for `&mut &server`) a request; for a group's root, the arrival of its
    /// parts. Dropped before it is ready, the future has taken no message. A record is kept, and
    /// must be [released](StreamReceiver::release).
    ///
    /// [`Request::reply`] blocks the calling thread when it has to wait: for room, and for a reply
    /// that is longer than the client's block. The runtime needs its threads meanwhile, so call it
    /// in `tokio::task::block_in_place` or `spawn_blocking`.
    pub async fn receive<E: TryReceive>(&self, end_point: &mut E) -> Result<E::Item, E::Error> {
        self.until(|| end_point.try_next()).await
    }

    /// Repeats `send` until it returns `true`, waiting for room or credit in between; for the
    /// `try_send` or `try_flush` of a sender or a group's member.
    ///
    /// ```no_run
    /// # use hamlyn::protocol::{AsyncManager, SendError, TaggedSender};
    /// # async fn f(manager: AsyncManager, mut sender: TaggedSender) -> Result<(), SendError> {
    /// manager.send(|| sender.try_send(0, b"data", 7)).await
    /// # }
    /// ```
    pub async fn send<E: From<WaitError>>(
        &self,
        mut send: impl FnMut() -> Result<bool, E>,
    ) -> Result<(), E> {
        self.until(|| Ok(send()?.then_some(()))).await
    }

    /// Sends a request and waits for the reply. Dropped before it is ready, it forgets the call.
    pub async fn call(&self, client: &Client, request: &[u8]) -> Result<Bytes, CallError> {
        let mut call = client.prepare(request, None);
        self.until(|| call.advance()).await
    }

    /// Waits until a connection has ended.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-ended-{}", std::process::id()));
    /// use hamlyn::protocol::{AsyncManager, Connection, Manager, StreamConfig, StreamReceiver};
    /// use hamlyn::protocol::StreamSender;
    /// # use std::time::Duration;
    ///
    /// # let limit = Some(Duration::from_secs(10));
    /// # let config = hamlyn::Config::from_env()?.dir(&dir);
    /// let manager = AsyncManager::new(&Manager::with_config(config.clone())?)?;
    /// let receiver = StreamReceiver::new(manager.manager(), StreamConfig::default())?;
    /// # manager.manager().start_progress()?;
    /// let other = AsyncManager::new(&Manager::with_config(config)?)?;
    /// let seed = receiver.seed()?;
    /// let sender = other.set_up(move |manager| StreamSender::grow(manager, &seed, limit)).await?;
    /// drop(receiver);
    /// let connection: &Connection = sender.connection();
    /// tokio::time::timeout(Duration::from_secs(10), other.ended(connection)).await??;
    /// println!("{}: {:?}", connection.link(), connection.ended());
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn ended(&self, connection: &Connection) -> Result<(), ReceiveError> {
        self.until(|| Ok(connection.ended().map(|_| ()))).await
    }

    /// [`Seat::wait_for`] in a task, with the same closure: waits until `look` has found something.
    /// Dropped before it is ready, the future has taken nothing.
    pub async fn wait_for<P: Protocol, R>(
        &self,
        seat: &Seat<P>,
        mut look: impl FnMut(&mut Node, &mut P) -> Look<R>,
    ) -> Result<R, WaitError> {
        self.until(|| seat.try_for(&mut look)).await
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Repeats `look` until it finds something.
    pub(crate) async fn until<R, E: From<WaitError>>(
        &self,
        mut look: impl FnMut() -> Result<Option<R>, E>,
    ) -> Result<R, E> {
        let mut wait: Option<Awaiting> = None;
        loop {
            let mut readable = pin!(self.fd.get().readable());
            let found = poll_fn(|context| {
                // A first look that succeeds needs no waker.
                match look() {
                    Ok(None) => {}
                    found => return Poll::Ready(found),
                }
                // Another thread may take the awaited message before this task's next look.
                let wait = wait.get_or_insert_default();
                self.manager.leave_waker(context.waker(), Some(wait));
                match look() {
                    Ok(None) => {}
                    found => return Poll::Ready(found),
                }
                match self.manager.prepare_to_wait(None) {
                    Ok(true) => {}
                    Ok(false) => return Poll::Ready(Ok(None)),
                    Err(e) => return Poll::Ready(Err(WaitError::Forked(e).into())),
                }
                match readable.as_mut().poll(context) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(mut guard)) => {
                        guard.clear_ready();
                        Poll::Ready(Ok(None))
                    }
                    Poll::Ready(Err(e)) => Poll::Ready(Err(WaitError::Os(e).into())),
                }
            });
            if let Some(found) = found.await? {
                return Ok(found);
            }
            // It may always be ready, but lets other tasks run.
            tokio::task::consume_budget().await;
        }
    }
}
