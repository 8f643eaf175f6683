//! The last refusals and disconnections, with their reasons, for statistics.
//!
//! Pure: time is an argument. Strangers' words are kept as a short piece of checked text. Never:
//! more than [`KEPT_MAX`] entries are kept; one user's or host's refusals push out another's while
//! there are more of its own.

use crate::control::printable;
use crate::log::{Entry, Kind, LogAccount};
use core::fmt::Write;
use core::net::IpAddr;
use std::string::String;
use std::vec::Vec;

/// Entries that are kept.
const KEPT_MAX: usize = 16;
/// Most characters of a reason that are kept: the advice stands at its end.
const REASON_CHARS_MAX: usize = 480;

/// Equal refusals, and their number.
#[derive(Debug)]
struct EqualRefusals {
    /// The process is that of the last time.
    entry: Entry,
    count: u64,
    first_ns: u64,
    last_ns: u64,
}

/// A refusal of another host: by its address, without the port, which changes each time, and by its
/// proved identity, if it has one.
pub fn of_host(
    kind: Kind,
    address: IpAddr,
    identity: Option<&str>,
    service: String,
    why: &str,
) -> Entry {
    let mark = if why.is_empty() { "" } else { ": " };
    // They may hold any bytes: a host can ask for any name.
    let (service, why) = (printable(&service), printable(why));
    let (who, of) = match identity.map(printable) {
        Some(identity) => (identity.clone(), LogAccount::Host(identity)),
        None => ("which has proved nothing".into(), LogAccount::Strangers),
    };
    let reason = std::format!("host {address}, {who}{mark}{why}");
    Entry { kind, user: None, process: None, service, reason, of }
}

/// The last refusals, in the order in which each happened last.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<EqualRefusals>);

impl Refusals {
    pub fn add(&mut self, now_ns: u64, mut entry: Entry) {
        if let Some((end, _)) = entry.reason.char_indices().nth(REASON_CHARS_MAX) {
            entry.reason.truncate(end);
            entry.reason.push_str("..");
        }
        let is_same = |known: &EqualRefusals| {
            let (known, entry) = (&known.entry, &entry);
            (known.kind, known.user, &known.service, &known.reason)
                == (entry.kind, entry.user, &entry.service, &entry.reason)
        };
        let (mut count, mut first_ns) = (0, now_ns);
        if let Some(at) = self.0.iter().position(is_same) {
            let known = self.0.remove(at);
            (count, first_ns) = (known.count, known.first_ns);
        } else if self.0.len() >= KEPT_MAX {
            self.make_room(&entry.of);
        }
        self.0.push(EqualRefusals { entry, count: count + 1, first_ns, last_ns: now_ns });
    }

    /// Drops the oldest entry of the user or host who has most, counting the new one.
    fn make_room(&mut self, comes: &LogAccount) {
        let count = |whose: &LogAccount| {
            self.0.iter().filter(|known| known.entry.of == *whose).count()
                + usize::from(whose == comes)
        };
        let most = self.0.iter().map(|known| count(&known.entry.of)).max();
        let oldest = self.0.iter().position(|known| Some(count(&known.entry.of)) == most);
        if let Some(at) = oldest {
            self.0.remove(at);
        }
    }

