//! Connects, accepts and reconnects the rails of a link, except the first.
//!
//! After a failure, or if a rail ends within a second or sooner than the pause before it, it is
//! tried again after a pause that doubles, up to [`PAUSE_MAX_NS`]. Of the rails that are due, the
//! one that has been due for longest goes first: so a link whose rails cannot be made does not
//! delay others.

use super::course::Course;
use super::dial::{self, HostDial, HostError};
use super::hello::{Answer, Wants};
use super::keys::TlsEnd;
use super::meeting::Proved;
use super::said::{RailsSecret, Said};
use super::{HostsShared, HostsState, LinkRow, LinkToken, MeetingError, Met, Refused, lock};
use crate::control::shell::ConnectError;
use crate::control::{Reason, Wait};
use crate::os::sys::monotonic_ns;
use crate::transport::carrier::Carrier;
use crate::transport::channel::Channel;
use crate::transport::fabric::OfferedPlace;
use crate::transport::path::Path;
use crate::transport::rails::live::Live;
use crate::transport::rails::{RAILS_MAX, Terms, ends_of};
use crate::wire::NodeId;
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::net::SocketAddr;
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

/// Most of the threads that connect that may be connecting rails.
const DIALS_MAX: usize = 32;
/// The pause before a failed rail is tried again, at first and at most.
const PAUSE_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 30_000_000_000;
/// A rail that ends sooner counts as failed.
const STAYS_NS: u64 = 1_000_000_000;

/// The state of a link with several rails.
#[derive(Debug)]
pub struct RailsOfLink {
    secret: RailsSecret,
    node: NodeId,
    count: u8,
    /// All its rails use libfabric.
    is_of_fabric: bool,
    live: Arc<Live>,
    /// At the end that connects.
    dials: Option<Dials>,
}

/// The rails to connect, and their target.
#[derive(Debug)]
struct Dials {
    /// The dial of the first rail.
    dial: HostDial,
    first: SocketAddr,
    places: [RailPlan; RAILS_MAX as usize],
}

/// One rail: whether it is being connected, the number of addresses to skip because they belong to
/// another host, and the time of the next attempt.
#[derive(Clone, Copy, Debug, Default)]
struct RailPlan {
    is_dialed: bool,
    skip: usize,
    retry: Retry,
}

/// The time to connect a missing rail.
#[derive(Clone, Copy, Debug, Default)]
struct Retry {
    due_ns: u64,
    failures: u32,
    /// The time at which it was connected, until its end is noticed.
    since_ns: Option<u64>,
}

impl Retry {
    fn pause_ns(failures: u32) -> u64 {
        (PAUSE_NS << failures.min(32)).min(PAUSE_MAX_NS)
    }

    /// It could not be made.
    fn failed(&mut self, now_ns: u64) {
        self.due_ns = now_ns.saturating_add(Self::pause_ns(self.failures));
        self.failures += 1;
    }

    fn connected(&mut self, now_ns: u64) {
        self.since_ns = Some(now_ns);
    }

    /// The rail is missing: returns the time at which it is due, or became due.
    fn due(&mut self, now_ns: u64) -> u64 {
        if let Some(since_ns) = self.since_ns.take() {
            let lived_ns = now_ns.saturating_sub(since_ns);
            match lived_ns >= Self::pause_ns(self.failures).max(STAYS_NS) {
                true => (self.failures, self.due_ns) = (0, now_ns),
                false => self.failed(now_ns),
            }
        }
        self.due_ns
    }
}

/// The first of the due rails, as many as there is room for: each with the time at which it became
/// due, its link, and its place. `true`: that is all of them.
fn first_of(mut due: Vec<(u64, LinkToken, u8)>, room: usize) -> (Vec<(LinkToken, u8)>, bool) {
    due.sort_unstable_by_key(|(since_ns, token, place)| (*since_ns, token.0, *place));
    let is_all = due.len() <= room;
    (due.into_iter().take(room).map(|(_, token, place)| (token, place)).collect(), is_all)
}

/// A connection that is to be a rail.
#[derive(Clone, Debug)]
pub struct RailDial {
    /// Its link.
    pub token: LinkToken,
    /// Its place.
    pub place: u8,
    /// The secret that proves it.
    pub secret: RailsSecret,
    /// The address of the link's first rail.
    pub first: SocketAddr,
    /// Addresses to skip.
    pub skip: usize,
    /// It has to use libfabric, like the others.
    pub is_of_fabric: bool,
}

