//! What each user has taken, and what is left for others.
//!
//! A place that somebody holds without having paid for it (a connection that says nothing, a link
//! whose memory has not come) is taken from the user who has most of them. The last links are kept
//! for users who have none.
//!
//! Who has most, and how many all have, is kept in order while accounts change, so that asking costs
//! the same however many users there are.

use alloc::collections::{BTreeMap, BTreeSet};

/// A user, or all those whose number is unknown here.
pub(super) type User = Option<u32>;

/// What one user has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Connections that this process accepted.
    pub connections: u32,
    /// Of them, those that have said nothing.
    pub silent: u32,
    /// Of them, those that have been heard and have yet to pay.
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
    fn waiting(&self) -> u32 {
        self.connections - self.links
    }

    fn of(&self, rank: Rank) -> u32 {
        match rank {
            Rank::Silent => self.silent,
            Rank::Waiting => self.waiting(),
            Rank::Unpaid => self.unpaid,
        }
    }
}

/// Connections of which somebody has most.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rank {
    /// Those that have said nothing.
    Silent,
    /// Those that have no place for a link.
    Waiting,
    /// Those that have been heard and have yet to pay.
    Unpaid,
}

const RANKS: [Rank; 3] = [Rank::Silent, Rank::Waiting, Rank::Unpaid];

#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Those who have taken anything.
    users: BTreeMap<User, Account>,
    /// Of each rank, who has how many; none that has none.
    ranks: [BTreeSet<(u32, User)>; RANKS.len()],
    /// Connections of all users that have no place for a link.
    waiting: u32,
    /// Apertures held for all users.
    apertures: u32,
    /// Of all users.
    pub links: u32,
    /// Of all users.
    pub receivers: u32,
}

impl Accounts {
    pub fn get(&self, user: User) -> Account {
        self.users.get(&user).copied().unwrap_or_default()
    }

    /// The one way in which an account changes.
    pub fn change(&mut self, user: User, change: impl FnOnce(&mut Account)) {
        let account = self.users.entry(user).or_default();
        let before = *account;
        change(account);
        let after = *account;
        for (rank, row) in RANKS.into_iter().zip(&mut self.ranks) {
            let (old, new) = (before.of(rank), after.of(rank));
            if old == new {
                continue;
            }
            row.remove(&(old, user));
            if new != 0 {
                row.insert((new, user));
            }
        }
        self.waiting = self.waiting - before.waiting() + after.waiting();
        self.apertures = self.apertures - before.apertures + after.apertures;
        if after == Account::default() {
            self.users.remove(&user);
        }
    }

    /// Connections of all users that have no place for a link.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Apertures held for all users.
    pub fn apertures(&self) -> u32 {
        self.apertures
    }

    /// Who has most of something.
    pub fn most(&self, rank: Rank) -> Option<User> {
        self.ranks[rank as usize].last().map(|row| row.1)
    }

    /// Whether `user` may have one more of `max` places of which `taken` are taken, when the last
    /// of them are kept for users who have none.
    pub fn has_place(taken: u32, own: u32, max: u32) -> bool {
        let kept = if own == 0 { 0 } else { max / 8 };
        taken < max.saturating_sub(kept)
    }

    /// Bytes charged to the user who has most of them. Walks over all.
    pub fn bytes_of_one_user(&self) -> u64 {
        self.users.values().map(|account| account.bytes).max().unwrap_or(0)
    }

    /// Users who have taken anything.
    pub fn users(&self) -> usize {
        self.users.len()
    }
}
