//! A lock manager's table: the holders of each lock, and its waiters in the order of their
//! requests. It does not handle messages: an owner is any value that identifies one, and grants are
//! returned.
#![allow(dead_code)]

use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With others that share.
    Shared,
    /// Alone.
    Exclusive,
}

/// The reason why an owner does not get a lock. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It holds the lock, or waits for it, already.
    Again,
    /// It neither holds it nor waits for it.
    NotHeld,
    /// It holds, or waits for, as many as it may.
    TooMany,
}

/// This owner has the lock from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<O> {
    pub owner: O,
    pub lock: u32,
    pub mode: Mode,
}

/// Locks that one owner may hold or wait for at once: the bound on a stranger's use of the table.
pub const LOCKS_MAX: usize = 64;

/// One lock: `holders` is never empty, and is one owner, or many that share.
#[derive(Debug)]
struct Lock<O> {
    mode: Mode,
    holders: Vec<O>,
    waiting: VecDeque<(O, Mode)>,
}

#[derive(Debug)]
pub struct Locks<O> {
    locks: BTreeMap<u32, Lock<O>>,
}

impl<O> Default for Locks<O> {
    fn default() -> Self {
        Self { locks: BTreeMap::new() }
    }
}

impl<O: Copy + PartialEq> Locks<O> {
    /// `Some`: granted at once. `None`: granted later, after earlier requests.
    pub fn ask(&mut self, owner: O, lock: u32, mode: Mode) -> Result<Option<Grant<O>>, Refused> {
        if self.locks.get(&lock).is_some_and(|held| held.names(owner)) {
            return Err(Refused::Again);
        }
        if self.locks.values().filter(|held| held.names(owner)).count() >= LOCKS_MAX {
            return Err(Refused::TooMany);
        }
        let grant = Some(Grant { owner, lock, mode });
        let Some(held) = self.locks.get_mut(&lock) else {
            let holders = vec![owner];
            self.locks.insert(lock, Lock { mode, holders, waiting: VecDeque::new() });
            return Ok(grant);
        };
        // A shared request does not overtake waiting ones: an exclusive owner would never have its
        // turn.
        if held.waiting.is_empty() && (held.mode, mode) == (Mode::Shared, Mode::Shared) {
            held.holders.push(owner);
            return Ok(grant);
        }
        held.waiting.push_back((owner, mode));
        Ok(None)
    }

    /// Gives a lock back, or stops waiting for it. Returns the new owners.
    pub fn release(&mut self, owner: O, lock: u32) -> Result<Vec<Grant<O>>, Refused> {
        let held = self.locks.get_mut(&lock).filter(|held| held.names(owner));
        let held = held.ok_or(Refused::NotHeld)?;
        held.holders.retain(|holder| *holder != owner);
        held.waiting.retain(|(waiting, _)| *waiting != owner);
        let granted = held.grant(lock);
        if held.holders.is_empty() {
            self.locks.remove(&lock);
        }
        Ok(granted)
    }

    /// The owner is dead: everything it held or waited for goes on without it.
    pub fn owner_is_gone(&mut self, owner: O) -> Vec<Grant<O>> {
        let named = self.locks.iter().filter(|(_, held)| held.names(owner)).map(|(lock, _)| *lock);
        let named: Vec<u32> = named.collect();
        named.into_iter().flat_map(|lock| self.release(owner, lock).unwrap_or_default()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}

impl<O: Copy + PartialEq> Lock<O> {
    fn names(&self, owner: O) -> bool {
        self.holders.contains(&owner) || self.waiting.iter().any(|(waiting, _)| *waiting == owner)
    }

    /// Gives the lock to those whose turn it is.
    fn grant(&mut self, lock: u32) -> Vec<Grant<O>> {
        let mut granted = Vec::new();
        while let Some((owner, mode)) = self.waiting.front().copied() {
            let fits = self.holders.is_empty() || (self.mode, mode) == (Mode::Shared, Mode::Shared);
            if !fits {
                break;
            }
            self.waiting.pop_front();
            self.mode = mode;
            self.holders.push(owner);
            granted.push(Grant { owner, lock, mode });
        }
        granted
    }
}
