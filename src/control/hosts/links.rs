//! Makes links, once both ends have proved themselves and the server has accepted.

use super::dial::HostError;
use super::hello::{Answer, Wants};
use super::meeting::{MeetingError, Proved};
use super::near::Near;
use super::rail_links::RailsOfLink;
use super::said::Said;
use super::told::OnEnd;
use super::{
    ConnectError, EVENTS_MAX, HostRow, Hosts, HostsShared, HostsState, Inbox, LinkRow, Met,
    Refused, lock,
};
use crate::control::machine::{HostPeer, Peer, RequestId};
use crate::control::shell::{ControlEvent, LinkToken, LinkWay, NewLink};
use crate::control::{LinkEnd, LinkFeatures};
use crate::os::memory::Region;
use crate::transport::carrier::Carrier;
use crate::transport::fabric::OfferedPlace;
use crate::transport::late::Late;
use crate::transport::rails::live::Live;
use crate::transport::rails::{Rails, Terms, ends_of};
use crate::transport::{News, Owner};
use std::boxed::Box;
use std::io;
use std::net::SocketAddr;
use std::string::String;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// A link to be made, and the identity of its other end.
struct AgreedHostLink {
    token: LinkToken,
    met: Met,
    offered: Option<OfferedPlace>,
    terms: Option<Terms>,
    peer: Peer,
    proved: Proved,
    greeting: Vec<u8>,
    request: Option<RequestId>,
}

impl Hosts {
    /// Tells the other end that some of its packets were refused because a ticket was revoked.
    pub fn tell_stale(&self, token: LinkToken, slot: u32, index: u32) {
        let link = self.shared.lock().links.get(&token).map(|row| row.link.clone());
        if let Some(link) = link {
            lock(&link).tell_stale(slot, index);
        }
    }
}

impl HostsShared {
    /// At a client: the server has accepted.
    pub(super) fn connected(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        greeting: Vec<u8>,
        proved: Proved,
    ) {
        let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return };
        let mut met = *met;
        let Some(dial) = met.dial.clone() else { return };
        self.poller.remove(&met.meeting.channel);
        if matches!(dial.near, Near::Asks) {
            return self.near_answered(state, id, met, &proved);
        }
        if dial.rail.is_some() {
            return self.rail_connected(state, id, met, &proved);
        }
        let (channel, heard) = (&met.meeting.channel, &met.meeting.heard);
        let (heard, said) = Said::split(heard);
        let offered = met.meeting.offered.take();
        let offered = match offered.map(|offered| self.fabric.accept(offered, channel, heard)) {
            None => None,
            Some(Ok(offered)) => Some(offered),
            Some(Err(why)) => {
                let error = HostError::Meeting(MeetingError::Fabric(why));
                return self.tell_failed(id, dial.name.service(), dial.error(error));
            }
        };
        let peer = peer(met.address, &proved, dial.name.service().into());
        let (token, request) = (crate::control::ConnectionId(id), None);
        let terms = self.rail_terms(said);
        let agreed = AgreedHostLink { token, met, offered, terms, peer, proved, greeting, request };
        if let Err(error) = self.link(state, agreed) {
            let doing = "making a ring for the link";
            self.tell_failed(id, dial.name.service(), ConnectError::Os { doing, error });
        }
        self.connect_rails(state);
    }

    /// At a server: accepts.
    pub(super) fn accept(
        &self,
        state: &mut HostsState,
        mut met: Met,
        wants: Wants,
        proved: Proved,
        greeting: Vec<u8>,
        request: Option<RequestId>,
    ) {
        let meeting = &mut met.meeting;
        self.poller.remove(&meeting.channel);
        let (heard, said) = Said::split(&meeting.heard);
        let (offered, mut says) = self.fabric.answer(&meeting.channel, &proved.identity, heard);
        let terms = self.rail_terms(said);
        if let Some(Terms { count, own_credit: credit, .. }) = terms {
            Said::Offer { count, credit }.put(&mut says);
        }
        meeting.says = says;
        meeting.answer(&Answer::Yes(greeting));
        let peer = peer(met.address, &proved, wants.service);
        let (token, greeting) = (crate::control::ConnectionId(state.new_id()), wants.greeting);
        let agreed = AgreedHostLink { token, met, offered, terms, peer, proved, greeting, request };
        if self.link(state, agreed).is_err() {
            self.count_refused(Refused::Exhausted);
            if let Some(id) = request {
                self.inbox.put_of_host(ControlEvent::RequestGone { id });
            }
        }
    }

    /// Hands the link to its node, which moves its packets from now on.
    fn link(&self, state: &mut HostsState, agreed: AgreedHostLink) -> io::Result<()> {
        let AgreedHostLink { token, met, offered, terms, peer, proved, greeting, request } = agreed;
        let live = Live::new(&state.more, &self.late);
        let is_of_fabric = matches!(offered, Some(Ok(_)));
        let rails = terms
            .map(|terms| RailsOfLink::new(&met, &proved, terms.count, is_of_fabric, live.clone()));
        let rails = rails.transpose();
        let rails = rails.map_err(io::Error::other)?;
        let outgoing = Region::private(self.config.ring_bytes as usize)?;
        let incoming = Region::private(self.config.ring_bytes as usize)?;
        let initiated_by_us = met.dial.is_some();
        let how = met.dial.as_ref().and_then(|dial| dial.near.why());
        let ends = ends_of(&met.meeting.channel);
        let (mut path, why_not) = self.fabric.path(
            offered,
            met.meeting.channel,
            initiated_by_us,
            terms.is_some(),
            token.0,
        )?;
        if let Some(terms) = terms {
            path = Box::new(Rails::new(terms, path, ends, live)?);
        }
        let owner = LinkOwner {
            token,
            inbox: self.inbox.clone(),
            late: self.late.clone(),
            on_end: self.note_linked(&peer, initiated_by_us),
        };
        let mut carrier =
            Carrier::new(path, Box::new(owner), &outgoing, &incoming, self.own.packet_bytes);
        if let Some(why) = why_not {
            carrier.set_why_not(why);
        }
        // Bytes that came with the last message of the meeting wake no thread.
        carrier.hear();
        let link = Arc::new(Mutex::new(carrier));
        let identity = proved.identity;
        let row = LinkRow { link: link.clone(), identity, was_silent: false, rails };
        state.links.insert(token, row);
        self.inbox.put_of_host(ControlEvent::Connected(NewLink {
            token,
            peer,
            greeting,
            outgoing,
            incoming,
            way: LinkWay::Host(link),
            packet_bytes: self.config.packet_bytes.min(proved.packet_bytes),
            // Above all no `BARRIER`: the carrier relies on the node's own fences.
            features: LinkFeatures::empty(),
            initiated_by_us,
            request,
            asked: None,
            how,
        }));
        // The thread handles links without another wake-up.
        self.late.bell.ring();
        Ok(())
    }
}

