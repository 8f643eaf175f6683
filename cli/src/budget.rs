//! The limit on the cost of one look at running processes, for any answers.
//!
//! All users whose processes are looked at share one budget. A user may take more than an equal
//! share only from the part that others leave: the heaviest user is cut first, and no user can keep
//! another from an equal share. So a look costs at most twice these limits, and
//! [`ANSWER_BYTES_FREE`] for each name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The resources that are shared.
#[derive(Clone, Copy)]
pub enum Of {
    /// Services to ask.
    Names,
    /// Links and refusals kept of their answers.
    Links,
    /// Memory of their answers.
    Bytes,
    /// Bytes of labels in a text for Prometheus, which repeats them in each row of a link.
    Labels,
}

const MAX: [usize; 4] = [512, 2048, 32 << 20, 16 << 20];

/// Bytes of each answer that are not counted, so that a process with few links is seen beside
/// processes of the same user with many.
pub const ANSWER_BYTES_FREE: usize = 32 << 10;

/// The remaining budget of one look.
pub struct Budget {
    users: usize,
    used: Mutex<[Used; 4]>,
}

#[derive(Default)]
struct Used {
    all: usize,
    of: HashMap<String, usize>,
}

impl Budget {
    /// The budget of one look at processes of so many users.
    pub fn of_users(users: usize) -> Self {
        Self { users: users.max(1), used: Mutex::default() }
    }

    /// Takes all of `count` for `user`, or nothing and returns `false`.
    pub fn take(&self, user: &str, of: Of, count: usize) -> bool {
        let (used, max) = (
            &mut self.used.lock().unwrap_or_else(PoisonError::into_inner)[of as usize],
            MAX[of as usize],
        );
        let own = used.of.get(user).copied().unwrap_or(0) + count;
        let may = used.all + count <= max || own <= (max / self.users).max(1);
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
