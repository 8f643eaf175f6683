//! A link's bytes as messages of a fabric, beside the connection on which both ends have proved
//! themselves.
//!
//! ```text
//!   put_with --> message --> end point  ..  end point --> message --take-->
//!   end: the number of messages, and the end of TLS, over the connection
//! ```
//! Frames are written straight into the message that they leave in, and read where it came. A frame
//! that lies in several messages, which no end of this version sends, is put together in `plain`.
//!
//! The connection stays, and carries the end alone: it tells of a host's death, and how many messages
//! belong to the link, so that none is missing where the other end has said that there were no more.

use super::super::channel::{Channel, Ended};
use super::super::path::{Path, Put};
use super::station::{Place, WINDOW};
use crate::os::sys::{Poller, monotonic_ns};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::string::String;
use std::vec::Vec;

/// So often the connection is looked at.
const LOOK_NS: u64 = 200_000;
/// Bytes that are said on the connection: the number of messages.
const COUNT_BYTES: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Way {
    place: Place,
    tls: Channel,
    /// Everything that may wake the node, as one descriptor.
    poller: Poller,
    /// How long the messages of a host that has said that there were no more are waited for.
    timeout_ns: u64,
    looked_ns: u64,
    /// Empty, unless a frame lies in several messages: then what comes before the place's message.
    plain: Vec<u8>,
    plain_used: usize,
    received: u64,
    /// The last message that was there has been taken just now: that there is another is not looked for
    /// at once.
    is_dry: bool,
    pending: Vec<u8>,
    pending_used: usize,
    /// When the other end's connection ended, how, and after how many messages.
    tls_ended: Option<(u64, Ended, Option<u64>)>,
    ended: Option<Ended>,
    is_broken: bool,
    /// Nothing more will be put; and that was said.
    is_last: bool,
    is_said: bool,
}

impl Way {
    /// Between two ends that have agreed.
    pub fn new(mut place: Place, tls: Channel, timeout_ns: u64) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&tls, 0)?;
        let (bell, descriptor) = place.tellers();
        poller.add(bell, 1)?;
        // The library's may itself be made of others, of which the kernel takes so many in a row.
        if descriptor.is_some_and(|fd| poller.add(fd, 2).is_err()) {
            place.forget_descriptor();
        }
        Ok(Self {
            place,
            tls,
            poller,
            timeout_ns,
            looked_ns: 0,
            plain: Vec::new(),
            plain_used: 0,
            received: 0,
            is_dry: false,
            pending: Vec::new(),
            pending_used: 0,
            tls_ended: None,
            ended: None,
            is_broken: false,
            is_last: false,
            is_said: false,
        })
    }

    /// Keeps what is left of a message, since its frame goes on in the next.
    fn gather(&mut self) {
        if self.plain_used > 0 {
            self.plain.drain(..self.plain_used);
            self.plain_used = 0;
        }
        let left = self.place.bytes().len();
        self.plain.extend_from_slice(self.place.bytes());
        self.place.take(left);
    }

    /// Looks at the connection, if that was some time ago.
    fn look(&mut self, now_ns: u64) {
        if self.tls_ended.is_some() || now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        self.tls.receive(COUNT_BYTES + 1);
        self.tls.flush();
        let said = self.tls.plain();
        let count = said.try_into().ok().map(u64::from_le_bytes);
        let ended = match self.tls.ended() {
            _ if said.len() > COUNT_BYTES => Ended::Nonsense("it says what no host says".into()),
            None => return,
            Some(ended) => ended.clone(),
        };
        self.is_broken = true;
        self.tls_ended = Some((now_ns, ended, count));
    }

    /// Whether everything that belongs to the link has come, or nothing will.
    fn see_end(&mut self, now_ns: u64, nothing_lies_there: bool) {
        if self.ended.is_some() {
            return;
        }
        if let Some(ended) = self.place.ended() {
            self.is_broken = true;
            let is_nonsense = matches!(ended, Ended::Nonsense(_));
            if is_nonsense || nothing_lies_there {
                self.ended = Some(ended);
                return;
            }
        }
        let Some((since_ns, ended, count)) = &self.tls_ended else { return };
        let came = self.place.counts().1;
        let is_whole = match (ended, count) {
            (Ended::Said, Some(count)) => came >= *count,
            _ => true,
        };
        if is_whole && nothing_lies_there {
            self.ended = Some(ended.clone());
        } else if now_ns.saturating_sub(*since_ns) > self.timeout_ns {
            self.ended = Some(Ended::Cut);
        }
    }

    /// Says that everything has been sent, once it has.
    fn say_end(&mut self) {
        if self.is_last && !core::mem::replace(&mut self.is_said, true) {
            let sent = self.place.counts().0;
            self.tls.put(&sent.to_le_bytes());
            self.tls.put_end();
        }
    }

    fn drop_pending(&mut self) {
        self.pending.clear();
        self.pending_used = 0;
    }
}

