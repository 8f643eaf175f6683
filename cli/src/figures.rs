//! The statistics of a process, as `stat`, `why` and `top` read them. Another process wrote them,
//! perhaps of another user: they are only parsed, bounded and printed.
//!
//! Never: a name or a value is longer than [`CHARS_MAX`], except for two sentences; an answer makes
//! more of these than the look's [`Budget`] allows.

use crate::budget::{ANSWER_BYTES_FREE, Budget, Of};
use crate::words::duration;
use hamlyn::control::printable_bytes;
use std::collections::{BTreeMap, HashMap};

/// A process's report about itself: each line is a name, a space and a value.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// In the order in which they came.
    pub counters: Vec<(String, String)>,
    /// The first index of each name among `counters`, whose number the other process chooses.
    at: HashMap<String, usize>,
    /// By the link's number.
    pub links: BTreeMap<u32, Link>,
    /// The peers refused last, newest first.
    pub refusals: BTreeMap<u32, Refusal>,
    /// Lines left out, because there were too many; after [`LEFT_OUT_MAX`] no more are read.
    pub left_out: u64,
    /// Bytes taken by the other fields.
    bytes: usize,
}

/// Most characters of a name or a value. The library shortens the sentences, which stand in no
/// table.
const CHARS_MAX: usize = 128;
const SENTENCES: &[&str] = &["path", "reason"];
pub const LEFT_OUT_MAX: u64 = 1000;
/// Most figures of a process beside its links, of one link, and of one refusal.
const COUNTERS_MAX: usize = 1024;
const FIGURES_OF_ONE_MAX: usize = 64;
/// Overhead of a line beside its characters, and of a link beside its lines.
const LINE_BYTES: usize = 100;
const LINK_BYTES: usize = 1000;

/// The part of `text` that may be kept.
fn cut(text: &str) -> String {
    text.chars().take(CHARS_MAX).collect()
}

/// One link, as its process sees it; and whether the process is on another host, where process
/// numbers differ.
#[derive(Debug, Default, PartialEq)]
pub struct Link(pub BTreeMap<String, String>, pub bool);

/// A peer that was refused or disconnected, and how often for the same reason.
#[derive(Debug, Default, PartialEq)]
pub struct Refusal(pub BTreeMap<String, String>, pub bool);

impl Figures {
    /// Figures of a process on another host.
    #[cfg(feature = "tls")]
    pub fn of_host(text: &str) -> Self {
        let mut figures = Self::of(text);
        figures.are_of_host();
        figures
    }

    #[cfg(feature = "tls")]
    pub fn are_of_host(&mut self) {
        self.links.values_mut().for_each(|link| link.1 = true);
        self.refusals.values_mut().for_each(|refusal| refusal.1 = true);
    }

    /// Figures of a process that is asked alone.
    pub fn of(text: &str) -> Self {
        let (mut figures, budget) = (Self::default(), Budget::of_users(1));
        text.lines().for_each(|line| figures.read(line, &budget, ""));
        figures
    }

    /// Reads one more line of the answer of a process of `user`, or counts it as left out.
    pub fn read(&mut self, line: &str, budget: &Budget, user: &str) {
        let Some((name, value)) = line.split_once(' ') else { return };
        if self.keep(name, value, budget, user).is_none() {
            self.left_out += 1;
        }
    }

