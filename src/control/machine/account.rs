//! Accounts: each user's use of places and bytes, and the rest that is left for others.
//!
//! A place that a user holds without having paid for it (a silent connection, a link
//! whose memory has not come) is taken from the user who has most of them. The last links are kept
//! for users who have none.
//!
//! The order of users by their counts, and the totals, are updated whenever an account changes, so
//! that asking costs the same for any number of users.

use alloc::collections::{BTreeMap, BTreeSet};

/// A user, or all those whose number is unknown here.
pub(super) type User = Option<u32>;

/// The places and bytes of one user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UserAccount {
    /// Connections that this process accepted.
    pub connections: u32,
    /// Those of them that have sent nothing.
    pub silent: u32,
    /// Those of them that have been heard and have yet to pay.
    pub unpaid: u32,
    /// Links that the user asked for, and places for them.
    pub links: u32,
    /// Bytes mapped for links that the user asked for.
    pub bytes: u64,
    /// Apertures that this process holds, for links that either end asked for.
    pub apertures: u32,
    /// Threads that receive a descriptor of this user's, those that a descriptor has stopped
    /// included.
    pub receivers: u32,
}

impl UserAccount {
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

/// The kinds of connections by which users are ranked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rank {
    /// Those that have sent nothing.
    Silent,
    /// Those that have no place for a link.
    Waiting,
    /// Those that have been heard and have yet to pay.
    Unpaid,
}

const RANKS: [Rank; 3] = [Rank::Silent, Rank::Waiting, Rank::Unpaid];

#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Users with anything in their account.
    users: BTreeMap<User, UserAccount>,
    /// For each rank, the users by their count, without those at zero.
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
    pub fn get(&self, user: User) -> UserAccount {
        self.users.get(&user).copied().unwrap_or_default()
    }

    /// The one way in which an account changes.
    pub fn change(&mut self, user: User, change: impl FnOnce(&mut UserAccount)) {
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
        if after == UserAccount::default() {
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

    /// The user who has most of something.
    pub fn most(&self, rank: Rank) -> Option<User> {
        self.ranks[rank as usize].last().map(|row| row.1)
    }

    /// Whether `user` may have one more of `max` places of which `taken` are taken, when the last
    /// of them are kept for users who have none.
    pub fn has_place(taken: u32, own: u32, max: u32) -> bool {
        let kept = if own == 0 { 0 } else { max / 8 };
        taken < max.saturating_sub(kept)
    }

    /// Bytes charged to the user who has most of them. Walks over all users.
    pub fn bytes_of_one_user(&self) -> u64 {
        self.users.values().map(|account| account.bytes).max().unwrap_or(0)
    }

    /// The number of users with anything in their account.
    pub fn users(&self) -> usize {
        self.users.len()
    }
}
