//! What one look at running processes may cost, whatever they answer.
//!
//! One budget is shared by the users whose processes are looked at. A user may take more than an equal
//! share only while that is left over: the heaviest user goes short first, and no user keeps another from
//! an equal share. So a look costs at most twice what stands here, and [`ANSWER_BYTES_FREE`] for each name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What is shared.
#[derive(Clone, Copy)]
pub enum Of {
    /// Services that are asked.
    Names,
    /// Links that are kept of their answers, and refusals.
    Links,
    /// Memory of their answers.
    Bytes,
}

const MAX: [usize; 3] = [512, 2048, 32 << 20];

/// Bytes of each answer that are not counted, so that a process with few links is seen beside those of its
/// user that have many.
pub const ANSWER_BYTES_FREE: usize = 32 << 10;

/// What is left of one look.
pub struct Budget {
    users: usize,
    used: Mutex<[Used; 3]>,
}

#[derive(Default)]
struct Used {
    all: usize,
    of: HashMap<String, usize>,
}

impl Budget {
    /// For the processes of so many users.
    pub fn of_users(users: usize) -> Self {
        Self { users: users.max(1), used: Mutex::default() }
    }

    /// Takes `count` for `user`, or nothing of it: `false`.
    pub fn take(&self, user: &str, of: Of, count: usize) -> bool {
        let (used, max) = (
            &mut self.used.lock().unwrap_or_else(PoisonError::into_inner)[of as usize],
            MAX[of as usize],
        );
        let own = used.of.get(user).copied().unwrap_or(0) + count;
        let may = used.all + count <= max || own <= max / self.users;
        if may {
            used.all += count;
            used.of.insert(user.into(), own);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_goes_short_and_each_other_has_an_equal_share_all_the_same() {
        let budget = Budget::of_users(4);
        let take = |user| (0..).take_while(|_| budget.take(user, Of::Names, 1)).count();
        assert_eq!(take("heavy"), 512);
        for user in ["a", "b", "c"] {
            assert_eq!(take(user), 128, "{user}");
            assert!(!budget.take(user, Of::Names, 1) && budget.take(user, Of::Links, 1));
        }
        assert!(!budget.take("heavy", Of::Names, 1));
    }
}