    fn keep(&mut self, name: &str, value: &str, budget: &Budget, user: &str) -> Option<()> {
        let numbered = |prefix: &str| {
            let (number, name) = name.strip_prefix(prefix)?.split_once('.')?;
            Some((number.parse().ok()?, name))
        };
        let (link, refusal) = (numbered("link."), numbered("refusal."));
        let known = match (link, refusal) {
            (Some((number, _)), _) => self.links.get(&number).map(|link| link.0.len()),
            (_, Some((number, _))) => self.refusals.get(&number).map(|refusal| refusal.0.len()),
            _ => Some(0).filter(|_| self.counters.len() < COUNTERS_MAX),
        };
        let is_new = known.is_none() && (link.is_some() || refusal.is_some());
        if known.is_some_and(|count| count >= FIGURES_OF_ONE_MAX) || (known.is_none() && !is_new) {
            return None;
        }
        let (_, name) = link.or(refusal).unwrap_or((0, name));
        let is_sentence = (link.or(refusal)).is_some() && SENTENCES.contains(&name);
        let (name, value) = (cut(name), if is_sentence { value.into() } else { cut(value) });
        // The index holds a counter's name, too.
        let new_bytes = if is_new { LINK_BYTES } else { 0 };
        let bytes = 2 * name.len() + value.len() + LINE_BYTES + new_bytes;
        let is_free = self.bytes + bytes <= ANSWER_BYTES_FREE;
        if !(is_free || budget.take(user, Of::Bytes, bytes)) {
            return None;
        }
        if is_new && !budget.take(user, Of::Links, 1) {
            return None;
        }
        self.bytes += bytes;
        match (link, refusal) {
            (Some((number, _)), _) => {
                self.links.entry(number).or_default().0.insert(name, value);
            }
            (_, Some((number, _))) => {
                self.refusals.entry(number).or_default().0.insert(name, value);
            }
            _ => {
                self.at.entry(name.clone()).or_insert(self.counters.len());
                self.counters.push((name, value));
            }
        }
        Some(())
    }

    /// A value that is no number, or is shown unchanged; empty if it is missing.
    pub fn text(&self, name: &str) -> &str {
        self.at.get(name).map_or("", |at| &self.counters[*at].1)
    }

    /// A counter that is a number; 0 if it is missing.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

impl Link {
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| value)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// Whether requests received before this look are still without a reply at a later one, with no
    /// traffic over the link in between.
    pub fn holds_requests_of(&self, later: &Link) -> bool {
        let is_same = |name| self.text(name) == later.text(name);
        self.number("requests_held") > 0
            && later.number("requests_held") > 0
            && ["peer_node", "ring_bytes_taken", "packets_taken"].into_iter().all(is_same)
    }

    /// The peer's process, if it is on this host.
    pub fn peer_pid(&self) -> Option<u32> {
        self.text("peer_process").parse().ok().filter(|_| !self.1)
    }

    /// The name of the peer's program, as far as it can be seen from here.
    pub fn peer_program(&self) -> Option<String> {
        self.peer_pid().and_then(program)
    }

    /// `user 1000, process 77 (postgres)`, as far as that can be seen from here; for another host,
    /// its address and its proved identity.
    pub fn peer(&self) -> String {
        if !self.text("peer_host").is_empty() {
            return format!("host {}", self.text("peer_host"));
        }
        let process = self.text("peer_process");
        let program = self.peer_program().map_or(String::new(), |program| format!(" ({program})"));
        format!("user {}, process {process}{program}", self.text("peer_user"))
    }
}

impl Refusal {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| value)
    }

    /// `3 s ago, user 1000, process 77 (ledger), service orders: this user may not connect`.
    pub fn in_words(&self) -> String {
        let ago = |name| duration(self.text(name).parse().unwrap_or(0));
        let process = self.text("process");
        let found = process.parse().ok().filter(|_| !self.1).and_then(program);
        let found = found.map_or(String::new(), |program| format!(" ({program})"));
        let sent_away = if self.text("kind") == "sent-away" { "sent away " } else { "" };
        let service = match self.text("service") {
            "" => String::new(),
            service => format!(", service {service}"),
        };
        let times = match self.text("count") {
            "" | "1" => String::new(),
            count => format!("; {count} times since {} ago", ago("first_ms_ago")),
        };
        format!(
            "{sent_away}{} ago, user {}, process {process}{found}{service}: {}{times}",
            ago("last_ms_ago"),
            self.text("user"),
            self.text("reason"),
        )
    }
}

/// How long senders waited for room, if the counts make sense: each is at least the one before.
#[derive(Debug, PartialEq)]
pub struct RoomWaits {
    /// Bounds in microseconds, rising, and the waits up to each.
    pub up_to: Vec<(u64, u64)>,
    pub count: u64,
    pub sum_us: u64,
}

/// Most bounds that are read, for any answer.
const BOUNDS_MAX: usize = 64;

