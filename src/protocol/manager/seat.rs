//! The seat of a protocol at its manager: the trait of its state, under the manager's lock, and the
//! handle with which its end points use that. The library's own protocols have the same seat.
//!
//! ```text
//!   end point (any thread)     Seat: with, wait_for ----+
//!   task                       AsyncManager::wait_for --+--> the lock --> the state: a Protocol
//!   thread that polls          admit, joined, left, told, after_poll ---+
//! ```
//! Never: the state is used without the manager's lock, or waits there.

use super::guarded::{Guarded, PANICKED};
use super::{Connection, GrowError, Manager, OfferId, Offering, Target};
use crate::control::{Access, Peer, RequestId};
use crate::node::{Attached, Event, Look, Node, OfferError, WaitError};
use crate::protocol::ends::offered;
use crate::protocol::seed::{Kind, Seed};
use core::any::Any;
use core::marker::PhantomData;
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// A protocol's state at a manager, from [`Manager::seat`]. Every function is called under the
/// manager's lock, in whichever thread polls. It must not wait, and must call no function of a
/// [`Manager`] or a [`Seat`], which would wait for that lock for ever. A panic is
/// caught and counted (`protocols_panicked`), and the seat is over: its connections end, newcomers
/// are refused, [`Seat::wait_for`] returns an error, and of these functions [`close`](Self::close)
/// alone is still called. So a peer's bytes can end a protocol that panics on them, and nothing
/// else; check them before you index them. The file `docs/own-protocol.md` explains how to write one.
pub trait Protocol: Any + Send {
    /// Whether there is a place for a peer that sent `body`; otherwise the reason. Only for lack of
    /// room: a peer that waits for a place may push out one whose request has not become a connection.
    fn check_place(&self, _peer: &Peer, _body: &[u8]) -> Result<(), String> {
        Ok(())
    }

    /// Decides about a peer that sent `body` to be connected, and for which there is a place: the
    /// answer for it, up to 4 KiB with eight bytes of the library's, or the reason of the refusal.
    /// [`withdrawn`](Self::withdrawn) undoes anything that was made for a request that was admitted;
    /// an error must leave nothing behind.
    fn admit(
        &mut self,
        _node: &mut Node,
        _request: RequestId,
        _peer: &Peer,
        _body: &[u8],
    ) -> Result<Vec<u8>, String> {
        Err("this end point takes nobody".into())
    }

    /// The request did not become a connection.
    fn withdrawn(&mut self, _node: &mut Node, _request: RequestId) {}

    /// The request became a connection.
    fn joined(&mut self, _node: &mut Node, _request: RequestId, _connection: &Arc<Connection>) {}

    /// The connection ended, and all messages sent over it have arrived.
    fn left(&mut self, _node: &mut Node, _connection: &Connection) {}

    /// An event of the connection's link: a revoked ticket, an aperture. Returns an event that the
    /// protocol has no use for: then an aperture that the peer exports is given back, other events of
    /// apertures are dropped, and a revoked ticket goes to [`Manager::next_event`].
    fn told(&mut self, _node: &mut Node, _connection: &Connection, event: Event) -> Option<Event> {
        Some(event)
    }

    /// Whether [`after_poll`](Self::after_poll) is to be called; asked once.
    fn takes_turns(&self) -> bool {
        false
    }

    /// Called after each turn of any thread, so it must be quick. If it changes something that a
    /// thread or a task waits for, it calls [`Node::wake`].
    fn after_poll(&mut self, _node: &mut Node) {}

    /// The seat is dropped, and all its connections have been closed, without [`left`](Self::left) or
    /// [`withdrawn`](Self::withdrawn) of each: gives slots, queues and areas back, also those of
    /// requests.
    fn close(&mut self, _node: &mut Node) {}
}

/// Of an end that keeps nothing at its manager, and admits nobody.
impl Protocol for () {}

