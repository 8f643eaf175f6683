//! Decides a client's request to a server of this process, once the client has proved itself.
//!
//! Never: a program sees a connection that only asks a question.

use super::hello::{Answer, Wants};
use super::links::peer;
use super::meeting::Proved;
use super::said::Said;
use super::{
    ASKED_PER_IDENTITY_MAX, ASKED_REFUSED, HostRow, HostsShared, HostsState, Met, RequestId,
};
use crate::control::names::Access;
use crate::control::shell::ControlEvent;
use crate::control::{Accept, GREETING_BYTES_MAX, Reason};
use std::format;
use std::sync::Arc;
use std::vec::Vec;

/// The text of the refusal of a host that may not connect.
const NOT_LET_IN: &str = "this service is not for other hosts, but for those that the setting links_from \
                          (HAMLYN_LINKS_FROM) of its process names";

fn too_many(most: usize) -> Answer {
    let text =
        format!("as many links and connections to other hosts as it may ({most}, links_max)");
    Answer::no(Reason::Links, &text)
}

impl HostsShared {
    /// At a server: the client has proved itself and sent its request.
    pub(super) fn wanted(
        self: &Arc<Self>,
        state: &mut HostsState,
        id: u64,
        wants: Wants,
        proved: Proved,
    ) {
        let is_own = proved.identity == self.own.keys.own_identity();
        let is_named = self.config.links_from.0.contains(&proved.identity);
        let answer = match state.services.get(&wants.service) {
            None => Err(Answer::NoService),
            Some((access, accept)) => match access {
                Access::Anyone => Ok(accept.clone()),
                Access::SameUser if is_own => Ok(accept.clone()),
                Access::SameUser | Access::Group(_) if is_named => Ok(accept.clone()),
                Access::SameUser | Access::Group(_) => Err(Answer::no(Reason::User, NOT_LET_IN)),
            },
        };
        state.links.retain(|_, row| row.is_used());
        let (own, asked) = state.of_identity(&proved.identity);
        let (before, joins) = match state.rows.get(&id) {
            Some(HostRow::Meeting(met)) => Said::split(&met.meeting.heard),
            _ => (&[][..], None),
        };
        let asks = matches!(joins, Some(Said::Asks));
        let for_figures = asks && matches!(Said::split(before).1, Some(Said::Figures));
        let joins = joins.filter(|said| matches!(said, Said::Join { .. }));
        // This connection is among them.
        let (all, most) = (state.connections(), self.config.links_max as usize);
        let is_full = all > most;
        let is_crowd = all > most + self.config.half_open_max as usize;
        if is_crowd || own >= 2 * self.config.connections_per_user_max as usize {
            // It gets no answer, which would keep another connection.
            if let Some(HostRow::Meeting(met)) = state.rows.get(&id) {
                // Counted under the service's name if it is served; else the name is the host's
                // invention.
                let answer = match answer {
                    Err(Answer::NoService) => Answer::NoService,
                    _ if is_crowd => too_many(most),
                    _ => Answer::no(Reason::Connections, ""),
                };
                self.note_refused(met.address, &proved, wants.service, &answer);
            }
            return self.forget(state, id);
        }
        if for_figures && own < self.config.connections_per_user_max as usize {
            return self.figures_asked(state, id, wants, proved);
        }
        let answer = match answer {
            Ok(_) if is_full => Err(too_many(most)),
            Ok(_) if own >= self.config.connections_per_user_max as usize => {
                Err(Answer::no(Reason::Connections, ""))
            }
            Ok(Accept::Ask) if asked >= ASKED_PER_IDENTITY_MAX => {
                Err(Answer::no(Reason::Connections, ASKED_REFUSED))
            }
            Ok(_) if wants.greeting.len() > GREETING_BYTES_MAX => {
                Err(Answer::no(Reason::Malformed, "the greeting is too long"))
            }
            answer => answer,
        };
        if let Some(said) = joins
            && !is_full
            && own < self.config.connections_per_user_max as usize
        {
            let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return };
            return self.rail_asked(state, id, *met, wants, &proved, said);
        }
        let Some(HostRow::Meeting(met)) = state.rows.get_mut(&id) else { return };
        match answer {
            // The host is told that it may connect, and the connection ends: this is no refusal,
            // and the program is not asked.
            Ok(_) if asks => {
                let Some(HostRow::Meeting(mut met)) = state.rows.remove(&id) else { return };
                self.tell_where(state, &mut met, &wants, &proved);
                let answer = Answer::Yes(Vec::new());
                self.refuse(state, id, met.meeting, proved.identity, &answer);
            }
            Ok(Accept::Ask) => {
                met.deadline_ns = self.deadline();
                let peer = peer(met.address, &proved, wants.service.clone());
                let greeting = wants.greeting.clone();
                met.wants = Some((wants, proved));
                let id = RequestId(id);
                self.inbox.put_of_host(ControlEvent::Request { id, peer, greeting });
            }
            Ok(Accept::Automatic(greeting)) => {
                let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return };
                self.accept(state, *met, wants, proved, greeting, None);
            }
            Err(answer) => {
                let Some(HostRow::Meeting(met)) = state.rows.remove(&id) else { return };
                self.note_refused(met.address, &proved, wants.service, &answer);
                self.refuse(state, id, met.meeting, proved.identity, &answer);
            }
        }
    }

    /// Takes out a request that waits for the application's answer.
    pub(super) fn take_asked(
        &self,
        state: &mut HostsState,
        request: RequestId,
    ) -> Option<(Met, Wants, Proved)> {
        if !matches!(state.rows.get(&request.0), Some(HostRow::Meeting(met)) if met.wants.is_some())
        {
            return None;
        }
        let Some(HostRow::Meeting(mut met)) = state.rows.remove(&request.0) else { return None };
        let (wants, proved) = met.wants.take()?;
        Some((*met, wants, proved))
    }
}