impl RoomWaits {
    pub fn of(figures: &Figures) -> Option<Self> {
        let mut waits = Self { up_to: Vec::new(), count: 0, sum_us: 0 };
        for (name, value) in &figures.counters {
            let Some(name) = name.strip_prefix("room_waits.") else { continue };
            let value = value.parse().ok()?;
            match (name, name.strip_prefix("le_us_")) {
                ("count", _) => waits.count = value,
                ("sum_us", _) => waits.sum_us = value,
                (_, Some(bound)) => waits.up_to.push((bound.parse().ok()?, value)),
                _ => return None,
            }
        }
        let mut all = waits.up_to.iter().copied().chain([(u64::MAX, waits.count)]);
        let rises = all.clone().zip(all.by_ref().skip(1)).all(|(a, b)| a.0 < b.0 && a.1 <= b.1);
        (rises && !waits.up_to.is_empty() && waits.up_to.len() <= BOUNDS_MAX).then_some(waits)
    }

    /// `12 times, half of them 256 us at most, one of a hundred more than 65.5 ms`; `None`: never.
    pub fn in_words(&self) -> Option<String> {
        let bound = |part: f64| {
            let wanted = (self.count as f64 * part).ceil() as u64;
            let found = self.up_to.iter().find(|(_, count)| *count >= wanted);
            found.map_or("longer than can be told".into(), |(us, _)| match us {
                0..1000 => format!("{us} us at most"),
                us => format!("{} at most", duration(us / 1000)),
            })
        };
        (self.count > 0).then(|| {
            format!(
                "{} times, half of them {}, 99 of a hundred {}",
                self.count,
                bound(0.5),
                bound(0.99)
            )
        })
    }
}

/// Whether a process is stopped, by a signal or a debugger, as far as that may be read here.
pub fn is_stopped(pid: u32) -> bool {
    let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name stands before, in brackets, and may contain any byte.
    let end = text.iter().rposition(|byte| *byte == b')').unwrap_or(text.len());
    matches!(text.get(end..).unwrap_or_default(), [b')', b' ', b'T' | b't', ..])
}

