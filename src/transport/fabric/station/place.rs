//! The place of one link at an end point, with the link's calls.

use super::super::super::offer::FabricOffer;
use super::super::super::path::PathEnd;
use super::super::credit::{Credit, CreditHead, HEAD_BYTES};
use super::{
    Dropped, LeftLink, MESSAGE_BYTES_MIN, Other, SENDS, Station, StationInner, StationRow, WINDOW,
    WINDOW_MAX,
};
use crate::os::fabric::library::MESSAGE_BYTES;
use crate::os::fabric::{Choice, ReceivedChunk};
use crate::os::memory::ForkGuard;
use crate::os::sys::Bell;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::format;
use std::os::fd::OwnedFd;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Replaces the host in a socket address, if it is of the same family.
pub fn place_at(address: &mut [u8], host: SocketAddr) -> bool {
    let Some((family, _)) = address.split_first_chunk::<2>() else { return false };
    let family = i32::from(u16::from_ne_bytes(*family));
    let (at, bytes) = match host.ip().to_canonical() {
        IpAddr::V4(v4) if family == libc::AF_INET => (4, v4.octets().to_vec()),
        IpAddr::V6(v6) if family == libc::AF_INET6 => (8, v6.octets().to_vec()),
        _ => return false,
    };
    let place = address.get_mut(at..at + bytes.len());
    place.map(|place| place.copy_from_slice(&bytes)).is_some()
}

/// The result of looking for a link's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextMessage {
    /// The message's bytes; 0: there was none.
    pub bytes: usize,
    /// No other message is queued behind it.
    pub is_last: bool,
    /// The link has ended on the fabric ([`StationPlace::ended`]).
    pub has_ended: bool,
}

/// A link's place at an end point, given back when it is dropped.
#[derive(Debug)]
pub struct StationPlace {
    pub(super) station: Arc<Station>,
    pub(super) token: u64,
    /// The address of the other end's host.
    pub(super) host: IpAddr,
    /// Its identity, proven or still to be proved.
    pub(super) identity: Box<str>,
    pub(super) bell: Bell,
    pub(super) descriptor: Option<OwnedFd>,
    /// The message that is being read, and the number of its bytes that have been.
    pub(super) held: Option<(ReceivedChunk, usize)>,
    pub(super) guard: Arc<ForkGuard>,
}

impl StationPlace {
    /// The bell, which another link's call rings if a message for this one came, and the provider's
    /// descriptor, if it has one, which is readable when anything may have come.
    pub fn tellers(&self) -> (&Bell, Option<&OwnedFd>) {
        (&self.bell, self.descriptor.as_ref())
    }

    /// Wakes the node for something other than a message.
    pub fn tell(&self) {
        if let Some(row) = self.station.lock().rows.get_mut(&self.token) {
            row.tell();
        }
    }

    /// The provider's descriptor cannot be watched: the thread polls instead.
    pub fn have_looked_at(&mut self) {
        self.descriptor = None;
        if let Some(row) = self.station.lock().rows.get_mut(&self.token) {
            row.is_unwatched = true;
        }
    }

    /// Returns the provider's descriptor, which is no longer to be watched.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    /// The same provider at this address, for end points for memory; or the reason why there is
    /// none.
    pub fn choose_for_memory(&self, own: IpAddr) -> Result<Choice, String> {
        let (library, provider, has_sockets) = {
            let inner = self.station.lock();
            let choice = inner.end.choice();
            (choice.library().clone(), choice.provider(), choice.has_socket_addresses())
        };
        let own = has_sockets.then_some(own);
        library.choose_for_memory(&provider, own).map_err(|e| e.to_string())
    }

    /// The offer for the other end.
    pub fn offer(&self) -> FabricOffer {
        let inner = self.station.lock();
        let choice = inner.end.choice();
        FabricOffer {
            protocol: choice.protocol(),
            format: choice.format(),
            address: inner.end.address().to_vec(),
            token: self.token,
            window: WINDOW,
            message_bytes: MESSAGE_BYTES as u32,
        }
    }

    /// Whether the end point has socket addresses.
    pub fn has_socket_addresses(&self) -> bool {
        self.station.lock().end.choice().has_socket_addresses()
    }