impl RailsOfLink {
    /// For a link that is agreed on over this connection.
    pub fn new(
        met: &Met,
        proved: &Proved,
        count: u8,
        is_of_fabric: bool,
        live: Arc<Live>,
    ) -> Result<Self, rustls::Error> {
        let now_ns = monotonic_ns();
        let new =
            RailPlan { retry: Retry { due_ns: now_ns, ..Retry::default() }, ..RailPlan::default() };
        let mut places = [new; RAILS_MAX as usize];
        places[0].retry.connected(now_ns);
        let dials = met.dial.clone().map(|dial| Dials {
            dial: HostDial {
                greeting: Vec::new(),
                wait: Wait::No,
                course: Course::default(),
                ..dial
            },
            first: met.address,
            places,
        });
        let secret = RailsSecret::of(&met.meeting.channel)?;
        Ok(Self { secret, node: proved.node, count, is_of_fabric, live, dials })
    }

    /// Its live rails.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Whether this is the accepting end of the link with this name, and the proof is right. (A
    /// node that is connected to itself has both ends.)
    fn lets_in(&self, link: [u8; 16], place: u8, joining: &Channel, proof: &[u8]) -> bool {
        let is_it = self.dials.is_none() && self.secret.link == link;
        is_it && self.secret.is_proof(TlsEnd::Client, place, joining, proof)
    }

    /// The rails to connect, each with its time.
    fn missing(&mut self, now_ns: u64) -> impl Iterator<Item = (u64, u8)> {
        let (count, live) = (self.count, &self.live);
        let places = self.dials.iter_mut().flat_map(|dials| dials.places.iter_mut());
        places.zip(0..count).filter_map(move |(own, place)| {
            let is_missing = !own.is_dialed && !live.has(place);
            is_missing.then(|| (own.retry.due(now_ns), place))
        })
    }
}

impl HostsShared {
    /// Adds the offer of rails to a request for a link, if the settings want more than one.
    pub(super) fn offer_rails(&self, says: &mut Vec<u8>) {
        if self.config.rails > 1 {
            let count = self.config.rails as u8;
            Said::Offer { count, credit: self.config.rail_bytes }.put(says);
        }
    }

    /// The terms that follow from the other end's offer.
    pub(super) fn rail_terms(&self, heard: Option<Said>) -> Option<Terms> {
        let (count, credit) = heard?.offer()?;
        let count = count.min(self.config.rails as u8);
        let own_credit = self.config.rail_bytes;
        // This end keeps the bytes until the other end has them, so this end limits them.
        let credit = credit.min(own_credit);
        let batch_bytes = Carrier::batch_bytes_max(self.own.packet_bytes);
        (count > 1).then_some(Terms { count, credit, own_credit, batch_bytes })
    }

    /// Connects missing rails whose pause is over, and computes the time of the next. Locks no link
    /// whose rails all live.
    pub(super) fn connect_rails(self: &Arc<Self>, state: &mut HostsState) {
        let (now_ns, mut due) = (monotonic_ns(), Vec::new());
        state.rails_due_ns = u64::MAX;
        for (token, row) in &mut state.links {
            let Some(rails) = &mut row.rails else { continue };
            let mut missing = rails.missing(now_ns).peekable();
            if missing.peek().is_some() && !lock(&row.link).has_ended() {
                for (due_ns, place) in missing {
                    match due_ns <= now_ns {
                        true => due.push((due_ns, *token, place)),
                        false => state.rails_due_ns = state.rails_due_ns.min(due_ns),
                    }
                }
            }
        }
        let (first, is_all) = first_of(due, DIALS_MAX.saturating_sub(state.dials));
        state.rails_wait = !is_all;
        for (token, place) in first {
            let Some(rails) = state.links.get_mut(&token).and_then(|row| row.rails.as_mut()) else {
                continue;
            };
            let Some(dials) = &mut rails.dials else { continue };
            let own = &mut dials.places[usize::from(place)];
            own.is_dialed = true;
            let (secret, first, skip) = (rails.secret.clone(), dials.first, own.skip);
            let is_of_fabric = rails.is_of_fabric;
            let rail = RailDial { token, place, secret, first, skip, is_of_fabric };
            let dial =
                HostDial { until_ns: self.deadline(), rail: Some(rail), ..dials.dial.clone() };
            let id = state.new_id();
            if let Err(error) = dial::start(self, state, id, dial.clone(), Duration::ZERO) {
                self.dial_failed(state, id, &dial, error);
            }
        }
    }

