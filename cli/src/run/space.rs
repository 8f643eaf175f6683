//! The launcher's state of a job's conversation: the ranks, the values each has put, and the ranks
//! at the fence. Ranks may send anything.

use hamlyn::job::lines::{JobLine, ranks_to_word};
use std::collections::{BTreeSet, HashMap};

/// Most bytes that one rank may put, with names and the overhead of storage.
const BYTES_PER_RANK_MAX: usize = 16 << 20;
/// Approximate overhead of an entry beside its name and its value.
const BYTES_PER_ENTRY: usize = 128;

/// A line for a rank.
pub type Answer = (u32, JobLine);

/// The key-value space of one job.
pub struct Space {
    size: u32,
    secret: String,
    /// By rank; empty in a job of one host.
    hosts: Vec<String>,
    values: HashMap<String, String>,
    bytes: HashMap<u32, usize>,
    waiting: BTreeSet<u32>,
    ended: BTreeSet<u32>,
}

impl Space {
    pub fn new(size: u32, secret: String, hosts: Vec<String>) -> Self {
        Self {
            size,
            secret,
            hosts,
            values: HashMap::new(),
            bytes: HashMap::new(),
            waiting: BTreeSet::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Handles a line of a rank.
    pub fn hear(&mut self, rank: u32, bytes: &[u8]) -> Vec<Answer> {
        let Some(line) = JobLine::parse(bytes) else {
            return [(rank, refusal("error", "not_a_line"))].into();
        };
        let answer = match line.command() {
            "init" => self.init(rank),
            "put" => self.put(rank, &line),
            "get" => match line.get("key").and_then(|key| self.values.get(key)) {
                Some(value) => yes("get_result").with("value", value),
                None => refusal("get_result", "key_not_found"),
            },
            "barrier_in" => {
                self.waiting.insert(rank);
                return self.look();
            }
            "missing" => {
                let missing = match self.waiting.contains(&rank) {
                    true => (0..self.size).filter(|rank| !self.waiting.contains(rank)).collect(),
                    false => Vec::new(),
                };
                yes("missing_result").with("ranks", ranks_to_word(&missing))
            }
            "finalize" => yes("finalize_ack"),
            _ => refusal("error", "unknown_command"),
        };
        [(rank, answer)].into()
    }

    /// Notes that a rank comes to no more fences.
    pub fn end(&mut self, rank: u32) -> Vec<Answer> {
        self.ended.insert(rank);
        self.look()
    }

    fn init(&self, rank: u32) -> JobLine {
        let line = yes("response_to_init").with("rank", rank).with("size", self.size);
        let line = line.with("secret", &self.secret);
        match self.hosts.get(rank as usize) {
            Some(host) => line.with("host", host),
            None => line,
        }
    }

    fn put(&mut self, rank: u32, line: &JobLine) -> JobLine {
        let result = "put_result";
        let (Some(key), Some(value)) = (line.get("key"), line.get("value")) else {
            return refusal(result, "no_key_or_value");
        };
        if !key.starts_with(&format!("hm-{rank}-")) {
            return refusal(result, "not_this_rank's_key");
        }
        if self.values.contains_key(key) {
            return refusal(result, "key_is_there_already");
        }
        let bytes = self.bytes.entry(rank).or_default();
        let more = key.len() + value.len() + BYTES_PER_ENTRY;
        if *bytes + more > BYTES_PER_RANK_MAX {
            return refusal(result, "this_rank_has_put_too_much");
        }
        *bytes += more;
        self.values.insert(key.into(), value.into());
        yes(result)
    }

    /// Checks whether the fence has ended.
    fn look(&mut self) -> Vec<Answer> {
        let line = if self.waiting.len() == self.size as usize {
            yes("barrier_out")
        } else {
            let missed = self.ended.difference(&self.waiting).copied().collect::<Vec<_>>();
            if missed.is_empty() {
                return Vec::new();
            }
            JobLine::new("barrier_out").with("rc", 1).with("ended", ranks_to_word(&missed))
        };
        std::mem::take(&mut self.waiting).into_iter().map(|rank| (rank, line.clone())).collect()
    }
}

fn yes(command: &str) -> JobLine {
    JobLine::new(command).with("rc", 0)
}

fn refusal(command: &str, why: &str) -> JobLine {
    JobLine::new(command).with("rc", 1).with("msg", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space::new(3, "5e".repeat(32), Vec::new())
    }

    fn said(space: &mut Space, rank: u32, text: &str) -> Vec<String> {
        let answers = space.hear(rank, text.as_bytes());
        let text =
            |line: JobLine| String::from_utf8(line.to_bytes()).unwrap().trim_end().to_owned();
        answers.into_iter().map(|(to, line)| format!("{to}: {}", text(line))).collect()
    }

    #[test]
    fn a_fence_ends_when_all_have_come_and_says_who_is_missing_until_then() {
        let mut space = space();
        assert!(said(&mut space, 1, "cmd=barrier_in").is_empty());
        assert_eq!(said(&mut space, 1, "cmd=missing"), ["1: cmd=missing_result rc=0 ranks=0,2"]);
        assert!(said(&mut space, 0, "cmd=barrier_in").is_empty());
        let out = said(&mut space, 2, "cmd=barrier_in");
        assert_eq!(out.len(), 3);
        assert!(out.iter().all(|line| line.ends_with("cmd=barrier_out rc=0")), "{out:?}");
        assert_eq!(said(&mut space, 1, "cmd=missing"), ["1: cmd=missing_result rc=0 ranks="]);
    }

    #[test]
    fn a_fence_ends_for_all_with_a_rank_that_ends_before_it_comes() {
        let mut space = space();
        said(&mut space, 0, "cmd=barrier_in");
        assert_eq!(space.end(2).len(), 1);
        let out = said(&mut space, 1, "cmd=barrier_in");
        assert_eq!(out, ["1: cmd=barrier_out rc=1 ended=2"]);
    }

    #[test]
    fn a_rank_puts_once_and_under_its_own_number() {
        let mut space = space();
        assert_eq!(said(&mut space, 1, "cmd=put key=hm-1-a value=00"), ["1: cmd=put_result rc=0"]);
        for text in [
            "cmd=put key=hm-1-a value=01",
            "cmd=put key=hm-10-a value=01",
            "cmd=put key=a value=01",
            "cmd=put key=hm-1-b",
            "cmd=what",
            "what",
            "",
        ] {
            let out = said(&mut space, 1, text);
            assert!(out.len() == 1 && out[0].contains("rc=1"), "{text}: {out:?}");
        }
        let got = said(&mut space, 2, "cmd=get key=hm-1-a");
        assert_eq!(got, ["2: cmd=get_result rc=0 value=00"]);
    }

    #[test]
    fn what_one_rank_puts_is_bounded() {
        let mut space = space();
        let value = "0".repeat(60_000);
        let refused = (0..400).find(|i| {
            said(&mut space, 0, &format!("cmd=put key=hm-0-{i} value={value}"))[0].contains("rc=1")
        });
        assert!(refused.is_some_and(|i| i > 200), "{refused:?}");
        // Short ones take more than their bytes.
        let refused = (0..200_000).find(|i| {
            said(&mut space, 1, &format!("cmd=put key=hm-1-{i} value=0"))[0].contains("rc=1")
        });
        assert!(refused.is_some_and(|i| i > 100_000), "{refused:?}");
    }
}