/// The name of a process's program.
pub fn program(pid: u32) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(printable_bytes(text.trim_ascii_end()))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use hamlyn::{control, interface};

    /// Extreme values that a hostile process may write for each figure, in turn.
    pub fn extremes() -> Vec<Figures> {
        const OF_LINK: &str = "age_ms buffers_held buffers_held_ms buffers_max buffers_short made_by \
            bytes_received bytes_sent messages_held messages_max messages_queued \
            messages_received messages_sent messages_short packets_refused packets_taken \
            path peer_host peer_node peer_process peer_user peer_waits_for_room \
            requests_held requests_held_ms ring_bytes ring_bytes_sent ring_bytes_taken \
            ring_bytes_waiting service waits_for_buffer_ms waits_for_room_ms window_held \
            window_max window_short";
        const OF_PROCESS: &str = "links messages_received messages_sent naps node packets_discarded packets_sent \
            requests_held requests_held_ms room_waits.count room_waits.le_us_1 \
            room_waits.le_us_18446744073709551614 room_waits.sum_us samples_dropped turns \
            uptime_ms version waits wakes_sent";
        const OF_REFUSAL: &str = "count first_ms_ago kind last_ms_ago process reason service user";
        let counters = interface::Counters::described().into_iter();
        let counters = counters.chain(control::machine::Counters::described());
        let names: Vec<String> = counters.map(|(name, _)| name.to_string()).collect();
        let of = |prefix: &str, names: &str| -> Vec<String> {
            names.split(' ').map(|name| format!("{prefix}{name}")).collect()
        };
        let links = [of("link.0.", OF_LINK), of("link.4294967295.", OF_LINK)].concat();
        let names = [names, of("", OF_PROCESS), links, of("refusal.1.", OF_REFUSAL)].concat();
        let values = ["", "0", "1", "2", "9223372036854775808", "18446744073709551615"];
        let values =
            values.into_iter().chain(["18446744073709551616", "-1", "1e99", "x; y {held}"]);
        let text = |value| names.iter().map(|name| format!("{name} {value}\n")).collect::<String>();
        values.map(|value| Figures::of(&text(value))).collect()
    }

    #[test]
    fn waits_that_make_no_sense_are_left_out() {
        let of = |text: &str| RoomWaits::of(&Figures::of(text));
        let text = "room_waits.le_us_1 4\nroom_waits.le_us_4096 9\nroom_waits.count 10\n\
                    room_waits.sum_us 5000\n";
        let words = of(text).unwrap().in_words().unwrap();
        assert_eq!(
            words,
            "10 times, half of them 4 ms at most, 99 of a hundred longer than can be told"
        );
        for (good, bad) in
            [(" 9", " 3"), ("le_us_1", "le_us_9999"), (" 10", " -1"), ("sum_us", "x")]
        {
            assert_eq!(of(&text.replacen(good, bad, 1)), None, "{bad}");
        }
        let many: String = (0..5000).map(|i| format!("room_waits.le_us_{i} 0\n")).collect();
        assert_eq!(of(&many), None);
    }

    #[test]
    fn who_was_refused_is_said_in_words_and_what_is_missing_is_no_panic() {
        let of = |text: &str| Figures::of(text).refusals[&1].in_words();
        let text = "refusal.1.kind refused\nrefusal.1.user 7\nrefusal.1.process unknown\n\
                    refusal.1.service x\nrefusal.1.reason it has 2 clients\nrefusal.1.count 1\n\
                    refusal.1.last_ms_ago 3200\n";
        assert_eq!(of(text), "3.2 s ago, user 7, process unknown, service x: it has 2 clients");
        let text = text.replace("kind refused", "kind sent-away").replace("count 1", "count 5");
        let said = of(&(text + "refusal.1.first_ms_ago 240000\n"));
        assert!(said.starts_with("sent away 3.2 s ago, user 7"), "{said}");
        assert!(said.ends_with("it has 2 clients; 5 times since 4 min ago"), "{said}");
        assert!(of("refusal.1.last_ms_ago x\n").starts_with("0 ms ago"));
    }

    #[test]
    fn an_answer_of_any_size_makes_a_bounded_number_of_bounded_figures() {
        let long = "x".repeat(5000);
        let lines = (0..5000).map(|i| {
            format!("{i}{long} {long}\nlink.{i}.{long} {long}\nlink.1.{i} 1\nrefusal.1.{i} 1\nlink.{i}.path {long}\n")
        });
        let figures = Figures::of(&lines.collect::<String>());
        assert_eq!(
            (figures.counters.len(), figures.links[&1].0.len()),
            (COUNTERS_MAX, FIGURES_OF_ONE_MAX)
        );
        assert!(
            figures.links.len() > 1000 && figures.links.len() <= 2048,
            "{}",
            figures.links.len()
        );
        assert_eq!(figures.refusals[&1].0.len(), FIGURES_OF_ONE_MAX);
        let is_short =
            |(name, value): (&String, &String)| name.len() <= CHARS_MAX && value.len() <= CHARS_MAX;
        assert!(figures.counters.iter().all(|(name, value)| is_short((name, value))));
        let of_links = figures.links.values().flat_map(|link| &link.0);
        assert!(of_links.filter(|(name, _)| *name != "path").all(is_short));
        assert!(figures.left_out > 10_000, "{}", figures.left_out);
    }

    #[test]
    fn counters_and_links_are_told_apart_and_nonsense_is_kept_as_text() {
        let text = "packets_sent 7\nlink.3.path a ring; why not\nlink.3.messages_sent 5\n\
                    link.x.path y\nnothing\nlink.3.messages_sent 6\nodd -1\n";
        let figures = Figures::of(text);
        assert_eq!((figures.number("packets_sent"), figures.number("odd")), (7, 0));
        assert_eq!(figures.links.len(), 1);
        let link = &figures.links[&3];
        assert_eq!((link.text("path"), link.number("messages_sent")), ("a ring; why not", 6));
        assert_eq!(RoomWaits::of(&figures), None);
        assert_eq!(figures.counters[1], ("link.x.path".into(), "y".into()));
    }
}
