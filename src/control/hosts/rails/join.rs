//! The rails of a link but its first: who connects them, who lets them in, and when again.

use super::super::carrier::Carrier;
use super::super::dial::{self, Dial, HostError};
use super::super::hello::{Answer, Wants};
use super::super::keys::End;
use super::super::meeting::Proved;
use super::super::{LinkRow, LinkToken, MeetingError, Met, Shared, State, lock};
use super::said::{Said, Secret};
use super::{RAILS_MAX, Terms};
use crate::control::shell::ConnectError;
use crate::control::{Reason, Wait};
use crate::wire::NodeId;
use core::time::Duration;
use std::net::SocketAddr;
use std::string::ToString;
use std::sync::Arc;
use std::vec::Vec;

/// Of the threads that connect, those that may be connecting rails.
const DIALS_MAX: usize = 32;

/// What this process knows of a link with several rails.
#[derive(Debug)]
pub struct OfLink {
    secret: Secret,
    node: NodeId,
    count: u8,
    /// At the end that connects.
    dials: Option<Dials>,
}

/// What is connected again and again.
#[derive(Debug)]
struct Dials {
    /// As the first was.
    dial: Dial,
    first: SocketAddr,
    /// Of each rail: whether it is being connected, and how many addresses to pass over, at which another
    /// host is.
    places: [(bool, usize); RAILS_MAX as usize],
}

/// A connection that is to be a rail.
#[derive(Clone, Debug)]
pub struct RailDial {
    /// Of which link.
    pub token: LinkToken,
    /// Which.
    pub place: u8,
    /// What shows that.
    pub secret: Secret,
    /// Where the link's first leads to.
    pub first: SocketAddr,
    /// Addresses to pass over.
    pub skip: usize,
}

impl OfLink {
    /// Of a link that is agreed on over this connection.
    pub fn new(met: &Met, proved: &Proved, count: u8) -> Result<Self, rustls::Error> {
        let dials = met.dial.clone().map(|dial| Dials {
            dial: Dial { greeting: Vec::new(), wait: Wait::No, ..dial },
            first: met.address,
            places: Default::default(),
        });
        let secret = Secret::of(&met.meeting.channel)?;
        Ok(Self { secret, node: proved.node, count, dials })
    }
}

impl Shared {
    /// What is said of rails where a link is asked for; nothing where there is to be one.
    pub(in super::super) fn offer_rails(&self, says: &mut Vec<u8>) {
        if self.config.rails > 1 {
            let count = self.config.rails as u8;
            Said::Offer { count, credit: self.config.rail_bytes }.put(says);
        }
    }

    /// What becomes of what the other end has said.
    pub(in super::super) fn rail_terms(&self, heard: Option<Said>) -> Option<Terms> {
        let (count, credit) = heard?.offer()?;
        let count = count.min(self.config.rails as u8);
        let own_credit = self.config.rail_bytes;
        // What this end keeps until the other has it is for this end to bound.
        let credit = credit.min(own_credit);
        let batch_bytes = Carrier::batch_bytes_max(self.own.packet_bytes);
        (count > 1).then_some(Terms { count, credit, own_credit, batch_bytes })
    }

    /// Connects what is missing. In the thread, or where a link has just been made.
    pub(in super::super) fn connect_rails(self: &Arc<Self>, state: &mut State) {
        let mut wanted = Vec::new();
        for (token, row) in &mut state.links {
            let Some(rails) = &mut row.rails else { continue };
            let Some(dials) = &mut rails.dials else { continue };
            let link = lock(&row.link);
            if link.has_ended() {
                continue;
            }
            for place in (0..rails.count).filter(|place| link.rail(*place) == Some(false)) {
                let (is_dialed, skip) = &mut dials.places[usize::from(place)];
                if *is_dialed || state.dials + wanted.len() >= DIALS_MAX {
                    continue;
                }
                *is_dialed = true;
                let (secret, first, skip) = (rails.secret.clone(), dials.first, *skip);
                let rail = RailDial { token: *token, place, secret, first, skip };
                let until_ns = self.deadline();
                wanted.push(Dial { until_ns, rail: Some(rail), ..dials.dial.clone() });
            }
        }
        for dial in wanted {
            let id = state.new_id();
            if let Err(error) = dial::start(self, state, id, dial.clone(), Duration::ZERO) {
                self.dial_failed(state, id, &dial, error);
            }
        }
    }

