//! The lines that a rank and its launcher exchange: `name=value name=value ..`, the first `cmd=..`.
//!
//! It is the text of PMI-1 (MPICH's process manager interface), which `hamlyn run` speaks, too,
//! with additional words. Neither end is trusted: a line is bounded, is checked whole, and is an
//! error otherwise.

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

/// Longest line, with its end.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most `name=value` words of a line.
const WORDS_MAX: usize = 32;

/// One line, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobLine {
    words: Vec<(String, String)>,
}

impl JobLine {
    /// `cmd=command`.
    pub fn new(command: &str) -> Self {
        Self { words: [("cmd".to_string(), command.to_string())].into() }
    }

    /// Adds another word. `value` must hold no blank.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        debug_assert!(is_word(value.as_bytes()), "{value:?}");
        self.words.push((name.into(), value));
        self
    }

    /// Parses an untrusted line; `None`: it is not valid. The line's end may be included or not.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let text = core::str::from_utf8(bytes).ok()?;
        let mut words = Vec::new();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            if words.len() == WORDS_MAX || !is_word(word.as_bytes()) {
                return None;
            }
            let (name, value) = word.split_once('=')?;
            words.push((name.into(), value.into()));
        }
        (words.first()?.0 == "cmd").then_some(Self { words })
    }

    /// The command, of a question or an answer.
    pub fn command(&self) -> &str {
        &self.words[0].1
    }

    /// The value of the first word with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.words.iter().find(|word| word.0 == name).map(|word| word.1.as_str())
    }

    /// The same, as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Whether it is a refusal. A line without a result is no refusal.
    pub fn is_refusal(&self) -> bool {
        self.get("rc").is_some_and(|rc| rc != "0")
    }

    /// The line in its wire form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words: Vec<String> = self.words.iter().map(|(n, v)| format!("{n}={v}")).collect();
        (words.join(" ") + "\n").into_bytes()
    }
}

/// Printable, without a blank.
fn is_word(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| byte.is_ascii_graphic())
}

/// Bytes as two hexadecimal digits each.
pub fn to_hex(bytes: &[u8]) -> String {
    use core::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of such digits.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// Most ranks that a word names: they fit into a line, and a reader needs no more.
const RANKS_NAMED_MAX: usize = 1000;

/// Numbers of ranks as a word, the first thousand of them: `2,3`.
pub fn ranks_to_word(ranks: &[u32]) -> String {
    let named = ranks.iter().take(RANKS_NAMED_MAX);
    named.map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The numbers below `size` of such a word.
pub fn ranks_of_word(word: &str, size: u32) -> Option<Vec<u32>> {
    let ranks: Option<Vec<u32>> = match word {
        "" => Some(Vec::new()),
        word => word.split(',').map(|rank| rank.parse().ok()).collect(),
    };
    ranks.filter(|ranks| ranks.len() <= size as usize && ranks.iter().all(|rank| *rank < size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_what_it_was_after_the_way_there() {
        let line = JobLine::new("put").with("key", "a").with("value", "x=y");
        assert_eq!(line.to_bytes(), b"cmd=put key=a value=x=y\n");
        let read = JobLine::parse(&line.to_bytes()).unwrap();
        assert_eq!((read.command(), read.get("value"), read.get("b")), ("put", Some("x=y"), None));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        let long = "a=b ".repeat(WORDS_MAX);
        for text in
            ["", " ", "x", "key=a cmd=put", "cmd=put key", "cmd=a\tb", "cmd=\u{e9}", "cmd=a\nb=c"]
        {
            assert_eq!(JobLine::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(JobLine::parse(format!("cmd=x {long}").as_bytes()), None);
        assert_eq!(JobLine::parse(b"cmd=\xff"), None);
    }

    #[test]
    fn numbers_of_ranks_are_of_the_job() {
        assert_eq!(ranks_of_word("0,3", 4), Some([0, 3].into()));
        assert_eq!(ranks_of_word("", 4), Some([].into()));
        for word in ["4", "-1", "1,", "0,1,2,3,0", "x"] {
            assert_eq!(ranks_of_word(word, 4), None, "{word}");
        }
        assert_eq!(ranks_to_word(&[2, 3]), "2,3");
        // Any number of missing ranks fits into a line.
        assert!(ranks_to_word(&[1_000_000; 100_000]).len() < LINE_BYTES_MAX / 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(line) = JobLine::parse(&bytes) {
                prop_assert_eq!(JobLine::parse(&line.to_bytes()), Some(line));
            }
        }

        #[test]
        fn bytes_survive_their_digits(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_digits_or_not(text in "[0-9a-fg]{0,9}") {
            let even = text.len() % 2 == 0 && !text.contains('g');
            prop_assert_eq!(from_hex(&text).is_some(), even);
        }
    }
}