    /// Lines of a name and a value, the last refusal first: `refusal.1.reason too many`.
    pub fn text(&self, now_ns: u64, text: &mut String) {
        let known = |number: Option<u32>| {
            number.map_or(String::from("unknown"), |number| std::format!("{number}"))
        };
        let ms_ago = |at_ns: u64| now_ns.saturating_sub(at_ns) / 1_000_000;
        for (i, EqualRefusals { entry, count, first_ns, last_ns }) in
            self.0.iter().rev().enumerate()
        {
            let number = i + 1;
            let Entry { kind, user, process, service, reason, .. } = entry;
            let kind = if *kind == Kind::SentAway { "sent-away" } else { "refused" };
            for (name, value) in [
                ("kind", kind.into()),
                ("user", known(*user)),
                ("process", known(*process)),
                ("service", service.clone()),
                ("reason", reason.clone()),
                ("count", std::format!("{count}")),
                ("first_ms_ago", std::format!("{}", ms_ago(*first_ns))),
                ("last_ms_ago", std::format!("{}", ms_ago(*last_ns))),
            ] {
                let _ = writeln!(text, "refusal.{number}.{name} {value}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: u32, reason: &str) -> Entry {
        let (kind, process, service) = (Kind::Refused, Some(9), String::from("x"));
        let (user, of, reason) = (Some(user), LogAccount::User(Some(user)), reason.into());
        Entry { kind, user, process, service, reason, of }
    }

    fn text(refusals: &Refusals, now_ns: u64) -> String {
        let mut text = String::new();
        refusals.text(now_ns, &mut text);
        text
    }

    #[test]
    fn the_same_again_counts_up_in_its_entry_and_comes_first() {
        let mut refusals = Refusals::default();
        refusals.add(1_000_000, of(1, "no place"));
        refusals.add(2_000_000, of(2, "no"));
        refusals.add(5_000_000, of(1, "no place"));
        let text = text(&refusals, 9_000_000);
        for line in [
            "refusal.1.user 1",
            "refusal.1.process 9",
            "refusal.1.service x",
            "refusal.1.reason no place",
            "refusal.1.count 2",
            "refusal.1.first_ms_ago 8",
            "refusal.1.last_ms_ago 4",
            "refusal.2.user 2",
            "refusal.2.count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains("refusal.3"), "{text}");
    }

    #[test]
    fn one_user_with_ever_new_reasons_pushes_out_its_own_and_no_other() {
        let mut refusals = Refusals::default();
        (2..5).for_each(|user| refusals.add(1, of(user, "no place")));
        (0..10_000).for_each(|i| refusals.add(2, of(1, &std::format!("reason {i}"))));
        assert_eq!(refusals.0.len(), KEPT_MAX);
        for user in 2..5 {
            assert!(refusals.0.iter().any(|known| known.entry.user == Some(user)), "{user}");
        }
        let text = text(&refusals, 3);
        assert!(text.starts_with("refusal.1.kind refused\nrefusal.1.user 1\n"), "{text}");
        assert!(text.contains("reason 9999\n") && !text.contains("reason 9986\n"), "{text}");
        // Nor do hosts without a proved identity push out one that has it.
        let mut refusals = Refusals::default();
        let host = |last: u8, identity, service: &str| {
            of_host(Kind::Refused, [10, 0, 0, last].into(), identity, service.into(), "no place")
        };
        refusals.add(1, host(1, Some("honest"), "x"));
        (0..100).for_each(|i| refusals.add(2, host(i, None, "")));
        (0..100).for_each(|i| refusals.add(3, host(i, Some("evil"), "x")));
        let reasons = || refusals.0.iter().map(|known| &known.entry.reason);
        assert!(reasons().any(|reason| reason.contains("honest")), "{:?}", refusals.0);
        assert!(reasons().any(|reason| reason.contains("proved nothing")), "{:?}", refusals.0);
        // If each has one, the oldest goes.
        let mut refusals = Refusals::default();
        (0..20).for_each(|user| refusals.add(u64::from(user), of(user, "no")));
        assert_eq!(refusals.0.first().unwrap().entry.user, Some(4));
    }

    #[test]
    fn of_a_long_reason_a_short_piece_is_kept() {
        let mut refusals = Refusals::default();
        refusals.add(1, of(1, &"\u{e4}".repeat(1000)));
        assert_eq!(refusals.0[0].entry.reason.chars().count(), REASON_CHARS_MAX + 2);
    }

    #[test]
    fn what_a_host_says_it_wants_makes_no_lines_of_its_own() {
        let asked = String::from("x\nlink.0.peer root");
        let mut refusals = Refusals::default();
        refusals.add(1, of_host(Kind::Refused, [10, 0, 0, 1].into(), Some("a\nb"), asked, "c\nd"));
        let text = text(&refusals, 1);
        assert!(text.lines().all(|line| line.starts_with("refusal.1.")), "{text}");
    }
}
