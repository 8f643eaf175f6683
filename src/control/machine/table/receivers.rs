//! Connections that wait for a receiver, and those whose sockets receivers read.
//!
//! A connection has one place among those that wait, for any number of requests: the place of its
//! oldest request. Never: it has a place while a receiver works for it; a running receiver counts
//! to no user.

use super::{ConnectionStage, Table, TableConnection, WantedMemory};
use crate::control::frame::Memory;
use crate::control::machine::ConnectionId;
use crate::control::machine::account::User;

impl Table {
    /// The number of pieces of memory that wait for a receiver.
    pub fn wants(&self) -> usize {
        self.wants.values().map(WantedMemory::len).sum()
    }

    /// A connection's place among those that want a receiver; `None`: it wants none, or has one.
    fn turn(&self, id: ConnectionId) -> Option<(u64, ConnectionId)> {
        let is_free = self.rows.get(&id)?.receiving_until_ns.is_none();
        let first = self.wants.get(&id)?.front().filter(|_| is_free)?;
        Some((first.0, id))
    }

    /// Changes a connection's requests for receivers, or whether it has one.
    pub(super) fn change_wants(
        &mut self,
        id: ConnectionId,
        change: impl FnOnce(&mut TableConnection, &mut WantedMemory),
    ) {
        let before = self.turn(id);
        let Some(c) = self.rows.get_mut(&id) else { return };
        let user = c.who.uid;
        let mut wants = self.wants.remove(&id).unwrap_or_default();
        change(c, &mut wants);
        if !wants.is_empty() {
            self.wants.insert(id, wants);
        }
        let after = self.turn(id);
        if before != after {
            if let Some(before) = before {
                self.wanting.remove(user, before);
            }
            if let Some(after) = after {
                self.wanting.put(user, after);
            }
        }
    }

    /// Memory waits for a receiver.
    pub fn want(&mut self, id: ConnectionId, memory: Memory) {
        self.wanted += 1;
        let wanted = self.wanted;
        self.change_wants(id, |_, wants| wants.push_back((wanted, memory)));
    }

    /// The memory no longer waits.
    pub fn no_longer_want(&mut self, id: ConnectionId, memory: Memory) {
        self.change_wants(id, |_, wants| wants.retain(|row| row.1 != memory));
    }

    /// A connection's oldest request, which is removed.
    pub fn take_want(&mut self, id: ConnectionId) -> Option<Memory> {
        let mut taken = None;
        self.change_wants(id, |_, wants| taken = wants.pop_front());
        taken.map(|row| row.1)
    }

    /// A receiver takes a connection's memory, and should have ended soon after `until_ns`.
    /// `reads`: it also reads the frames of its socket.
    pub fn receiver_started(&mut self, id: ConnectionId, until_ns: u64, reads: bool) {
        let Some(user) = self.user_of(id) else { return };
        self.change_wants(id, |c, _| c.receiving_until_ns = Some(until_ns));
        if reads {
            self.unsettled.insert(id);
        }
        self.accounts.receivers += 1;
        self.count_receivers(user, |receivers| receivers + 1);
    }

    /// A receiver of this user's has ended; its connection may be gone.
    pub fn receiver_ended(&mut self, id: ConnectionId, user: User) {
        self.change_wants(id, |c, _| c.receiving_until_ns = None);
        if !self.rows.get(&id).is_some_and(|c| matches!(c.stage, ConnectionStage::Parting(_))) {
            self.unsettled.remove(&id);
        }
        self.accounts.receivers = self.accounts.receivers.saturating_sub(1);
        self.count_receivers(user, |receivers| receivers.saturating_sub(1));
    }

    fn count_receivers(&mut self, user: User, count: impl FnOnce(u32) -> u32) {
        self.accounts.change(user, |account| account.receivers = count(account.receivers));
        self.wanting.set_taken(user, self.accounts.get(user).receivers);
    }
}
