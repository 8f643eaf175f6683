//! A publisher under its manager's lock: its subscribers, and the samples for each, in any thread
//! that publishes or polls.
//!
//! Never: one subscriber's actions make another's part costlier; a subscriber is disconnected while
//! this is borrowed.

use super::log::{PublishedBody, SampleLog};
use super::serving::{Fault, Granted, Holders, NoRoom, Serving};
use super::{Greeting, LongSamples, PublishConfig, PublisherAnswer, SubscriberState, cell_bytes};
use crate::control::{Peer, RequestId};
use crate::interface::LinkId;
use crate::node::{ApertureEvent, Node};
use crate::os::pool::Pool;
use crate::protocol::Connection;
use crate::protocol::credit::Cell;
use crate::protocol::ends::check_place;
use crate::protocol::manager::{OfferId, Protocol, Protocols};
use core::mem::take;
use std::format;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// The state of a publisher, which is its offer.
pub(in crate::protocol) struct PublisherState {
    config: PublishConfig,
    pool: Option<Arc<Pool>>,
    log: SampleLog,
    /// The least number of the next sample.
    skip_to: u64,
    /// A random number, drawn when the publisher was made.
    id: u64,
    /// In the order of arrival.
    subscribers: Vec<Serving>,
    /// Short samples below this number can be sent with no check of anything but links: each
    /// subscriber has been sent all others, and has places for these. 0: none can.
    at_once_until: u64,
    holders: Holders,
    pub(super) sent_away: u64,
    pub(super) misbehaved: u64,
    pub(super) dropped: u64,
}

impl PublisherState {
    /// `id`: a number that no other publisher has.
    pub(super) fn new(config: PublishConfig, pool: Option<Arc<Pool>>, id: u64) -> Self {
        let log = SampleLog::new(config.kept() as usize);
        Self {
            config,
            pool,
            log,
            skip_to: 0,
            id,
            subscribers: Vec::new(),
            at_once_until: 0,
            holders: Holders::default(),
            sent_away: 0,
            misbehaved: 0,
            dropped: 0,
        }
    }

    /// Sets the number of the next sample, unless that many were published already.
    pub(super) fn skip_to(&mut self, number: u64) {
        (self.skip_to, self.at_once_until) = (number, 0);
        self.log.begin_at(number.max(self.log.next()));
    }

    /// Whether short samples can be sent at once from now on.
    pub(super) fn count_places(&mut self, node: &Node) -> bool {
        let next = self.log.next();
        let places = self.subscribers.iter_mut().map(|serving| serving.places_for(node, next));
        // Without subscribers, the caller finds out whether this is a forked child.
        let places = if self.skip_to > next { 0 } else { places.min().unwrap_or(0) };
        self.at_once_until = if places > 0 { next + places } else { 0 };
        places > 0
    }

    /// Whether all places that were counted have been used.
    #[inline]
    pub(super) fn has_used_places(&self) -> bool {
        self.at_once_until == self.log.next() && self.at_once_until > 0
    }

    /// [`publish`](Self::publish) of a short sample for which each subscriber has a place: its number,
    /// and whether it has left for all of them. `None`: nothing was done.
    #[inline]
    pub(super) fn publish_at_once(
        &mut self,
        node: &mut Node,
        sample: &[u8],
    ) -> Option<(u64, bool)> {
        let number = self.log.next();
        if number >= self.at_once_until {
            return None;
        }
        let mut have_left = true;
        for (i, serving) in self.subscribers.iter_mut().enumerate() {
            if !serving.send_at_once(node, number, sample) {
                if i == 0 {
                    return None;
                }
                serving.offer(node, number, false);
                (self.at_once_until, have_left) = (0, false);
            }
        }
        self.log.push_short(sample);
        Some((number, have_left))
    }

    /// Whether a subscriber has no room for the next sample, as far as is known. Their latest
    /// reports are read in the next turn.
    pub(super) fn lacks_room(&mut self, node: &mut Node, is_pool: bool) -> bool {
        let mut lacks = false;
        for serving in &mut self.subscribers {
            if is_pool {
                serving.look_at_leases(node, &mut self.holders);
            }
            if serving.lacks_room(node, is_pool)
                && let Some(link) = serving.link()
            {
                node.look_at_soon(link);
                lacks = true;
            }
        }
        lacks
    }

