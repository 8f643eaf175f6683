//! The number of connections: of strangers by their account, of hosts with a proven identity by
//! that.

use super::admission::{BegunStrangers, Stranger, StrangerAccount, StrangerStage, Strangers};
use super::{Came, HostRow, HostsShared, HostsState, LinkRow, Met, Refused};
use core::sync::atomic::Ordering;
use std::net::SocketAddr;

impl HostsShared {
    /// Admits one more stranger; if there are then too many, one of them gives way.
    pub(super) fn let_in(
        &self,
        state: &mut HostsState,
        strangers: &mut Strangers,
        came: Came,
    ) -> u64 {
        let (id, row) = (state.new_id(), HostRow::Came(came));
        row.stranger(id).into_iter().for_each(|stranger| strangers.add(stranger));
        state.rows.insert(id, row);
        if let Some(excess) = strangers.take_excess(self.config.half_open_max as usize) {
            self.give_way(state, excess);
        }
        id
    }

    /// Makes room to answer one more connection of an account: if the limit is reached, one gives
    /// way.
    pub(super) fn make_room_for_one(&self, state: &mut HostsState, account: StrangerAccount) {
        let begun: BegunStrangers = state.strangers().collect();
        if let Some(oldest) = begun.gives_way(account) {
            self.give_way(state, oldest);
        }
    }

    fn give_way(&self, state: &mut HostsState, id: u64) {
        self.count_refused(Refused::HalfOpen);
        self.forget(state, id);
    }
}

impl HostsState {
    /// The connections that have proved nothing, the oldest first.
    pub(super) fn strangers(&self) -> impl Iterator<Item = Stranger> {
        self.rows.iter().filter_map(|(id, row)| row.stranger(*id))
    }

    /// All connections except those of strangers, in any state. Strangers have a limit of their
    /// own, and take no place from the others.
    pub(super) fn connections(&self) -> usize {
        self.rows.len() - self.strangers().count()
            + self.links.len()
            + self.more.load(Ordering::Relaxed)
    }

    /// The number of connections of one identity, in any state; and the number of them that wait
    /// for the application's answer. Locks no link.
    pub(super) fn of_identity(&self, identity: &str) -> (usize, usize) {
        let links = self.links.values().filter(|row| row.identity == identity);
        let links: usize = links.map(LinkRow::connections).sum();
        let (mut asked, mut leaving) = (0, 0);
        for row in self.rows.values() {
            match row {
                HostRow::Meeting(met) => {
                    let wants = met.wants.as_ref();
                    asked += usize::from(wants.is_some_and(|wants| wants.1.identity == identity));
                }
                HostRow::Leaving(row) if row.identity.as_deref() == Some(identity) => {
                    leaving += row.live.as_ref().map_or(1, |live| live.connections());
                }
                HostRow::Leaving(_)
                | HostRow::Dialing(_)
                | HostRow::Near(..)
                | HostRow::Came(_) => {}
            }
        }
        (links + asked + leaving, asked)
    }
}

impl HostRow {
    /// The address of a connection that has proved nothing.
    pub(super) fn strangers_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Came(came) => Some(came.address),
            Self::Meeting(met) if met.is_stranger() => Some(met.address),
            _ => None,
        }
    }

    /// A connection that has proved nothing, in the form that `admission` uses.
    pub(super) fn stranger(&self, id: u64) -> Option<Stranger> {
        match self {
            Self::Came(came) => {
                let (account, is_due) = (came.account, came.is_due);
                Some(Stranger { id, account, stage: StrangerStage::Came, is_due })
            }
            Self::Meeting(met) if met.is_stranger() => {
                let since_ns = met.began_ns;
                let stage = match met.meeting.channel.is_open() {
                    true => StrangerStage::Answered { since_ns },
                    false => StrangerStage::Begun { since_ns },
                };
                Some(Stranger { id, account: met.account?, stage, is_due: met.is_due })
            }
            _ => None,
        }
    }
}

impl Met {
    /// Whether this is an accepted connection that has proved nothing.
    pub(super) fn is_stranger(&self) -> bool {
        self.account.is_some() && self.meeting.is_unproved()
    }
}

impl LinkRow {
    /// The link's number of connections: one, or its number of live rails.
    pub(super) fn connections(&self) -> usize {
        self.rails.as_ref().map_or(1, |rails| rails.live().connections())
    }
}
