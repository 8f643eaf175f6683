//! The interface between a [`Carrier`](super::carrier::Carrier) and the connection to another host: bytes
//! out and back.
//!
//! Never: a call waits; more of the other end's bytes are kept than it was granted.

use super::News;
use crate::link::LinkEnd;
use crate::os::poller::Poller;
use crate::os::tcp;
use crate::wire::ApertureAccess;
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::String;

/// How the other end stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEnd {
    /// It announced its end.
    Said,
    /// Its system closed the connection without an announcement.
    Cut,
    /// The connection broke: it was reset, or its host has not answered for too long.
    Broken(String),
    /// The fabric beside the connection has failed.
    Failed(String),
    /// The bytes are not TLS, or not of this connection, which is of no more use.
    Nonsense(String),
}

impl PathEnd {
    /// The reason, if it says more than the link's end does.
    pub fn more_than(&self, reason: LinkEnd) -> Option<String> {
        match (reason, self) {
            (LinkEnd::Died, Self::Failed(why)) | (LinkEnd::Violation, Self::Nonsense(why)) => {
                Some(why.clone())
            }
            _ => None,
        }
    }
}

/// The result of [`put_with`](Path::put_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// This number of bytes has left, or will. Zero: this call could send nothing, but
    /// [`put`](Path::put) may.
    Sent(usize),
    /// The network takes no more for now.
    Later,
}

/// One path: a channel of TLS, or messages of a fabric beside it. Its descriptor is readable when
/// something may have come.
pub trait Path: AsFd + Send + core::fmt::Debug {
    /// The bytes that have come and were not taken.
    fn plain(&self) -> &[u8];

    /// Removes this number of them.
    fn take(&mut self, bytes: usize);

    /// Receives until at least `most` bytes are there, or no more are available, or this call has
    /// done enough. Returns whether any came.
    fn receive(&mut self, most: usize) -> bool;

    /// Whether the last [`receive`](Self::receive) found that no more bytes are available.
    fn is_drained(&self) -> bool {
        false
    }

    /// Bytes taken from the network, whatever their content.
    fn received(&self) -> u64;

    /// How the other end stopped; the bytes in [`plain`](Self::plain) came before that.
    fn ended(&self) -> Option<&PathEnd>;

    /// Takes bytes; [`flush`](Self::flush) sends them. A broken path discards them.
    fn put(&mut self, bytes: &[u8]);

    /// Whether packets that may overtake others have to be put separately, by
    /// [`put_long`](Self::put_long).
    fn spreads(&self) -> bool {
        false
    }

    /// Like [`put`](Self::put), for packets that may overtake others and be overtaken.
    fn put_long(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Like [`put`](Self::put), for bytes that must arrive behind all others.
    fn put_last(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Whether it takes more bytes before it is flushed.
    fn takes(&self) -> bool {
        true
    }

    /// Sends bytes that `fill` writes directly into the memory that they are sent from. `fill` gets
    /// some room, writes whole frames, and returns the number of bytes written: zero if not even
    /// one frame has room. It is called at most once.
    fn put_with(&mut self, _fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Put {
        Put::Sent(0)
    }

    /// Sends as much as the network takes now. Returns whether nothing is left.
    fn flush(&mut self) -> bool;

    /// Whether all bytes that were sent leave without another call.
    fn is_quiet(&mut self) -> bool {
        true
    }

    /// Whether nothing can be sent any more; bytes that have come can still be read.
    fn is_broken(&self) -> bool;

    /// Has a poller watch for anything that may have come: through its descriptor, or through the
    /// descriptors that this one is made of, since the kernel allows only a few levels of nesting.
    fn watch_in(&mut self, poller: &Poller, tag: u64) -> io::Result<()> {
        poller.add(self.as_fd(), tag)
    }

    /// Has the poller stop watching.
    fn unwatch_in(&mut self, poller: &Poller) {
        poller.remove(self.as_fd());
    }

    /// The link is being left: the transport below need not signal incoming bytes to this poller
    /// any more.
    fn is_left(&mut self, _poller: &Poller) {}

    /// Has the other end take the bytes that have come, even if its program makes few calls. Call
    /// it again and again while you wait for that.
    fn urge(&mut self) {}

    /// The time limit for the end has passed: sends as much as possible without waiting.
    fn give_up(&mut self) {}

    /// Announces that this end sends no more.
    fn put_end(&mut self);

    /// Announces the end on the transport once everything has been flushed. `true`: the other end
    /// has all of it, or never will. Incoming bytes are discarded.
    fn is_delivered(&mut self) -> bool;

    /// Ends the connection; [`ended`](Self::ended) reports it.
    fn break_off(&self);

    /// The TCP connection, which shows whether the other host is alive.
    fn tcp(&self) -> BorrowedFd<'_>;

    /// Whether the other host has owed an answer for `limit`; call it a few times within
    /// `host_timeout_ms`.
    fn look_for_silence(&mut self, limit: Duration) -> bool {
        tcp::is_silent(self.tcp(), limit)
    }

    /// Takes words that may have come beside the packets' transport, on behalf of a node that may
    /// make no calls.
    fn hear(&mut self) {}

    /// Bytes have left while the node that waits for room may be asleep; call it if the node's
    /// descriptor does not cover that of [`takes_more`](Self::takes_more).
    fn tell_of_room(&self) {}

    /// Whether bytes wait for the network without a descriptor that signals room.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Leaves a connection that has taken nothing for the limit while another has. Call it a few
    /// times within that limit while the link is being left.
    fn look_for_stalls(&mut self, _limit: Duration) {}

    /// Adds a rail, with the addresses of its ends in words, or returns the reason why it cannot.
    fn add_rail(&mut self, _: u8, _: Box<dyn Path>, _ends: String) -> Result<(), String> {
        Err("the link has one connection".into())
    }

    /// Whether there is a rail at this place; `None`: the link can have none there.
    fn rail(&self, _place: u8) -> Option<bool> {
        None
    }

    /// Records the reason for the missing rail at this place.
    fn has_no_rail(&mut self, _place: u8, _why: &str) {}

    /// The descriptor that is writable when the network takes more; `None`: try again later.
    fn takes_more(&self) -> Option<BorrowedFd<'_>>;

    /// Whether its descriptor signals everything that comes from now on. Call it before a sleep.
    fn may_sleep(&mut self) -> bool;

    /// The path has been idle for a while: gives back memory that it will need again later.
    fn give_back(&mut self) {}

    /// Whether memory of this process can be opened to the other end; else the reason.
    fn can_lend(&mut self) -> Result<(), String> {
        Err("the link goes by TLS, and memory is open only over libfabric".into())
    }

    /// Revokes all memory that is open to the other end: the link has ended.
    fn close_own(&mut self) {}

    /// Opens memory to the other end through this descriptor; returns the number of the opening, or
    /// the reason why it cannot.
    fn lend(
        &mut self,
        _file: OwnedFd,
        _bytes: u64,
        _access: ApertureAccess,
    ) -> Result<u32, String> {
        self.can_lend().map(|()| 0)
    }

    /// Revokes memory that this end opened: the other end no longer accesses it.
    fn revoke(&mut self, _number: u32) {}

    /// Releases memory of the other end's.
    fn release(&mut self, _number: u32) {}

    /// The next change of such memory.
    fn next_news(&mut self) -> Option<News> {
        None
    }

    /// Describes the transport in words.
    fn explain(&self) -> String;
}
