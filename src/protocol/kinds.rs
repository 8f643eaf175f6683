//! The common part of end points as traits, for code that is written once for several protocols:
//! the bindings for other languages. Programs call the methods of the same names.

use super::{
    ApertureStreamReceiver, ApertureStreamSender, ByteConfig, ByteListener, ByteStream, Client,
    ClientConfig, Connection, DatagramSender, EndPoint, Group, GroupHelper, GroupMember, GrowError,
    Kind, Manager, Offer, Protocol, Publisher, Relay, Seat, Seed, Server, StreamReceiver,
    StreamSender, SubscribeConfig, Subscriber, TaggedSender,
};
use crate::control::{Access, Peer};
use crate::node::OfferError;
use core::time::Duration;
use std::string::String;
use std::sync::Arc;

/// A receiver: senders find it, by name or by a seed.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("hamlyn-doc-kinds-{}", std::process::id()));
/// use hamlyn::Access;
/// use hamlyn::protocol::{Connected, EndPoint, Grown, Manager, Offered, TaggedConfig};
/// use hamlyn::protocol::{TaggedReceiver, TaggedSender};
/// use std::time::Duration;
///
/// /// Of any protocol.
/// fn join<R: Offered, S: Grown + Connected>(
///     receiver: &R,
///     manager: &Manager,
///     with: S::With,
///     limit: Option<Duration>,
/// ) -> Result<S, Box<dyn std::error::Error>> {
///     Offered::set_admission(receiver, |_| Ok(()));
///     Offered::serve(receiver, "joined", Access::SameUser)?;
///     assert_eq!(Offered::offer(receiver).manager().id(), receiver.offer().manager().id());
///     drop(<S as Grown>::connect(manager, "joined", with.clone(), limit)?);
///     let mut sender = <S as Grown>::grow(manager, &Offered::seed(receiver)?, with, limit)?;
///     Offered::stop_serving(receiver);
///     receiver.offer().stop_serving(); // The same.
///     println!("{}: {}", Connected::connection(&sender).link(), Connected::explain(&mut sender));
///     Ok(sender)
/// }
/// # let config = hamlyn::Config::from_env()?.dir(&dir);
/// # let limit = Some(Duration::from_secs(10));
/// # let manager = Manager::with_config(config.clone())?;
/// # manager.start_progress()?;
/// let receiver = TaggedReceiver::new(&manager, TaggedConfig::new(64))?;
/// let mut sender: TaggedSender = join(&receiver, &Manager::with_config(config)?, (), limit)?;
/// assert!(!receiver.is_ready() && receiver.due().is_none()); // It waits for arrivals alone.
/// sender.send(0, b"hi", 5, limit)?;
/// receiver.manager().wait_any(&[&receiver], limit)?;
/// assert!(receiver.is_ready_in(&manager.lock()));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Offered {
    /// Its place at its manager. Of a protocol of the program's own: that of its
    /// [seat](crate::protocol::Seat::offer).
    fn offer(&self) -> Offer<'_>;
    /// As [`TaggedReceiver::seed`](super::TaggedReceiver::seed).
    fn seed(&self) -> Result<Seed, OfferError> {
        self.offer().seed()
    }
    /// As [`TaggedReceiver::serve`](super::TaggedReceiver::serve).
    fn serve(&self, name: &str, access: Access) -> Result<(), OfferError> {
        self.offer().serve(name, access)
    }
    /// As [`TaggedReceiver::stop_serving`](super::TaggedReceiver::stop_serving).
    fn stop_serving(&self) {
        self.offer().stop_serving();
    }
    /// As [`TaggedReceiver::set_admission`](super::TaggedReceiver::set_admission).
    fn set_admission(&self, admit: impl FnMut(&Peer) -> Result<(), String> + Send + 'static)
    where
        Self: Sized,
    {
        self.offer().set_admission(admit);
    }
}

