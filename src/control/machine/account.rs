//! What each user has taken, and what is left for others.
//!
//! A place that somebody holds without having paid for it (a connection that says nothing, a link
//! whose memory has not come) is taken from the user who has most of them. The last links are kept
//! for users who have none.

use alloc::collections::BTreeMap;

/// A user, or all those whose number is unknown here.
pub(super) type User = Option<u32>;

/// What one user has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Connections that this process accepted.
    pub connections: u32,
    /// Of them, those that have said nothing.
    pub silent: u32,
    /// Of them, those that have been welcomed and have yet to pay.
    pub unpaid: u32,
    /// Links that the user asked for, and places for them.
    pub links: u32,
    /// Bytes mapped for links that the user asked for.
    pub bytes: u64,
    /// Apertures that this process holds, whoever asked for their links.
    pub apertures: u32,
    /// Threads that receive a descriptor of this user's, those that a descriptor has stopped
    /// included.
    pub receivers: u32,
}

impl Account {
    /// Connections that have no place for a link.
    pub fn waiting(&self) -> u32 {
        self.connections - self.links
    }
}

#[derive(Debug, Default)]
pub(super) struct Accounts {
    users: BTreeMap<User, Account>,
    /// Of all users.
    pub links: u32,
    /// Of all users.
    pub receivers: u32,
}

impl Accounts {
    pub fn of(&mut self, user: User) -> &mut Account {
        self.users.entry(user).or_default()
    }

    pub fn get(&self, user: User) -> Account {
        self.users.get(&user).copied().unwrap_or_default()
    }

    pub fn forget_if_empty(&mut self, user: User) {
        if self.users.get(&user) == Some(&Account::default()) {
            self.users.remove(&user);
        }
    }

    /// Connections of all users that have no place for a link.
    pub fn waiting(&self) -> u32 {
        self.users.values().map(Account::waiting).sum()
    }

    /// Who has most of something.
    pub fn most(&self, of: impl Fn(&Account) -> u32) -> Option<User> {
        self.users.iter().max_by_key(|row| of(row.1)).map(|row| *row.0)
    }

    /// Whether `user` may have one more of `max` places of which `taken` are taken, when the last
    /// of them are kept for users who have none.
    pub fn has_place(taken: u32, own: u32, max: u32) -> bool {
        let kept = if own == 0 { 0 } else { max / 8 };
        taken < max.saturating_sub(kept)
    }

    /// Users who have taken anything.
    pub fn users(&self) -> usize {
        self.users.values().filter(|account| **account != Account::default()).count()
    }
}