    /// Publishes a sample and returns its number, or the reason why it has to wait; then nothing
    /// was done.
    #[inline]
    pub(super) fn publish(
        &mut self,
        node: &mut Node,
        body: PublishedBody<'_>,
    ) -> Result<u64, NoRoom> {
        let is_pool = matches!(body, PublishedBody::Pool { .. });
        for serving in &mut self.subscribers {
            if is_pool {
                serving.look_at_leases(node, &mut self.holders);
            }
            if let Some(no_room) = serving.blocks(node, is_pool) {
                return Err(no_room);
            }
        }
        let Self { log, subscribers, .. } = self;
        let mut leave = |log: &SampleLog, number| {
            let is_gap = log.is_gap(number);
            subscribers.iter_mut().for_each(|serving| serving.leaves(number, is_gap));
        };
        log.skip_to(self.skip_to, &mut leave);
        if let Some(leaves) = log.leaves_next() {
            leave(log, leaves);
        }
        let number = self.log.next();
        // A sample that a subscriber waits for goes first; the copy for subscribers that are
        // behind, later.
        for serving in &mut self.subscribers {
            serving.offer(node, number, is_pool);
            serving.send_newest(node, number, body, &mut self.holders);
        }
        self.log.push(body);
        for serving in &mut self.subscribers {
            serving.advance(node, &self.log, &mut self.holders);
        }
        self.count_places(node);
        Ok(number)
    }

    /// The resource that the first subscriber that is behind waits for.
    pub(super) fn waits_for(&self) -> Option<NoRoom> {
        self.subscribers.iter().find(|serving| serving.is_behind()).map(Serving::no_room)
    }

    /// Subscribers that are behind, or that missed the last sample.
    pub(super) fn behind(&self) -> Vec<LinkId> {
        let published = self.log.next();
        let behind = self.subscribers.iter().filter(|serving| serving.is_owed(published));
        behind.filter_map(Serving::link).collect()
    }

    /// Sends as much as there is room for now; returns whether any subscriber is still behind.
    fn advance(&mut self, node: &mut Node) -> bool {
        let mut is_behind = false;
        for serving in &mut self.subscribers {
            serving.advance(node, &self.log, &mut self.holders);
            serving.show_still_waits(node);
            is_behind |= serving.is_behind();
        }
        is_behind
    }

    #[inline]
    fn is_settled(&self) -> bool {
        self.subscribers.iter().all(|serving| serving.fault.is_none() && !serving.is_behind())
    }

    /// Shows subscribers that a sample waits for them to be published; `None`: no sample does any
    /// more.
    #[cold]
    pub(super) fn show_waits(&mut self, node: &mut Node, is_pool: Option<bool>) {
        self.subscribers.iter_mut().for_each(|serving| serving.show_waits(node, is_pool));
    }

    /// Subscribers to disconnect, with the reasons.
    fn take_faults(&mut self) -> Vec<(LinkId, Fault)> {
        let mut away = Vec::new();
        for serving in &mut self.subscribers {
            let Some(link) = serving.link() else { continue };
            let Some(fault) = serving.fault.take() else { continue };
            match fault {
                Fault::Slow(_) | Fault::Unfit(_) => self.sent_away += 1,
                Fault::Lie(_) => self.misbehaved += 1,
            }
            (serving.is_ready, self.at_once_until) = (false, 0);
            away.push((link, fault));
        }
        away
    }

    pub(super) fn states(&self, node: &Node) -> Vec<SubscriberState> {
        self.subscribers.iter().filter_map(|serving| serving.state(node)).collect()
    }

    /// How many samples there have been.
    pub(super) fn published(&self) -> u64 {
        self.log.next()
    }

    pub(super) fn remove_all(&mut self, node: &mut Node) {
        let holders = &mut self.holders;
        self.subscribers.drain(..).for_each(|serving| serving.remove(node, holders));
    }