/// An end point with one peer.
pub trait Connected {
    /// As [`TaggedSender::connection`].
    fn connection(&self) -> &Connection;
    /// As [`TaggedSender::explain`].
    fn explain(&mut self) -> String;
}

/// An end point that is grown from a receiver's seed or name.
pub trait Grown: Sized {
    /// The further argument.
    type With: Clone;
    /// The receiver's protocol.
    const KIND: Kind;
    /// As [`TaggedSender::grow`].
    fn grow(
        manager: &Manager,
        seed: &Seed,
        with: Self::With,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError>;
    /// As [`TaggedSender::connect`].
    fn connect(
        manager: &Manager,
        name: &str,
        with: Self::With,
        timeout: Option<Duration>,
    ) -> Result<Self, GrowError>;
}

macro_rules! offered {
    ($($type:ty),+) => {$(
        impl Offered for $type {
            fn offer(&self) -> Offer<'_> {
                self.offered()
            }
        }
    )+};
}
offered!(StreamReceiver, ApertureStreamReceiver);
offered!(Server, Group, Publisher, Relay, ByteListener);

impl<P: Protocol> Offered for Seat<P> {
    fn offer(&self) -> Offer<'_> {
        self.offered()
    }
}

macro_rules! connected {
    ($($type:ty),+) => {$(
        impl Connected for $type {
            fn connection(&self) -> &Connection {
                <$type>::connection(self)
            }
            fn explain(&mut self) -> String {
                <$type>::explain(self)
            }
        }
    )+};
}
connected!(TaggedSender, DatagramSender, StreamSender, ApertureStreamSender, Client, GroupMember);
connected!(Subscriber, ByteStream);

/// `with` is the further argument, if there is one.
macro_rules! grown {
    (@) => { () };
    (@ $with:ident) => { $with };
    ($($type:ty, $kind:ident, $given:ty $(= $with:ident)? => $grow:ident, $connect:ident;)+) => {$(
        impl Grown for $type {
            type With = $given;
            const KIND: Kind = Kind::$kind;
            fn grow(
                manager: &Manager,
                seed: &Seed,
                grown!(@ $($with)?): $given,
                timeout: Option<Duration>,
            ) -> Result<Self, GrowError> {
                <$type>::$grow(manager, seed, $($with,)? timeout)
            }
            fn connect(
                manager: &Manager,
                name: &str,
                grown!(@ $($with)?): $given,
                timeout: Option<Duration>,
            ) -> Result<Self, GrowError> {
                <$type>::$connect(manager, name, $($with,)? timeout)
            }
        }
    )+};
}
grown! {
    TaggedSender, TAGGED, () => grow, connect;
    DatagramSender, DATAGRAM, () => grow, connect;
    StreamSender, STREAM, () => grow, connect;
    ApertureStreamSender, STREAM, () => grow, connect;
    GroupHelper, GROUP, () => grow, connect;
    GroupMember, GROUP, usize = receive_bytes => grow, connect;
    Client, CALL, ClientConfig = config => grow_with, connect_with;
    Subscriber, PUBLISH, SubscribeConfig = config => grow, connect;
    ByteStream, BYTES, ByteConfig = config => grow_with, connect_with;
}

// The bindings share an end point that several threads use at once.

impl<T: EndPoint> EndPoint for Arc<T> {
    fn is_ready_in(&self, node: &crate::node::Node) -> bool {
        (**self).is_ready_in(node)
    }
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }
    fn manager(&self) -> &Manager {
        (**self).manager()
    }
    fn due(&self) -> Option<std::time::Instant> {
        (**self).due()
    }
}

impl<T: Offered> Offered for Arc<T> {
    fn offer(&self) -> Offer<'_> {
        (**self).offer()
    }
}

macro_rules! connected_shared {
    ($($type:ty),+) => {$(
        impl Connected for Arc<$type> {
            fn connection(&self) -> &Connection {
                <$type>::connection(self)
            }
            fn explain(&mut self) -> String {
                <$type>::explain(self)
            }
        }
    )+};
}
connected_shared!(Client, ByteStream);