    /// A connection could not be made: reports that to the caller, or to the link whose rail it was
    /// to be.
    pub(super) fn dial_failed(
        &self,
        state: &mut HostsState,
        id: u64,
        dial: &HostDial,
        error: ConnectError,
    ) {
        let Some(rail) = &dial.rail else {
            return self.tell_failed(id, dial.name.service(), error);
        };
        let Some(row) = state.links.get_mut(&rail.token) else { return };
        let is_elsewhere = is_of_another(&error);
        if let Some(place) = row.dialed(rail.place) {
            place.is_dialed = false;
            place.skip += usize::from(is_elsewhere);
            place.retry.failed(monotonic_ns());
            state.rails_due_ns = state.rails_due_ns.min(place.retry.due_ns);
        }
        let why = match error {
            ConnectError::Host { error, .. } => error.to_string(),
            error => error.to_string(),
        };
        lock(&row.link).has_no_rail(rail.place, &why);
    }

    /// At the connecting end: the other end has accepted.
    pub(super) fn rail_connected(
        &self,
        state: &mut HostsState,
        id: u64,
        met: Met,
        proved: &Proved,
    ) {
        let Some(dial) = met.dial else { return };
        let Some(rail) = dial.rail.clone() else { return };
        let channel = met.meeting.channel;
        let Some(row) = state.links.get_mut(&rail.token) else { return };
        let is_same = row.is_of(proved);
        let (heard, said) = Said::split(&met.meeting.heard);
        let is_proved = match said {
            Some(Said::Joined { proof }) => {
                rail.secret.is_proof(TlsEnd::Server, rail.place, &channel, &proof)
            }
            _ => false,
        };
        if !is_same || !is_proved {
            let error = dial.error(HostError::Meeting(MeetingError::Identity));
            return self.dial_failed(state, id, &dial, error);
        }
        let offered = met.meeting.offered;
        let offered = offered.map(|offered| self.fabric.accept(offered, &channel, heard));
        let mut link = lock(&row.link);
        let added = offered
            .transpose()
            .and_then(|offered| self.rail(rail.token, channel, offered, rail.is_of_fabric, true))
            .and_then(|(path, ends)| link.add_rail(rail.place, path, ends));
        if let Err(why) = &added {
            link.has_no_rail(rail.place, why);
        }
        link.hand_over();
        drop(link);
        if let Some(place) = row.dialed(rail.place) {
            place.is_dialed = false;
            match added {
                Ok(()) => place.retry.connected(monotonic_ns()),
                Err(_) => {
                    place.retry.failed(monotonic_ns());
                    state.rails_due_ns = state.rails_due_ns.min(place.retry.due_ns);
                }
            }
        }
    }

    /// At the accepting end: a host with a proven identity asks to join a link.
    pub(super) fn rail_asked(
        &self,
        state: &mut HostsState,
        id: u64,
        mut met: Met,
        wants: Wants,
        proved: &Proved,
        said: Said,
    ) {
        let channel = &met.meeting.channel;
        let found = match said {
            Said::Join { link, place, proof } => state
                .links
                .iter_mut()
                .find(|(_, row)| {
                    let rails = row.rails.as_ref();
                    rails.is_some_and(|rails| rails.lets_in(link, place, channel, &proof))
                        && row.is_of(proved)
                })
                .map(|(token, row)| (*token, row, place)),
            _ => None,
        };
        let Some((token, row, place)) = found else {
            return self.refuse_rail(state, id, met, wants, proved, NO_SUCH_LINK);
        };
        let Some(rails) = &row.rails else { return };
        let is_of_fabric = rails.is_of_fabric;
        let proof = rails.secret.proof(TlsEnd::Server, place, channel).unwrap_or_default();
        // This may open an end point at another address, which must not delay the link's node.
        let (heard, _) = Said::split(&met.meeting.heard);
        let (offered, mut says) = match is_of_fabric {
            true => self.fabric.answer(channel, &proved.identity, heard),
            false => (None, Vec::new()),
        };
        let mut link = lock(&row.link);
        if link.has_ended() || link.rail(place).is_none() {
            drop(link);
            return self.refuse_rail(
                state,
                id,
                met,
                wants,
                proved,
                "the link has ended, or no such rail",
            );
        }
        self.poller.remove(channel);
        Said::Joined { proof }.put(&mut says);
        met.meeting.says = says;
        met.meeting.answer(&Answer::Yes(Vec::new()));
        // A connection that cannot join is closed; the other end sees that.
        let added = self
            .rail(token, met.meeting.channel, offered, is_of_fabric, false)
            .and_then(|(path, ends)| link.add_rail(place, path, ends));
        link.hand_over();
        drop(link);
        if added.is_err() {
            self.count_refused(Refused::Exhausted);
        }
    }