    /// The fate of the pool at a subscriber. The sentence is the reason to disconnect it.
    fn pool_is(&mut self, link: LinkId, what: ApertureEvent) {
        let its = |serving: &&mut Serving| serving.link() == Some(link);
        self.at_once_until = 0;
        let Some(serving) = self.subscribers.iter_mut().find(its) else { return };
        match what {
            ApertureEvent::Ready => serving.is_ready = true,
            ApertureEvent::Refused(why) => {
                serving.fault = Some(Fault::Unfit(format!("it does not hold the pool: {why}")));
            }
            ApertureEvent::Released => {
                serving.fault = Some(Fault::Lie("it has let go of the pool".to_string()));
            }
            // An event of memory that the subscriber exports itself, and that no end point here
            // uses.
            ApertureEvent::Held | ApertureEvent::Revoked => {}
        }
    }

    fn try_admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let greeting = Greeting::from_bytes(body, peer)?;
        let when_slow = greeting.when_slow.unwrap_or(self.config.when_slow);
        if when_slow < self.config.when_slow {
            return Err(format!(
                "where a subscriber is slow this publisher is to {}, and it asks it to {when_slow}, \
                     which is more",
                self.config.when_slow
            ));
        }
        let leases = greeting.outstanding.min(self.config.outstanding_max);
        let history = greeting.history.min(self.config.history);
        let (cell, ticket) = Cell::new(node, cell_bytes(leases))?;
        let Greeting { places, depth, .. } = greeting;
        // A pool is memory of this host.
        let in_parts = self.pool.is_some() && peer.host.is_some();
        let granted = Granted { places, depth, when_slow, history, leases, in_parts };
        let serving = Serving::new(request, peer.user(), &granted, cell, &self.log);
        let answer = PublisherAnswer {
            cell: ticket,
            short_bytes_max: self.config.short_bytes_max as u32,
            leases,
            long: match &self.pool {
                None => LongSamples::None,
                Some(_) if in_parts => LongSamples::Parts(self.config.sample_bytes_max as u64),
                Some(pool) => LongSamples::Pool(pool.layout()),
            },
            first: serving.first(),
            publisher: self.id,
        };
        self.subscribers.push(serving);
        self.at_once_until = 0;
        Ok(answer.to_bytes())
    }

    fn remove(&mut self, node: &mut Node, is_its: impl Fn(&Serving) -> bool) {
        self.at_once_until = 0;
        let (dropped, holders) = (&mut self.dropped, &mut self.holders);
        self.subscribers.retain(|serving| {
            let leaves = is_its(serving);
            if leaves {
                *dropped += serving.state(node).map_or(0, |state| state.dropped);
                serving.remove(node, holders);
            }
            !leaves
        });
    }
}

impl Protocol for PublisherState {
    fn check_place(&self, peer: &Peer, _: &[u8]) -> Result<(), String> {
        let users = self.subscribers.iter().map(|serving| serving.user.clone());
        let max = self.config.subscribers_max as usize;
        check_place(users, peer, max, "subscribers", "subscribers_max")
    }

    fn admit(
        &mut self,
        node: &mut Node,
        request: RequestId,
        peer: &Peer,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        self.try_admit(node, request, peer, body)
    }

    fn withdrawn(&mut self, node: &mut Node, request: RequestId) {
        self.remove(node, |serving| serving.request == Some(request));
    }

    fn joined(&mut self, node: &mut Node, request: RequestId, connection: &Arc<Connection>) {
        let its = |serving: &&mut Serving| serving.request == Some(request);
        let Some(serving) = self.subscribers.iter_mut().find(its) else { return };
        let (short, link) = (self.config.short_bytes_max, connection.link());
        let packet = node.fast_bytes_max(link).unwrap_or(0);
        serving.joined(node, connection, packet);
        if packet < short + super::NUMBER_BYTES {
            serving.fault = Some(Fault::Unfit(format!(
                "a packet of its link holds {packet} bytes, and samples of {short} are copied whole, \
                     with their number (HAMLYN_PACKET_BYTES and the rings' sizes of both sides, \
                     PublishConfig::short_bytes_max)"
            )));
            return;
        }
        match &self.pool {
            None => serving.is_ready = true,
            Some(_) if serving.is_in_parts() => serving.is_ready = true,
            // An event reports the outcome.
            Some(pool) => {
                if let Err(e) = node.export_pool(link, pool) {
                    let why = format!("the pool cannot be shared with it: {e}");
                    serving.fault = Some(Fault::Unfit(why));
                }
            }
        }
    }