    /// Binds the place to the other end's offer, and uses its address unchanged. A client's end
    /// sends first: an empty message, at once.
    pub fn bind(&mut self, offer: &FabricOffer, is_client: bool) -> Result<(), String> {
        let mut inner = self.station.lock();
        let inner = &mut *inner;
        let choice = inner.end.choice();
        if offer.protocol != choice.protocol() || offer.format != choice.format() {
            return Err(format!(
                "the other host speaks protocol {}.{} with addresses of form {}, and this one {}.{} \
                 with form {} (provider {})",
                offer.protocol.0,
                offer.protocol.1,
                offer.format,
                choice.protocol().0,
                choice.protocol().1,
                choice.format(),
                choice.provider()
            ));
        }
        if offer.address == inner.end.address() {
            return Err("the other end is this one".to_string());
        }
        if !(1..=WINDOW_MAX).contains(&offer.window) || offer.message_bytes < MESSAGE_BYTES_MIN {
            return Err(format!(
                "the other host offers {} messages of {} bytes; allowed are 1 to {WINDOW_MAX} of \
                 {MESSAGE_BYTES_MIN} or more",
                offer.window, offer.message_bytes
            ));
        }
        let Some(row) = inner.rows.get_mut(&self.token) else { return Err("it is gone".into()) };
        let peer = inner.end.insert(&offer.address).map_err(|e| e.to_string())?;
        let data_bytes = MESSAGE_BYTES.min(offer.message_bytes as usize) - HEAD_BYTES;
        let credit = Credit::new(WINDOW, offer.window);
        let (token, is_first) = (offer.token, !is_client);
        row.other = Some(Other { peer, token, credit, data_bytes, is_first });
        // Messages that came before this end knew the other.
        let before: Vec<ReceivedChunk> = row.queue.drain(..).collect();
        for received in before {
            let read = CreditHead::read(received.bytes());
            match read.map(|(head, data)| (head, !data.is_empty())) {
                Some((head, has_data)) => row.take(&mut inner.end, &head, has_data, received),
                None => inner.end.give_back(received),
            }
        }
        if is_client {
            inner.send_head(self.token);
        }
        Ok(())
    }

    /// The rest of the message that is being read.
    pub fn bytes(&self) -> &[u8] {
        self.held.as_ref().map_or(&[], |(message, used)| &message.bytes()[*used..])
    }

    /// This number of its bytes has been read.
    pub fn take(&mut self, bytes: usize) {
        if let Some((message, used)) = &mut self.held {
            *used += bytes;
            debug_assert!(*used <= message.bytes().len());
        }
    }

    /// Goes on to the next message, if there is one: it is then in [`bytes`](Self::bytes), in place
    /// of the last. Lets the other end send more.
    pub fn next_message(&mut self) -> NextMessage {
        let none = NextMessage { bytes: 0, is_last: true, has_ended: false };
        let mut inner = self.station.lock();
        let inner = &mut *inner;
        let Some(row) = inner.rows.get_mut(&self.token) else { return none };
        if let Some((message, _)) = self.held.take() {
            inner.end.give_back(message);
            if let Some(other) = &mut row.other {
                other.credit.has_used();
            }
        }
        if row.queue.is_empty() {
            inner.progress(Some(self.token));
        }
        let Some(row) = inner.rows.get_mut(&self.token) else { return none };
        if core::mem::take(&mut row.is_told) {
            row.bell.silence();
        }
        self.held = row.queue.pop_front().map(|message| (message, HEAD_BYTES));
        let (is_last, has_ended) = (row.queue.is_empty(), row.ended.is_some());
        if row.owes_grant() {
            inner.grant(self.token);
        }
        NextMessage { bytes: self.bytes().len(), is_last, has_ended }
    }

    /// Sends a message that `fill` writes. `fill` gets room for the longest message of the link,
    /// and returns the number of bytes written. Returns the number sent; `None`: it cannot be sent
    /// now.
    pub fn send_with(&self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> Option<usize> {
        let mut inner = self.station.lock();
        let mut sent = inner.send(self.token, &mut *fill);
        if sent.is_none() {
            // Completions may free a buffer.
            inner.progress(Some(self.token));
            sent = inner.send(self.token, fill);
            if let Some(row) = inner.rows.get_mut(&self.token) {
                row.waits = sent.is_none();
                // The node does not know of messages that came in this call.
                if !row.queue.is_empty() {
                    row.tell();
                }
            }
        }
        sent
    }

    /// Sends as many bytes as possible now; returns their number.
    pub fn send(&self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let left = &bytes[sent..];
            let more = self.send_with(&mut |to| {
                let part = left.len().min(to.len());
                to[..part].copy_from_slice(&left[..part]);
                part
            });
            match more {
                Some(more @ 1..) => sent += more,
                _ => break,
            }
        }
        sent
    }