    /// The transport of a rail, and the addresses of its ends; or the reason why it cannot use the
    /// same transport as the others.
    fn rail(
        &self,
        link: LinkToken,
        channel: Channel,
        offered: Option<OfferedPlace>,
        is_of_fabric: bool,
        is_client: bool,
    ) -> Result<(Box<dyn Path>, String), String> {
        let ends = ends_of(&channel);
        if is_of_fabric && offered.is_none() {
            return Err("not over libfabric: the other end has not asked for that".into());
        }
        match self.fabric.path(offered, channel, is_client, true, link.0) {
            Ok((_, Some(why))) if is_of_fabric => Err(format!("not over libfabric: {why}")),
            Ok((path, _)) => Ok((path, ends)),
            Err(error) => Err(format!("watching its connection: {error}")),
        }
    }

    fn refuse_rail(
        &self,
        state: &mut HostsState,
        id: u64,
        met: Met,
        wants: Wants,
        proved: &Proved,
        why: &str,
    ) {
        let answer = Answer::no(Reason::Identity, why);
        self.note_refused(met.address, proved, wants.service, &answer);
        self.refuse(state, id, met.meeting, proved.identity.clone(), &answer);
    }
}

/// The text of the refusal of a rail for another host's link.
const NO_SUCH_LINK: &str = "this host has no such link with it";

/// Whether the address belongs to another host than the link's.
fn is_of_another(error: &ConnectError) -> bool {
    let ConnectError::Host { error: HostError::Meeting(error), .. } = error else { return false };
    matches!(error, MeetingError::Identity | MeetingError::Refused(Reason::Identity, _))
}

impl LinkRow {
    fn dialed(&mut self, place: u8) -> Option<&mut RailPlan> {
        self.rails.as_mut()?.dials.as_mut()?.places.get_mut(usize::from(place))
    }

    fn is_of(&self, proved: &Proved) -> bool {
        self.identity == proved.identity
            && self.rails.as_ref().is_some_and(|rails| rails.node == proved.node)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_before_a_rail_that_cannot_be_grow_and_end() {
        let (mut retry, mut now_ns, mut pauses) = (Retry::default(), 7, Vec::new());
        for _ in 0..100 {
            assert!(retry.due(now_ns) <= now_ns);
            retry.failed(now_ns);
            let pause_ns = retry.due_ns - now_ns;
            assert_eq!(retry.due(now_ns + pause_ns - 1), now_ns + pause_ns);
            pauses.push(pause_ns);
            now_ns += pause_ns;
        }
        assert_eq!(pauses[..3], [PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS]);
        assert!(pauses.is_sorted() && pauses.ends_with(&[PAUSE_MAX_NS; 50]));
        // A rail that is accepted and ended at once counts as failed; one that lasts does not.
        retry.connected(now_ns);
        assert!(retry.due(now_ns + PAUSE_MAX_NS - 1) >= now_ns + PAUSE_MAX_NS);
        now_ns = retry.due_ns;
        assert_eq!(retry.due(now_ns), now_ns);
        retry.connected(now_ns);
        now_ns += PAUSE_MAX_NS;
        assert_eq!(retry.due(now_ns), now_ns);
        retry.failed(now_ns);
        assert_eq!(retry.due_ns - now_ns, PAUSE_NS);
    }

    // There is room for three at a time, and the rails of most links cannot be made.
    #[test]
    fn a_rail_that_is_due_waits_for_no_more_than_those_that_were_due_before() {
        const LINKS: u64 = 50;
        let mut rails = [Retry::default(); LINKS as usize];
        let (mut now_ns, mut is_made) = (1, [false; LINKS as usize]);
        for round in 0.. {
            assert!(round < LINKS, "some are never tried: {is_made:?}");
            let due = rails.iter_mut().enumerate().filter(|(i, _)| !is_made[*i]);
            let due = due.filter_map(|(i, retry)| {
                // In the arbitrary order of a table.
                let token = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % LINKS;
                let token = crate::control::ConnectionId(token << 32 | i as u64);
                let due_ns = retry.due(now_ns);
                (due_ns <= now_ns).then_some((due_ns, token, 1))
            });
            let (first, is_all) = first_of(due.collect(), 3);
            assert!(first.len() == 3 || is_all);
            for (token, _) in first {
                let at = token.0 as u32 as usize;
                match at % 5 {
                    0 => is_made[at] = true,
                    _ => rails[at].failed(now_ns),
                }
            }
            // Failed rails are due again before all others have been tried.
            now_ns += PAUSE_NS;
            if (0..LINKS as usize).step_by(5).all(|at| is_made[at]) {
                return;
            }
        }
    }
}
