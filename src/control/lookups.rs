//! How many threads may look into strangers' directories, for each user whose names are looked for:
//! see [`within`](super::within).

use super::names::ServiceName;
use std::collections::HashMap;
use std::string::String;
use std::sync::{Arc, Mutex, PoisonError};

/// Lookups that may run at a time in all, of the names of one other user, and of one name of this
/// user's: the holder of the shared directory blocks lookups of names that do not exist, and a
/// program that tries one again and again needs others, too.
const LOOKUPS_MAX: usize = 256;
const LOOKUPS_OF_USER_MAX: usize = 8;
const LOOKUPS_OF_NAME_MAX: usize = 64;

/// The owner of the names that are looked for.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Whose {
    /// This user's, of this name.
    Own(String),
    /// A number can be written in many ways, and the writer of a seed chose one.
    Numbered(u32),
    Called(String),
}

impl Whose {
    fn of(service: &ServiceName) -> Self {
        match service.user() {
            None => Self::Own(service.name().into()),
            Some(user) => match user.parse() {
                Ok(number) => Self::Numbered(number),
                Err(_) => Self::Called(user.into()),
            },
        }
    }
}

/// The number of lookups that have not come back, by the owner of the names.
#[derive(Clone, Default)]
pub(super) struct Lookups(Arc<Mutex<HashMap<Whose, usize>>>);

/// A lookup, until it is dropped.
pub(super) struct Lookup {
    of: Lookups,
    whose: Whose,
}

impl Lookups {
    /// Counts one more; or returns why there may be none.
    pub(super) fn begin(&self, service: &ServiceName) -> Result<Lookup, String> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whose = Whose::of(service);
        let all: usize = running.values().sum();
        let own = running.get(&whose).copied().unwrap_or(0);
        if all >= LOOKUPS_MAX {
            return Err(std::format!("{all} lookups of names have not come back"));
        }
        match service.user() {
            Some(user) if own >= LOOKUPS_OF_USER_MAX => {
                let what = "lookups of names of user";
                return Err(std::format!("{own} {what} {user} have not come back: ask them why"));
            }
            None if own >= LOOKUPS_OF_NAME_MAX => {
                return Err(std::format!("{own} lookups of {service} have not come back"));
            }
            _ => {}
        }
        running.insert(whose.clone(), own + 1);
        Ok(Lookup { of: self.clone(), whose })
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let mut running = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_user_has_so_many_lookups_however_its_number_is_written() {
        let lookups = Lookups::default();
        let begin = |name: &str| lookups.begin(&name.parse().unwrap());
        let mut running = Vec::new();
        for zeros in 0..LOOKUPS_OF_USER_MAX {
            running.push(begin(&std::format!("{}7@x", "0".repeat(zeros))).unwrap());
        }
        for user in ["7", "07", "00000000000000000000000000000007"] {
            assert!(begin(&std::format!("{user}@y")).is_err(), "{user}");
        }
        // Those of other users, and its own, go on.
        running.push(begin("8@x").unwrap());
        running.push(begin("x").unwrap());
        running.remove(0);
        assert!(begin("7@y").is_ok());
    }

    #[test]
    fn one_name_that_is_looked_for_again_and_again_leaves_room_for_others() {
        let lookups = Lookups::default();
        let begin = |name: &str| lookups.begin(&name.parse().unwrap());
        let running: Vec<_> = (0..300).map_while(|_| begin("absent").ok()).collect();
        assert_eq!(running.len(), LOOKUPS_OF_NAME_MAX);
        assert!(begin("x").is_ok() && begin("7@absent").is_ok());
    }
}