impl Path for Way {
    fn plain(&self) -> &[u8] {
        match self.plain.is_empty() {
            true => self.place.bytes(),
            false => &self.plain[self.plain_used..],
        }
    }

    fn take(&mut self, bytes: usize) {
        if self.plain.is_empty() {
            return self.place.take(bytes);
        }
        self.plain_used += bytes;
        debug_assert!(self.plain_used <= self.plain.len());
        if self.plain_used == self.plain.len() {
            self.plain.clear();
            self.plain_used = 0;
        }
    }

    fn receive(&mut self, most: usize) -> bool {
        let there = self.plain().len();
        if self.ended.is_some() || there >= most {
            return false;
        }
        if there == 0 && core::mem::take(&mut self.is_dry) {
            return false;
        }
        self.gather();
        let now_ns = monotonic_ns();
        // First: what the other end sent before its end is there when that is seen.
        self.look(now_ns);
        let mut all = 0;
        loop {
            let (bytes, is_last) = self.place.next_message();
            all += bytes;
            self.received += bytes as u64;
            self.is_dry = bytes > 0 && is_last;
            if !self.plain.is_empty() {
                self.plain.extend_from_slice(self.place.bytes());
                self.place.take(bytes);
            }
            if bytes == 0 || self.plain.is_empty() || self.plain.len() >= most {
                self.see_end(now_ns, is_last);
                return all > 0;
            }
        }
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.is_broken {
            return;
        }
        let sent = match self.pending.is_empty() {
            true => self.place.send(bytes),
            false => 0,
        };
        self.pending.extend_from_slice(&bytes[sent..]);
    }

    fn put_with(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Put {
        if self.is_broken || !self.pending.is_empty() {
            return Put::Later;
        }
        match self.place.send_with(fill) {
            Some(bytes) => Put::Sent(bytes),
            None => {
                self.look(monotonic_ns());
                self.is_broken |= self.place.ended().is_some();
                Put::Later
            }
        }
    }

    fn flush(&mut self) -> bool {
        if !self.pending.is_empty() {
            self.look(monotonic_ns());
            self.pending_used += self.place.send(&self.pending[self.pending_used..]);
            self.is_broken |= self.place.ended().is_some();
        }
        if self.is_broken || self.pending_used == self.pending.len() {
            self.drop_pending();
            self.say_end();
            return self.tls.flush();
        }
        false
    }

    fn is_quiet(&mut self) -> bool {
        self.is_broken || self.place.is_quiet()
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn put_end(&mut self) {
        self.is_last = true;
    }

    fn is_delivered(&mut self) -> bool {
        // What comes is let go of, and the other end may go on sending until it has seen the end.
        for _ in 0..WINDOW {
            self.receive(usize::MAX);
            let taken = self.plain().len();
            self.take(taken);
        }
        // The other end ends the connection when it has everything.
        self.ended.is_some() || self.tls_ended.is_some()
    }

    fn break_off(&self) {
        self.tls.break_off();
    }

    fn tcp(&self) -> BorrowedFd<'_> {
        self.tls.tcp()
    }

    fn takes_more(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn may_sleep(&mut self) -> bool {
        self.place.may_sleep()
    }

    fn explain(&self) -> String {
        std::format!("{} over {}", self.place.explain(), self.tls.explain())
    }
}

impl AsFd for Way {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
