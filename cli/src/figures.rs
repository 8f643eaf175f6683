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

    /// `user 1000, process 77 (postgres)`, as far as that can be seen from here.
    pub fn peer(&self) -> String {
        let process = self.text("peer_process");
        let program = process.parse().ok().and_then(program);
        let program = program.map_or(String::new(), |program| format!(" ({program})"));
        format!("user {}, process {process}{program}", self.text("peer_user"))
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
    fn counters_and_links_are_told_apart_and_nonsense_is_kept_as_text() {
        let text = "packets_sent 7\nlink.3.path a ring; why not\nlink.3.messages_sent 5\n\
                    link.x.path y\nnothing\nlink.3.messages_sent 6\nodd -1\n";
        let figures = Figures::of(text);
        assert_eq!((figures.number("packets_sent"), figures.number("odd")), (7, 0));
        assert_eq!(figures.links.len(), 1);
        let link = &figures.links[&3];
        assert_eq!((link.text("path"), link.number("messages_sent")), ("a ring; why not", 6));
        assert_eq!(figures.counters[1], ("link.x.path".into(), "y".into()));
    }
}