    /// Whether the provider has finished all sends. A provider that moves long messages only when
    /// it is called has not.
    pub fn is_quiet(&self) -> bool {
        let mut inner = self.station.lock();
        let inner = &mut *inner;
        let sends =
            |inner: &StationInner| inner.rows.get(&self.token).is_some_and(|row| row.sending > 0);
        if sends(inner) {
            inner.progress(Some(self.token));
            if let Some(row) = inner.rows.get_mut(&self.token)
                && !row.queue.is_empty()
            {
                row.tell();
            }
        }
        !sends(inner)
    }

    /// Whether sends wait for more than the other end's program to use its messages.
    pub fn waits_for_provider(&self) -> bool {
        let inner = self.station.lock();
        let Some(row) = inner.rows.get(&self.token) else { return false };
        let is_first = row.other.as_ref().is_some_and(|other| other.is_first);
        is_first || row.sending >= SENDS - 1 || inner.end.has_unsent(self.token)
    }

    /// Whether messages wait for room with the provider.
    pub fn has_unsent(&self) -> bool {
        self.station.lock().end.has_unsent(self.token)
    }

    /// Messages with data that were sent, and that came.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.station.lock();
        let other = inner.rows.get(&self.token).and_then(|row| row.other.as_ref());
        other.map_or((0, 0), |other| (other.credit.sent(), other.credit.came()))
    }

    /// Messages with data that were sent, or wait for the other end to send first; and the number
    /// of these that it has used, from its grants.
    pub fn used_there(&self) -> (u64, u64) {
        let inner = self.station.lock();
        let of_row = |row: &StationRow| {
            let other = row.other.as_ref()?;
            let waits = u64::from(row.waits && other.is_first);
            Some((other.credit.sent() + waits, other.credit.used_there()))
        };
        inner.rows.get(&self.token).and_then(of_row).unwrap_or_default()
    }

    /// Takes incoming messages on behalf of a node that may make no calls, and wakes the node.
    pub fn take_all(&self) {
        self.station.lock().progress(None);
    }

    /// Ends the link on the fabric. Messages that have come can still be read.
    pub fn fail(&self, why: String) {
        if let Some(row) = self.station.lock().rows.get_mut(&self.token) {
            row.ended.get_or_insert(PathEnd::Failed(why));
            row.tell();
        }
    }

    /// The link's end on the fabric, if it has ended.
    pub fn ended(&self) -> Option<PathEnd> {
        self.station.lock().rows.get(&self.token)?.ended.clone()
    }

    /// Whether its descriptors signal everything that comes from now on.
    pub fn may_sleep(&self) -> bool {
        let mut inner = self.station.lock();
        // A grant without room is sent when there is room (`Inner::has_sent`).
        let is_busy = inner.rows.get(&self.token).is_some_and(|row| {
            let may_grant = row.sending < SENDS && !inner.end.has_unsent(self.token);
            row.is_told || (may_grant && row.owes_grant())
        });
        !is_busy && !inner.send_unsent() && inner.end.may_sleep()
    }

    /// Describes the transport in words.
    pub fn explain(&self) -> String {
        let inner = self.station.lock();
        let choice = inner.end.choice();
        let (major, minor) = choice.library().version();
        let woken = match &self.descriptor {
            Some(_) => "wakes by a descriptor".to_string(),
            None => {
                format!("looked at in naps, {} so far", self.station.naps.load(Ordering::Relaxed))
            }
        };
        let rejected = match choice.rejected() {
            [] => String::new(),
            rejected => format!(" (rejected: {})", rejected.join(" / ")),
        };
        let Dropped { foreign, too_long } = inner.dropped;
        format!(
            "libfabric {major}.{minor}, provider {}{rejected}, trusted, {woken}, {} messages dropped; met",
            choice.provider(),
            foreign + too_long
        )
    }
}

impl Drop for StationPlace {
    fn drop(&mut self) {
        // A forked child has a copy of the lock, which may stay locked for ever.
        if !self.guard.is_parent() {
            return;
        }
        let mut inner = self.station.lock();
        let Some(row) = inner.rows.remove(&self.token) else { return };
        let held = self.held.take().map(|(message, _)| message);
        for received in held.into_iter().chain(row.queue).chain(row.early.into_values()) {
            inner.end.give_back(received);
        }
        let Some(Other { peer, .. }) = row.other else { return };
        match row.sending - inner.end.forget_unsent(self.token) {
            0 => inner.end.remove(peer),
            sending => {
                let identity = core::mem::take(&mut self.identity);
                inner
                    .leaving
                    .insert(self.token, LeftLink { peer, host: self.host, identity, sending });
            }
        }
    }
}
