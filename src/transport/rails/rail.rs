//! One rail of a link, and its place there.

use super::super::channel::Channel;
use super::super::path::Path;
use super::super::path::PathEnd;
use crate::os::sys::monotonic_ns;
use std::boxed::Box;
use std::format;
use std::string::String;

/// A rail.
#[derive(Debug)]
pub(super) struct Rail {
    /// Never reused.
    pub(super) id: u64,
    pub(super) place: u8,
    pub(super) path: Box<dyn Path>,
    /// The addresses of both ends, in words.
    pub(super) ends: String,
    /// Bytes wait for the network; and its descriptor signals when there is room.
    pub(super) is_behind: bool,
    pub(super) is_watched: bool,
    /// Bytes put since the network last had taken all.
    pub(super) queued: usize,
    /// Nothing more can be sent over it.
    pub(super) is_broken: bool,
    /// At the last check its host had owed an answer for long.
    pub(super) was_silent: bool,
    /// The other end's question, to be answered over this rail.
    pub(super) question: Option<u64>,
    /// The question that was asked over this rail and not answered over it.
    pub(super) asked: Option<u64>,
    /// The same question or a later one, to be sent over this rail once it takes more.
    pub(super) owed: Option<u64>,
    /// The last time at which a batch sent over it was confirmed, or at which it was asked.
    pub(super) progress_ns: u64,
    /// The last report sent over it; and whether to send one at once.
    pub(super) told: (u64, u64),
    pub(super) tells: bool,
}

impl Rail {
    /// It has not answered a question that another rail has answered, or a later one: perhaps it
    /// has stalled.
    pub(super) fn is_suspect(&self, answered: u64) -> bool {
        self.asked.is_some_and(|asked| answered >= asked)
    }

    /// Asks over this rail, once it takes more, which batches have come over any. The time of the
    /// first unanswered question counts; of questions that are not sent yet the last replaces the
    /// others.
    pub(super) fn ask(&mut self, question: u64) {
        if self.asked.is_none() {
            (self.asked, self.progress_ns) = (Some(question), monotonic_ns());
        }
        self.owed = Some(question);
    }

    /// The question to send now, if any.
    pub(super) fn owes(&mut self) -> Option<u64> {
        self.owed.take_if(|_| !self.is_behind && !self.is_broken)
    }

    /// Sends waiting bytes, as far as the network takes them.
    pub(super) fn flush(&mut self) {
        if self.is_behind && self.path.flush() {
            (self.is_behind, self.queued) = (false, 0);
        }
    }

    /// Puts bytes whose head contains this report.
    pub(super) fn put(&mut self, told: (u64, u64), bytes: &[u8]) {
        self.path.put(bytes);
        self.queued += bytes.len();
        (self.is_behind, self.told, self.tells) = (true, told, false);
    }
}

/// A place for a rail.
#[derive(Clone, Debug, Default)]
pub(super) struct RailPlace {
    pub(super) is_live: bool,
    /// The number of rails here that were left.
    pub(super) left: u64,
    /// The reason of the last time.
    pub(super) why: String,
    /// The reason why it could not be made again since.
    pub(super) missing: String,
}

/// The addresses of both ends of a connection.
pub fn ends_of(channel: &Channel) -> String {
    channel.addresses().map_or(String::new(), |(own, other)| format!(", {own} to {other}"))
}

pub(super) fn of_end(ended: &PathEnd) -> String {
    match ended {
        PathEnd::Said => "the other end closed its connection".into(),
        PathEnd::Cut => "its connection was cut".into(),
        PathEnd::Broken(why) | PathEnd::Failed(why) => format!("its connection broke: {why}"),
        PathEnd::Nonsense(why) => format!("it cannot be read any more: {why}"),
    }
}
