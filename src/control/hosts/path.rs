//! What a [`Carrier`](super::Carrier) needs of the way to another host: bytes out and back.
//!
//! Never: a call waits; more of what the other end sends is held than was granted to it.

use super::channel::Ended;
use crate::control::Reason;
use crate::os::aperture::Pages;
use crate::os::poller::Poller;
use crate::os::tcp;
use crate::wire::ApertureAccess;
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::string::String;

/// What became of [`put_with`](Path::put_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// So many bytes have left, or will. None: there was nothing that this can do, and
    /// [`put`](Path::put) may do it.
    Sent(usize),
    /// The network takes no more for now.
    Later,
}

/// What became of memory that one end opens to the other, for the node.
#[derive(Debug)]
pub enum News {
    /// Owner: the holder has it.
    Ready(u32),
    /// Owner: nobody will hold it.
    Refused(u32, Reason),
    /// Owner: the holder has let go.
    Released(u32),
    /// Holder: it has it.
    Held(u32, Pages),
    /// Holder: its owner took it back.
    Revoked(u32),
}

/// One way: a channel of TLS, or messages of a fabric beside it. Its descriptor is readable when
/// something may have come.
pub trait Path: AsFd + Send + core::fmt::Debug {
    /// What has come and was not taken.
    fn plain(&self) -> &[u8];

    /// So many bytes of it have been used.
    fn take(&mut self, bytes: usize);

    /// Takes what has come, until at least `most` bytes are there that were not taken, or nothing more
    /// is, or this call has done enough. Whether something came.
    fn receive(&mut self, most: usize) -> bool;

    /// Whether the last [`receive`](Self::receive) has found, beside what came, that nothing more is there.
    fn is_drained(&self) -> bool {
        false
    }

    /// Bytes that it has taken from the network, whatever was in them.
    fn received(&self) -> u64;

    /// How the other end has stopped; what is in [`plain`](Self::plain) came before.
    fn ended(&self) -> Option<&Ended>;

    /// Takes bytes; [`flush`](Self::flush) sends them. Nothing is kept for a way that has broken.
    fn put(&mut self, bytes: &[u8]);

    /// Whether packets that may overtake others are to be put apart, by [`put_long`](Self::put_long).
    fn spreads(&self) -> bool {
        false
    }

    /// The same as [`put`](Self::put), of packets that may overtake others and be overtaken.
    fn put_long(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// The same, of what is to arrive behind everything else.
    fn put_last(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Whether more may be put before it is flushed.
    fn takes(&self) -> bool {
        true
    }

    /// Sends what `fill` writes straight into the memory that it leaves from. It is given some room, writes
    /// whole frames, and says how many bytes it has written: none, if not even one has room there. It
    /// is called once, or not at all.
    fn put_with(&mut self, _fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Put {
        Put::Sent(0)
    }

    /// Sends what the network takes now. Whether nothing is left.
    fn flush(&mut self) -> bool;

    /// Whether what has been sent leaves without another call.
    fn is_quiet(&mut self) -> bool {
        true
    }

    /// Whether nothing leaves any more; what has come can still be read.
    fn is_broken(&self) -> bool;

    /// Has a poller tell of whatever may have come: with its descriptor, or with what that is made of, since
    /// the kernel takes few that are made of others.
    fn watch_in(&mut self, poller: &Poller, tag: u64) -> io::Result<()> {
        poller.add(self.as_fd(), tag)
    }

    /// The poller tells of it no more.
    fn unwatch_in(&mut self, poller: &Poller) {
        poller.remove(self.as_fd());
    }

    /// It is being left: what it is carried by need not tell this poller of what comes any more.
    fn is_left(&mut self, _poller: &Poller) {}

    /// Has the other end take what has come, however little its program calls. To be asked again and again while
    /// that is waited for.
    fn urge(&mut self) {}

    /// The time is up for it: says what can be said without waiting.
    fn give_up(&mut self) {}

    /// Says that nothing more will come from here.
    fn put_end(&mut self);

    /// Says so once everything has been flushed. `true`: the other end has all of it, or never will.
    /// What comes from there is let go.
    fn is_delivered(&mut self) -> bool;

    /// Ends it; [`ended`](Self::ended) tells of that.
    fn break_off(&self);

    /// The TCP connection, which knows whether the other host is there.
    fn tcp(&self) -> BorrowedFd<'_>;

    /// Whether the other host has owed an answer for so long; a few times within `host_timeout_ms`.
    fn look_for_silence(&mut self, limit: Duration) -> bool {
        tcp::is_silent(self.tcp(), limit)
    }

    /// Takes the words that may have come beside what carries the packets, in the place of a node that may
    /// make no calls.
    fn hear(&mut self) {}

    /// Something has left while the node, which waits for that, may be asleep; to be told where its descriptor
    /// does not tell of what [`takes_more`](Self::takes_more) does.
    fn tell_of_room(&self) {}

    /// Whether something waits until the network takes it, of which nobody is told.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Leaves a connection that has taken nothing for so long while another has. To be asked while it is
    /// being left, a few times within that time.
    fn look_for_stalls(&mut self, _limit: Duration) {}

    /// One more rail for it, with the addresses of its ends in words. An error: why not.
    fn add_rail(&mut self, _: u8, _: Box<dyn Path>, _ends: String) -> Result<(), String> {
        Err("the link has one connection".into())
    }

    /// Whether it may have one at this place, and whether there is none.
    fn rail(&self, _place: u8) -> Option<bool> {
        None
    }

    /// Why there is none at this place.
    fn has_no_rail(&mut self, _place: u8, _why: &str) {}

    /// The descriptor that is writable when the network takes more; `None`: it is to be tried again.
    fn takes_more(&self) -> Option<BorrowedFd<'_>>;

    /// Whether its descriptor tells of whatever comes from now on. To be asked before a sleep.
    fn may_sleep(&mut self) -> bool;

    /// Nothing came or left for a while: gives memory back that it will need again when it does.
    fn give_back(&mut self) {}

    /// Whether memory of this process can be opened to the other end. An error: why not.
    fn can_lend(&mut self) -> Result<(), String> {
        Err("the link goes by TLS, and memory is open only over libfabric".into())
    }

    /// Takes back all memory that is open to the other end: the link has ended.
    fn close_own(&mut self) {}

    /// Opens memory to the other end, of which this is a descriptor for it; says its number. An error: why not.
    fn lend(
        &mut self,
        _file: OwnedFd,
        _bytes: u64,
        _access: ApertureAccess,
    ) -> Result<u32, String> {
        self.can_lend().map(|()| 0)
    }

    /// Takes it back: the other end does nothing there any more.
    fn revoke(&mut self, _number: u32) {}

    /// Lets go of memory of the other end's.
    fn release(&mut self, _number: u32) {}

    /// What became of such memory.
    fn next_news(&mut self) -> Option<News> {
        None
    }

    /// How it is carried, in words.
    fn explain(&self) -> String;
}