/// A protocol's place at a manager: its state there, its connections, and the names and seeds under
/// which others find it. Dropping it closes all of them.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-seat-{}", std::process::id()));
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// use hamlyn::node::{Event, Look, Node};
/// use hamlyn::protocol::{Connection, Kind, Manager, Protocol, Seat};
/// use hamlyn::{Access, Peer, RequestId};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// const DOOR: Kind = Kind::new(*b"door");
///
/// /// Counts its guests.
/// #[derive(Default)]
/// struct Guests(usize);
///
/// impl Protocol for Guests {
///     fn check_place(&self, _: &Peer, _: &[u8]) -> Result<(), String> {
///         if self.0 < 2 { Ok(()) } else { Err("the house is full".into()) }
///     }
///     fn admit(
///         &mut self,
///         _: &mut Node,
///         _: RequestId,
///         _: &Peer,
///         body: &[u8],
///     ) -> Result<Vec<u8>, String> {
///         if body == b"a guest" { Ok(b"welcome".to_vec()) } else { Err("who are you?".into()) }
///     }
///     fn joined(&mut self, _: &mut Node, _: RequestId, _: &Arc<Connection>) {
///         self.0 += 1;
///     }
///     fn left(&mut self, _: &mut Node, _: &Connection) {
///         self.0 -= 1;
///     }
///     fn told(&mut self, _: &mut Node, guest: &Connection, event: Event) -> Option<Event> {
///         println!("{}: {event:?}", guest.link()); // A revoked ticket, or an aperture.
///         Some(event)
///     }
///     fn close(&mut self, _: &mut Node) {
///         println!("closed, with {} guests", self.0);
///     }
/// }
///
/// let limit = Some(Duration::from_secs(10));
/// let manager = Manager::with_config(config.clone())?;
/// let door: Seat<Guests> = manager.seat(DOOR, Guests::default());
/// door.set_admission(|peer| peer.is_proved.then_some(()).ok_or("who are you?".into()));
/// door.serve("door", Access::SameUser)?;
/// manager.start_progress()?;
///
/// // Usually another process.
/// let other = Manager::with_config(config)?;
/// let guest: Seat<()> = other.seat(DOOR, ()); // It keeps nothing.
/// assert!(guest.connect("door", b"a thief", limit).is_err());
/// let (connection, answer) = guest.connect("door", b"a guest", limit)?;
/// assert_eq!(answer, b"welcome");
/// // By a seed, too.
/// assert_eq!(guest.grow(&door.seed()?, b"a guest", limit)?.1, b"welcome");
///
/// // Any thread waits for any condition of node and state.
/// let are_two = |_: &mut Node, guests: &mut Guests| match guests.0 {
///     2 => Look::Found(()),
///     _ => Look::Nothing,
/// };
/// door.wait_for(limit, are_two)?;
/// assert_eq!(door.connections().len(), 2);
/// assert_eq!(door.try_for(are_two)?, Some(()));
/// guest.disconnect(&connection);
/// door.wait_for(limit, |_, guests| if guests.0 == 1 { Look::Found(()) } else { Look::Nothing })?;
/// door.stop_serving();
/// door.expel(&door.connections()[0], "the party is over");
/// assert_eq!(door.with(|_, guests| guests.0), 0);
/// // A change for which another thread may be waiting.
/// door.with(|node, guests| {
///     guests.0 = 0;
///     node.wake();
/// });
/// assert_eq!((door.kind(), door.manager().id()), (DOOR, manager.id()));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Seat<P: Protocol> {
    manager: Manager,
    offer: OfferId,
    kind: Kind,
    state: PhantomData<fn(P)>,
}

impl<P: Protocol> core::fmt::Debug for Seat<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Seat").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Manager {
    /// Gives a protocol its seat: one for each receiver, and one for each sender or for several.
    pub fn seat<P: Protocol>(&self, kind: Kind, state: P) -> Seat<P> {
        let offer = self.offer(kind, Offering::Other(Guarded::new(state)));
        Seat { manager: self.clone(), offer, kind, state: PhantomData }
    }
}

impl<P: Protocol> Seat<P> {
    offered!(many "an end point");

