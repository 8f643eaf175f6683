//! The table of the example `lock_manager`, against the simplest rules; `examples/lock_manager.rs`
//! is the program, with clients of which one dies.

#[path = "../examples/common/locks.rs"]
mod locks;

use locks::{Grant, LOCKS_MAX, Locks, Mode, Refused};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn grant(owner: u8, lock: u32, mode: Mode) -> Grant<u8> {
    Grant { owner, lock, mode }
}

#[test]
fn shared_owners_share_and_an_exclusive_one_waits_for_all_of_them() {
    let mut locks = Locks::default();
    for owner in [1, 2] {
        let granted = locks.ask(owner, 7, Mode::Shared);
        assert_eq!(granted, Ok(Some(grant(owner, 7, Mode::Shared))));
    }
    assert_eq!(locks.ask(3, 7, Mode::Exclusive), Ok(None));
    // Another lock is another matter.
    assert!(locks.ask(3, 8, Mode::Exclusive).unwrap().is_some());
    assert_eq!(locks.release(1, 7), Ok(vec![]));
    assert_eq!(locks.release(2, 7), Ok(vec![grant(3, 7, Mode::Exclusive)]));
}

#[test]
fn who_shares_does_not_overtake_who_waits_and_is_granted_with_those_behind_it() {
    let mut locks = Locks::default();
    locks.ask(1, 0, Mode::Shared).unwrap();
    assert_eq!(locks.ask(2, 0, Mode::Exclusive), Ok(None));
    for owner in [3, 4] {
        assert_eq!(locks.ask(owner, 0, Mode::Shared), Ok(None));
    }
    assert_eq!(locks.ask(5, 0, Mode::Exclusive), Ok(None));
    assert_eq!(locks.release(1, 0), Ok(vec![grant(2, 0, Mode::Exclusive)]));
    let shared = [3, 4].map(|owner| grant(owner, 0, Mode::Shared));
    assert_eq!(locks.release(2, 0), Ok(shared.to_vec()));
    // One that gives up waiting lets those behind it go on.
    assert_eq!(locks.ask(6, 0, Mode::Shared), Ok(None));
    assert_eq!(locks.release(5, 0), Ok(vec![grant(6, 0, Mode::Shared)]));
}

#[test]
fn what_an_owner_had_or_waited_for_goes_on_when_it_dies() {
    let mut locks = Locks::default();
    locks.ask(1, 0, Mode::Exclusive).unwrap();
    locks.ask(2, 1, Mode::Exclusive).unwrap();
    locks.ask(1, 1, Mode::Exclusive).unwrap();
    locks.ask(3, 1, Mode::Shared).unwrap();
    locks.ask(3, 0, Mode::Shared).unwrap();
    assert_eq!(locks.owner_is_gone(1), [grant(3, 0, Mode::Shared)]);
    assert_eq!(locks.owner_is_gone(1), []);
    assert_eq!(locks.owner_is_gone(2), [grant(3, 1, Mode::Shared)]);
    assert_eq!(locks.owner_is_gone(3), []);
    assert!(locks.is_empty());
}

#[test]
fn what_makes_no_sense_or_is_too_much_is_refused_and_changes_nothing() {
    let mut locks = Locks::default();
    assert_eq!(locks.release(1, 0), Err(Refused::NotHeld));
    locks.ask(1, 0, Mode::Shared).unwrap();
    assert_eq!(locks.ask(1, 0, Mode::Exclusive), Err(Refused::Again));
    assert_eq!(locks.release(2, 0), Err(Refused::NotHeld));
    for lock in 1..LOCKS_MAX as u32 {
        locks.ask(1, lock, Mode::Shared).unwrap();
    }
    assert_eq!(locks.ask(1, 1000, Mode::Shared), Err(Refused::TooMany));
    assert!(locks.ask(2, 1000, Mode::Shared).unwrap().is_some());
    locks.release(1, 5).unwrap();
    assert!(locks.ask(1, 1001, Mode::Shared).unwrap().is_some());
}

proptest! {
    /// An exclusive owner is alone, no request is forgotten, and at the end none is left.
    #[test]
    fn whatever_is_asked_a_lock_is_one_owners_or_shared(
        steps in proptest::collection::vec((0u8..5, 0u32..3, 0u8..8), 1..200)
    ) {
        let mut locks = Locks::default();
        let mut held: BTreeMap<(u32, u8), Mode> = BTreeMap::new();
        let mut asked: BTreeMap<(u32, u8), Mode> = BTreeMap::new();
        for (owner, lock, what) in steps.into_iter().chain((0..5).map(|owner| (owner, 0, 7))) {
            let granted = match what {
                0..5 => {
                    let mode = if what < 3 { Mode::Shared } else { Mode::Exclusive };
                    let known = held.contains_key(&(lock, owner)) || asked.contains_key(&(lock, owner));
                    let answer = locks.ask(owner, lock, mode);
                    prop_assert_eq!(answer == Err(Refused::Again), known);
                    if !known {
                        asked.insert((lock, owner), mode);
                    }
                    answer.unwrap_or_default().into_iter().collect()
                }
                5 | 6 => {
                    let known = [held.remove(&(lock, owner)), asked.remove(&(lock, owner))];
                    let answer = locks.release(owner, lock);
                    prop_assert_eq!(answer.is_ok(), known != [None, None]);
                    answer.unwrap_or_default()
                }
                _ => {
                    held.retain(|(_, of), _| *of != owner);
                    asked.retain(|(_, of), _| *of != owner);
                    locks.owner_is_gone(owner)
                }
            };
            for Grant { owner, lock, mode } in granted {
                prop_assert_eq!(asked.remove(&(lock, owner)), Some(mode));
                held.insert((lock, owner), mode);
            }
            for of in 0..3 {
                let holders = held.range((of, 0)..=(of, 9));
                let modes: Vec<Mode> = holders.map(|(_, mode)| *mode).collect();
                prop_assert!(modes.len() < 2 || !modes.contains(&Mode::Exclusive));
                // A waiting owner waits for another.
                let waits = asked.range((of, 0)..=(of, 9)).next().is_some();
                prop_assert!(!waits || !modes.is_empty());
            }
        }
        prop_assert!(held.is_empty() && asked.is_empty() && locks.is_empty());
    }
}