/// The control plane, as a link's transport sees it.
#[derive(Debug)]
struct LinkOwner {
    token: LinkToken,
    inbox: Arc<Inbox>,
    late: Arc<Late>,
    /// Counts and reports the end.
    on_end: Option<OnEnd>,
}

impl Owner for LinkOwner {
    fn takes_news(&self) -> bool {
        self.inbox.len() < EVENTS_MAX / 4
    }

    fn tell(&self, news: News) {
        let token = self.token;
        self.inbox.put_of_host(match news {
            News::Ready(number) => ControlEvent::ApertureReady { token, number },
            News::Refused(number, why) => ControlEvent::ApertureRefused { token, number, why },
            News::Released(number) => ControlEvent::ApertureReleased { token, number },
            News::Held(number, pages) => ControlEvent::ApertureHeld { token, number, pages },
            News::Revoked(number) => ControlEvent::ApertureRevoked { token, number },
            News::Stale { slot, index } => ControlEvent::TicketRevoked { token, slot, index },
        });
    }

    fn has_ended(&self, reason: LinkEnd, more: Option<String>) {
        if let Some(on_end) = &self.on_end {
            on_end.tell(reason, more);
        }
        self.inbox.put_of_host(ControlEvent::Closed { token: self.token, reason });
    }

    fn hand_over(&self) {
        self.late.push(self.token.0);
    }
}

impl LinkRow {
    /// Whether the node has it, or has not yet stated how it left it.
    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.link) > 1 || !lock(&self.link).has_ended()
    }
}

pub(super) fn peer(address: SocketAddr, proved: &Proved, service: String) -> Peer {
    Peer {
        node: proved.node,
        is_proved: true,
        uid: None,
        gid: None,
        pid: None,
        process: None,
        service,
        host: Some(Box::new(HostPeer { address, identity: proved.identity.clone() })),
    }
}
