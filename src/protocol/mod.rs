//! The upper layer (Hamlyn 3.3): end points that speak a protocol, for any number of threads.
//!
//! ```text
//!   the owner's              the peers'
//!   DatagramReceiver         DatagramSender            one message at a time, of any length
//!   TaggedReceiver           TaggedSender              bytes to an offset, a tag to a queue
//!   StreamReceiver           StreamSender              records in order
//!   ApertureStreamReceiver   ApertureStreamSender      the same; long ones in shared memory
//!   Server                   Client                    requests and replies
//!   ByteListener, ByteStream ByteStream                bytes both ways, in order
//!   Group                    GroupMember, GroupHelper  a part from each, and to each
//!   Publisher                Subscriber                samples, each to all subscribers
//!   --------------------------------------------------------------------------------------
//!   Manager      one node, its lock, polling, sleeping, admission of senders
//!   Node         slots, termini, links                                 (the lower level)
//! ```
//! A [`Manager`] makes the receiving end point. Senders find it in one of two ways: `seed()` gives
//! bytes that may travel in a message, a file or on a command line, and from which a sender is
//! *grown* elsewhere; `serve(name, access)` lets others grow one by name. Growing makes a link of
//! its own for the pair, so closing it, or the death of either process, ends this end point's
//! connection and no other.
//!
//! # Which thread receives
//!
//! Each end point has a notification queue of its own, so its owner finds an arrival there,
//! whichever thread polled. A thread that finds nothing takes the manager's lock and polls for all
//! threads; it lets others have the lock between two turns. One of the sleeping threads leads, and
//! wakes the others. These are received without the manager's lock:
//!
//! - a [`TaggedReceiver`]'s tags that have arrived; the lock is taken to return credit to a sender,
//!   once in half as many tags as it may have in the queue;
//! - a [`StreamReceiver`]'s and an [`ApertureStreamReceiver`]'s records that were taken together:
//!   one look takes all that have arrived, coalesced or not; the lock is taken for each look, and
//!   to give memory back;
//! - a [`Server`]'s request that another thread took in its turn and left for others.
//!
//! The other receivers take the manager's lock for each receive: [`DatagramReceiver`], [`Client`]
//! (its replies), [`Group`], [`GroupMember`], [`Subscriber`], [`ByteListener`] and [`ByteStream`].
//!
//! # Credit
//!
//! A receiver reports its progress to its senders by depositing a counter into their memory,
//! without a notification (Hamlyn 1: data movement and notification are separate). So an honest
//! sender is never refused, and waits instead.
//!
//! - `seed.rs`: seeds; `records.rs`: the records in a stream's messages. Pure: no operating system.
//! - `manager.rs`: the manager, growing and closing; `joining.rs`: peers that wait to be admitted,
//!   and peers admitted without memory; `ends.rs`: the common part of end points, and `kinds.rs` as
//!   traits; `exclusive.rs`: one of them for several threads, in languages that cannot tell;
//!   `asynchronous.rs`: all of them in tokio tasks; `tasks.rs`: calls; `reconnect/`: a client that
//!   connects again; `driver.rs`: the thread that polls for tasks at byte streams.
//! - `seated.rs`: the common part of those end points that use the public interface alone,
//!   `tagged.rs` and `datagram.rs`;
//! - `tickets.rs`: reads the tickets that peers send; `credit.rs`: counters that only grow;
//!   `outgoing.rs`: long messages that a time limit cuts off.
//! - `datagram.rs`, `tagged.rs`, `stream/`, `byte_stream/`, `call/`: one protocol each;
//!   `aperture_stream.rs`: long records through shared memory; `group/`: the root,
//!   `group_member.rs`: members and helpers; `publish/`: one publisher, many subscribers.

// Its only user speaks through the operating system.
#[cfg_attr(not(feature = "os"), allow(dead_code))]
mod records;
#[cfg(feature = "os")]
mod seated;
mod seed;

#[cfg(feature = "os")]
mod aperture_stream;
#[cfg(feature = "tokio")]
mod asynchronous;
#[cfg(feature = "os")]
mod byte_stream;
#[cfg(feature = "os")]
mod call;
#[cfg(feature = "os")]
mod credit;
#[cfg(feature = "os")]
mod datagram;
#[cfg(feature = "os")]
mod deadline;
#[cfg(feature = "tokio")]
mod driver;
#[cfg(feature = "os")]
mod ends;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
mod exclusive;
#[cfg(feature = "os")]
mod group;
#[cfg(feature = "os")]
mod group_member;
#[cfg(feature = "os")]
mod joining;
#[cfg(feature = "os")]
mod kinds;
#[cfg(feature = "os")]
mod manager;
#[cfg(feature = "os")]
mod outgoing;
#[cfg(feature = "os")]
mod publish;
#[cfg(feature = "os")]
mod reconnect;
#[cfg(feature = "os")]
mod stream;
#[cfg(feature = "os")]
mod tagged;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(feature = "os")]
mod tickets;

#[cfg(feature = "os")]
pub use self::{
    aperture_stream::{
        ApertureRecord, ApertureRecordGuard, ApertureStreamReceiver, ApertureStreamSender,
        RecordBytes, VolatileBytes,
    },
    byte_stream::{ByteConfig, ByteListener, ByteStream, ByteStreamError},
    call::{
        Arrived, Bytes, CallError, CallId, Client, ClientConfig, ERROR_TEXT_MAX, LENGTH_MAX,
        OUTSTANDING_MAX, Request, Server, ServerConfig,
    },
    datagram::{Datagram, DatagramReceiver, DatagramSender},
    group::{Group, GroupConfig, GroupError, Parts},
    group_member::{GroupHelper, GroupMember, PART_BYTES, Part},
    kinds::{Connected, Grown, Offered},
    manager::SendError,
    manager::{Connection, EndPoint, GrowError, Manager, Offer, Protocol, ReceiveError, Seat},
    publish::{
        Loan, PublishConfig, PublishError, Publisher, Relay, RelayConfig, RelayError,
        SHORT_BYTES_MAX, Sample, SubscribeConfig, Subscriber, SubscriberState, Unpublished,
        WhenSlow,
    },
    reconnect::{CallOptions, ConnectionState, ReconnectPolicy, ReconnectingClient},
    stream::{Record, RecordGuard, RecordLoan, StreamConfig, StreamReceiver, StreamSender},
    tagged::{Tag, TaggedConfig, TaggedReceiver, TaggedSender},
};
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncManager, TryReceive};
#[cfg(feature = "tokio")]
pub(crate) use byte_stream::Turned;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub use call::Which;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub use exclusive::{Exclusive, ExclusiveGuard, Probe};
#[cfg(feature = "tokio")]
pub(crate) use manager::Awaiting;
#[cfg(feature = "os")]
pub(crate) use manager::NOT_OFFERED;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub use manager::UntilGivenUp;
#[cfg(feature = "tokio")]
pub use reconnect::AsyncReconnectingClient;
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub use reconnect::ReconnectingCall;
#[cfg(feature = "os")]
pub(crate) use seed::Token;
pub use seed::{Kind, SEED_BYTES_MAX, Seed, SeedError};
#[cfg(all(feature = "os", feature = "unstable-internals"))]
pub use stream::RecordLoanApart;
#[cfg(feature = "tokio")]
pub use tasks::{AsyncClient, AsyncRequest, AsyncServer};
