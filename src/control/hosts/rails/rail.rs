//! One rail of a link, and the place that it has there.

use super::super::channel::{Channel, Ended};
use super::super::path::Path;
use crate::os::sys::monotonic_ns;
use std::boxed::Box;
use std::format;
use std::string::String;

/// One of them.
#[derive(Debug)]
pub(super) struct Rail {
    /// Never used again.
    pub(super) id: u64,
    pub(super) place: u8,
    pub(super) path: Box<dyn Path>,
    /// The addresses of both ends, in words.
    pub(super) ends: String,
    /// Something waits for the network; and its descriptor tells when there is room.
    pub(super) is_behind: bool,
    pub(super) is_watched: bool,
    /// Bytes put since nothing waited.
    pub(super) queued: usize,
    /// Nothing more leaves over it.
    pub(super) is_broken: bool,
    /// At the last look its host had owed an answer for long.
    pub(super) was_silent: bool,
    /// The other end's question that is to be answered here.
    pub(super) question: Option<u64>,
    /// The question that was asked here and not answered here.
    pub(super) asked: Option<u64>,
    /// A later one, or that one, which is yet to be put here: once this takes more.
    pub(super) owed: Option<u64>,
    /// When something that was sent over it was last known to have come, or it was asked.
    pub(super) progress_ns: u64,
    /// What the other end was last told over it; and that it is to be told at once.
    pub(super) told: (u64, u64),
    pub(super) tells: bool,
}

impl Rail {
    /// It has yet to answer, and another has answered that or a later question: perhaps it has stalled.
    pub(super) fn is_suspect(&self, answered: u64) -> bool {
        self.asked.is_some_and(|asked| answered >= asked)
    }

    /// It is asked what has come over any, once it takes more. One that owes an answer owes it since it was
    /// asked first; of questions that it has not taken the last stands for all.
    pub(super) fn ask(&mut self, question: u64) {
        if self.asked.is_none() {
            (self.asked, self.progress_ns) = (Some(question), monotonic_ns());
        }
        self.owed = Some(question);
    }

    /// The question that is to be put now, if any.
    pub(super) fn owes(&mut self) -> Option<u64> {
        self.owed.take_if(|_| !self.is_behind && !self.is_broken)
    }

    /// Whatever waits for the network leaves, as far as that takes it.
    pub(super) fn flush(&mut self) {
        if self.is_behind && self.path.flush() {
            (self.is_behind, self.queued) = (false, 0);
        }
    }

    /// Bytes in whose head the other end is told this.
    pub(super) fn put(&mut self, told: (u64, u64), bytes: &[u8]) {
        self.path.put(bytes);
        self.queued += bytes.len();
        (self.is_behind, self.told, self.tells) = (true, told, false);
    }
}

/// A place for a rail.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) is_live: bool,
    /// How often its rail was left.
    pub(super) left: u64,
    /// Why, the last time.
    pub(super) why: String,
    /// Why it could not be made anew since.
    pub(super) missing: String,
}

/// The addresses of both ends of a connection.
pub(in super::super) fn ends_of(channel: &Channel) -> String {
    channel.addresses().map_or(String::new(), |(own, other)| format!(", {own} to {other}"))
}

pub(super) fn of_end(ended: &Ended) -> String {
    match ended {
        Ended::Said => "the other end closed its connection".into(),
        Ended::Cut => "its connection was cut".into(),
        Ended::Broken(why) | Ended::Failed(why) => format!("its connection broke: {why}"),
        Ended::Nonsense(why) => format!("it cannot be read any more: {why}"),
    }
}
