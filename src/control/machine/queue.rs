//! Who waits for something of which each user may have so much at a time, and whose turn it is.
//!
//! Each user has a line of his own, of which the first alone is looked at; users who have as much as
//! they may are not looked at at all. So however many wait, and whoever they are, finding out whose
//! turn it is costs the same.

use super::account::User;
use alloc::collections::{BTreeMap, BTreeSet};

/// Those of one user.
#[derive(Debug)]
struct Line<T> {
    all: BTreeSet<T>,
    /// How much the user has of what they wait for.
    taken: u32,
}

/// `T` names one that waits; the smaller, the longer.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// Of what they wait for, most of one user.
    own_max: u32,
    lines: BTreeMap<User, Line<T>>,
    /// The users who wait and may have more: how much they have, and the first in their line.
    turns: BTreeSet<(u32, T, User)>,
}

impl<T: Ord + Copy> Queue<T> {
    /// Of what is waited for, each user may have `own_max`.
    pub fn new(own_max: u32) -> Self {
        Self { own_max, lines: BTreeMap::new(), turns: BTreeSet::new() }
    }

    fn change(&mut self, user: User, change: impl FnOnce(&mut Line<T>)) {
        let own_max = self.own_max;
        let turn = |line: &Line<T>| {
            let first = line.all.first().filter(|_| line.taken < own_max);
            first.map(|first| (line.taken, *first, user))
        };
        let line =
            self.lines.entry(user).or_insert_with(|| Line { all: BTreeSet::new(), taken: 0 });
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

    /// How much a user has of what is waited for.
    pub fn set_taken(&mut self, user: User, taken: u32) {
        self.change(user, |line| line.taken = taken);
    }

    /// Whose turn it is: of the users who have least, the one who has waited longest.
    pub fn first(&self) -> Option<(User, T)> {
        self.turns.first().map(|turn| (turn.2, turn.1))
    }
}