    /// The seat's protocol.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// For [`Job::offer`](crate::job::Job::offer), and for code that is written once for several
    /// protocols.
    pub fn offer(&self) -> Offer<'_> {
        self.offered()
    }

    /// Uses the node and the state, for this thread alone meanwhile. A change for which others may
    /// be waiting needs [`Node::wake`]. Panics as [`Manager::lock`].
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut Node, &mut P) -> R) -> R {
        let mut guard = self.manager.shared.lock();
        let (node, protocols) = guard.parts();
        let done = act(node, protocols.state(self.offer));
        protocols.after_look(node);
        done
    }

    /// Waits until `look` has found something, at most for `limit` (`None`: without limit); takes
    /// turns meanwhile, spins, yields and sleeps as the settings say. `look` runs at once, and then
    /// after each turn in which something may have changed: an arrival, an event, another thread's
    /// [`Node::wake`] or [`Manager::wake`]. For tasks: `AsyncManager::wait_for`.
    #[inline]
    pub fn wait_for<R>(
        &self,
        limit: Option<Duration>,
        mut look: impl FnMut(&mut Node, &mut P) -> Look<R>,
    ) -> Result<R, WaitError> {
        let offer = self.offer;
        self.manager.shared.wait_until(limit, |node, protocols| {
            if protocols.has_panicked(offer) {
                return Look::Found(Err(WaitError::Os(io::Error::other(PANICKED))));
            }
            look(node, protocols.state(offer)).map(Ok)
        })?
    }

    /// [`wait_for`](Self::wait_for) of at most one turn: `None`: not now.
    pub fn try_for<R>(
        &self,
        look: impl FnMut(&mut Node, &mut P) -> Look<R>,
    ) -> Result<Option<R>, WaitError> {
        match self.wait_for(Some(Duration::ZERO), look) {
            Ok(found) => Ok(Some(found)),
            Err(WaitError::TimedOut) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Connects to the end point of a seed, which must be of this seat's kind, and sends `body` with
    /// the request (up to 4 KiB with 24 bytes of the library's); waits at most `limit`. Returns the
    /// connection and the other end's answer, which comes from a peer that nobody trusts. The seat
    /// [hears](Protocol::left) of the connection's end. On an error nothing is left of the attempt.
    pub fn grow(
        &self,
        seed: &Seed,
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Arc<Connection>, Vec<u8>), GrowError> {
        self.grow_to(Target::Seed(seed), body, limit)
    }

    /// [`grow`](Self::grow) by name: connects to the end point that is served as `[user@]name`,
    /// and waits for the name to be served, unless the setting `wait_for_names` is off.
    pub fn connect(
        &self,
        name: &str,
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Arc<Connection>, Vec<u8>), GrowError> {
        self.grow_to(Target::Service(name), body, limit)
    }

    fn grow_to(
        &self,
        target: Target<'_>,
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Arc<Connection>, Vec<u8>), GrowError> {
        let all = |_: &Arc<Connection>, answer: &[u8]| Some(answer.to_vec());
        self.manager.grow_for(Some(self.offer), target, self.kind, body, limit, "", all)
    }

    /// Ends a connection of the seat; returns how many queued messages did not leave. The protocol
    /// does not [hear](Protocol::left) of it. A connection of another seat is left alone, and so is
    /// one that has ended.
    pub fn disconnect(&self, connection: &Connection) -> usize {
        if self.has(connection) { self.manager.end(connection) } else { 0 }
    }

    /// Disconnects a peer that broke the protocol's rules: both ends learn why. A connection of
    /// another seat is left alone, and so is one that has ended.
    pub fn expel(&self, connection: &Connection, why: &str) {
        if self.has(connection) {
            self.manager.expel(connection.link(), why);
        }
    }

    fn has(&self, connection: &Connection) -> bool {
        let mut guard = self.manager.shared.lock();
        let of_link = guard.parts().1.connections.get(&connection.link);
        of_link.is_some_and(|(its, offer)| {
            core::ptr::eq(&**its, connection) && *offer == Some(self.offer)
        })
    }
}

impl<P: Protocol> Drop for Seat<P> {
    fn drop(&mut self) {
        if let Some(Offering::Other(mut state)) = self.manager.withdraw(self.offer) {
            state.close(&mut self.manager.lock());
        }
    }
}

/// A receiver's place at its manager, of any protocol: its names, seeds and admission.
/// [`Offered`](crate::protocol::Offered) shows it.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    pub(crate) manager: &'a Manager,
    pub(crate) id: OfferId,
}

impl<'a> Offer<'a> {
    /// As [`Seat::seed`].
    pub fn seed(self) -> Result<Seed, OfferError> {
        self.manager.seed(self.id)
    }

    /// As [`Seat::serve`].
    pub fn serve(self, name: &str, access: Access) -> Result<(), OfferError> {
        self.manager.serve(self.id, name, access)
    }

    /// As [`Seat::stop_serving`].
    pub fn stop_serving(self) {
        self.manager.hide(self.id);
    }

    /// As [`Seat::set_admission`].
    pub fn set_admission(
        self,
        admission: impl FnMut(&Peer) -> Result<(), String> + Send + 'static,
    ) {
        self.manager.set_admission(self.id, Box::new(admission));
    }

    /// Its manager.
    pub fn manager(self) -> &'a Manager {
        self.manager
    }
}

impl core::fmt::Debug for Offer<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Offer").finish_non_exhaustive()
    }
}