    fn left(&mut self, node: &mut Node, connection: &Connection) {
        // Its holds on the pool are released here; the bytes that it reads there may change from
        // now on.
        self.remove(node, |serving| serving.link() == Some(connection.link()));
    }
}

/// Publishers with subscribers that are behind, and servers whose clients have been asked for room
/// for replies that will not come.
#[derive(Default)]
pub(in crate::protocol) struct Behind {
    offers: Vec<OfferId>,
    /// The value of [`Node::moved`] at the last look.
    moved: u64,
    waits_for_room: bool,
    is_looking: bool,
}

impl Behind {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// Sets whether it is looked at again.
    fn keep(&mut self, offer: OfferId, is_behind: bool) {
        match (is_behind, self.offers.iter().position(|behind| *behind == offer)) {
            (true, None) => self.offers.push(offer),
            (false, Some(at)) => {
                self.offers.swap_remove(at);
            }
            _ => {}
        }
    }
}

impl Protocols {
    /// After a publication, or the arrival of a subscriber: disconnects faulty subscribers, and
    /// schedules a look at those that are behind.
    #[inline]
    pub(in crate::protocol) fn settle(&mut self, node: &mut Node, offer: OfferId) {
        if self.publisher(offer).is_some_and(|state| !state.is_settled()) {
            self.advance_publisher(node, offer);
        }
    }

    #[cold]
    #[inline(never)]
    pub(in crate::protocol) fn advance_publisher(&mut self, node: &mut Node, offer: OfferId) {
        let Some(state) = self.publisher(offer) else {
            return self.look_at_given_up(node, offer);
        };
        let is_behind = state.advance(node);
        let waits_for_room = matches!(state.waits_for(), Some(NoRoom::InLink(_)));
        let away = state.take_faults();
        self.behind.waits_for_room |= waits_for_room;
        self.behind.keep(offer, is_behind);
        for (link, fault) in away {
            match fault {
                Fault::Slow(why) => self.send_away_slow(node, link, &why),
                Fault::Unfit(why) | Fault::Lie(why) => self.expel(node, link, &why),
            }
        }
    }

    /// Reads the reports of a server's clients, even if its program does not look, while a client
    /// has yet to answer for a long reply that was given up: only after that answer can the client
    /// be told.
    #[cold]
    #[inline(never)]
    pub(in crate::protocol) fn look_at_given_up(&mut self, node: &mut Node, offer: OfferId) {
        let state = self.server(offer);
        let (broken, waits) = state
            .map_or((None, false), |state| (state.share_rest(node), state.waits_for_given_up()));
        self.behind.keep(offer, waits || broken.is_some());
        if let Some((link, why)) = broken {
            self.expel(node, link, &why);
        }
    }

    /// Looks at those that are behind, if anything has come.
    #[cold]
    #[inline(never)]
    pub(in crate::protocol) fn look_at_behind(&mut self, node: &mut Node) {
        let has_come = self.behind.waits_for_room || node.moved() != self.behind.moved;
        // Disconnecting a subscriber causes a look at all of them.
        if !has_come || self.behind.is_looking {
            return;
        }
        self.behind.moved = node.moved();
        self.behind.waits_for_room = false;
        self.behind.is_looking = true;
        let offers = take(&mut self.behind.offers);
        self.behind.offers.clone_from(&offers);
        for offer in offers {
            self.advance_publisher(node, offer);
        }
        self.behind.is_looking = false;
    }

    /// An event of an aperture that an end point here exports.
    pub(in crate::protocol) fn tell_publisher(
        &mut self,
        node: &mut Node,
        offer: OfferId,
        link: LinkId,
        what: ApertureEvent,
    ) {
        if let Some(state) = self.publisher(offer) {
            state.pool_is(link, what);
            self.advance_publisher(node, offer);
        }
    }
}
