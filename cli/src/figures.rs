//! The statistics of a process, as `stat`, `why` and their like read them. Another process wrote
//! them, and perhaps another user's: they are taken apart, bounded, and printed, and nothing else.

use hamlyn::control::printable_bytes;
use std::collections::BTreeMap;

/// What a process says of itself: each line is a name, a space and a value.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// In the order in which they came.
    pub counters: Vec<(String, String)>,
    /// By the link's number.
    pub links: BTreeMap<u32, Link>,
}

/// One link, as its process sees it.
#[derive(Debug, Default, PartialEq)]
pub struct Link(pub BTreeMap<String, String>);

impl Figures {
    pub fn of(text: &str) -> Self {
        let mut figures = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let of_link = name
                .strip_prefix("link.")
                .and_then(|rest| rest.split_once('.'))
                .and_then(|(number, name)| Some((number.parse().ok()?, name)));
            match of_link {
                Some((number, name)) => {
                    let link: &mut Link = figures.links.entry(number).or_default();
                    link.0.insert(name.into(), value.into());
                }
                None => figures.counters.push((name.into(), value.into())),
            }
        }
        figures
    }

    /// What is no number, or is to be shown as it is; empty where there is none.
    pub fn text(&self, name: &str) -> &str {
        let found = self.counters.iter().find(|counter| counter.0 == name);
        found.map_or("", |counter| &counter.1)
    }

    /// A counter that is a number; 0 where there is none.
    pub fn number(&self, name: &str) -> u64 {
        let found = self.counters.iter().find(|counter| counter.0 == name);
        found.and_then(|counter| counter.1.parse().ok()).unwrap_or(0)
    }
}

impl Link {
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| value)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// What the peer's process calls itself, as far as it can be seen from here.
    pub fn peer_program(&self) -> Option<String> {
        self.text("peer_process").parse().ok().and_then(program)
    }

    /// `user 1000, process 77 (postgres)`, as far as that can be seen from here.
    pub fn peer(&self) -> String {
        let process = self.text("peer_process");
        let program = self.peer_program().map_or(String::new(), |program| format!(" ({program})"));
        format!("user {}, process {process}{program}", self.text("peer_user"))
    }
}

/// How long senders waited for room, if that makes sense: each count is at least the one before.
#[derive(Debug, PartialEq)]
pub struct RoomWaits {
    /// Bounds in microseconds, rising, and the waits up to each.
    pub up_to: Vec<(u64, u64)>,
    pub count: u64,
    pub sum_us: u64,
}

/// Most bounds that are looked at, whatever another process wrote.
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
                us => format!("{} at most", crate::stat::duration(us / 1000)),
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

/// What a process calls itself.
pub fn program(pid: u32) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(printable_bytes(text.trim_ascii_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
