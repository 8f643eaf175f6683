//! The types that may move to another thread, and those that threads may share: decided here, not
//! by accident of their fields. Checked by the compiler.
#![cfg(not(miri))]

use hamlyn::link::ring::{RingReader, RingWriter};
use hamlyn::node::Unfinished;
use hamlyn::os::memory::{AreaMemory, ForkGuard, Mapping, Region, RegionLines, RegionWord};
use hamlyn::os::{aperture, sys};
use hamlyn::protocol::{self, Manager};
use hamlyn::{Aperture, ApertureView, AreaPages, Node};
use static_assertions::assert_impl_all;

// Mapped memory: atomics, or bytes that are borrowed with their owner.
assert_impl_all!(Mapping: Send, Sync);
assert_impl_all!(Region: Send, Sync);
assert_impl_all!(RegionLines: Send, Sync);
assert_impl_all!(RegionWord: Send, Sync);
assert_impl_all!(AreaMemory: Send, Sync);
assert_impl_all!(AreaPages: Send, Sync);
assert_impl_all!(ForkGuard: Send, Sync);
assert_impl_all!(aperture::Pages: Send, Sync);
assert_impl_all!(aperture::Owned: Send, Sync);
assert_impl_all!(sys::Bell: Send, Sync);

// One end of a ring belongs to one thread at a time.
assert_impl_all!(RingWriter<RegionLines, RegionWord>: Send);
assert_impl_all!(RingReader<RegionLines, RegionWord>: Send);

// A node is one thread's at a time; what shares it is a manager.
assert_impl_all!(Node: Send);
assert_impl_all!(Unfinished: Send);
assert_impl_all!(Manager: Send, Sync);

// Threads share a seat, whose state is used by one at a time.
struct OfOneThread;
impl protocol::Protocol for OfOneThread {}
assert_impl_all!(protocol::Seat<OfOneThread>: Send, Sync);

assert_impl_all!(Aperture: Send, Sync);
assert_impl_all!(ApertureView: Send, Sync);

// End points move between threads.
assert_impl_all!(protocol::DatagramReceiver: Send);
assert_impl_all!(protocol::DatagramSender: Send);
assert_impl_all!(protocol::StreamReceiver: Send);
assert_impl_all!(protocol::StreamSender: Send);
assert_impl_all!(protocol::TaggedReceiver: Send);
assert_impl_all!(protocol::TaggedSender: Send);
assert_impl_all!(protocol::Relay: Send);
assert_impl_all!(protocol::Group: Send);
assert_impl_all!(protocol::GroupMember: Send);
assert_impl_all!(protocol::GroupHelper: Send);
assert_impl_all!(protocol::Client: Send, Sync);
assert_impl_all!(protocol::Server: Send);