    /// A connection could not be made: whoever waits for it is told, or the link whose rail it was to be.
    pub(in super::super) fn dial_failed(
        &self,
        state: &mut State,
        id: u64,
        dial: &Dial,
        error: ConnectError,
    ) {
        let Some(rail) = &dial.rail else { return self.tell_failed(id, error) };
        let Some(row) = state.links.get_mut(&rail.token) else { return };
        let is_elsewhere = is_of_another(&error);
        if let Some(place) = row.dialed(rail.place) {
            place.0 = false;
            place.1 += usize::from(is_elsewhere);
        }
        let why = match error {
            ConnectError::Host { error, .. } => error.to_string(),
            error => error.to_string(),
        };
        lock(&row.link).has_no_rail(rail.place, &why);
    }

    /// At the end that connects: the other has said yes.
    pub(in super::super) fn rail_connected(
        &self,
        state: &mut State,
        id: u64,
        met: Met,
        proved: &Proved,
    ) {
        let Some(dial) = met.dial else { return };
        let Some(rail) = dial.rail.clone() else { return };
        let channel = met.meeting.channel;
        let Some(row) = state.links.get_mut(&rail.token) else { return };
        let is_same = row.is_of(proved);
        let is_proved = match Said::split(&met.meeting.heard).1 {
            Some(Said::Joined { proof }) => {
                rail.secret.is_proof(End::Server, rail.place, &channel, &proof)
            }
            _ => false,
        };
        if !is_same || !is_proved {
            let error = dial.error(HostError::Meeting(MeetingError::Identity));
            return self.dial_failed(state, id, &dial, error);
        }
        if let Some(place) = row.dialed(rail.place) {
            place.0 = false;
        }
        let mut link = lock(&row.link);
        if let Err(why) = link.add_rail(rail.place, channel) {
            link.has_no_rail(rail.place, &why);
        }
        drop(link);
        self.late.push(rail.token);
    }

    /// At the other: a host that has proved itself says that this is a rail of a link.
    pub(in super::super) fn rail_asked(
        &self,
        state: &mut State,
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
                    let secret = row.rails.as_ref().map(|rails| &rails.secret);
                    secret.is_some_and(|secret| {
                        secret.link == link && secret.is_proof(End::Client, place, channel, &proof)
                    }) && row.is_of(proved)
                })
                .map(|(token, row)| (*token, row, place)),
            _ => None,
        };
        let Some((token, row, place)) = found else {
            return self.refuse_rail(state, id, met, wants, proved, NO_SUCH_LINK);
        };
        let says = row.rails.as_ref().map(|rails| {
            let proof = rails.secret.proof(End::Server, place, channel).unwrap_or_default();
            let mut says = Vec::new();
            Said::Joined { proof }.put(&mut says);
            says
        });
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
        met.meeting.says = says.unwrap_or_default();
        met.meeting.answer(&Answer::Yes(Vec::new()));
        // What cannot be joined is closed, which the other end sees.
        let _ = link.add_rail(place, met.meeting.channel);
        drop(link);
        self.late.push(token);
    }

    fn refuse_rail(
        &self,
        state: &mut State,
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

/// What who asks for a rail of a link that is not its own is told.
const NO_SUCH_LINK: &str = "this host has no such link with it";

/// Whether at this address is another host than the link's.
fn is_of_another(error: &ConnectError) -> bool {
    let ConnectError::Host { error: HostError::Meeting(error), .. } = error else { return false };
    matches!(error, MeetingError::Identity | MeetingError::Refused(Reason::Identity, _))
}

impl LinkRow {
    fn dialed(&mut self, place: u8) -> Option<&mut (bool, usize)> {
        self.rails.as_mut()?.dials.as_mut()?.places.get_mut(usize::from(place))
    }

    fn is_of(&self, proved: &Proved) -> bool {
        self.identity == proved.identity
            && self.rails.as_ref().is_some_and(|rails| rails.node == proved.node)
    }
}
