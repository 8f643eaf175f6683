//! Connections that wait for something of which each user has a maximum at a time, and their turns.
//!
//! Each user has a queue of its own, of which only the first entry is looked at; users at their
//! maximum are not looked at. So finding the next turn costs the same for any number of waiting
//! connections of any users.

use super::account::User;
use alloc::collections::{BTreeMap, BTreeSet};

/// The entries of one user.
#[derive(Debug)]
struct UserLine<T> {
    all: BTreeSet<T>,
    /// The number of units that the user has.
    taken: u32,
}

/// `T` names a waiting entry; the smaller, the older.
#[derive(Debug)]
pub(super) struct UserQueue<T> {
    /// Most units of one user.
    own_max: u32,
    lines: BTreeMap<User, UserLine<T>>,
    /// The users who wait and may have more: their units, and the first entry of their queue.
    turns: BTreeSet<(u32, T, User)>,
}

impl<T: Ord + Copy> UserQueue<T> {
    /// A queue for something of which each user may have `own_max` units.
    pub fn new(own_max: u32) -> Self {
        Self { own_max, lines: BTreeMap::new(), turns: BTreeSet::new() }
    }

    fn change(&mut self, user: User, change: impl FnOnce(&mut UserLine<T>)) {
        let own_max = self.own_max;
        let turn = |line: &UserLine<T>| {
            let first = line.all.first().filter(|_| line.taken < own_max);
            first.map(|first| (line.taken, *first, user))
        };
        let line =
            self.lines.entry(user).or_insert_with(|| UserLine { all: BTreeSet::new(), taken: 0 });
        let before = turn(line);
        change(line);
        let after = turn(line);
        if line.all.is_empty() && line.taken == 0 {
            self.lines.remove(&user);
        }
        if before != after {
            if let Some(before) = before {
                self.turns.remove(&before);
            }
            self.turns.extend(after);
        }
    }

    pub fn put(&mut self, user: User, one: T) {
        self.change(user, |line| {
            line.all.insert(one);
        });
    }

    pub fn remove(&mut self, user: User, one: T) {
        self.change(user, |line| {
            line.all.remove(&one);
        });
    }

    /// Sets the number of units that a user has.
    pub fn set_taken(&mut self, user: User, taken: u32) {
        self.change(user, |line| line.taken = taken);
    }

    /// The next in turn: of the users with the fewest units, the one who has waited longest.
    pub fn first(&self) -> Option<(User, T)> {
        self.turns.first().map(|turn| (turn.2, turn.1))
    }
}
